"""Learned factors of the query that grow with the number of keys: ``length_scale`` of attention.

All count n_i = position + 2 keys for the query at a position from 0, as the paper's code does.
Vasylenko, Pitorro, Martins and Treviso 2025; SSMax: Nakanishi 2025.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

__all__ = ["ASEntmaxScale", "SSMaxScale", "ScalarScale"]

Device = torch.device | str | None


def _check_heads(heads: int, unscaled: int) -> None:
    if heads < 1:
        raise ValueError(f"heads: expected an integer >= 1, got {heads}")
    if not 0 <= unscaled < heads:
        raise ValueError(f"unscaled: expected an integer in [0, {heads}), got {unscaled}")


def _log_length(positions: int | Tensor, device: torch.device) -> Tensor:
    """ln n: [q_len] for a number of queries, else the shape of the positions."""
    if not isinstance(positions, Tensor):
        positions = torch.arange(positions, device=device)
    return (positions.to(device, torch.float32) + 2).log()


def _with_unscaled(scale: Tensor, unscaled: int) -> Tensor:
    """Ones for the first heads. scale: [..., heads - unscaled, q_len]."""
    if unscaled == 0:
        return scale
    ones = scale.new_ones(*scale.shape[:-2], unscaled, scale.shape[-1])
    return torch.cat((ones, scale), -2)


class _Delta(nn.Module):
    """The additive term: a number, or a parameter [heads] that begins at it."""

    def __init__(
        self, value: float, learned: bool, heads: int, device: Device, dtype: torch.dtype | None
    ) -> None:
        super().__init__()
        self.value = value
        self.learned = (
            nn.Parameter(torch.empty(heads, device=device, dtype=dtype)) if learned else None
        )

    def reset_parameters(self) -> None:
        if self.learned is not None:
            nn.init.constant_(self.learned, self.value)

    def forward(self) -> float | Tensor:
        """A number, or [heads, 1]."""
        return self.value if self.learned is None else self.learned[:, None]


class SSMaxScale(nn.Module):
    """c_i = b_h ln n_i, b learned for each head.

    Args:
        heads: number of heads.
        unscaled: first heads that keep c = 1: those with ALiBi under `NAPE`.
    """

    def __init__(
        self,
        heads: int,
        *,
        unscaled: int = 0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_heads(heads, unscaled)
        self.unscaled = unscaled
        self.b = nn.Parameter(torch.empty(heads - unscaled, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.b, 1.0, 0.01)

    def forward(self, positions: int | Tensor) -> Tensor:
        """Factors [heads, q_len], or [batch, heads, q_len] for positions [batch, q_len].

        positions: of the queries, from 0: [q_len] or [batch, q_len]; or their number.
        """
        length = _log_length(positions, self.b.device).unsqueeze(-2)
        return _with_unscaled(self.b[:, None] * length, self.unscaled)


class ScalarScale(nn.Module):
    """c_i = delta + b_h (ln n_i)^g_h, b and g learned for each head.

    Args:
        heads: number of heads.
        delta: the additive term, which does not depend on the length.
        learn_delta: whether delta is learned, one for each head, and begins at ``delta``.
        unscaled: first heads that keep c = 1: those with ALiBi under `NAPE`.
    """

    def __init__(
        self,
        heads: int,
        *,
        delta: float = 1.0,
        learn_delta: bool = False,
        unscaled: int = 0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_heads(heads, unscaled)
        self.delta = _Delta(delta, learn_delta, heads - unscaled, device, dtype)
        self.unscaled = unscaled
        self.b = nn.Parameter(torch.empty(heads - unscaled, device=device, dtype=dtype))
        self.g = nn.Parameter(torch.empty(heads - unscaled, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.b, 0.1, 1.0)
        nn.init.normal_(self.g, 0.0, 0.1)
        self.delta.reset_parameters()

    def forward(self, positions: int | Tensor) -> Tensor:
        """As `SSMaxScale.forward`."""
        length = _log_length(positions, self.b.device).unsqueeze(-2)
        scale = self.delta() + self.b[:, None] * length ** self.g[:, None]
        return _with_unscaled(scale, self.unscaled)


class ASEntmaxScale(nn.Module):
    """c_i = delta + beta (ln n_i)^gamma with beta and gamma read off each query's input.

    beta = softplus(w_beta x_i + b_beta) and gamma = gamma_range tanh(w_gamma x_i + b_gamma), with
    weights for each head; x_i is the normalised input of the attention block.

    Args:
        width: size of x_i.
        heads: number of heads.
        bias: whether there are b_beta and b_gamma.
        delta: the additive term, which does not depend on the length.
        learn_delta: whether delta is learned, one for each head, and begins at ``delta``.
        gamma_range: bound of \\|gamma\\|.
        unscaled: first heads that keep c = 1: those with ALiBi under `NAPE`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        bias: bool = True,
        delta: float = 1.0,
        learn_delta: bool = False,
        gamma_range: float = 2.0,
        unscaled: int = 0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_heads(heads, unscaled)
        if width < 1:
            raise ValueError(f"width: expected an integer >= 1, got {width}")
        scaled = heads - unscaled
        self.delta = _Delta(delta, learn_delta, scaled, device, dtype)
        self.gamma_range = gamma_range
        self.unscaled = unscaled
        self.beta = nn.Linear(width, scaled, bias=bias, device=device, dtype=dtype)
        self.gamma = nn.Linear(width, scaled, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.beta, self.gamma):
            nn.init.normal_(layer.weight, 0.0, 0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        self.delta.reset_parameters()

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Factors [batch, heads, q_len].

        x: [batch, q_len, width]; positions: [q_len] or [batch, q_len], None: 0, 1, ….
        """
        length = _log_length(x.shape[-2] if positions is None else positions, x.device)
        # In float32: bfloat16 keeps three digits, and neighbours far out would get the same c.
        # Contiguous: torch.compile (2.13) is mistaken about the strides of softplus' gradient if
        # its input or result is a transposed view.
        beta = softplus(self.beta(x).mT.contiguous().float())  # [batch, heads, q_len]
        gamma = self.gamma_range * self.gamma(x).mT.float().tanh()
        scale = self.delta() + beta * length.unsqueeze(-2) ** gamma
        return _with_unscaled(scale, self.unscaled)
