"""Numbers of every head, and the weights that a page may show, as bytes.

A weight w is kept as the level round(-8 log2 w), one byte, which is at most 4.4 % off: twice as
many levels would take a bit more of every weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from .calls import Call

STEPS = 8  # levels of a halving
LEVELS = 255  # one more byte says "no weight"
DENSE_CUT = 0.01  # maps without zeros are shown from here up

# Weights that are computed at a time: some forty bytes each while they are counted.
_AT_ONCE = 1 << 22
# Weights that are held for the page, five bytes each, before the smallest are let go of. A page of
# ten megabytes holds a third of them at most.
_HELD = 24_000_000


def smallest(level: int) -> float:
    """The smallest weight that has a level up to ``level``."""
    return math.exp2(-(level + 0.5) / STEPS)


@dataclass
class Head:
    """What one head did; sums are over all queries."""

    alpha: float | None
    keys: int = 0  # with a weight
    visible: int = 0  # that it might have read
    entropy: float = 0.0  # nats
    weight: float = 0.0
    first: float = 0.0  # weight on the first key
    distance: float = 0.0  # times weight
    by_level: np.ndarray = field(default_factory=lambda: np.zeros(LEVELS + 1))  # weight
    counts: np.ndarray = field(default_factory=lambda: np.zeros(LEVELS + 1, np.int64))
    # What is held: queries and keys ascend. uint16, uint16 and uint8.
    queries: list[np.ndarray] = field(default_factory=list)
    columns: list[np.ndarray] = field(default_factory=list)
    levels: list[np.ndarray] = field(default_factory=list)

    def kept(self, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries, keys and levels of the weights up to a level."""
        parts = [np.concatenate(x) for x in (self.queries, self.columns, self.levels)]
        chosen = parts[2] <= most
        return parts[0][chosen], parts[1][chosen], parts[2][chosen]

    def shown(self, most: int) -> float:
        """The share of the weight that levels up to ``most`` have."""
        return float(self.by_level[: most + 1].sum() / self.weight) if self.weight > 0 else 1.0


class Gathered:
    """The heads of all layers that were looked at."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.layers: list[list[Head]] = []
        self.maps: list[str] = []
        self.causal = True  # no query read a key after it
        self.has_zeros = True
        self.level = LEVELS - 1  # up to which weights are held

    def cut(self, most: int) -> float:
        """The weight below which nothing is held, if levels up to ``most`` are."""
        return max(smallest(most), 0.0 if self.has_zeros else DENSE_CUT)

    @property
    def heads(self) -> list[Head]:
        return [head for layer in self.layers for head in layer]

    def shown(self, most: int) -> float:
        """The share of all weight that levels up to ``most`` have."""
        total = sum(head.weight for head in self.heads)
        part = sum(float(head.by_level[: most + 1].sum()) for head in self.heads)
        return part / total if total > 0 else 1.0

    def add(self, call: Call, step: Callable[[int], None]) -> None:
        """The next layer. step: called with the queries that have been read of it, now and then."""
        alphas = call.alphas
        layer = [Head(alphas[h] if alphas else None) for h in range(call.heads)]
        self.layers.append(layer)
        self.maps.append(call.map)
        self.has_zeros &= call.has_zeros
        begin = 0
        while begin < call.tokens:
            # Maps with zeros keep a small share of the keys.
            keys = call.tokens if not call.has_zeros else max(1, call.tokens // 4)
            end = min(call.tokens, begin + max(1, _AT_ONCE // (keys * call.heads)))
            self._rows(layer, call, begin, end)
            begin = end
            step(end)
        self._let_go()

    def _rows(self, layer: list[Head], call: Call, begin: int, end: int) -> None:
        weights = call.weights(begin, end)
        rows = weights.crow_indices().view(-1)
        columns, values = weights.col_indices(), weights.values()
        count = end - begin
        queries = torch.arange(begin, end, dtype=torch.int32).repeat(len(layer))
        queries = queries.repeat_interleave(rows.diff())
        columns = columns.to(torch.int32)
        distance = queries - columns
        self.causal &= not bool((distance < 0).any())
        logs = values.log2()
        levels = (logs * -STEPS).round_().clamp_(0, LEVELS).to(torch.uint8)
        if not call.has_zeros:
            levels[values < DENSE_CUT] = LEVELS
        for h, head in enumerate(layer):
            part = slice(int(rows[h * count]), int(rows[(h + 1) * count]))
            w = values[part].double()
            head.keys += len(w)
            head.entropy -= float((w * logs[part]).sum()) * math.log(2.0)
            head.weight += float(w.sum())
            head.first += float(w[columns[part] == 0].sum())
            head.distance += float((w * distance[part].abs()).sum())
            index = levels[part].int()
            head.by_level += torch.bincount(index, w, LEVELS + 1).numpy()
            head.counts += torch.bincount(index, minlength=LEVELS + 1).numpy()
            held = levels[part] <= self.level
            head.queries.append(queries[part][held].numpy().astype(np.uint16))
            head.columns.append(columns[part][held].numpy().astype(np.uint16))
            head.levels.append(levels[part][held].numpy())
            head.visible += self._visible(call, begin, end)

    @staticmethod
    def _visible(call: Call, begin: int, end: int) -> int:
        """Of one head, keys that these queries might read."""
        mask = call.settings.get("mask")
        if mask is not None:
            seen = mask[..., begin:end, :] if mask.shape[-2] != 1 else mask
            rows = 1 if mask.shape[-2] != 1 else end - begin
            return int(seen.sum() * rows / seen[..., 0, 0].numel())
        if call.settings.get("causal"):
            return (begin + 1 + end) * (end - begin) // 2
        return call.tokens * (end - begin)

    def _let_go(self) -> None:
        counts = np.cumsum(sum(head.counts for head in self.heads))
        if counts[self.level] > _HELD:
            self._drop(max(0, int(np.searchsorted(counts, _HELD * 2 // 3)) - 1))

    def _drop(self, level: int) -> None:
        self.level = level
        for head in self.heads:
            queries, columns, levels = head.kept(level)
            head.queries, head.columns, head.levels = [queries], [columns], [levels]
