"""What every benchmark records beside its rows, and how it is written."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from tsallis import _ops

__all__ = ["build", "write"]


def build(rows: list[dict[str, Any]], *, threads: int, **more: Any) -> dict[str, Any]:
    """{"commit", "processor", "isa", "threads", "torch", "rows"}, and what a benchmark adds.

    commit: of the library, as it was built.
    """
    return {
        "commit": torch.ops.tsallis.git_commit(),
        "processor": torch.ops.tsallis.processor() or platform.machine(),
        "isa": _ops.cpu_target(),
        "threads": threads,
        "torch": torch.__version__,
        **more,
        "rows": rows,
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """JSON, written aside and renamed: whoever interrupts finds the last whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(aside, path)
