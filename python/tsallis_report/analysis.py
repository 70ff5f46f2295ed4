"""What ``tsallis study`` leaves in a folder, read into plain Python: ``study.json``, ``data/``."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

from .run_folder import Json, StudyError, read_json

Record = dict[str, str]


@dataclass(frozen=True)
class Analysis:
    """A finished study without training; ``src/lab/report/analysis.h`` says what is in it."""

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
    facts: list[Json]  # of Fact
    figures: list[Json]  # of AnalysisFigure, with panels, curves, heat and marks
    tables: dict[str, list[Record]]

    def rows(self, of: Json) -> list[Record]:
        """Rows of the table of a curve or heat, where its columns have the values that it says."""
        where = of.get("where", {}).items()
        rows = self.tables[of["table"]]
        return [row for row in rows if all(row[column] == value for column, value in where)]


def load(directory: Path) -> Analysis:
    """Read a folder; ``StudyError`` names the file that cannot be read."""
    raw = read_json(directory / "study.json")
    return _load(
        directory, {table["name"]: _table(directory, table) for table in raw.get("tables", [])}
    )


def load_numbers(directory: Path) -> Analysis:
    """Read ``study.json`` alone, as it is kept in ``results/studies``: no figure can be drawn."""
    return _load(directory, {})


def _load(directory: Path, tables: dict[str, list[Record]]) -> Analysis:
    path = directory / "study.json"
    raw = read_json(path) | {"tables": tables}
    try:
        return Analysis(**{one.name: raw[one.name] for one in fields(Analysis)})
    except KeyError as error:
        raise StudyError(f"{path}: KeyError: {error}") from error


def _table(directory: Path, raw: Json) -> list[Record]:
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
