"""From finished runs to a study: rows, contrasts, quantities, the finding and how it was done.

``tsallis reproduce`` describes a study in JSON: what its recipe says at the scale that ran, and the
folders of the runs (``src/lab/studies/reproduce.cc``). Everything else is read from those folders.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from .data import Method, Metric, Row, Split, Study
from .finding import contrast, finding, flow_finding
from .protocol import protocol
from .quantities import Sample
from .run_folder import Json, MethodRuns, Run, StudyError, add_up, asked_in, deviation, mean


def derive(described: Json) -> Study:
    """The study that the description names."""
    runs = [Run(**{**run, "folder": Path(run["folder"])}) for run in described["runs"]]
    methods = described["methods"]
    study = Study(
        **{key: described[key] for key in _SAME},
        metric=Metric(**described["metric"]),
        train_seconds=add_up(run.seconds for run in runs),
        about={},
        rows=[],
    )
    for method in methods:
        own = [run for run in runs if method["name"] in run.samples]
        if method["name"] not in described["shown"] or not own:
            continue  # not asked for, or nothing is finished so far
        of = MethodRuns(
            method["name"], own, *(described[key] for key in ("lengths", "metrics", *_PARTS))
        )
        study.about[of.name] = _about(method, methods, of.name in described["headline"])
        try:
            shares = described["scoring"] == "exact"
            study.rows += _rows(of, method["paper"], study.metric, shares)
            study.add(of)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            folders = ", ".join(str(run.folder) for run in own)
            raise StudyError(f"{folders}: damaged: {type(error).__name__}: {error}") from error
    drawn = {one.n for one in study.maps if one.cell == 1}
    study.samples = {
        one["n"]: Sample(one["words"], one["scored"])
        for one in described["samples"]
        if one["n"] in drawn
    }
    study.rows = [_against(study, row) for row in study.rows]
    study.protocol = protocol(described, runs, study.seed_text)
    found = (
        flow_finding(study)
        if study.figure == "flow"
        else finding(study, described["train_length"][1], described["finding_length"])
    )
    study.finding = found.sentence
    for name in found.methods:  # the first figure shows the methods that the first sentence names
        study.about[name] = replace(study.about[name], headline=True)
    return study


_SAME = ["study", "title", "source", "scale", "commit", "processor", "command", "baseline"]
_SAME += ["figure"]
_PARTS = ["groups", "bins", "heat_items"]  # of samples and positions


def _rows(of: MethodRuns, paper: dict[str, float], metric: Metric, shares: bool) -> Iterator[Row]:
    """``shares``: whether values are shares of samples that are right as a whole."""
    for n, scores in of.by_length:
        values = [of.value(score) for score in scores]
        yield Row(
            method=of.name,
            n=n,
            mean=mean(values),
            std=deviation(values),
            best=(max if metric.higher_is_better else min)(values),
            seeds=len(values),
            paper=paper.get(str(n)),
            samples=min(map(asked_in, scores)) if shares else 0,
            split=_split(values) if shares else None,
            by_seed={run.seed: value for run, value in zip(of.runs, values, strict=True)},
        )


def _split(values: list[float]) -> Split | None:
    held = [value for value in values if value >= 50.0]
    return Split(len(held), len(values), mean(held)) if 0 < len(held) < len(values) else None


def _against(study: Study, row: Row) -> Row:
    base = study.row(study.baseline, row.n)
    if base is None or row.method == study.baseline:
        return row
    return replace(row, ahead=contrast(row, base))


def _about(method: Json, methods: list[Json], headline: bool) -> Method:
    attention = method["settings"].get("attention", method["settings"])
    own = _attending(method["settings"])
    return Method(
        name=method["name"],
        label=method["label"],
        map=attention["map"],
        length_scaling=attention["length_scaling"]["kind"],
        like=next(m["name"] for m in methods if _attending(m["settings"]) == own),
        variant=method["variant"] or attention.get("positions", {"kind": ""})["kind"],
        headline=headline,
    )


def _attending(settings: Any) -> Any:
    """How a method attends, but for where its tokens stand and what norms its output."""
    if isinstance(settings, list):
        return [_attending(one) for one in settings]
    if not isinstance(settings, dict):
        return settings
    return {
        key: _attending(value)
        for key, value in settings.items()
        if key != "output_norm"
        and (key != "positions" or not isinstance(value, dict))  # a length scaling counts positions
    }
