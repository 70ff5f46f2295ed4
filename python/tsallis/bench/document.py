"""What every benchmark records beside its rows, and how it is written."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tsallis import _ops
from tsallis.bench import timing

__all__ = ["build", "write"]


def build(rows: list[dict[str, Any]], *, threads: int, **more: Any) -> dict[str, Any]:
    """The document: what was measured, on what and when, the rows, and what a benchmark adds.

    date: UTC. commit: of the library, as it was built. load: processes that wanted to run in the
    last minute, which tells whether the machine was shared.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": torch.ops.tsallis.git_commit(),
        "processor": torch.ops.tsallis.processor() or platform.machine(),
        "isa": _ops.cpu_target(),
        "threads": threads,
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "caches": timing.CACHES,
        **more,
        "rows": rows,
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """JSON, written aside and renamed: whoever interrupts finds the last whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(aside, path)
