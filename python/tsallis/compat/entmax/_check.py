"""Checks of the arguments that say how the original searches, and rows with a number each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def count(value: object, argument: str, none: bool = False) -> None:
    """Refuses a ``k`` or an ``n_iter`` with which the original could not have worked."""
    if value is None and none:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        expected = "an integer >= 1" + (" or None" if none else "")
        raise ValueError(f"{argument}: expected {expected}, got {value!r}")


def alpha_argument(alpha: float | Tensor) -> float | Tensor:
    """``alpha`` as the maps take it; the original also takes tensors of integers."""
    if isinstance(alpha, Tensor) and not alpha.is_floating_point():
        return alpha.float()
    return alpha


def by_value(numbers: Tensor, apply: Callable[[Tensor, float], Tensor]) -> Tensor:
    """``apply(rows, number)`` for each distinct number and the rows that have it, in rows' order.

    numbers: [rows]; ``rows``: int64 indices. For settings that the kernels take one of in a call.
    """
    distinct, which = numbers.detach().unique(return_inverse=True)
    values = distinct.tolist() or [1.0]  # one call also without rows, for the shape
    chosen = [(which == i).nonzero().squeeze(1) for i in range(len(values))]
    parts = [apply(rows, value) for rows, value in zip(chosen, values, strict=True)]
    return torch.cat(parts)[torch.cat(chosen).argsort()]
