"""Figures and the HTML page of a finished study.

``python -m tsallis_report DIR`` reads ``results.json`` and ``data/*.csv`` in a results folder and
writes ``figures/*.svg``, ``figures/*.png``, ``report.html`` and ``report.md`` beside them, and
``--table`` shows the results in the terminal. It needs numpy and
matplotlib, and neither torch nor the compiled library.
"""

from .data import Study, load
from .run_folder import StudyError

__all__ = ["Study", "StudyError", "load", "render"]


def render(directory: str) -> list[str]:
    """Draw every figure and the page of a results folder; return the paths that were written."""
    from .__main__ import render as render_folder

    return [str(path) for path in render_folder(directory)]
