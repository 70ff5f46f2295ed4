"""Exact sparse attention on keys and values in pages of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tsallis import _ops
from tsallis._cache import DecodeExtras, score_terms
from tsallis._call import call, chosen, number

__all__ = ["decode_paged"]

PagedStatistic = Literal["tau", "support_size", "entropy", "maximum"]
_STATISTICS = get_args(PagedStatistic)


def decode_paged(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
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
    output has the same bits as that of `tsallis.attention` on one tensor. For entmax on
    CPUs `KVCache` is faster: it keeps a copy of the keys in bytes, by which it skips keys.

    Args:
        q: [batch, heads, q_len, head_dim]; q_len is 1, or a few on a CUDA device (speculative
            decoding), or any number on a CPU (a prompt in chunks).
        k_pages: [pages, page_size, kv_heads, head_dim] of q's dtype; heads is a multiple of
            kv_heads. Any strides: pages with heads before tokens are ``.transpose(1, 2)`` of this.
            On a CUDA device rows begin at multiples of 16 bytes and head_dim is a multiple of 8.
        v_pages: [pages, page_size, kv_heads, value_dim].
        block_table: int32 or int64 [batch, most pages of a sequence]. What stands behind a
            sequence's last page is not read.
        lengths: int32 or int64 [batch]: keys of each sequence.
        map: "entmax" or "softmax".
        alpha: of entmax: a number, or a tensor that broadcasts to [heads]; on a CUDA device 1, or
            from 1.1 to 2.
        window: keys from i - window on are visible; None: all before.
        scale: > 0; None: 1 / sqrt(head_dim).
        softcap: as in `tsallis.attention`, and so the following.
        scale_invariant: length scale.
        scale_invariant_alpha: A beside it.
        scale_invariant_beta: B beside it.
        alibi_slopes: [heads] or [batch, heads].
        length_scale: broadcasts to [batch, heads, q_len].
        sink: broadcasts to [heads].
        returns: "tau", "support_size", "entropy" or "maximum", or several: to return beside the
            output.

    Returns:
        [batch, heads, q_len, value_dim] of q's dtype; with ``returns``, also `DecodeExtras`.

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
    settings = score_terms(
        scale, softcap, scale_invariant, scale_invariant_alpha, scale_invariant_beta
    )
    heads = alpha if isinstance(alpha, Tensor) else None
    settings |= {
        "map": _ops.MAPS.index(map),
        "alpha": 1.5 if heads is not None else number(alpha, "alpha"),
        "causal": True,
        "left": -1 if window is None else window,
    }
    operator = torch.ops.tsallis.attention_on_pages
    found = call(
        partial(_decode, operator if not names else torch.ops.tsallis.attention_on_pages_stats),
        settings,
        q=q,
        k_pages=k_pages,
        v_pages=v_pages,
        block_table=block_table,
        lengths=lengths,
        alpha=heads,
        alibi_slopes=alibi_slopes,
        length_scale=length_scale,
        sink=sink,
    )
    if not names:
        return found
    out, *statistics = found
    by_name = dict(zip(_STATISTICS, statistics, strict=True))
    return out, DecodeExtras(**{name: by_name[name] for name in names})


def _decode(
    operator: Any,
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    alpha: Tensor | None,
    alibi_slopes: Tensor | None,
    length_scale: Tensor | None,
    sink: Tensor | None,
    settings: dict[str, Any],
) -> Any:
    with torch.no_grad():
        return operator(
            q,
            k_pages,
            v_pages,
            block_table,
            lengths=lengths,
            alpha_heads=alpha,
            alibi_slopes=alibi_slopes,
            length_scale=length_scale,
            sink=sink,
            **settings,
        )
