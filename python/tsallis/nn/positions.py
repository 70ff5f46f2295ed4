"""Positions that act on scores: ALiBi, NAPE, scale invariance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn

__all__ = ["NAPE", "ALiBi", "ScaleInvariant", "SlopeFamily"]

SlopeFamily = Literal["exponential", "slow", "harmonic"]


def _slopes(heads: int, slopes: SlopeFamily | Sequence[float]) -> Tensor:
    """float64 [heads]; h counts from 1."""
    h = torch.arange(1, heads + 1, dtype=torch.float64, device="cpu")
    if isinstance(slopes, str):
        families = {
            "exponential": 2.0 ** (-8.0 * h / max(heads, 1)),
            "slow": 2.0 ** (-h / max(heads, 1)),
            "harmonic": 1.0 / h,
        }
        if slopes not in families:
            raise ValueError(f"slopes: expected {', '.join(families)} or numbers, got {slopes!r}")
        return families[slopes]
    given = torch.tensor(list(slopes), dtype=torch.float64, device="cpu")
    if list(given.shape) != [heads]:
        raise ValueError(f"slopes: expected {heads} numbers, got shape {list(given.shape)}")
    return given


class ALiBi(nn.Module):
    """Slopes of heads: ``alibi_slopes`` of `tsallis.attention`, s -= slope \\|i - j\\|.

    Press, Smith and Lewis 2022.

    Args:
        heads: number of heads.
        slopes: "exponential", 2^(-8h / heads) for h = 1, 2, …; "slow", 2^(-h / heads); "harmonic",
            1 / h; or one number for each head.
        learned: whether slopes are a parameter (else a buffer that is not saved).
    """

    slopes: Tensor

    def __init__(
        self,
        heads: int,
        slopes: SlopeFamily | Sequence[float] = "exponential",
        *,
        learned: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads: expected an integer >= 1, got {heads}")
        self._set(_slopes(heads, slopes), learned, device, dtype)

    def _set(
        self,
        values: Tensor,
        learned: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        self._initial = values.tolist()
        here = torch.empty(0, device=device).device  # also the one of a `with torch.device(…)`
        values = values.to(device=here, dtype=dtype or torch.get_default_dtype())
        if learned:
            self.slopes = nn.Parameter(values)
        else:
            self.register_buffer("slopes", values, persistent=False)

    def reset_parameters(self) -> None:
        """Sets the slopes to those that the module was made with."""
        with torch.no_grad():
            self.slopes.copy_(torch.tensor(self._initial, dtype=torch.float64, device="cpu"))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves to another device or dtype; slopes that are a buffer have their values there."""
        empty = self.slopes.is_meta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if empty and not self.slopes.is_meta and not isinstance(self.slopes, nn.Parameter):
            self.reset_parameters()  # `to_empty` leaves memory without values
        return self

    def forward(self) -> Tensor:
        """Slopes [heads]."""
        return self.slopes


class NAPE(ALiBi):
    """ALiBi in the first heads, no positions in the others: slopes, and 0.

    Vasylenko, Pitorro, Martins and Treviso 2025.

    Args:
        heads: number of heads.
        share: in (0, 1]; int(share * heads) heads, at least one, get slopes.
        slopes: of these heads, as for `ALiBi`.
        learned: whether their slopes are a parameter; the others' stay 0.
    """

    def __init__(
        self,
        heads: int,
        share: float = 0.5,
        slopes: SlopeFamily | Sequence[float] = "harmonic",
        *,
        learned: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)
        if heads < 1:
            raise ValueError(f"heads: expected an integer >= 1, got {heads}")
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share: expected a number in (0, 1], got {share}")
        self.sloped = max(1, int(share * heads))
        self.heads = heads
        self._set(_slopes(self.sloped, slopes), learned, device, dtype)

    def forward(self) -> Tensor:
        """Slopes [heads]."""
        return nn.functional.pad(self.slopes, (0, self.heads - self.sloped))


class ScaleInvariant(nn.Module):
    """Scores that spread with distance d: a_d s + m_d with a_d^2 = 2 [ln(d / length + 1) - ln alpha
    + beta / alpha] and m_d = beta / alpha - a_d^2 (Anson et al. 2025, eq. 16).

    For scores that are stored; ``tsallis.attention(..., scale_invariant=module.length)`` is the
    same without storing them, and takes alpha and beta as well.

    Args:
        length: the length scale, > 0.
        alpha: from 1e-6 to 1e6: of scores that are standard normal before, a key at distance d has
            the expected weight alpha / (d / length + 1), not yet divided by the row's sum.
        beta: from alpha ln alpha to 100 alpha. alpha and beta, unless given, leave scores at
            distance 0 as they are: both are e^(1/2), so that a_d^2 = 2 ln(d / length + 1) + 1.
    """

    def __init__(
        self,
        length: float = 10.0,
        alpha: float = math.sqrt(math.e),
        beta: float = math.sqrt(math.e),
    ) -> None:
        super().__init__()
        if not 0.0 < length < float("inf"):
            raise ValueError(f"length: expected a finite number > 0, got {length}")
        if not 1e-6 <= alpha <= 1e6:
            raise ValueError(f"alpha: expected a number from 1e-6 to 1e6, got {alpha}")
        least = alpha * math.log(alpha)
        if not (beta > 0.0 and least * (1.0 - 1e-12) <= beta <= 100.0 * alpha):
            raise ValueError(
                f"beta: expected a number > 0 from alpha ln alpha = {least:g} to 100 alpha, "
                f"got {beta}"
            )
        self.length = length
        self.alpha = alpha
        self.beta = beta

    def forward(self, scores: Tensor) -> Tensor:
        """scores: [..., q_len, k_len], the last query at the last key; so is the result."""
        q_len, k_len = scores.shape[-2:]
        keys = torch.arange(k_len, device=scores.device)
        queries = torch.arange(q_len, device=scores.device)[:, None] + (k_len - q_len)
        distance = (queries - keys).abs().to(scores.dtype)
        ratio = self.beta / self.alpha
        nearest = max(0.0, 2.0 * (ratio - math.log(self.alpha)))
        square = 2.0 * torch.log1p(distance / self.length) + nearest
        return square.sqrt() * scores + (ratio - square)

    def extra_repr(self) -> str:
        return f"length={self.length}, alpha={self.alpha:g}, beta={self.beta:g}"
