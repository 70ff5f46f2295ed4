"""What a results folder holds, read into plain Python."""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


_MOST_CELLS = 4096  # of a side of a map; the lab writes 96 at most
_NOTABLE_TEST_ERROR = 0.5  # points

TEST_ERROR = (
    "test error: standard error of the share of right answers on the test samples, which all seeds "
    "share, so that it comes on top"
)


class StudyError(Exception):
    """A results folder that cannot be read; the message names the file."""


@dataclass(frozen=True)
class Metric:
    """What a study counts, and how people read it."""

    name: str = "accuracy"
    unit: str = "%"
    higher_is_better: bool = True
    digits: int = 1  # behind the point

    @property
    def heading(self) -> str:
        """The name as a line begins with it: ``Accuracy``, ``BLEU``."""
        return self.name[:1].upper() + self.name[1:]

    @property
    def title(self) -> str:
        """The name with its unit: ``Accuracy (%)``."""
        return f"{self.heading} ({self.unit})"

    @property
    def points(self) -> str:
        """The unit of differences."""
        return "points" if self.unit == "%" else self.unit

    @property
    def in_unit(self) -> str:
        """The name with its unit, and what a loss is in bits: ``Accuracy in %``."""
        bits = " (a nat is 1.443 bits)" if self.unit.startswith("nats") else ""
        return f"{self.heading} in {self.unit}{bits}"

    @property
    def full_tint(self) -> float:
        """The difference from which on a colour is as strong as it gets."""
        return 50.0 if self.unit == "%" else 1.0

    def number(self, value: float) -> str:
        """A value: ``98.2``."""
        return f"{value:.{self.digits}f}"

    def spread(self, row: "Row", between: str = " ± ") -> str:
        """A mean with its standard deviation, if several seeds ran: ``98.2 ± 0.4``."""
        mean = self.number(row.mean)
        return f"{mean}{between}{self.number(row.std)}" if row.seeds > 1 else mean

    def difference(self, value: float) -> str:
        """``+1.3``, ``-0.4``; no sign for what rounds to zero."""
        zero = self.number(0.0)
        text = f"{value:+.{self.digits}f}"
        return zero if text in (f"+{zero}", f"-{zero}") else text

    def best(self, values: Iterable[float]) -> float | None:
        """The best of the finite ones, as people read it; of accuracies none where all are 0."""
        finite = [round(value, self.digits) for value in values if np.isfinite(value)]
        if not finite:
            return None
        return max(finite) or None if self.higher_is_better else min(finite)

    def is_best(self, value: float, best: float | None) -> bool:
        """Whether a value is the best one; those that tie share it."""
        return best is not None and round(value, self.digits) == best


@dataclass(frozen=True)
class Contrast:
    """How far a method is above the study's baseline."""

    difference: float
    error: float | None  # standard error of the difference; of one seed there is none
    p: float | None = None  # of the paired t-test over seeds; of fewer than three there is none


@dataclass(frozen=True)
class Row:
    """One method at one length over the seeds that ran, by the study's metric."""

    method: str
    n: int
    mean: float
    std: float
    best: float
    seeds: int
    paper: float | None
    ahead: Contrast | None = None  # of the baseline; the baseline's own rows have none
    samples: int = 0  # of a seed, the same for all; 0: the value is no share of right answers

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.mean - self.paper

    @property
    def test_error(self) -> float | None:
        """Standard error of a share of right answers from its samples, in points.

        Laplace's estimate of the share keeps it above 0 where all or no answers are right. More
        seeds do not make it smaller, since all of them answer the same samples.
        """
        if self.samples == 0:
            return None
        share = (self.mean / 100.0 * self.samples + 1.0) / (self.samples + 2.0)
        return 100.0 * math.sqrt(share * (1.0 - share) / self.samples)


@dataclass(frozen=True)
class Entropy:
    """Entropy (nats) and support of one method's attention at one length."""

    method: str
    n: int
    mean: float
    std: float
    normalised: float
    support: float


@dataclass(frozen=True)
class PositionLoss:
    """The loss (nats) of one method at positions [begin, end) of samples of length n."""

    method: str
    n: int
    begin: int
    end: int
    mean: float
    std: float


