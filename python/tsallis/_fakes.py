"""Shapes of the operators' results, for tracing and for tensors without memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from tsallis import _ops

__all__: list[str] = []

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FLOAT64, _INT64, _UINT8 = torch.float64, torch.int64, torch.uint8


def _fake(name: str) -> Callable[[_Function], _Function]:
    register: Callable[[_Function], _Function] = torch.library.register_fake(f"tsallis::{name}")
    return register


def _layout(sizes: Sequence[Any], like: Tensor) -> Tensor:
    """A result that has rows before heads in memory if ``like`` has them so."""
    batch, heads, rows, columns = sizes
    if like.stride(1) < like.stride(2):
        return like.new_empty((batch, rows, heads, columns)).transpose(1, 2)
    return like.new_empty((batch, heads, rows, columns))


def _nothing() -> Tensor:
    """In the place of a result that was not asked for."""
    return torch.empty(0)


def _same_device(q: Tensor, **others: Any) -> None:
    for name, value in others.items():
        if isinstance(value, Tensor) and value.device != q.device:
            raise ValueError(
                f"{name.removesuffix('_heads')}: expected the device of q, {q.device}, got "
                f"{value.device}"
            )


def _statistics(q: Tensor) -> tuple[Tensor, ...]:
    """tau, support size, entropy, maximum."""
    rows = q.shape[:3]
    wide = [q.new_empty(rows, dtype=_FLOAT64) for _ in range(3)]
    return wide[0], q.new_empty(rows, dtype=_INT64), *wide[1:]


@_fake("attention")
def _attention(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
    _same_device(q, k=k, v=v, **settings)
    return _layout((*q.shape[:3], v.shape[3]), q)


@_fake("attention_stats")
def _attention_stats(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> tuple[Tensor, ...]:
    return _attention(q, k, v, **settings), *_statistics(q)


def _reserved(q: Tensor, v: Tensor, settings: dict[str, Any]) -> Any:
    """Bytes that the forward pass reserves where shapes and settings alone tell them.

    As ``ReservedBytes`` in src/stable/attention.cc.
    """
    kind = settings.get("map", _ops.ENTMAX)
    alphas = settings.get("alpha_heads") is not None or settings.get("alpha", 1.5) != 1.0
    sparse = kind == _ops.ENTMAX and alphas
    softmax = kind == _ops.SOFTMAX and settings.get("sink") is None
    softmax = softmax and q.device.type in ("cpu", "meta")
    if not (sparse or softmax) or q.dtype == _FLOAT64:
        return 0
    head, row = (0, 512) if sparse else (64, (v.shape[3] + 15) // 16 * 64)
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    return torch.sym_min(head + rows * row, settings.get("saved_budget", 1 << 28))


@_fake("attention_forward")
def _attention_forward(
    q: Tensor, k: Tensor, v: Tensor, saves: int = 1, **settings: Any
) -> tuple[Tensor, ...]:
    tau = q.new_empty(q.shape[:3], dtype=_FLOAT64)
    saved = q.new_empty((_reserved(q, v, settings) if saves == 2 else 0,), dtype=_UINT8)
    return _attention(q, k, v, **settings), tau, saved


@_fake("attention_forward_stats")
def _attention_forward_stats(
    q: Tensor, k: Tensor, v: Tensor, saves: int = 1, **settings: Any
) -> tuple[Tensor, ...]:
    return *_attention_forward(q, k, v, saves, **settings), *_statistics(q)[1:]


@_fake("attention_backward")
def _attention_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tau: Tensor,
    saved: Tensor,
    wanted: int = 7,
    **settings: Any,
) -> tuple[Tensor, ...]:
    return tuple(
        _layout(x.shape, x) if wanted >> i & 1 else _nothing() for i, x in enumerate((q, k, v))
    )


@_fake("attention_backward_terms")
def _attention_backward_terms(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tau: Tensor,
    saved: Tensor,
    wanted: int,
    *,
    bias: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, ...]:
    heads = q.shape[1:2]
    shapes = (heads, q.shape[:3], q.shape[:2], None if bias is None else bias.shape, heads)
    terms = []
    for i, shape in enumerate(shapes, start=3):
        if not wanted >> i & 1 or shape is None:
            terms.append(_nothing())
        elif i == 6 and bias is not None and bias.dtype != _FLOAT64:
            terms.append(q.new_empty(shape, dtype=torch.float32))
        else:
            terms.append(q.new_empty(shape, dtype=_FLOAT64))
    return *_attention_backward(d_out, q, k, v, tau, saved, wanted), *terms


@_fake("attention_on_pages")
def _on_pages(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    screen: Tensor | None = None,
    **settings: Any,
) -> Tensor:
    _same_device(q, k_pages=k_pages, v_pages=v_pages, block_table=block_table, **settings)
    return _layout((*q.shape[:3], v_pages.shape[3]), q)


@_fake("attention_on_pages_stats")
def _on_pages_stats(q: Tensor, *pages: Any, **settings: Any) -> tuple[Tensor, ...]:
    return _on_pages(q, *pages, **settings), *_statistics(q)


@_fake("attention_on_pages_out")
def _on_pages_out(out: Tensor, q: Tensor, *pages: Any, **settings: Any) -> None:
    return None


@_fake("put_on_pages")
def _put_on_pages(k: Tensor, *others: Any, **pages: Any) -> None:
    return None


# ---- row maps


@_fake("row_map")
def _row_map(scores: Tensor, alpha_rows: Tensor | None = None, **settings: Any) -> Tensor:
    return scores.new_empty(scores.shape)


def _wrapped(scores: Tensor, dim: int) -> int:
    rank = scores.dim()
    if not -rank <= dim < rank:
        raise IndexError(f"dim: expected an integer in [{-rank}, {rank - 1}], got {dim}")
    return dim % rank


@_fake("row_map_stats")
def _row_map_stats(
    scores: Tensor, alpha_rows: Tensor | None = None, *, dim: int = -1, **settings: Any
) -> tuple[Tensor, ...]:
    shape = list(scores.shape)
    del shape[_wrapped(scores, dim)]
    tau, entropy = (scores.new_empty(shape, dtype=_FLOAT64) for _ in range(2))
    return scores.new_empty(scores.shape), tau, scores.new_empty(shape, dtype=_INT64), entropy


@_fake("row_map_backward")
def _row_map_backward(
    d_p: Tensor, scores: Tensor, p: Tensor, alpha_rows: Tensor | None = None, **settings: Any
) -> Tensor:
    return scores.new_empty(scores.shape)


@_fake("row_map_backward_alpha")
def _row_map_backward_alpha(
    d_p: Tensor,
    scores: Tensor,
    p: Tensor,
    alpha_rows: Tensor | None,
    *,
    dim: int = -1,
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    shape = list(scores.shape)
    shape[_wrapped(scores, dim)] = 1
    return scores.new_empty(scores.shape), scores.new_empty(shape, dtype=_FLOAT64)


@_fake("fenchel_young_loss")
def _loss(scores: Tensor, targets: Tensor, **settings: Any) -> Tensor:
    wide = _FLOAT64 if scores.dtype == _FLOAT64 else torch.float32
    return scores.new_empty(targets.shape, dtype=wide)


@_fake("fenchel_young_loss_forward")
def _loss_forward(scores: Tensor, targets: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    losses = _loss(scores, targets)
    return losses, scores.new_empty(scores.shape, dtype=losses.dtype)


# ---- the cache


@_fake("cache_append")
def _append(cache: Tensor, layer: int, sequences: list[int], k: Tensor, v: Tensor) -> None:
    return None


@_fake("decode")
def _decode(cache: Tensor, q: Tensor, value_dim: int, *call: Any, **settings: Any) -> Tensor:
    _same_device(q, **settings)
    return q.new_empty((*q.shape[:3], value_dim))


@_fake("decode_stats")
def _decode_stats(
    cache: Tensor,
    q: Tensor,
    value_dim: int,
    layer: int,
    sequences: list[int],
    begin: list[int] | None,
    wanted: int,
    *mode: Any,
    **settings: Any,
) -> tuple[Tensor, ...]:
    kinds = [_FLOAT64, _INT64, *[_FLOAT64] * 4, *[_INT64] * 2]
    statistics = [
        q.new_empty(q.shape[:3], dtype=kind) if wanted >> i & 1 else _nothing()
        for i, kind in enumerate(kinds)
    ]
    return _decode(cache, q, value_dim, **settings), *statistics
