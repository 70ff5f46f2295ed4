"""Attention in transformers' continuous batching, where sequences of any length share a call."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from tsallis._attention import attention
from tsallis._paged import decode_paged

_Manager: Any = None
with contextlib.suppress(ImportError):
    from transformers.generation.continuous_batching.continuous_api import (
        ContinuousBatchingManager as _Manager,
    )

__all__ = ["BATCH_ARGUMENTS", "allow_batching", "batch_attention"]

BATCH_ARGUMENTS = frozenset(
    {
        "block_table",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "logits_indices",
        "logits_processor_args",
        "max_length_k",
        "max_length_q",
        "read_index",
        "write_index",
    }
)
"""What continuous batching hands to attention beside the cache."""


def allow_batching(names: Collection[str]) -> None:
    """Has continuous batching leave these implementations as they are: it knows its own alone.

    Without that it would refuse them, or go over to a flash kernel of softmax where it finds one.
    """
    if _Manager is None or getattr(_Manager, "checked_by_tsallis", False):
        return
    plain = _Manager.switch_to_cb_friendly_attn

    @wraps(plain)
    def switch(manager: Any, model: Any, *arguments: Any, **more: Any) -> None:
        if model.config._attn_implementation not in names:
            plain(manager, model, *arguments, **more)

    _Manager.switch_to_cb_friendly_attn = switch
    _Manager.checked_by_tsallis = True


def batch_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: Any,
    batch: dict[str, Any],
    **settings: Any,
) -> Any:
    """Attention of the newest tokens of several requests on their keys in transformers' pages.

    query: [1, heads, tokens, head_dim], the requests one behind the other; key, value: [1,
    kv_heads, tokens, head_dim], which are put into the pages. cache: a ``PagedAttentionCache``.
    batch: of `BATCH_ARGUMENTS`. settings: those of `tsallis.attention`, and ``returns``.
    """
    if batch.get("block_table") is not None:
        raise ValueError(
            "block_table: expected None, for tsallis finds pages by read_index, got a tensor"
        )
    layer: int = module.layer_idx  # type: ignore[assignment]
    allocator = cache.layer_to_allocator[layer]
    window = getattr(allocator, "sliding_window", None)
    read = batch["read_index"][allocator.index]
    # Keys of windows lie in a ring, in another order than their tokens. Empty: all keys are new.
    on_pages = (
        window is None
        and read.numel() > 0
        and settings["map"] != "adaptive_temperature"
        and query.device.type == "cpu"
        and query.dtype == cache.dtype
    )
    if on_pages:
        batch["read_index"] = [index[:0] for index in batch["read_index"]]  # update only writes
    key, value = cache.update(key_states=key, value_states=value, layer_idx=layer, kwargs=batch)
    starts = batch["cu_seq_lens_k"]  # of this layer: update has picked them
    if on_pages:
        k_pages, v_pages = allocator.get_cache_for_block_table(layer)
        return decode_paged(
            query,
            k_pages,
            v_pages,
            _block_table(read, starts, allocator.tokens_per_page, batch["max_length_k"]),
            starts.diff(),
            cu_seqlens_q=batch["cu_seq_lens_q"],
            **settings,
        )
    return attention(
        query,
        key,
        value,
        causal=True,
        window=None if window is None else (window - 1, None),
        cu_seqlens_q=batch["cu_seq_lens_q"],
        cu_seqlens_k=starts,
        **settings,
    )


def _block_table(read: Tensor, starts: Tensor, page_size: int, longest: int) -> Tensor:
    """The pages of every request: [requests, most pages].

    read: the row of every key of every request, one behind the other, in the pages of one layer;
    starts: [requests + 1], where those of a request begin.
    """
    first = torch.arange(0, longest, page_size)  # keys that begin a page
    place = (starts[:-1, None] + first).clamp(max=read.numel() - 1)
    return read[place] // page_size
