"""What ``tsallis study`` leaves in a folder, read into plain Python: ``study.json``, ``data/``."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .data import StudyError, read_json

Record = dict[str, str]


@dataclass(frozen=True)
class Fact:
    """A number that somebody else has said, too."""

    quantity: str
    value: float
    expected: float | None
    source: str


@dataclass(frozen=True)
class Curve:
    """Lines or points of a panel: columns of a table."""

    table: str
    x: str
    y: str
    look: str = "line"
    by: str = ""
    where: dict[str, str] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Heat:
    """Colours over two columns of a table that make a grid."""

    table: str
    x: str
    y: str
    value: str
    label: str
    where: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mark:
    """A vertical line, in the colour of the curve of that label."""

    x: float
    curve: str = ""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    x_scale: str = "linear"
    y_scale: str = "linear"
    curves: list[Curve] = field(default_factory=list)
    heat: Heat | None = None
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True)
class FigureData:
    """A figure, described."""

    name: str
    title: str
    caption: str
    columns: int
    panels: list[Panel]


@dataclass(frozen=True)
class Analysis:
    """A finished study without training."""

    study: str
    title: str
    source: str
    scale: str
    seed: int
    checkpoint: str
    finding: str
    setup: list[str]
    commit: str
    processor: str
    command: str
    seconds: float
    facts: list[Fact]
    figures: list[FigureData]
    tables: dict[str, list[Record]]

    def rows(self, table: str, where: dict[str, str]) -> list[Record]:
        """Rows of a table whose columns have these values."""
        return [
            row
            for row in self.tables[table]
            if all(row[column] == value for column, value in where.items())
        ]


def load(directory: Path) -> Analysis:
    """Read a folder; ``StudyError`` names the file that cannot be read."""
    return _load(directory, with_tables=True)


def load_numbers(directory: Path) -> Analysis:
    """Read ``study.json`` alone, as it is kept in ``results/studies``: no figure can be drawn."""
    return _load(directory, with_tables=False)


def _load(directory: Path, with_tables: bool) -> Analysis:
    path = directory / "study.json"
    raw = read_json(path)
    tables = raw.get("tables", []) if with_tables else []
    try:
        return Analysis(
            study=str(raw["study"]),
            title=str(raw["title"]),
            source=str(raw["source"]),
            scale=str(raw["scale"]),
            seed=int(raw["seed"]),
            checkpoint=str(raw["checkpoint"]),
            finding=str(raw["finding"]),
            setup=[str(step) for step in raw["setup"]],
            commit=str(raw["commit"]),
            processor=str(raw["processor"]),
            command=str(raw["command"]),
            seconds=float(raw["seconds"]),
            facts=[
                Fact(**{**fact, "value": math.nan if fact["value"] is None else fact["value"]})
                for fact in raw["facts"]
            ],
            figures=[_figure(figure) for figure in raw["figures"]],
            tables={table["name"]: _table(directory, table) for table in tables},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{path}: {type(error).__name__}: {error}") from error


def _figure(raw: dict[str, Any]) -> FigureData:
    return FigureData(**{**raw, "panels": [_panel(panel) for panel in raw["panels"]]})


def _panel(raw: dict[str, Any]) -> Panel:
    heat = raw.get("heat")
    return Panel(
        **{
            **raw,
            "curves": [Curve(**curve) for curve in raw.get("curves", [])],
            "heat": None if heat is None else Heat(**heat),
            "marks": [Mark(**mark) for mark in raw.get("marks", [])],
        }
    )


def _table(directory: Path, raw: dict[str, Any]) -> list[Record]:
    path = directory / "data" / f"{raw['name']}.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}") from error
    except csv.Error as error:
        raise StudyError(f"{path}: {error}") from error
    if len(rows) != raw["rows"] or any(None in row or None in row.values() for row in rows):
        raise StudyError(f"{path}: expected {raw['rows']} rows of {len(raw['columns'])} cells")
    return rows
