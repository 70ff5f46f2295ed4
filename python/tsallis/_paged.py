"""Exact sparse attention on keys and values in pages of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tsallis import _ops
from tsallis._call import call, chosen, number
from tsallis._decode_modes import DecodeExtras

__all__ = ["decode_paged", "put_paged", "screen_bytes"]

PagedStatistic = Literal["tau", "support_size", "entropy", "maximum"]
_STATISTICS = get_args(PagedStatistic)

_OPS = torch.ops.tsallis
_ON_PAGES = _OPS.attention_on_pages.default
_ON_PAGES_OUT = _OPS.attention_on_pages_out.default
_ON_PAGES_STATS = _OPS.attention_on_pages_stats.default
_PUT = _OPS.put_on_pages.default


TERMS = ("scale", "softcap", "scale_invariant", "scale_invariant_alpha", "scale_invariant_beta")


def score_terms(*values: float | None) -> dict[str, float]:
    """Settings of those that are given: scale, softcap and the scale-invariant ones."""
    given = zip(TERMS, values, strict=True)
    return {name: number(value, name) for name, value in given if value is not None}


def decode_paged(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    screen: Tensor | None = None,
    out: Tensor | None = None,
    map: Literal["entmax", "softmax"] = "entmax",
    alpha: float | Tensor = 1.5,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    scale_invariant: float | None = None,
    scale_invariant_alpha: float | None = None,
    scale_invariant_beta: float | None = None,
    alibi_slopes: Tensor | None = None,
    length_scale: Tensor | None = None,
    sink: Tensor | None = None,
    returns: PagedStatistic | Sequence[PagedStatistic] = (),
) -> Any:
    """Attention of the newest tokens of sequences on keys and values in pages that you own.

    Serving engines keep keys and values like this: key i of sequence b is row ``i % page_size`` of
    page ``block_table[b, i // page_size]``. Sequences may share pages. The answer is that of
    `tsallis.attention` with ``causal=True`` on each sequence's keys in one tensor: query i of q_len
    stands at token ``lengths[b] - q_len + i`` and sees no later one, so the keys of the queries are
    in the pages already. A query before the first key has output 0. No gradients.

    On a CUDA device nothing waits for the device, and a call can be captured into a graph, unless
    ``alpha`` is a tensor. The device's contents are not checked there: a length is cut off at what
    the table has room for, and a query that sees a page that does not exist gets NaN. On a CPU the
    output has the same bits as that of `tsallis.attention` on one tensor; with ``screen`` few
    queries of a sequence, one for every 128 keys and at most 64, have the bits of each alone.

    Args:
        q: [batch, heads, q_len, head_dim]; q_len is 1, or a few on a CUDA device (speculative
            decoding), or any number on a CPU (a prompt in chunks). With ``cu_seqlens_q``:
            [1, heads, tokens, head_dim], the queries of all sequences behind each other.
        k_pages: [pages, page_size, kv_heads, head_dim] of q's dtype; heads is a multiple of
            kv_heads. Any strides: pages with heads before tokens are ``.transpose(1, 2)`` of this.
            On a CUDA device rows begin at multiples of 16 bytes and head_dim is a multiple of 8.
        v_pages: [pages, page_size, kv_heads, value_dim].
        block_table: int32 or int64 [batch, most pages of a sequence]. What stands behind a
            sequence's last page is not read.
        lengths: int32 or int64 [batch]: keys of each sequence.
        cu_seqlens_q: int32 or int64 [batch + 1]: sequence b has the queries from
            ``cu_seqlens_q[b]`` to ``cu_seqlens_q[b + 1]`` of q's axis of tokens, so that prompts in
            pieces and single new tokens go in one call. CPUs alone.
        screen: uint8 [pages, kv_heads, page_size / 64 * screen_bytes(head_dim)], as `put_paged`
            writes it: entmax skips keys by it. CPUs alone; page_size is a multiple of 64.
        out: a tensor of the output's shape and dtype, any strides, which receives the output.
            Rows of no sequence stay as they are. Not with ``returns``.
        map: "entmax" or "softmax".
        alpha: of entmax: a number, or a tensor that broadcasts to [heads]; on a CUDA device 1, or
            from 1.1 to 2.
        window: keys from i - window on are visible; None: all before.
        scale: > 0; None: 1 / sqrt(head_dim).
        softcap: as in `tsallis.attention`, and so the following.
        scale_invariant: length scale.
        scale_invariant_alpha: A beside it.
        scale_invariant_beta: B beside it.
        alibi_slopes: [heads] or [batch, heads]; [heads] with ``cu_seqlens_q``.
        length_scale: broadcasts to [batch, heads, q_len], or to [1, heads, tokens].
        sink: broadcasts to [heads].
        returns: "tau", "support_size", "entropy" or "maximum", or several: to return beside the
            output.

    Returns:
        [batch, heads, q_len, value_dim] of q's dtype, or [1, heads, tokens, value_dim]; rows of no
        sequence are 0. With ``returns``, also `DecodeExtras`.

    Raises:
        ValueError: names the argument, what was expected and what came.
        TypeError: likewise, for a value of the wrong type.

    Pages and block tables: Kwon et al. 2023 (PagedAttention). Maps: Peters, Niculae and Martins
    2019.
    """
    names = chosen(returns, _STATISTICS)
    if map not in ("entmax", "softmax"):
        raise ValueError(f"map: expected 'entmax' or 'softmax', got {map!r}")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int)):
        raise TypeError(f"window: expected an integer or None, got {window!r}")
    if window is not None and window < 0:
        raise ValueError(f"window: expected 0 or more, got {window}")
    settings: dict[str, Any] = {
        "map": _ops.MAPS.index(map),
        "alpha": 1.5 if isinstance(alpha, Tensor) else number(alpha, "alpha"),
        "causal": True,
        "left": -1 if window is None else window,
        **score_terms(scale, softcap, scale_invariant, scale_invariant_alpha, scale_invariant_beta),
    }
    # An operator's default is None: what is not given need not be read.
    for name, term in (
        ("lengths", lengths),
        ("cu_seqlens_q", cu_seqlens_q),
        ("alpha_heads", alpha if isinstance(alpha, Tensor) else None),
        ("alibi_slopes", alibi_slopes),
        ("length_scale", length_scale),
        ("sink", sink),
    ):
        if term is not None:
            settings[name] = term
    operator: Any = _ON_PAGES_STATS if names else _ON_PAGES
    if out is not None:
        if names:
            raise ValueError("out: expected None with returns, got a tensor")
        operator = partial(_ON_PAGES_OUT, out)
    found = call(
        _unrecorded,
        operator,
        settings,
        q=q,
        k_pages=k_pages,
        v_pages=v_pages,
        block_table=block_table,
        screen=screen,
    )
    if out is not None:
        return out
    if not names:
        return found
    result, *statistics = found
    by_name = dict(zip(_STATISTICS, statistics, strict=True))
    return result, DecodeExtras(**{name: by_name[name] for name in names})


def _unrecorded(*call: Any) -> Any:
    """Calls an operator that has no gradient: tensors, operator, settings. Entering ``no_grad``
    costs as much as a short call, and engines that serve have left recording already."""
    *tensors, operator, settings = call
    if not torch.is_grad_enabled():
        return operator(*tensors, **settings)
    with torch.no_grad():
        return operator(*tensors, **settings)


def screen_bytes(head_dim: int) -> int:
    """Bytes to screen by of 64 keys of a key head, for `decode_paged` and `put_paged`.

    Args:
        head_dim: columns of a key, 1 to 512.

    Returns:
        64 (head_dim + 13), with head_dim rounded up to a multiple of 4.

    Raises:
        ValueError: head_dim is none of these.
        TypeError: head_dim is no integer.
    """
    if isinstance(head_dim, bool) or not isinstance(head_dim, int):
        raise TypeError(f"head_dim: expected an integer, got {head_dim!r}")
    if not 1 <= head_dim <= 512:
        raise ValueError(f"head_dim: expected a size from 1 to 512, got {head_dim}")
    found: int = torch.ops.tsallis.screen_bytes(head_dim)
    return found


def put_paged(
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    slots: Tensor,
    *,
    screen: Tensor | None = None,
) -> None:
    """Writes keys and values of new tokens to pages that you own, and the bytes to screen them by.

    The bytes belong to a page as its keys do: a copy of a page needs a copy of its bytes, and
    sequences may share both. Pages fill from their first row on; what a page had before is
    forgotten with a token for its first row. CPUs alone. No gradients.

    Args:
        k: [tokens, kv_heads, head_dim], any strides.
        v: [tokens, kv_heads, value_dim].
        k_pages: [pages, page_size, kv_heads, head_dim] of k's dtype, any strides; changed.
        v_pages: [pages, page_size, kv_heads, value_dim]; changed.
        slots: int32 or int64 [tokens]: token i becomes row ``slots[i] % page_size`` of page
            ``slots[i] // page_size``; -1 skips it. The later of two tokens for one slot stays.
        screen: uint8 [pages, kv_heads, page_size / 64 * screen_bytes(head_dim)] or more bytes in
            the last axis, at addresses that are multiples of 4; changed. page_size is a multiple
            of 64 then.

    Raises:
        ValueError: names the argument, what was expected and what came; nothing is written then.
        TypeError: likewise, for a value of the wrong type.
    """
    call(
        _unrecorded,
        _PUT,
        {},
        k=k,
        v=v,
        k_pages=k_pages,
        v_pages=v_pages,
        slots=slots,
        screen=screen,
    )
