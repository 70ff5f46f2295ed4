"""A learned alpha, and what modules take as alpha."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["AlphaLike", "LearnedAlpha", "alpha_value"]

AlphaLike = float | Tensor | nn.Module


class LearnedAlpha(nn.Module):
    """One alpha of entmax for each head, kept between its bounds whatever the optimiser does.

    alpha = low + (high - low) sigmoid(a) between two bounds (Correia, Niculae and Martins 2019 with
    1 and 2), alpha = low + softplus(a) above one; a is the parameter ``raw``.

    Args:
        heads: number of alphas; None: a single one, of shape [].
        initial: the alpha to start from, strictly between the bounds.
        low: >= 1.
        high: > low; None: no bound above.

    Raises:
        ValueError: names the argument, what was expected and what came.
    """

    def __init__(
        self,
        heads: int | None = None,
        initial: float = 1.5,
        low: float = 1.0,
        high: float | None = 2.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if heads is not None and heads < 1:
            raise ValueError(f"heads: expected None or an integer >= 1, got {heads}")
        if not 1.0 <= low < math.inf:
            raise ValueError(f"low: expected a finite number >= 1, got {low}")
        if high is not None and not low < high < math.inf:
            raise ValueError(f"high: expected None or a finite number > low = {low}, got {high}")
        if not low < initial < (math.inf if high is None else high):
            raise ValueError(f"initial: expected a number inside ({low}, {high}), got {initial}")
        self.low = low
        self.high = high
        if high is None:
            start = math.log(math.expm1(initial - low))
        else:
            start = math.log((initial - low) / (high - initial))
        shape = () if heads is None else (heads,)
        self.raw = nn.Parameter(torch.full(shape, start, device=device, dtype=dtype))

    def forward(self) -> Tensor:
        """The alphas: [heads], or [] if there is a single one."""
        if self.high is None:
            return self.low + nn.functional.softplus(self.raw)
        return self.low + (self.high - self.low) * self.raw.sigmoid()

    def extra_repr(self) -> str:
        high = math.inf if self.high is None else self.high
        return f"shape={list(self.raw.shape)}, low={self.low}, high={high}"


def alpha_value(alpha: AlphaLike) -> float | Tensor:
    """The number or tensor behind an alpha that may be a module."""
    if isinstance(alpha, nn.Module):
        value = alpha()
        if not isinstance(value, Tensor):
            raise TypeError(
                f"alpha: expected a module that returns a tensor, got {type(value).__name__}"
            )
        return value
    return alpha
