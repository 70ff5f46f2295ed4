"""Attention with its [q_len, k_len] weights stored: where they are wanted, or dropped at random."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from tsallis import _rows

__all__ = ["check_heads", "check_map", "dense_attention", "row_map"]


def check_map(map: str) -> None:
    """Refuses a map that `row_map` does not have."""
    if map not in ("entmax", "softmax", "adaptive_temperature"):
        known = '"entmax", "softmax" or "adaptive_temperature"'
        raise ValueError(f"map: expected {known}, got {map!r}")


def check_heads(alpha: Tensor, heads: int) -> None:
    """Refuses an alpha that does not fit [heads]."""
    if alpha.dim() > 1 or alpha.numel() not in (1, heads):
        raise ValueError(
            f"alpha: expected a shape that broadcasts to [heads] = [{heads}], got "
            f"{list(alpha.shape)}"
        )


def row_map(scores: Tensor, map: str, alpha: float | Tensor) -> Tensor:
    """The weights of scores [batch, heads, q_len, k_len]; alpha: a number, or it fits [heads]."""
    check_map(map)
    if map == "softmax":
        return _rows.softmax(scores)
    if map == "adaptive_temperature":
        return _rows.adaptive_temperature_softmax(scores)
    if isinstance(alpha, Tensor):
        check_heads(alpha, scores.shape[1])
        alpha = alpha.reshape(-1, 1, 1)
    return _rows.entmax(scores, alpha)


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None,
    visible: Tensor | None,
    map: str,
    alpha: float | Tensor,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`tsallis.attention` by its definition, and the weights: [batch, heads, q_len, k_len].

    q: [batch, heads, q_len, head_dim]; heads is a multiple of those of k and v. bias: added to the
    scores; visible: bool; both broadcast to them. causal: instead of ``visible``, keys up to the
    query's own index. scale: None: 1 / sqrt(head_dim). softcap: scores become softcap tanh(scores /
    softcap). sink: [heads], the score of one more key, whose value is 0. With ``dropout_p`` > 0
    weights become 0 with this probability and the others grow by 1 / (1 - dropout_p), in both
    results.
    """
    if (groups := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    if causal:
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if sink is not None:
        more = sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, more), -1)
    p = row_map(scores, map, alpha).to(v.dtype)
    if sink is not None:
        p = p[..., :-1]
    if dropout_p > 0:
        p = dropout(p, dropout_p)
    return p @ v, p