@dataclass(frozen=True)
class LogitSpread:
    """How far scores lie apart after a step of training, and their bound, over seeds."""

    method: str
    step: int
    mean: float
    least: float
    most: float
    bound_mean: float
    bound_least: float
    bound_most: float


@dataclass(frozen=True)
class Group:
    """Accuracy (%) of one method at one length on the samples of one kind."""

    method: str
    n: int
    group: str
    mean: float
    std: float


@dataclass(frozen=True)
class Measure:
    """What else is measured of one method at one length, beside the study's metric."""

    method: str
    n: int
    measure: str
    mean: float
    std: float


@dataclass(frozen=True)
class Flow:
    """Gradient that arrives at a layer after a step of training, and keys with weight there."""

    method: str
    step: int
    layer: int
    gradient: float
    keys: float


@dataclass(frozen=True)
class HeadNumber:
    """A quantity of one head at one length, over the scored tokens."""

    method: str
    n: int
    layer: int
    head: int
    quantity: str
    mean: float
    std: float


@dataclass(frozen=True)
class AttentionMap:
    """Attention of one head on one sample; a row sums to 1."""

    method: str
    n: int
    layer: int
    head: int
    tokens: int
    cell: int  # tokens of a row and of a column
    weights: Array  # [cells, cells], queries down


@dataclass(frozen=True)
class Sample:
    """A sample, token by token."""

    words: list[str]
    scored: list[bool]


@dataclass(frozen=True)
class Method:
    """A method, and what figures group and colour it by."""

    name: str  # as in the recipe
    label: str  # for people
    map: str = ""
    length_scaling: str = "none"
    like: str = ""  # names methods that attend alike but for positions and training
    variant: str = ""  # tells those apart: ``rope``, ``weight decay``
    headline: bool = False  # whether the first figure shows it where all are too many


# Figures that a page may begin with.
FIRST = ("accuracy", "flow")


@dataclass
class Study:
    """A finished study, in the recipe's order of methods."""

    study: str
    title: str
    source: str
    scale: str
    commit: str
    processor: str  # of the machine that made the report; runs may be from others
    command: str
    finding: str  # one sentence
    figure: str  # what the page begins with, one of ``FIRST``
    protocol: str  # parted by "; "
    baseline: str  # method that the others are held against; "": none
    train_seconds: float
    about: dict[str, Method]  # by name, in the recipe's order
    rows: list[Row]
    metric: Metric = field(default_factory=Metric)
    positions: list[PositionLoss] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    spreads: list[LogitSpread] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    entropies: list[Entropy] = field(default_factory=list)
    heat_maps: dict[tuple[str, int], Array] = field(
        default_factory=dict
    )  # [sets, items], ascending
    heads: list[HeadNumber] = field(default_factory=list)
    maps: list[AttentionMap] = field(default_factory=list)
    samples: dict[int, Sample] = field(default_factory=dict)  # by length

    @property
    def methods(self) -> list[str]:
        """Names of the methods in the recipe's order."""
        return list(self.about)

    @property
    def labels(self) -> dict[str, str]:
        """Names of the methods for people."""
        return {name: method.label for name, method in self.about.items()}

    def of(self, names: Sequence[str]) -> list[Method]:
        """The methods of these names."""
        return [self.about[name] for name in names]

    @property
    def lengths(self) -> list[int]:
        """Lengths with a result, ascending."""
        return sorted({row.n for row in self.rows})

    @property
    def max_seeds(self) -> int:
        """The largest number of seeds behind any figure."""
        return max((row.seeds for row in self.rows), default=0)

    @property
    def seed_text(self) -> str:
        """How many seeds the means are of: ``one seed``, ``3 seeds``, ``2 to 3 seeds``."""
        seeds = sorted({row.seeds for row in self.rows})
        if not seeds:
            return "no seeds"
        if seeds[-1] == 1:
            return "one seed"
        first = "" if len(seeds) == 1 else f"{seeds[0]} to "
        return f"{first}{seeds[-1]} seeds"

    @property
    def test_errors(self) -> bool:
        """Whether the test samples are so few at some length that their error is worth a line."""
        return any((row.test_error or 0.0) >= _NOTABLE_TEST_ERROR for row in self.rows)

    @property
    def training_time(self) -> str:
        """Of all jobs together; empty where it is not known."""
        seconds = self.train_seconds
        if not seconds > 0:
            return ""
        if seconds < 60:
            return f"{seconds:.1f} s, summed over jobs"
        if seconds < 3600:
            return f"{seconds / 60:.0f} min, summed over jobs"
        return f"{seconds / 3600:.1f} h, summed over jobs"

    @property
    def has_paper(self) -> bool:
        """Whether any row has a published figure."""
        return any(row.paper is not None for row in self.rows)

    def row(self, method: str, n: int) -> Row | None:
        """The row of a method at a length, if there is one."""
        return next((r for r in self.rows if r.method == method and r.n == n), None)

    def rows_of(self, method: str) -> list[Row]:
        """Rows of a method by ascending length."""
        return sorted((r for r in self.rows if r.method == method), key=lambda r: r.n)

    def keys(self, n: int) -> float:
        """Keys that a query sees at length n, on average: the set, or the tokens so far."""
        return self._keys.get(n, float(n))

    @cached_property
    def _keys(self) -> dict[int, float]:
        seen: dict[int, list[float]] = {}
        for number in self.heads:
            if number.quantity == "keys":
                seen.setdefault(number.n, []).append(number.mean)
        return {n: float(np.mean(values)) for n, values in seen.items()}

    def entropies_of(self, method: str) -> list[Entropy]:
        """Entropies of a method by ascending length."""
        return sorted((e for e in self.entropies if e.method == method), key=lambda e: e.n)


