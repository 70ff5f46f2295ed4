"""``python -m tsallis_report.alignment DIR``: where translations look in their sources.

Reads ``DIR/alignment.json`` and writes ``alignment-1.png`` and so on, a picture for each sentence.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from . import style
from .parts import save_figure, weight_norm
from .run_folder import StudyError, read_json

_COLUMNS = 3


def plot_alignment(sentence: dict[str, Any]) -> Figure:
    """A panel for each head: the translation's tokens down, the source's across."""
    heads = sentence["heads"]
    source, target = sentence["source"], sentence["target"]
    columns = min(_COLUMNS, len(heads))
    rows = -(-len(heads) // columns)
    width = 0.9 + 0.19 * max(len(source), 12)
    height = 0.9 + 0.19 * max(len(target), 6)
    figure = Figure(figsize=(0.6 + width * columns, 0.6 + height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    image = None
    for axes, head in zip(panels, heads, strict=False):
        image = axes.imshow(
            np.asarray(head["weights"], dtype=float), norm=weight_norm(), cmap="magma",
            interpolation="none", aspect="auto",
        )  # fmt: skip
        alpha = "" if head.get("alpha") is None else f", α = {head['alpha']:.2f}"
        axes.set_title(f"Layer {head['layer'] + 1}, head {head['head'] + 1}{alpha}", fontsize=9)
        axes.set_xticks(range(len(source)), source, rotation=90, fontsize=6.5)
        axes.set_yticks(range(len(target)), target, fontsize=6.5)
        axes.grid(False)
        axes.tick_params(length=0, pad=1)
        axes.spines[:].set_visible(False)
    for axes in panels[len(heads) :]:
        axes.set_axis_off()
    assert image is not None
    bar = figure.colorbar(image, ax=list(panels), fraction=0.02, aspect=40, pad=0.01)
    bar.set_ticks([0.0, 0.05, 0.25, 0.5, 1.0], labels=["0", "0.05", "0.25", "0.5", "1"])
    bar.set_label("Attention weight (square-root scale)", fontsize=8.5)
    bar.outline.set_visible(False)
    return figure


def render(directory: Path) -> list[Path]:
    """Draw every sentence; return the paths that were written."""
    raw = read_json(directory / "alignment.json")
    written: list[Path] = []
    try:
        sentences = raw["sentences"]
        with style.styled():
            for number, sentence in enumerate(sentences, 1):
                figure = plot_alignment(sentence)
                written += save_figure(figure, directory, f"alignment-{number}")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        path = directory / "alignment.json"
        raise StudyError(f"{path}: {type(error).__name__}: {error}") from error
    return written


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="tsallis_report.alignment", description=__doc__)
    parser.add_argument("directory", type=Path, help="a folder with alignment.json")
    options = parser.parse_args(arguments)
    try:
        render(options.directory)
    except (StudyError, OSError) as error:
        print(f"tsallis_report.alignment: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
