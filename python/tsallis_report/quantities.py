"""What a report shows beside the metric. A quantity stands here: its shape, its file, its origin.

Each has a file in ``data/`` of a results folder, a field of ``Quantities``, and a line of ``_KEPT``
with the function that makes the rows of one method from the method's runs.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .files import replace_text
from .run_folder import Json, MethodRuns, StudyError, mean, number, spread

Array = npt.NDArray[np.float64]

# ---- quantities of tables and curves -------------------------------------------------------------


@dataclass(frozen=True)
class Entropy:
    """Entropy (nats) and support of one method's attention at one length, over seeds.

    Of sequence models, the mean over all heads and scored tokens.
    """

    method: str
    n: int
    entropy_mean: float
    entropy_std: float
    normalised_entropy: float  # divided by ln of what the query sees; 0 where that is one key
    support_mean: float  # entries with weight > 0


def _table(length: Json, quantity: str) -> list[float]:
    """A quantity of all heads that have it, layer by layer."""
    tables = [table["mean"] for table in length["tables"] if table["quantity"] == quantity]
    return [value for layers in tables for layer in layers for value in layer if value is not None]


def _entropies(of: MethodRuns) -> Iterator[Entropy]:
    for n, scores in of.by_length:
        if "entropy" in scores[0]:  # of sets
            values = [score["entropy"] for score in scores]
            normalised = mean(values) / math.log(n) if n > 1 else 0.0
            support = mean([score["support"] for score in scores])
        elif of.trained:
            lengths = [at for run in of.runs for at in run.heads["lengths"] if at["n"] == n]
            of_runs = [at for at in lengths if _table(at, "entropy")]
            if not of_runs:
                continue
            values, all_normalised, supports = (
                [mean(_table(at, quantity) or [0.0]) for at in of_runs]
                for quantity in ("entropy", "normalised entropy", "support")
            )
            normalised, support = mean(all_normalised), mean(supports)
        else:
            continue
        yield Entropy(of.name, n, *spread(values), normalised, support)


@dataclass(frozen=True)
class PositionLoss:
    """The loss (nats) of one method at positions [begin, end) of samples of length n."""

    method: str
    n: int
    begin: int
    end: int
    mean: float
    std: float


def _positions(of: MethodRuns) -> Iterator[PositionLoss]:
    for n, scores in of.by_length:
        parts = [score.get("by_position", []) for score in scores]
        for i in range(len(parts[0])):
            found = [part[i] for part in parts if i < len(part)]
            losses = [number(loss) / asked if asked else 0.0 for asked, loss in found]
            yield PositionLoss(of.name, n, of.bins[i], min(n, of.bins[i + 1]), *spread(losses))


@dataclass(frozen=True)
class Group:
    """Accuracy (%) of one method at one length on the samples of one kind."""

    method: str
    n: int
    group: str
    mean: float
    std: float


def _groups(of: MethodRuns) -> Iterator[Group]:
    for n, scores in of.by_length:
        for i, name in enumerate(of.groups):
            found = [score["by_group"][i] for score in scores if i < len(score.get("by_group", []))]
            values = [100.0 * hits / asked for asked, hits in found if asked]
            if values:  # else it is not asked at this length
                yield Group(of.name, n, name, *spread(values))


@dataclass(frozen=True)
class Measure:
    """What else is measured of one method at one length, beside the study's metric."""

    method: str
    n: int
    measure: str
    mean: float
    std: float


def _measures(of: MethodRuns) -> Iterator[Measure]:
    for n, scores in of.by_length:
        for place, metric in enumerate(of.metrics[1:], start=1):
            values = [of.value(score, place) for score in scores]
            yield Measure(of.name, n, metric["label"], *spread(values))


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


def _spreads(of: MethodRuns) -> Iterator[LogitSpread]:
    bounds = of.observed("bound") if of.trained else {}
    for step, values in of.observed("spread").items():
        if step in bounds:
            ends = [(mean(one), min(one), max(one)) for one in (values, bounds[step])]
            yield LogitSpread(of.name, step, *ends[0], *ends[1])


@dataclass(frozen=True)
class Flow:
    """Gradient that arrives at a layer after a step of training, and keys with weight there."""

    method: str
    step: int
    layer: int
    gradient: float  # norm of a token's, mean over tokens
    keys: float  # mean over heads and scored tokens


def _flows(of: MethodRuns) -> Iterator[Flow]:
    layer = 0
    while of.trained and (gradients := of.observed(f"gradient {layer}")):
        keys = of.observed(f"keys {layer}")
        for step, values in gradients.items():
            if step in keys:
                yield Flow(of.name, step, layer, mean(values), mean(keys[step]))
        layer += 1


