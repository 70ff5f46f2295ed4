"""What a results folder holds, read into plain Python and written."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .files import replace_text
from .quantities import Entropy, Quantities, csv_text, load_quantities
from .run_folder import StudyError, number, read_json

_NOTABLE_TEST_ERROR = 0.5  # points

TEST_ERROR = (
    "test error: standard error of the share of right answers on the test samples, which all seeds "
    "share, so that it comes on top"
)

HOLD = (
    "runs that hold: where runs fall on both sides of one half, those with at least half right, "
    "the 95 % interval of their share (Wilson), and their mean"
)


def tests_text(tests: int, mark: str) -> str:
    """What the marks of a table of differences say."""
    return (
        f"{mark}: of {tests} such tests those that stand when at most one marked difference in "
        "twenty may be luck (Benjamini and Hochberg)"
    )


@dataclass(frozen=True)
class Metric:
    """What a study counts, and how people read it."""

    name: str = "accuracy"
    unit: str = "%"
    higher_is_better: bool = True
    digits: int = 1  # behind the point
    notable: float = 5.0  # a finding names differences from here on

    @property
    def heading(self) -> str:
        """The name as a line begins with it: ``Accuracy``."""
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


# A normal number lies within so many standard deviations of its mean with 95 %.
WITHIN_95 = 1.959963984540054


def share_interval(held: int, of: int) -> tuple[float, float]:
    """The 95 % interval of the share ``held`` of ``of`` independent draws, in % (Wilson 1927)."""
    z = WITHIN_95
    share, width = held / of, z * z / of
    middle = share + width / 2.0
    half = z * math.sqrt(share * (1.0 - share) / of + width / of / 4.0)
    return 100.0 * (middle - half) / (1.0 + width), 100.0 * (middle + half) / (1.0 + width)


@dataclass(frozen=True)
class Split:
    """The runs of one method at one length, where some hold and others do not.

    A run holds where at least half of its answers are right. A mean over both kinds describes none.
    """

    held: int  # runs that hold
    runs: int
    mean: float  # of those that hold

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share of runs that hold, in %."""
        return share_interval(self.held, self.runs)

    @property
    def text(self) -> str:
        """``2 of 3 (21 to 94 %): 73.9``."""
        low, high = self.interval
        return f"{self.held} of {self.runs} ({low:.0f} to {high:.0f} %): {self.mean:.1f}"


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
    split: Split | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict)  # no file keeps it

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


@dataclass(kw_only=True)
class Study(Quantities):
    """A finished study, in the recipe's order of methods."""

    study: str
    title: str
    source: str = ""
    scale: str = ""
    commit: str = ""
    processor: str = ""  # of the machine that made the report; runs may be from others
    command: str = ""
    finding: str = ""  # one sentence
    figure: str = FIRST[0]  # what the page begins with, one of ``FIRST``
    protocol: str = ""  # parted by "; "
    baseline: str = ""  # method that the others are held against; "": none
    train_seconds: float = math.nan
    about: dict[str, Method]  # by name, in the recipe's order
    rows: list[Row]
    metric: Metric = field(default_factory=Metric)

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
    def splits(self) -> bool:
        """Whether the runs of any row fall on both sides of one half."""
        return any(row.split is not None for row in self.rows)

    @property
    def _tests(self) -> list[tuple[float, str, int]]:
        """The differences from the baseline that are tested, by ascending p."""
        return sorted(
            (row.ahead.p, row.method, row.n)
            for row in self.rows
            if row.ahead is not None and row.ahead.p is not None
        )

    @property
    def sure(self) -> set[tuple[str, int]]:
        """The methods and lengths that differ from the baseline after correction.

        Of the differences so marked at most one in twenty is expected to be luck (Benjamini and
        Hochberg 1995): of m tests in the order of p, those up to the last with p <= 0.05 k / m.
        """
        tests = self._tests
        passed = [k for k, (p, *_) in enumerate(tests, 1) if p <= 0.05 * k / len(tests)]
        return {(method, n) for _, method, n in tests[: max(passed, default=0)]}

    @property
    def tests(self) -> int:
        """How many differences from the baseline are tested: none without three paired seeds."""
        return len(self._tests)

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
        for head in self.heads:
            if head.quantity == "keys":
                seen.setdefault(head.n, []).append(head.mean)
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


