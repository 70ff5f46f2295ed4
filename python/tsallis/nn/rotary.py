"""Rotary positions and the ways to stretch them beyond the training length."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Self

import torch
from torch import Tensor, nn

__all__ = ["Rotary", "RotaryScaling"]

RotaryScaling = Literal["linear", "ntk", "yarn", "llama3"]


class Rotary(nn.Module):
    """Rotates queries or keys by angles position * frequency: pairs (x_i, x_{i + dim / 2}).

    Su et al. 2021. f_i = base^(-2i / dim) for i = 0 … dim / 2 - 1, changed by ``scaling``:

    - "linear": f / factor (Chen et al. 2023).
    - "ntk": beyond ``trained_length`` L, base grows by (n / L)^(dim / (dim - 2)) at length n.
    - "yarn": frequencies of less than ``slow`` turns within L are divided by ``factor``, those of
      more than ``fast`` are kept, with a ramp between; outputs are multiplied by 0.1 ln(factor) + 1
      (Peng et al. 2023).
    - "llama3": the same by wavelength: divided where longer than L / ``slow``, kept where shorter
      than L / ``fast``, and mixed between.

    Args:
        dim: size of a head, even.
        base: > 0.
        fraction: in (0, 1]: frequencies kept, the highest; the others do not rotate (p-RoPE,
            Barbero et al. 2025).
        scaling: None or one of the above.
        factor: > 0, how much longer than in training sequences may be.
        trained_length: L, for all but "linear".
        slow: turns within L, for "yarn" and "llama3"; None: 1.
        fast: the same; None: 32 for "yarn", 4 for "llama3".
        attention_factor: multiplies the outputs; None: 1, and for "yarn" as above.
    """

    inverse: Tensor

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        *,
        fraction: float = 1.0,
        scaling: RotaryScaling | None = None,
        factor: float = 1.0,
        trained_length: int | None = None,
        slow: float | None = None,
        fast: float | None = None,
        attention_factor: float | None = None,
    ) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"dim: expected an even integer >= 2, got {dim}")
        if not base > 0:
            raise ValueError(f"base: expected a number > 0, got {base}")
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction: expected a number in (0, 1], got {fraction}")
        if scaling not in (None, "linear", "ntk", "yarn", "llama3"):
            raise ValueError(
                f'scaling: expected None, "linear", "ntk", "yarn" or "llama3", got {scaling!r}'
            )
        if not factor > 0:
            raise ValueError(f"factor: expected a number > 0, got {factor}")
        if scaling in ("ntk", "yarn", "llama3") and (trained_length is None or trained_length < 1):
            raise ValueError(
                f'trained_length: expected an integer >= 1 with "{scaling}", got {trained_length}'
            )
        if scaling == "ntk" and dim == 2:
            raise ValueError('dim: expected more than 2 with "ntk", got 2')
        self.dim = dim
        self.base = base
        self.kept = max(1, int(fraction * dim / 2))
        self.scaling = scaling
        self.factor = factor
        self.trained_length = trained_length
        self.slow = 1.0 if slow is None else slow
        self.fast = (32.0 if scaling == "yarn" else 4.0) if fast is None else fast
        if attention_factor is None:
            attention_factor = 1.0
            if scaling == "yarn" and factor > 1:
                attention_factor = 0.1 * math.log(factor) + 1.0
        self.attention_factor = attention_factor
        self.register_buffer("inverse", self._frequencies(base), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves to another device or dtype; the frequencies stay as exact as float32 has them."""
        before = self.inverse
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before.is_meta and not self.inverse.is_meta:  # `to_empty` leaves memory without values
            before = self._frequencies(self.base)
        if before is not self.inverse:
            self.inverse = before.to(self.inverse.device)
        return self

    def _frequencies(self, base: float) -> Tensor:
        """float32 [dim / 2], worked out in float64."""
        i = torch.arange(self.dim // 2, dtype=torch.float64)
        f = base ** (-2.0 * i / self.dim)
        length = self.trained_length or 1
        if self.scaling == "linear":
            f = f / self.factor
        elif self.scaling == "yarn":
            # The ramp runs over i, between the whole i around those of `fast` and `slow` turns.
            def index(turns: float) -> float:
                return self.dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

            low = max(math.floor(index(self.fast)), 0)
            high = min(math.ceil(index(self.slow)), self.dim - 1)
            ramp = ((i - low) / max(high - low, 0.001)).clamp(0, 1)
            f = f / self.factor * ramp + f * (1 - ramp)
        elif self.scaling == "llama3":
            turns = length * f / (2 * math.pi)
            keep = ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
            f = f * keep + f / self.factor * (1 - keep)
        f[self.kept :] = 0.0
        return f.float()

    def forward(
        self, x: Tensor, positions: Tensor | None = None, length: int | None = None
    ) -> Tensor:
        """Rotated ``x``, of its dtype.

        x: [..., q_len, dim]; positions: from 0, [q_len], or [batch, q_len] for x [batch, heads,
        q_len, dim]; None: 0, 1, …. length: of the whole sequence, read by "ntk" alone; None: the
        largest position + 1.
        """
        if x.shape[-1] != self.dim:
            raise ValueError(
                f"x: expected size {self.dim} in the last dimension, got {x.shape[-1]}"
            )
        if positions is not None and (
            positions.dim() not in (1, 2) or (positions.dim() == 2 and x.dim() != 4)
        ):
            raise ValueError(
                "positions: expected shape [q_len], or [batch, q_len] for x [batch, heads, q_len, "
                f"dim], got {list(positions.shape)} for x {list(x.shape)}"
            )
        if positions is None:
            positions = torch.arange(x.shape[-2], device=x.device)
            length = x.shape[-2] if length is None else length
        inverse = self.inverse
        if self.scaling == "ntk" and self.trained_length is not None:
            if length is None:
                length = int(positions.max()) + 1 if positions.numel() else 0
            if length > self.trained_length:
                stretch = (length / self.trained_length) ** (self.dim / (self.dim - 2))
                inverse = self._frequencies(self.base * stretch).to(x.device)
        # Angles in float32 whatever the module was cast to: in bfloat16 positions past 256 merge.
        angles = positions[..., None].to(torch.float32) * inverse
        if positions.dim() == 2:
            angles = angles[:, None]  # [batch, 1, q_len, dim / 2]
        cos = (angles.cos() * self.attention_factor).to(x.dtype)
        sin = (angles.sin() * self.attention_factor).to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, base={self.base}, scaling={self.scaling}, factor={self.factor}"