@dataclass(frozen=True)
class HeadNumber:
    """A quantity of one head at one length, over the scored tokens, of the first seed.

    Heads of different seeds have nothing in common.
    """

    method: str
    n: int
    samples: int
    layer: int
    head: int
    quantity: str
    mean: float
    std: float


def _heads(of: MethodRuns) -> Iterator[HeadNumber]:
    for n in of.lengths if of.trained else []:
        lengths = of.runs[0].heads["lengths"]
        at: Json = next((at for at in lengths if at["n"] == n), {"tables": []})
        numbers = [
            HeadNumber(
                of.name,
                n,
                at["samples"],
                layer,
                head,
                table["quantity"],
                value,
                number(table["std"][layer][head]),
            )
            for table in at["tables"]
            for layer, values in enumerate(table["mean"])
            for head, value in enumerate(values)
            if value is not None
        ]
        yield from sorted(numbers, key=lambda one: (one.layer, one.head))


# ---- quantities of pictures ----------------------------------------------------------------------

_MOST_CELLS = 4096  # of a side of a map; the lab writes 96 at most


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


def _maps(of: MethodRuns) -> Iterator[AttentionMap]:
    first = of.runs[0]
    if not of.trained or not any(at["n"] in of.lengths for at in first.heads["lengths"]):
        return
    for n in first.map_lengths:
        for one in first.heads["maps"]:
            if one["n"] == n:
                drawn = _empty_map(
                    of.name, *(one[k] for k in ("n", "layer", "head", "tokens", "cell"))
                )
                places = np.cumsum(one["thousandths"][::2], dtype=int)
                drawn.weights.flat[places] = np.array(one["thousandths"][1::2]) / 1000.0
                yield drawn