_DIRTY = "-dirty"  # behind the commit that a tree with uncommitted changes stands on


def commit_text(commit: str, code: Callable[[str], str]) -> str:
    """The commit of a report for people; ``code`` sets a checksum in the type of code."""
    if not commit.endswith(_DIRTY):
        return code(commit)
    return f"{code(commit.removesuffix(_DIRTY))} with uncommitted changes"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; ``StudyError`` names the file if it cannot be read."""
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise StudyError(f"{path}: not JSON: {error}") from error
    return raw


def load(directory: str | Path) -> Study:
    """Read ``results.json`` and, where they exist, the files in ``data/``."""
    directory = Path(directory)
    path = directory / "results.json"
    raw = read_json(path)
    try:
        rows = [
            Row(
                method=row["method"],
                n=int(row["n"]),
                mean=_number(row["mean"]),
                std=_number(row.get("std", 0.0)),
                best=_number(row.get("best", row["mean"])),
                seeds=int(row.get("seeds", 1)),
                paper=None if row.get("paper") is None else float(row["paper"]),
                ahead=_contrast(row.get("against_baseline")),
                samples=int(row.get("samples", 0)),
            )
            for row in raw["rows"]
        ]
        methods = [_method(entry) for entry in raw.get("methods", [])]
        study = str(raw["study"])
        metric = Metric(**raw["metric"]) if "metric" in raw else Metric()
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {type(error).__name__}: {error}") from error
    figure = str(raw.get("figure", FIRST[0]))
    if figure not in FIRST:
        raise StudyError(f"{path}: figure: expected one of {', '.join(FIRST)}, got {figure!r}")
    ran = {row.method for row in rows}
    about = {method.name: method for method in methods if method.name in ran}
    for row in rows:
        about.setdefault(row.method, _method({"name": row.method}))
    return Study(
        study=study,
        title=str(raw.get("title") or study),
        source=str(raw.get("source", "")),
        scale=str(raw.get("scale", "")),
        commit=str(raw.get("commit", "")),
        processor=str(raw.get("processor", "")),
        command=str(raw.get("command", "")),
        finding=str(raw.get("finding", "")),
        figure=figure,
        protocol=str(raw.get("protocol", "")),
        baseline=str(raw.get("baseline", "")),
        train_seconds=_number(raw.get("train_seconds", 0.0)),
        about=about,
        rows=rows,
        metric=metric,
        positions=_load_rows(directory / "data" / "positions.csv", PositionLoss),
        groups=_load_rows(directory / "data" / "groups.csv", Group),
        measures=_load_rows(directory / "data" / "measures.csv", Measure),
        spreads=_load_rows(directory / "data" / "spread.csv", LogitSpread),
        flows=_load_rows(directory / "data" / "flow.csv", Flow),
        entropies=_load_rows(directory / "data" / "entropy.csv", Entropy, _ENTROPY),
        heat_maps=_load_heat_maps(directory / "data" / "heatmap.csv"),
        heads=_load_rows(directory / "data" / "heads.csv", HeadNumber),
        maps=_load_maps(directory / "data" / "attention.csv"),
        samples=_load_samples(directory / "data" / "samples.csv"),
    )


_ENTROPY = {
    "mean": "entropy_mean",
    "std": "entropy_std",
    "normalised": "normalised_entropy",
    "support": "support_mean",
}


def _number(value: float | None) -> float:
    """JSON has no NaN: null stands for it."""
    return math.nan if value is None else float(value)


def _method(entry: dict[str, Any]) -> Method:
    """Of an entry of ``methods``; what an older file does not say has its default."""
    name = str(entry["name"])
    return Method(
        name=name,
        label=str(entry.get("label") or name),
        map=str(entry.get("map", "")),
        length_scaling=str(entry.get("length_scaling", "none")),
        like=str(entry.get("like") or name),
        variant=str(entry.get("variant", "")),
        headline=bool(entry.get("headline", False)),
    )


def _contrast(value: dict[str, Any] | None) -> Contrast | None:
    if value is None:
        return None
    error, p = value.get("error"), value.get("p")
    return Contrast(
        _number(value["difference"]),
        None if error is None else float(error),
        None if p is None else float(p),
    )


def _records(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        try:
            yield from reader
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise StudyError(f"{path}:{reader.line_num}: {error}") from error


Loaded = TypeVar("Loaded")


def _load_rows(
    path: Path, kind: type[Loaded], columns: Mapping[str, str] = MappingProxyType({})
) -> list[Loaded]:
    """One of ``kind`` for each record; ``columns`` are those that the file calls otherwise."""
    numbers: Any = kind  # a dataclass of texts and numbers
    read: dict[str, Any] = {field.name: field.type for field in fields(numbers)}
    try:
        return [
            kind(**{name: cast(record[columns.get(name, name)]) for name, cast in read.items()})
            for record in _records(path)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {type(error).__name__}: {error}") from error


def _load_heat_maps(path: Path) -> dict[tuple[str, int], Array]:
    entries: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    try:
        for record in _records(path):
            key = (record["method"], int(record["n"]))
            entry = (int(record["set"]), int(record["rank"]), float(record["weight"]))
            entries.setdefault(key, []).append(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {type(error).__name__}: {error}") from error
    maps: dict[tuple[str, int], Array] = {}
    for key, values in entries.items():
        sets = 1 + max(value[0] for value in values)
        items = max(value[1] for value in values)
        if sets * items != len(values):
            raise StudyError(
                f"{path}: {key[0]} at n = {key[1]}: {len(values)} weights for {sets} × {items}"
            )
        weights = np.full((sets, items), np.nan)
        for index, rank, weight in values:
            weights[index, items - rank] = weight  # rank 1, the largest item, comes last
        maps[key] = weights
    return maps


def _load_maps(path: Path) -> list[AttentionMap]:
    maps: dict[tuple[str, int, int, int], AttentionMap] = {}
    try:
        for record in _records(path):
            method = record["method"]
            n, layer, head = int(record["n"]), int(record["layer"]), int(record["head"])
            key = (method, n, layer, head)
            if key not in maps:
                tokens, cell = int(record["tokens"]), int(record["cell"])
                cells = -(-tokens // cell)
                if not 1 <= cells <= _MOST_CELLS:  # a stray number must not cost gigabytes
                    raise ValueError(f"a map of {tokens} tokens in cells of {cell}")
                maps[key] = AttentionMap(*key, tokens, cell, np.zeros((cells, cells)))
            place = int(record["row"]), int(record["column"])
            maps[key].weights[place] = float(record["weight"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StudyError(f"{path}: {type(error).__name__}: {error}") from error
    return list(maps.values())


def _load_samples(path: Path) -> dict[int, Sample]:
    samples: dict[int, Sample] = {}
    try:
        for record in _records(path):
            sample = samples.setdefault(int(record["n"]), Sample([], []))
            sample.words.append(record["token"])
            sample.scored.append(record["scored"] == "1")
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {type(error).__name__}: {error}") from error
    return samples
