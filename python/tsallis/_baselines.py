"""Row maps that sparse attention is compared with; `_rows` says what holds for all maps."""

from __future__ import annotations

from torch import Tensor

from tsallis._rows import is_row_map, row_map

__all__ = ["sigmoid", "softpick", "stick_breaking", "top_k_softmax"]


@is_row_map
def top_k_softmax(
    x: Tensor,
    top_k: int,
    dim: int = -1,
    *,
    top_k_fraction: float = 0.0,
    temperature: float = 1.0,
) -> Tensor:
    """softmax of the largest scores along ``dim``, and of all that tie with the least of them.

    Gupta et al. 2021.

    Args:
        x: scores, any shape.
        top_k: >= 1.
        dim: dimension to normalise.
        top_k_fraction: in [0, 1]: of n scores above -inf, max(top_k, floor(fraction n)) are kept.
        temperature: divides the scores; finite and > 0.
    """
    return row_map(
        x,
        "top_k_softmax",
        top_k=top_k,
        top_k_fraction=top_k_fraction,
        dim=dim,
        temperature=temperature,
    )


@is_row_map
def sigmoid(
    x: Tensor,
    dim: int = -1,
    *,
    sigmoid_bias: float | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Weights of sigmoid attention: p = 1 / (1 + exp(-(x / temperature + b))).

    Rows do not sum to 1. Ramapuram et al. 2024.

    Args:
        x: scores, any shape.
        dim: dimension whose entries are one row.
        sigmoid_bias: b; None: -ln n for n scores above -inf in the row.
        temperature: divides the scores; finite and > 0.
    """
    return row_map(
        x,
        "sigmoid",
        sigmoid_bias=sigmoid_bias,
        dim=dim,
        temperature=temperature,
    )


@is_row_map
def softpick(x: Tensor, dim: int = -1, *, temperature: float = 1.0) -> Tensor:
    """p_j = max(e^x_j - 1, 0) / (sum_m |e^x_m - 1| + 1e-6) along ``dim``.

    Rows sum to at most 1. Scores below 0 have weight 0, but a gradient: they stand in the
    denominator. Zuhri et al. 2025.

    Args:
        x: scores, any shape.
        dim: dimension to normalise.
        temperature: divides the scores; finite and > 0.
    """
    return row_map(x, "softpick", dim=dim, temperature=temperature)


@is_row_map
def stick_breaking(x: Tensor, dim: int = -1, *, temperature: float = 1.0) -> Tensor:
    """Each entry, from the last to the first, breaks sigmoid(x_j) off what is left of a stick.

    p_j = sigmoid(x_j) prod_{m > j} sigmoid(-x_m); rows sum to at most 1, and their order matters.
    Tan et al. 2024.

    Args:
        x: scores, any shape.
        dim: dimension to normalise.
        temperature: divides the scores; finite and > 0.
    """
    return row_map(x, "stick_breaking", dim=dim, temperature=temperature)
