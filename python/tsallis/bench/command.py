"""What the commands of ``tsallis bench`` share."""

from __future__ import annotations

import argparse

__all__ = ["INTERRUPTED", "require_positive"]

INTERRUPTED = 130  # the exit code after Ctrl-C


def require_positive(arguments: argparse.Namespace, *names: str) -> None:
    """Ends with code 2 for the first of these options that is given and not above 0."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            arguments.mistake(f"--{name.replace('_', '-')}: expected a number > 0, got {value}")
