"""What every benchmark records beside its rows, and how it is written."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tsallis import _ops
from tsallis.bench import timing

__all__ = ["build", "text", "write"]


def build(rows: list[dict[str, Any]], *, threads: int, **more: Any) -> dict[str, Any]:
    """The document: what was measured, on what and when, the rows, and what a benchmark adds.

    date: UTC. commit: of the library, as it was built. load: processes that wanted to run in the
    last minute, which tells whether the machine was shared.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _ops.commit(),
        "processor": _ops.processor() or platform.machine(),
        "isa": _ops.cpu_target(),
        "threads": threads,
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "caches": timing.CACHES,
        **more,
        "rows": rows,
    }


def _rounded(value: Any) -> Any:
    """Numbers with four digits: times spread by more than that."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value


def text(document: dict[str, Any]) -> str:
    """JSON with one line for each key and one for each row."""
    dense = partial(json.dumps, separators=(",", ":"))
    lines = []
    for name, value in _rounded(document).items():
        entry = dense(value)
        if value and isinstance(value, list):
            entry = "[\n" + ",\n".join(map(dense, value)) + "\n]"
        lines.append(f"{json.dumps(name)}: {entry}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: Path, document: dict[str, Any]) -> None:
    """Writes the JSON aside and renames it: an interrupted program leaves the last whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(text(document))
    os.replace(aside, path)
