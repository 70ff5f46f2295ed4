"""The folders of finished runs, read into plain Python."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class StudyError(Exception):
    """Results or runs that cannot be read; the message names the file."""


def read_json(path: Path) -> Any:
    """What a file holds; ``StudyError`` names the file if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise StudyError(f"{path}: not JSON: {error}") from error


def number(value: float | None) -> float:
    """JSON has no NaN: null stands for it."""
    return math.nan if value is None else float(value)


@dataclass(frozen=True)
class Run:
    """The folder of a finished training, and which samples of which lengths were evaluated."""

    folder: Path
    method: str  # that was trained
    seed: int
    steps: int
    samples: dict[str, list[int]]  # at every length, by the method that reads the weights
    map_lengths: list[int]

    def scores(self, method: str, lengths: Sequence[int]) -> list[Json]:
        """The method's evaluation at each length."""
        path = self.folder / f"eval-{method}.json"
        there = {
            (score["n"], score.get("samples", score.get("sets"))): score
            for score in reversed(read_json(path))
        }
        try:
            return [there[key] for key in zip(lengths, self.samples[method], strict=True)]
        except KeyError as error:
            raise StudyError(f"{path}: no evaluation of (n, samples) = {error}") from error

    @cached_property
    def heads(self) -> Json:
        """What the heads do: nothing where nobody looked at them."""
        path = self.folder / f"heads-{self.method}.json"
        return read_json(path) if path.exists() else {"lengths": [], "maps": []}

    @cached_property
    def metrics(self) -> list[Json]:
        """What the training wrote as it went on; a line that was not finished is left out."""
        path = self.folder / "metrics.jsonl"
        entries = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
        return [entry for entry in entries if isinstance(entry, dict)]

    @property
    def seconds(self) -> float:
        """Of training: the clock starts anew where a run was resumed."""
        total = last = 0.0
        for entry in self.metrics:
            seconds = entry.get("seconds", 0.0)
            total += last if seconds < last else 0.0
            last = seconds
        return total + last


@dataclass(frozen=True)
class MethodRuns:
    """The finished runs of a method, the first seed first, and how its study asks."""

    name: str
    runs: list[Run]
    lengths: list[int]
    metrics: list[Json]  # the study's, then what is shown beside it: numbers of an evaluation
    groups: list[str]  # kinds of samples
    bins: list[int]  # where ranges of positions begin
    heat_items: int  # of a row of a heat map

    @property
    def trained(self) -> bool:
        """Whether these runs trained the method; else it reads the weights of another."""
        return self.runs[0].method == self.name

    @cached_property
    def _scores(self) -> list[list[Json]]:
        return [run.scores(self.name, self.lengths) for run in self.runs]

    @property
    def by_length(self) -> Iterator[tuple[int, list[Json]]]:
        """Every length with the evaluations of the runs."""
        return ((n, [scores[i] for scores in self._scores]) for i, n in enumerate(self.lengths))

    def value(self, score: Json, metric: int = 0) -> float:
        """An evaluation by one of the metrics."""
        of = self.metrics[metric]
        total = number(score[of["sum"]])
        if not of["count"]:
            return total
        counted = score[of["count"]]
        return of["factor"] * total / counted if counted else 0.0

    def observed(self, name: str) -> dict[int, list[float]]:
        """A number that the runs wrote while they trained, by ascending step."""
        by_step: dict[int, list[float]] = {}
        for run in self.runs:
            for entry in run.metrics:
                value = entry.get("observed", {}).get(name)
                if value is not None:
                    by_step.setdefault(entry.get("step", 0), []).append(float(value))
        return dict(sorted(by_step.items()))


def asked_in(score: Json) -> int:
    """How many answers an evaluation counts."""
    return int(score["asked"] if "asked" in score else score["sets"])


def add_up(values: Iterable[float]) -> float:
    """In order, so that the same runs give the same bits under every Python."""
    total = 0.0
    for value in values:
        total += value
    return total


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return add_up(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 of one value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    squares = add_up((value - middle) * (value - middle) for value in values)
    return math.sqrt(squares / (len(values) - 1))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and deviation."""
    return mean(values), deviation(values)