def _empty_map(method: str, n: int, layer: int, head: int, tokens: int, cell: int) -> AttentionMap:
    cells = -(-tokens // cell)
    if not 1 <= cells <= _MOST_CELLS:  # a stray number must not cost gigabytes
        raise ValueError(f"a map of {tokens} tokens in cells of {cell}")
    return AttentionMap(method, n, layer, head, tokens, cell, np.zeros((cells, cells)))


_MAP = ("method", "n", "layer", "head", "tokens", "cell")


def _map_lines(maps: list[AttentionMap]) -> Iterator[Sequence[Any]]:
    yield *_MAP, "row", "column", "weight"
    for one in maps:
        place = [getattr(one, column) for column in _MAP]
        for row, column in np.argwhere(one.weights):  # the cells with weight
            yield *place, row, column, one.weights[row, column]


def _read_maps(records: Iterable[Mapping[str, str]]) -> list[AttentionMap]:
    maps: dict[tuple[str, ...], AttentionMap] = {}
    for record in records:
        key = tuple(record[column] for column in _MAP)
        if key not in maps:
            maps[key] = _empty_map(key[0], *map(int, key[1:]))
        place = int(record["row"]), int(record["column"])
        maps[key].weights[place] = float(record["weight"])
    return list(maps.values())


HeatMaps = dict[tuple[str, int], Array]  # by method and length: [sets, items], ascending


def _heat_maps(of: MethodRuns) -> Iterator[tuple[tuple[str, int], Array]]:
    for n, scores in of.by_length:
        if scores[0].get("heat"):
            yield (of.name, n), np.array(scores[0]["heat"]).reshape(-1, of.heat_items)


def _heat_lines(maps: HeatMaps) -> Iterator[Sequence[Any]]:
    yield "method", "n", "set", "rank", "weight"
    for (method, n), weights in maps.items():
        for (index, column), weight in np.ndenumerate(weights):
            yield method, n, index, weights.shape[1] - column, weight  # rank 1 is the largest item


def _read_heat_maps(records: Iterable[Mapping[str, str]]) -> HeatMaps:
    entries: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    for record in records:
        entry = (int(record["set"]), int(record["rank"]), float(record["weight"]))
        entries.setdefault((record["method"], int(record["n"])), []).append(entry)
    maps: HeatMaps = {}
    for (method, n), values in entries.items():
        sets, items = 1 + max(value[0] for value in values), max(value[1] for value in values)
        if sets * items != len(values):
            raise ValueError(f"{method} at n = {n}: {len(values)} weights for {sets} × {items}")
        maps[method, n] = np.full((sets, items), np.nan)
        for index, rank, weight in values:
            maps[method, n][index, items - rank] = weight
    return maps


@dataclass(frozen=True)
class Sample:
    """A sample, token by token."""

    words: list[str]
    scored: list[bool]  # whether the model answers there


def _sample_lines(samples: dict[int, Sample]) -> Iterator[Sequence[Any]]:
    yield "n", "position", "token", "scored"
    for n, sample in samples.items():
        for i, (word, scored) in enumerate(zip(sample.words, sample.scored, strict=True)):
            yield n, i, word, int(scored)


def _read_samples(records: Iterable[Mapping[str, str]]) -> dict[int, Sample]:
    samples: dict[int, Sample] = {}
    for record in records:
        sample = samples.setdefault(int(record["n"]), Sample([], []))
        sample.words.append(record["token"])
        sample.scored.append(record["scored"] == "1")
    return samples


# ---- all of them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    """How a quantity comes from the runs of a method, and how it lies in its file."""

    file: str
    of: Callable[[MethodRuns], Iterable[Any]]
    lines: Callable[[Any], Iterable[Sequence[Any]]]
    read: Callable[[Iterable[Mapping[str, str]]], Any]


def _rows(file: str, kind: Any, of: Callable[[MethodRuns], Iterable[Any]]) -> _Kept:
    """Rows that are dataclasses of texts and numbers: a column of the file for each field."""
    columns: dict[str, Any] = {one.name: one.type for one in fields(kind)}

    def lines(rows: list[Any]) -> Iterator[Sequence[Any]]:
        yield list(columns)
        yield from ([getattr(row, name) for name in columns] for row in rows)

    def read(records: Iterable[Mapping[str, str]]) -> list[Any]:
        return [kind(**{name: cast(r[name]) for name, cast in columns.items()}) for r in records]

    return _Kept(file, of, lines, read)


_KEPT = {
    "entropies": _rows("entropy.csv", Entropy, _entropies),
    "positions": _rows("positions.csv", PositionLoss, _positions),
    "groups": _rows("groups.csv", Group, _groups),
    "measures": _rows("measures.csv", Measure, _measures),
    "spreads": _rows("spread.csv", LogitSpread, _spreads),
    "flows": _rows("flow.csv", Flow, _flows),
    "heads": _rows("heads.csv", HeadNumber, _heads),
    "maps": _Kept("attention.csv", _maps, _map_lines, _read_maps),
    "heat_maps": _Kept("heatmap.csv", _heat_maps, _heat_lines, _read_heat_maps),
    "samples": _Kept("samples.csv", lambda _: (), _sample_lines, _read_samples),
}


@dataclass(kw_only=True)
class Quantities:
    """All that is known of a study beside its metric."""

    entropies: list[Entropy] = field(default_factory=list)
    positions: list[PositionLoss] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    spreads: list[LogitSpread] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    heads: list[HeadNumber] = field(default_factory=list)
    maps: list[AttentionMap] = field(default_factory=list)
    heat_maps: HeatMaps = field(default_factory=dict)
    samples: dict[int, Sample] = field(default_factory=dict)  # by length, as the lab draws them

    def add(self, of: MethodRuns) -> None:
        """Adds what the runs of a method say."""
        for name, kept in _KEPT.items():
            there = getattr(self, name)
            add = there.update if isinstance(there, dict) else there.extend
            add(kept.of(of))

    def write(self, directory: Path) -> None:
        """Writes a file for each quantity that there is, and removes those of an earlier state."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, kept in _KEPT.items():
            path, there = directory / kept.file, getattr(self, name)
            if there:
                replace_text(path, csv_text(kept.lines(there)))
            else:
                path.unlink(missing_ok=True)


def load_quantities(directory: Path) -> dict[str, Any]:
    """The files of a folder that are there, by the names of the fields."""
    loaded = {}
    for name, kept in _KEPT.items():
        path = directory / kept.file
        if not path.exists():
            continue
        with path.open(encoding="utf-8", newline="") as file:
            try:
                loaded[name] = kept.read(csv.DictReader(file))
            except (KeyError, TypeError, ValueError, IndexError, csv.Error) as error:
                raise StudyError(f"{path}: {type(error).__name__}: {error}") from error
    return loaded


def csv_text(lines: Iterable[Sequence[Any]], exact: bool = False) -> str:
    """CSV (RFC 4180). Six digits are more than any figure shows."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [_cell(value, exact) for value in line] for line in lines
    )
    return text.getvalue()


def _cell(value: Any, exact: bool) -> Any:
    if not isinstance(value, float):
        return value
    return repr(float(value)).removesuffix(".0") if exact else f"{value:.6g}"
