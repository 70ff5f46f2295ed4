"""Whom attention is measured against: torch's SDPA, the entmax package, FlexAttention.

A peer that cannot take part says why; nobody is left out in silence.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis
from tsallis.bench.cases import Case

__all__ = ["NAMES", "Absent", "Runner", "ours", "peer"]

NAMES = ("sdpa", "entmax", "flex")

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Runner:
    """One way to attend. q, k, v: [batch, heads, n, d], k and v of fewer heads where they are
    shared."""

    name: str
    attend: Attend
    # Only the lengths of its case: it was made for them, and is warm.
    fixed: bool = False


@dataclass(frozen=True)
class Absent:
    """Why a peer is not measured; not worth a word where a case has nothing in common with it."""

    name: str
    reason: str | None = None


def ours(case: Case) -> Runner:
    """`tsallis.attention` with the case's settings."""
    settings = case.settings

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = tsallis.attention(q, k, v, causal=case.causal, **settings)
        return out

    return Runner("tsallis", attend)


def _sdpa(case: Case) -> Runner:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=case.causal, enable_gqa=case.grouped
        )

    return Runner("sdpa", attend)


def _entmax(case: Case, most_plain: int) -> Runner | Absent:
    """Plain attention around the package's exact solvers; the map sees float32."""
    if case.alpha not in (1.5, 2.0) or case.slopes is not None or case.scale_invariant is not None:
        return Absent("entmax")
    # 24 bytes a pair: scores, sorted scores and their order, and what autograd keeps.
    if case.batch * case.heads * case.n**2 > 2 * most_plain**2:
        return Absent("entmax", f"stores every score: left out beyond {most_plain} keys")
    if importlib.util.find_spec("entmax") is None:
        return Absent("entmax", "not installed (pip install entmax)")
    import entmax

    solve = entmax.entmax15 if case.alpha == 1.5 else entmax.sparsemax

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if case.grouped:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = (q @ k.transpose(-2, -1)).float() * case.d**-0.5
        if case.causal:
            n = scores.shape[-1]
            hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return cast(Tensor, solve(scores, -1)).to(v.dtype) @ v

    return Runner("entmax", attend)


def _causal_blocks(n: int) -> Any:
    """FlexAttention's mask of a causal row, written down: its own constructor takes n^2 memory."""
    from torch.nn.attention.flex_attention import BlockMask

    size = 128
    blocks = -(-n // size)
    row = torch.arange(blocks, dtype=torch.int32)
    # The block at the diagonal is looked into, those before it are whole: [1, 1, blocks(, blocks)].
    return BlockMask.from_kv_blocks(
        torch.ones(1, 1, blocks, dtype=torch.int32),
        row[:, None].expand(blocks, blocks)[None, None].contiguous(),
        row[None, None].contiguous(),
        row.expand(blocks, blocks)[None, None].contiguous(),
        BLOCK_SIZE=size,
        mask_mod=lambda b, h, i, j: i >= j,
        seq_lengths=(n, n),
    )


def _flex(case: Case, inputs: list[Tensor], backward: bool) -> Runner | Absent:
    """FlexAttention, softmax with the case's positions; compiled, eager where that fails."""
    if case.alpha not in (1.5, None) or case.map == "adaptive_temperature" or case.spread != 1.0:
        return Absent("flex")  # a case that differs only in what FlexAttention does not have
    if case.scale_invariant is not None:
        return Absent("flex")
    try:
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError:
        return Absent("flex", f"not in torch {torch.__version__}")
    settings: dict[str, Any] = {"enable_gqa": case.grouped}
    if case.causal:
        settings["block_mask"] = _causal_blocks(case.n)
    if case.slopes is not None:
        slopes = torch.tensor(case.slopes)
        settings["score_mod"] = lambda s, b, h, i, j: s - slopes[h] * (i - j)
    torch.compiler.reset()  # else torch gives up on a function after eight shapes
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    reason = ""
    for name, function in (("flex", compiled), ("flex eager", flex_attention)):
        attend = _bound(function, settings)
        try:
            with warnings.catch_warnings():
                # Eager says that it is eager; so does the name here.
                warnings.simplefilter("ignore")
                _once(attend, inputs, backward)
            return Runner(name, attend, fixed=True)
        except NotImplementedError as error:
            reason = str(error).split(". ")[0]
        except Exception as error:  # the compiler's errors have no common class
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return Absent("flex", reason)


def _bound(function: Callable[..., Any], settings: dict[str, Any]) -> Attend:
    return lambda q, k, v: cast(Tensor, function(q, k, v, **settings))


def _once(attend: Attend, inputs: list[Tensor], backward: bool) -> None:
    *qkv, gradient = inputs
    with torch.set_grad_enabled(backward):
        leaves = [x.detach().requires_grad_(backward) for x in qkv]
        out = attend(leaves[0], leaves[1], leaves[2])
        if backward:
            torch.autograd.grad(out, leaves, gradient)


def peer(
    name: str, case: Case, inputs: list[Tensor], backward: bool, most_plain: int
) -> Runner | Absent:
    """The peer of this name, one of `NAMES`, ready for ``inputs``: q, k, v and d_out."""
    if name == "sdpa":
        return _sdpa(case)
    if name == "entmax":
        return _entmax(case, most_plain)
    return _flex(case, inputs, backward)
