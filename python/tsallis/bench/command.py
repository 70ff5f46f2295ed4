"""What the commands of ``tsallis bench`` share."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path

__all__ = ["interrupted", "no_figure", "output", "require_positive"]


def no_figure() -> str | None:
    """Why no figure can be drawn here; None: one can be."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no figure: matplotlib is not installed (pip install matplotlib)"
    if importlib.util.find_spec("tsallis_report") is None:
        return "no figure: tsallis_report is not installed, draw the JSON in a checkout"
    return None


def require_positive(arguments: argparse.Namespace, *names: str) -> None:
    """Ends with code 2 for the first of these options that is given and not above 0."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            arguments.mistake(f"--{name.replace('_', '-')}: expected a number > 0, got {value}")


def interrupted(out: Path, measured: bool) -> int:
    """Says on standard error what Ctrl-C has left; the exit code."""
    kept = f"what was measured is in {out}" if measured else "nothing was measured"
    print(f"\ntsallis bench: interrupted; {kept}", file=sys.stderr)
    return 130


def output(arguments: argparse.Namespace, name: str) -> Path:
    """A file in the folder of --out, which is made; ends with code 2 where nothing can be written.

    Asked for before a benchmark begins, since what it measures would be lost.
    """
    folder: Path = arguments.out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        arguments.mistake(f"--out: expected a folder to write into, got {folder}: {error.strerror}")
    return folder / name
