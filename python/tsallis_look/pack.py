"""The weights of all heads as few bytes, and the cut with which they fit.

Rows are the queries of all heads, head after head. The bytes are six arrays behind each other,
compressed by zlib:

- firsts, uint8 [rows]: 1 + the level of the weight on key 0, or 0 for none. Many heads put most of
  their weight there.
- counts, uint16 [rows]: of the other keys of the row; all low bytes, then all high bytes.
- gaps, uint16 [entries]: those keys from the last to the first: how far a key lies before the one
  behind it, the first of them before the query, or before the last key of all where queries see
  keys behind them. Low bytes, then high bytes.
- levels, uint8 [entries].
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np

from .gather import Gathered, Head


@dataclass(frozen=True)
class Packed:
    level: int  # up to which weights are there
    entries: int  # of all rows, those on key 0 among them
    text: str  # base64


def _arrays(head: Head, most: int, tokens: int, causal: bool) -> list[np.ndarray]:
    queries, columns, levels = head.kept(most)
    on_first = columns == 0
    firsts = np.zeros(tokens, np.uint8)
    firsts[queries[on_first]] = levels[on_first] + 1
    queries, columns, levels = (x[~on_first][::-1] for x in (queries, columns, levels))
    # Queries descend now and so do the keys of each: rows are put in order, keys stay.
    order = np.argsort(queries, kind="stable")
    queries, columns, levels = queries[order], columns[order].astype(np.int32), levels[order]
    counts = np.bincount(queries, minlength=tokens)
    behind = np.empty_like(columns)
    behind[1:] = columns[:-1]
    starts = (np.cumsum(counts) - counts)[counts > 0]
    behind[starts] = np.flatnonzero(counts) if causal else tokens - 1
    return [firsts, counts.astype(np.uint16), (behind - columns).astype(np.uint16), levels]


def _halves(x: np.ndarray) -> bytes:
    return (x & 255).astype(np.uint8).tobytes() + (x >> 8).astype(np.uint8).tobytes()


def pack(found: Gathered, most: int, effort: int = 9) -> Packed:
    """The weights of levels up to ``most``."""
    heads = [_arrays(head, most, found.tokens, found.causal) for head in found.heads]
    firsts, counts, gaps, levels = (np.concatenate(part) for part in zip(*heads, strict=True))
    content = firsts.tobytes() + _halves(counts) + _halves(gaps) + levels.tobytes()
    text = base64.b64encode(zlib.compress(content, effort)).decode()
    return Packed(most, int(np.count_nonzero(firsts)) + len(levels), text)


def fit(found: Gathered, size: int) -> Packed:
    """As many of the largest weights as make at most ``size`` bytes of text."""
    whole = pack(found, found.level)
    if len(whole.text) <= size:
        return whole
    low, high = -1, found.level  # fits, does not
    while high - low > 1:
        middle = (low + high) // 2
        if len(pack(found, middle, 6).text) <= size:
            low = middle
        else:
            high = middle
    # More effort hardly ever makes more bytes; where it does, the next level fits.
    while low >= 0:
        packed = pack(found, low)
        if len(packed.text) <= size:
            return packed
        low -= 1
    return pack(found, -1)
