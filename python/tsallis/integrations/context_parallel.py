"""Attention of sequences whose tokens are split over processes, by torch's context parallelism.

::

    from tsallis.integrations.context_parallel import ContextParallelAttention

    attend = ContextParallelAttention(init_device_mesh("cuda", (8,)))
    out = attend(query, key, value, alpha=1.5)  # each of this process's tokens alone

Every process gathers the keys and values of all and computes the rows of its own queries, so the
threshold of a row is found on one process. A ring, which merges parts of a row by their
log-sum-exp, is exact for softmax alone (docs/guide/long-sequences.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental._context_parallel import _ContextParallel

from tsallis._attention import attention

__all__ = ["ContextParallelAttention"]

# What says more of queries or keys than where they stand, or where they stand otherwise.
_REFUSED = frozenset(
    {
        "alignment",
        "bias",
        "block_size",
        "causal",
        "cu_seqlens_k",
        "cu_seqlens_q",
        "lengths",
        "mask",
        "padding",
        "query_lengths",
    }
)


class ContextParallelAttention(nn.Module):
    """Causal attention on sequences that several processes share; a process has a piece of each.

    It stands where torch's FlexAttention stands in a model: torch's own hook on that module (tried
    in torch 2.13) gathers ``key`` and ``value`` of all processes before a call, and in the backward
    pass sums their gradients and gives every process those of its piece. The result is that of
    `tsallis.attention` with ``causal=True`` on the whole sequence. Parameters that all processes
    hold, such as alpha or slopes, get the share of their gradient that comes from this process's
    queries: sum it over the processes, as the gradient of any weight.

    Args:
        mesh: of one dimension: the processes that share a sequence, in the order of its pieces.
        head_tail: False: of n processes, process r has the r-th of n pieces. True: it has the r-th
            and the r-th from the end of 2 n pieces, one behind the other, as torch's head-tail load
            balancer deals them; every process then has the same work.

    Raises:
        ValueError: the mesh has several dimensions.

    Gathering: Llama Team 2024 (The Llama 3 herd of models, section 3.3.2).
    """

    def __init__(self, mesh: DeviceMesh, *, head_tail: bool = False) -> None:
        super().__init__()
        if mesh.ndim != 1:
            raise ValueError(f"mesh: expected 1 dimension, got {mesh.ndim}")
        self.processes = mesh.size()
        self.rank = mesh.get_local_rank()
        self.head_tail = head_tail
        gather: Any = _ContextParallel(2, _ContextParallel.AttentionType.FLEX)
        gather._apply(self, mesh)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: None = None,
        block_mask: tuple[()] | None = (),
        **settings: Any,
    ) -> Tensor:
        """Attention of this process's queries.

        Args:
            query: [batch, heads, tokens, head_dim]: as many tokens on every process; an even number
                of them with ``head_tail``.
            key: [batch, kv_heads, tokens, head_dim]: this process's as well; inside the hook those
                of all processes.
            value: [batch, kv_heads, tokens, value_dim].
            score_mod: None. FlexAttention's arguments are there because some versions of torch's
                hook hand them on.
            block_mask: () or None.
            settings: of `tsallis.attention`: all but those that describe single queries and keys
                (``mask``, ``bias``, ``lengths``, ``cu_seqlens_q`` and the like). The last dimension
                of ``length_scale`` is this process's tokens.

        Returns:
            [batch, heads, tokens, value_dim] of query's dtype.

        Raises:
            ValueError: names the argument, what was expected and what came.
        """
        if score_mod is not None:
            raise ValueError(
                f"score_mod: expected None, got {type(score_mod).__name__}: terms of the scores "
                "are settings of tsallis.attention"
            )
        if block_mask is not None and block_mask != ():
            raise ValueError(f"block_mask: expected () or None, got {type(block_mask).__name__}")
        for name in _REFUSED.intersection(settings):
            raise ValueError(
                f"{name}: expected no such setting on split sequences, got "
                f"{type(settings[name]).__name__}"
            )
        tokens, pieces = query.shape[2], self.processes
        if key.shape[2] != pieces * tokens:
            raise ValueError(
                f"key: expected {tokens} tokens on each of {pieces} processes, as query has, got "
                f"{key.shape[2]} in all"
            )
        if not self.head_tail:
            seen = (self.rank + 1) * tokens
            out: Tensor = attention(
                query, key[:, :, :seen], value[:, :, :seen], causal=True, **settings
            )
            return out
        if tokens % 2 != 0:
            raise ValueError(
                f"query: expected an even number of tokens with head_tail, got {tokens}"
            )
        half = tokens // 2
        key, value = (_in_order(x, pieces) for x in (key, value))
        outs = []
        for first, piece in ((0, self.rank), (half, 2 * pieces - 1 - self.rank)):
            own, seen = dict(settings), (piece + 1) * half
            scale = own.get("length_scale")
            if scale is not None and scale.shape[-1:] == (tokens,):
                own["length_scale"] = scale[..., first : first + half]
            rows = query[:, :, first : first + half]
            outs.append(attention(rows, key[:, :, :seen], value[:, :, :seen], causal=True, **own))
        return torch.cat(outs, 2)


def _in_order(gathered: Tensor, processes: int) -> Tensor:
    """Keys or values as they follow each other in a sequence that was dealt head and tail."""
    dealt = gathered.chunk(2 * processes, 2)
    return torch.cat((*dealt[::2], *dealt[::-2]), 2)