_TEXTS = ["source", "scale", "commit", "processor", "command", "finding", "protocol", "baseline"]


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
                mean=number(row["mean"]),
                std=number(row.get("std", 0.0)),
                best=number(row.get("best", row["mean"])),
                seeds=int(row.get("seeds", 1)),
                paper=None if row.get("paper") is None else float(row["paper"]),
                ahead=_contrast(row.get("against_baseline")),
                samples=int(row.get("samples", 0)),
                split=Split(**row["split"]) if "split" in row else None,
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
    texts: Any = {key: str(raw.get(key, "")) for key in _TEXTS}
    return Study(
        study=study,
        title=str(raw.get("title") or study),
        figure=figure,
        train_seconds=number(raw.get("train_seconds")),
        about=about,
        rows=rows,
        metric=metric,
        **texts,
        **load_quantities(directory / "data"),
    )


def _method(entry: Mapping[str, Any]) -> Method:
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
        number(value["difference"]),
        None if error is None else float(error),
        None if p is None else float(p),
    )


def document(study: Study) -> dict[str, Any]:
    """The content of ``results.json``: all but what is in ``data/`` alone."""
    about: dict[str, Any] = {
        key: getattr(study, key)
        for key in ["study", "title", "source", "scale", "commit", "processor", "command"]
    }
    if study.baseline:
        about["baseline"] = study.baseline
    if study.figure != FIRST[0]:
        about["figure"] = study.figure
    if study.finding:
        about["finding"] = study.finding
    metric = asdict(study.metric)
    del metric["notable"]
    about |= {"protocol": study.protocol, "train_seconds": study.train_seconds, "metric": metric}
    about["methods"] = [asdict(method) for method in study.about.values()]
    about["rows"] = [_row(row) for row in study.rows]
    if study.measures:
        about["measures"] = [asdict(row) for row in study.measures]
    return about | {"entropies": [asdict(row) for row in study.entropies]}


def _row(row: Row) -> dict[str, Any]:
    keys = ["method", "n", "mean", "std", "best", "seeds", "paper"]
    entry = {key: getattr(row, key) for key in keys}
    if row.samples > 0:
        entry["samples"] = row.samples
    if row.split is not None:
        entry["split"] = asdict(row.split)
    if row.ahead is not None:
        entry["against_baseline"] = {"difference": row.ahead.difference, "error": row.ahead.error}
        if row.ahead.p is not None:
            # A difference that no spread explains has p = 0: four digits are enough.
            entry["against_baseline"]["p"] = float(f"{row.ahead.p:.4g}")
    return entry


def write(study: Study, directory: Path) -> None:
    """Write the folder's data; ``results.json`` comes last, so that a reader sees a whole one."""
    study.write(directory / "data")
    columns = ["method", "label", "n", "mean", "std", "best", "seeds", "paper", "difference"]
    rows = [
        [row.method, study.labels[row.method], row.n, row.mean, row.std, row.best, row.seeds,
         row.paper, None if row.difference is None else float(f"{row.difference:.6g}")]
        for row in study.rows
    ]  # fmt: skip
    replace_text(directory / "results.csv", csv_text([columns, *rows], exact=True))
    lines = []
    for key, value in document(study).items():
        text = _json(value)
        if isinstance(value, list) and value:  # an entry a line, so that changes can be read
            text = "[\n" + ",\n".join(f"    {_json(entry)}" for entry in value) + "\n  ]"
        lines.append(f"  {_json(key)}: {text}")
    replace_text(directory / "results.json", "{\n" + ",\n".join(lines) + "\n}\n")


def _json(value: Any) -> str:
    return json.dumps(_known(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _known(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, dict):
        return {key: _known(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_known(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
