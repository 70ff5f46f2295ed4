"""How every benchmark measures: contenders in turns, wall and processor time of each call.

Contenders take turns, so that a machine that is shared or whose speed drifts slows all alike, and
medians and quartiles of all calls are kept. Caches are as the contenders' calls leave them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["CACHES", "Sample", "Timing", "clocked", "compared", "in_turns"]

CACHES = "warm: every call follows calls of all contenders on the same arguments"


@dataclass(frozen=True)
class Sample:
    """Seconds of one call."""

    wall_s: float
    process_s: float  # of the processor, all threads together


@dataclass(frozen=True)
class Timing:
    """All calls of one contender."""

    samples: Sequence[Sample]

    @property
    def wall_s(self) -> float:
        """Median seconds on the wall's clock."""
        return statistics.median(sample.wall_s for sample in self.samples)

    @property
    def process_s(self) -> float:
        """Median seconds of the processor."""
        return statistics.median(sample.process_s for sample in self.samples)

    def fields(self, name: str) -> dict[str, Any]:
        """Of a row of JSON: medians, quartiles and the number of calls."""
        return {
            f"{name}_s": self.wall_s,
            f"{name}_s_quartiles": _quartiles([sample.wall_s for sample in self.samples]),
            f"{name}_process_s": self.process_s,
            f"{name}_process_s_quartiles": _quartiles([s.process_s for s in self.samples]),
            f"{name}_calls": len(self.samples),
        }


def _quartiles(values: Sequence[float]) -> list[float]:
    if len(values) == 1:
        return [values[0], values[0]]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, third]


def clocked(call: Callable[[], object]) -> Sample:
    """One call's seconds; what it returns is dropped after the clocks have stopped."""
    wall, process = time.perf_counter(), time.process_time()
    result = call()
    sample = Sample(time.perf_counter() - wall, time.process_time() - process)
    del result
    return sample


def in_turns(
    contenders: Mapping[str, Callable[[], Sequence[Sample]]],
    *,
    most: int,
    budget_s: float = float("inf"),
) -> dict[str, Timing]:
    """Every contender's samples, after a turn of each that only warms up.

    A contender gives the samples of one turn. One that has used up its share of the budget, in
    seconds of the wall's clock, stops early; if even its warm-up did, that turn is the measurement
    (dense attention over 65 536 keys). most: turns of a contender.
    """
    share = budget_s / len(contenders)
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    spent: dict[str, float] = {}
    for name, turn in contenders.items():
        first = turn()
        spent[name] = sum(sample.wall_s for sample in first)
        if spent[name] > share:
            samples[name].extend(first)
    for _ in range(most):
        for name, turn in contenders.items():
            if samples[name] and spent[name] >= share:
                continue
            taken = turn()
            samples[name].extend(taken)
            spent[name] += sum(sample.wall_s for sample in taken)
    return {name: Timing(values) for name, values in samples.items()}


def compared(ours: Timing, peer: str, theirs: Timing) -> dict[str, Any]:
    """Of a row of JSON: both sides, and how many times as fast ours is by the wall's clock."""
    return {
        "peer": peer,
        **ours.fields("ours"),
        **theirs.fields("peer"),
        "speedup": theirs.wall_s / ours.wall_s,
        "process_speedup": theirs.process_s / max(ours.process_s, 1e-9),
    }
