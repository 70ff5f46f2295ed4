"""The call of ``torch.nn.functional.scaled_dot_product_attention`` with sparse weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tsallis._attention import attention
from tsallis._call import number
from tsallis._dense import check_map, dense_attention

__all__ = ["sdpa_like"]

# Arguments of `attention` that have other names here.
_NAMES = {"q": "query", "k": "key", "v": "value", "mask": "attn_mask", "bias": "attn_mask"}


def _renamed(error: ValueError | TypeError) -> ValueError | TypeError:
    name, colon, rest = str(error).partition(":")
    return type(error)(_NAMES.get(name, name) + colon + rest)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.dim() < 2 or tensor.dim() != query.dim():
            raise ValueError(
                f"{name}: expected shape [..., length, size] with as many dimensions as query, "
                f"{query.dim()}, got {list(tensor.shape)}"
            )
    if query.dim() < 4:
        if enable_gqa:
            raise ValueError(
                "enable_gqa: expected False without a dimension of heads, got True for query "
                f"{list(query.shape)}"
            )
        return
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if enable_gqa:
        if kv_heads == 0 or heads % kv_heads:
            raise ValueError(
                f"key: expected a number of heads that divides query's, {heads}, got {kv_heads}"
            )
    elif heads != kv_heads:
        raise ValueError(
            f"key: expected {heads} heads as in query, or enable_gqa=True, got {kv_heads}"
        )


def _four(x: Tensor, batch: Sequence[int]) -> Tensor:
    """[..., heads?, length, size] as [batch, heads, length, size]; ``batch``: of all inputs."""
    if x.dim() < 4:
        # A third dimension is a batch of single heads.
        return x[None, None] if x.dim() == 2 else x[:, None]
    if x.dim() == 4 and list(x.shape[:1]) == list(batch):
        return x
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])


def _four_mask(mask: Tensor, batch: Sequence[int], dims: int) -> Tensor:
    """A mask that broadcasts to [batch, heads, q_len, k_len], no larger than it was given."""
    if mask.dim() > dims:
        raise ValueError(
            f"attn_mask: expected at most the {dims} dimensions of query, got {list(mask.shape)}"
        )
    if dims == 3 and mask.dim() == 3:
        return mask[:, None]
    if dims <= 4 or mask.dim() <= 3:
        return mask
    lead = [1] * (dims - mask.dim()) + list(mask.shape[:-3])
    if all(size == 1 for size in lead):
        return mask.reshape(1, *mask.shape[-3:])
    return mask.expand(*batch, *mask.shape[-3:]).reshape(math.prod(batch), *mask.shape[-3:])


def sdpa_like(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    alpha: float | Tensor = 1.5,
    map: Literal["softmax", "entmax", "adaptive_temperature"] = "entmax",
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` with `tsallis.attention`'s weights.

    The same arguments with the same meaning; ``map="softmax"`` gives the same result. A query that
    sees no key has output 0.

    Args:
        query: [..., heads, q_len, head_dim]; [batch, q_len, head_dim] and [q_len, head_dim] have no
            heads. Leading dimensions of the three broadcast.
        key: [..., heads, k_len, head_dim].
        value: [..., heads, k_len, value_dim].
        attn_mask: broadcasts to [..., heads, q_len, k_len]; bool, True = visible, or floating:
            added to the scores, with a gradient.
        dropout_p: in [0, 1): weights become 0 with this probability and the others grow by
            1 / (1 - dropout_p). Above 0 the weights are stored, as many as scores.
        is_causal: queries see keys at their own index and before it, whatever the two lengths
            (``alignment="start"`` of `tsallis.attention`).
        scale: > 0; None: 1 / sqrt(head_dim).
        enable_gqa: key and value may have fewer heads, a divisor of query's.
        alpha: of entmax, > 0: a number, or a tensor with gradient that broadcasts to [heads].
        map: "entmax", "softmax" or "adaptive_temperature".

    Returns:
        [..., heads, q_len, value_dim] of query's dtype.

    Raises:
        ValueError: names the argument, what was expected and what came.
        TypeError: likewise, for a value of the wrong type.
    """
    _check_shapes(query, key, value, enable_gqa)
    if attn_mask is not None and not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask: expected a tensor or None, got {type(attn_mask).__name__}")
    check_map(map)
    dropout_p = number(dropout_p, "dropout_p")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p: expected a number in [0, 1), got {dropout_p}")
    if scale is not None and not 0.0 < (scale := number(scale, "scale")) < math.inf:
        raise ValueError(f"scale: expected a finite number > 0 or None, got {scale}")
    if is_causal and attn_mask is not None:
        raise ValueError("is_causal: expected False with attn_mask, got True")
    if (
        attn_mask is not None
        and attn_mask.dtype != torch.bool
        and not attn_mask.is_floating_point()
    ):
        raise ValueError(f"attn_mask: expected dtype bool or floating, got {attn_mask.dtype}")
    heads_at = 3 if query.dim() >= 4 else 2
    try:
        batch = torch.broadcast_shapes(*(x.shape[:-heads_at] for x in (query, key, value)))
    except RuntimeError:
        raise ValueError(
            "key: expected leading dimensions that broadcast with query's, got "
            f"{list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
        ) from None
    if query.dim() == 3:
        query, key, value = (x.expand(*batch, *x.shape[-2:]) for x in (query, key, value))
    dims = query.dim()
    q, k, v = (_four(x, batch) for x in (query, key, value))
    bias = visible = None
    if attn_mask is not None:
        mask = _four_mask(attn_mask, batch, dims)
        bias, visible = (None, mask) if mask.dtype == torch.bool else (mask, None)
    if dropout_p == 0:
        try:
            out = attention(
                q,
                k,
                v,
                map=map,
                alpha=alpha,
                causal=is_causal,
                alignment="start",
                mask=visible,
                bias=bias,
                scale=scale,
            )
        except (ValueError, TypeError) as error:
            raise _renamed(error) from None
    else:
        out, _ = dense_attention(
            q,
            k,
            v,
            bias=bias,
            visible=visible,
            causal=is_causal,
            scale=scale,
            map=map,
            alpha=alpha,
            dropout_p=dropout_p,
        )
    if dims == 4:
        return out
    if dims > 4:
        return out.reshape(*batch, *out.shape[1:])
    return out[0, 0] if dims == 2 else out[:, 0]
