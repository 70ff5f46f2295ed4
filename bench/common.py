"""What every benchmark records beside its rows, and how it is written."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """The commit of the tree, with "-dirty" behind it if files differ; "unknown" outside git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.check_output(
            command, cwd=ROOT, text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write(path: Path, *, isa: str, threads: int, rows: list[dict], **more: object) -> None:
    """Writes {"commit", "processor", "isa", "threads", "rows"} and what else, aside and renamed."""
    document = {
        "commit": commit(),
        "processor": processor(),
        "isa": isa,
        "threads": threads,
        "rows": rows,
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(aside, path)
