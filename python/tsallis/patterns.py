"""Fixed patterns of attention: which keys a query sees, whatever the scores are.

pattern = tsallis.patterns.bigbird(window=256, global_tokens=64, causal=True)
out = tsallis.attention(q, k, v, **pattern.masks(q.shape[2]))
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal, TypedDict

import torch
from torch import Tensor

from tsallis._call import call, choice

__all__ = ["Pattern", "PatternMasks", "bigbird", "fixed", "longformer", "strided"]


class PatternMasks(TypedDict):
    """Settings of `tsallis.attention`, which show what a pattern shows, and no more.

    Attributes:
        block_mask: bool [ceil(q_len / block_size[0]), ceil(k_len / block_size[1])], True where some
            pair of the block is visible.
        block_size: rows and keys of a block.
        mask: bool [q_len, k_len], True = visible; None where no visible block is cut.
    """

    block_mask: Tensor
    block_size: tuple[int, int]
    mask: Tensor | None


@dataclass(frozen=True)
class Pattern:
    """A union of parts; a part of 0 shows nothing.

    Query i and key j are counted from the first key; the query sees the key if any part says so,
    and, with ``causal``, only if j <= i.

    Attributes:
        causal: whether queries see no later keys.
        window: causal: 0 <= i - j < window; else \\|i - j\\| <= window // 2.
        global_tokens: j < global_tokens or i < global_tokens.
        stride: \\|i - j\\| is a multiple of it.
        segment: i // segment == j // segment.
        summary: the last keys of every segment, which all queries see; at most ``segment``.
        random: number of blocks of keys that are drawn for every block of queries, out of those
            that no other part shows to it; causal: out of the blocks up to its own. The draw
            depends on the seed, the block and the other parts, and, if not causal, on the number of
            keys.
        random_block: tokens of such a block, >= 1.
        seed: of the random blocks, >= 0.
    """

    causal: bool = False
    window: int = 0
    global_tokens: int = 0
    stride: int = 0
    segment: int = 0
    summary: int = 0
    random: int = 0
    random_block: int = 64
    seed: int = 0

    # Masks are memory of the CPU, which no traced operator may make.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def masks(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        block_size: tuple[int, int] = (64, 64),
        alignment: Literal["end", "start"] = "end",
    ) -> PatternMasks:
        """The masks for queries and keys of these numbers; takes memory in proportion to both.

        ``torch.compile`` leaves the call out of its graph.

        Args:
            q_len: of the queries.
            k_len: of the keys; None: as many as queries.
            block_size: rows and keys of a block.
            alignment: where the queries stand, as in `tsallis.attention`; "end" needs q_len <=
                k_len.

        Raises:
            ValueError: names the argument, what was expected and what came.
            TypeError: likewise, for a value of the wrong type.
        """
        k_len = q_len if k_len is None else k_len
        if not isinstance(block_size, tuple | list) or len(block_size) != 2:
            raise ValueError(f"block_size: expected a pair, got {block_size!r}")
        where = choice(alignment, "alignment", ("end", "start"))
        blocks, elements = call(
            torch.ops.tsallis.pattern_masks, q_len, k_len, *block_size, where, *astuple(self)
        )
        mask = elements if elements.numel() > 0 else None
        return {"block_mask": blocks, "block_size": block_size, "mask": mask}


def longformer(window: int, global_tokens: int, *, causal: bool = False) -> Pattern:
    """A window and the first tokens (Beltagy, Peters and Cohan 2020)."""
    return Pattern(causal=causal, window=window, global_tokens=global_tokens)


def bigbird(
    window: int,
    global_tokens: int,
    *,
    random: int = 3,
    random_block: int = 64,
    seed: int = 0,
    causal: bool = False,
) -> Pattern:
    """A window, the first tokens and random blocks (Zaheer et al. 2020)."""
    return Pattern(
        causal=causal,
        window=window,
        global_tokens=global_tokens,
        random=random,
        random_block=random_block,
        seed=seed,
    )


def strided(stride: int, *, causal: bool = False) -> Pattern:
    """\\|i - j\\| < stride, or a multiple of it (Child et al. 2019)."""
    window = stride if causal else 2 * stride - 1
    return Pattern(causal=causal, window=window, stride=stride)


def fixed(segment: int, summary: int, *, causal: bool = False) -> Pattern:
    """The own segment, and the last ``summary`` keys of every segment (Child et al. 2019)."""
    return Pattern(causal=causal, segment=segment, summary=summary)
