"""A learned alpha, and what modules take as alpha."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tsallis._call import number
from tsallis._dense import check_heads

__all__ = ["AlphaLike", "LearnedAlpha", "alpha_value", "check_alpha"]

AlphaLike = float | Tensor | nn.Module


class LearnedAlpha(nn.Module):
    """One alpha of entmax for each head, kept between its bounds whatever the optimiser does.

    alpha = low + (high - low) sigmoid(a) between two bounds (Correia, Niculae and Martins 2019 with
    1 and 2), alpha = low + softplus(a) above one; a is the parameter ``raw``.

    Args:
        heads: number of alphas; None: a single one, of shape [].
        initial: the alpha to start from, strictly between the bounds.
        low: > 0. Heads with an alpha below 1 have no weight of 0.
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
        if not 0.0 < low < math.inf:
            raise ValueError(f"low: expected a finite number > 0, got {low}")
        if high is not None and not low < high < math.inf:
            raise ValueError(f"high: expected None or a finite number > low = {low}, got {high}")
        if not low < initial < (math.inf if high is None else high):
            raise ValueError(f"initial: expected a number inside ({low}, {high}), got {initial}")
        self.initial = initial
        self.low = low
        self.high = high
        shape = () if heads is None else (heads,)
        self.raw = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets every alpha to ``initial``."""
        above = self.initial - self.low
        if self.high is None:
            start = above + math.log(-math.expm1(-above))  # the inverse of softplus
        else:
            start = math.log(above / (self.high - self.initial))
        nn.init.constant_(self.raw, start)

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
        if not isinstance(value, Tensor | float | int):
            raise TypeError(
                "alpha: expected a module that returns a number or a tensor, got "
                f"{type(value).__name__}"
            )
        return value
    return alpha


def check_alpha(alpha: AlphaLike, heads: int) -> None:
    """Refuses an alpha of entmax that no call could use with ``heads`` heads.

    Raises:
        TypeError: neither a number, a floating-point tensor nor a module.
        ValueError: out of range, or a shape that does not broadcast to [heads].
    """
    if isinstance(alpha, nn.Module):
        return
    if isinstance(alpha, Tensor):
        if not alpha.is_floating_point():
            raise TypeError(f"alpha: expected a floating-point tensor, got {alpha.dtype}")
        check_heads(alpha, heads)
        fits = alpha.is_meta or bool(((alpha > 0) & alpha.isfinite()).all())
    else:
        alpha = number(alpha, "alpha")
        fits = 0 < alpha < math.inf
    if not fits:
        raise ValueError(f"alpha: expected finite numbers > 0, got {alpha}")
