"""What figures of several modules share."""

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image

from . import style
from .data import Study

_FEW_LENGTHS = 6  # that all fit below a small panel

# lengths or layers, values, spread
Series = tuple[Sequence[int], Sequence[float], Sequence[float]]
Panels = npt.NDArray[Any]  # of Axes: [rows, columns]

MAX_TOGETHER = 6  # methods that one panel carries


def headline_methods(study: Study) -> list[str]:
    """The recipe's headline; all methods when they are few."""
    methods = study.methods
    if len(methods) <= MAX_TOGETHER:
        return methods
    chosen = [m.name for m in study.about.values() if m.headline]
    return chosen if len(chosen) >= 2 else methods[:MAX_TOGETHER]


def length_axis(axes: Axes, lengths: Sequence[int], every: int | None = None) -> None:
    """A binary logarithm with a tick per length, and a number at each or, of many, every second."""
    every = every or (1 if len(lengths) <= _FEW_LENGTHS else 2)
    axes.set_xscale("log", base=2)
    texts = [str(n) if i % every == 0 else "" for i, n in enumerate(lengths)]
    axes.set_xticks(lengths, texts)
    axes.minorticks_off()
    axes.set_xlabel("Length n (log scale)")


def wrapped(label: str, width: int = 14) -> str:
    """Break at spaces once a line is longer than a panel is high."""
    lines = [""]
    for word in label.replace("\n", " \n ").split(" "):
        if word == "\n":
            lines.append("")
        elif lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def plot_series(
    axes: Axes, study: Study, methods: Sequence[str], series: Callable[[str], Series]
) -> None:
    """A line with markers per method, and a band of ± its spread."""
    palette, marks = style.colors(study.of(study.methods)), style.markers(study.of(study.methods))
    every = style.variants(study.about.values())
    for method in methods:
        x, y, spread = (np.asarray(part, dtype=float) for part in series(method))
        if spread.any():
            axes.fill_between(x, y - spread, y + spread, color=palette[method], alpha=0.16, lw=0)
        axes.plot(
            x,
            y,
            color=palette[method],
            ls=style.line(study.about[method].variant, every),
            marker=marks[method],
            markeredgecolor="white",
            markeredgewidth=0.5,
            markersize=5.0,
            zorder=3,
            label=study.labels[method],
        )


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """Entries below the panels, in one line if the figure is as wide."""
    inches = sum(0.5 + 0.072 * len(str(handle.get_label())) for handle in handles)
    lines = max(1, math.ceil(inches / figure.get_figwidth()))
    columns = max(1, math.ceil(len(handles) / lines))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def histogram_panels(study: Study, methods: Sequence[str], columns: int) -> tuple[Figure, Panels]:
    """A row for each method: how many heads have which density and, in a second column, which α."""
    figure = Figure(figsize=(1.2 + 4.2 * columns, 0.9 + 1.5 * len(methods)), layout="constrained")
    panels: Panels = figure.subplots(len(methods), columns, squeeze=False, sharex="col")
    for row, method in zip(panels, methods, strict=True):
        row[0].set_ylabel(f"{wrapped(study.labels[method])}\nHeads", fontsize=9)
    for axes, text in zip(
        panels[-1], ("Density: keys with weight, of those seen", "α"), strict=False
    ):
        axes.set_xlabel(text)
    return figure, panels


def weight_norm() -> PowerNorm:
    """Colours of weights: none exceeds 1; a square root keeps those near 1/n apart from none."""
    return PowerNorm(0.5, vmin=0.0, vmax=1.0)


@dataclass(frozen=True)
class ByHand:
    """Panels laid out by hand, in inches: a constraint solver takes seconds for dozens of them."""

    side: float  # a panel's width
    tall: float
    gap: float  # between panels in a row
    between: float  # rows
    left: float
    right: float
    top: float
    bottom: float

    def panels(self, rows: int, columns: int, least: float = 0.0) -> tuple[Figure, Panels]:
        """A figure and its panels; ``least``: of the width that these have together."""
        width = self.left + max(least, columns * (self.side + self.gap) - self.gap) + self.right
        height = self.top + rows * (self.tall + self.between) - self.between + self.bottom
        figure = Figure(figsize=(width, height))
        places = {
            "left": self.left / width,
            "right": 1.0 - self.right / width,
            "top": 1.0 - self.top / height,
            "bottom": self.bottom / height,
            "wspace": self.gap / self.side,
            "hspace": self.between / self.tall,
        }
        return figure, figure.subplots(rows, columns, squeeze=False, gridspec_kw=places)

    def finish(self, figure: Figure, image: AxesImage | None, title: str) -> None:
        """The title, and the bar of weight_norm() in the right margin."""
        assert image is not None
        width, height = figure.get_size_inches()
        tall = min(height - self.top - self.bottom, 4.0)
        place = (1.0 - (self.right - 0.12) / width, 1.0 - (self.top + tall) / height)
        bar = figure.colorbar(image, cax=figure.add_axes((*place, 0.13 / width, tall / height)))
        bar.set_ticks([0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0])
        bar.ax.set_yticklabels(["0", "0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "1"])
        bar.ax.tick_params(labelsize=8)
        bar.set_label("Attention weight (square-root scale)", fontsize=8.5)
        bar.outline.set_visible(False)
        figure.suptitle(
            title,
            x=self.left / width,
            y=1.0 - 0.12 / height,
            ha="left",
            va="top",
            fontsize=10.5,
            fontweight="bold",
        )


def save_figure(figure: Figure | None, directory: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PNG and return their paths; without one, remove both files."""
    written: list[Path] = []
    for suffix in ("svg", "png"):
        path = directory / f"{name}.{suffix}"
        if figure is None:
            path.unlink(missing_ok=True)
            continue
        metadata = {"Date": None, "Creator": None} if suffix == "svg" else {"Software": None}
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        figure.savefig(aside, format=suffix, dpi=160, metadata=metadata)
        if suffix == "png":
            _use_palette(aside)
        else:
            aside.write_text(_with_fallbacks(_in_hundredths(aside.read_text())))
        figure.set_layout_engine("none")  # the first layout serves both files
        aside.replace(path)
        written.append(path)
    return written


# Not of factors, which may be small.
_LONG_NUMBER = re.compile(r"(?:scale|matrix)\([^)]*\)|(?<![\w#.])-?\d+\.\d{3,}(?![\w.])")


def _in_hundredths(svg: str) -> str:
    """A drawing with places in hundredths of a point, which takes a twentieth less in a clone."""

    def shorter(found: re.Match[str]) -> str:
        text = found.group()
        return text if text[-1] == ")" else f"{float(text):.2f}".rstrip("0").rstrip(".")

    return _LONG_NUMBER.sub(shorter, svg)


def _with_fallbacks(svg: str) -> str:
    """Text with letters of the same width where the font that measured it is not installed."""
    return svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")


def _use_palette(png: Path) -> None:
    """Store a picture with 256 colours: it looks the same at a third of the size."""
    with Image.open(png) as picture:
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(png, format="PNG", optimize=True)
