"""Figures that ``study.json`` describes, drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from . import style
from .analysis import Analysis, Record
from .parts import save_figure
from .run_folder import Json

# Okabe and Ito's colours and shades of them; softmax is black wherever it stands.
_PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#D9981A",
    "#56AEE0",
    "#5A1A00",
    "#16235E",
    "#004D38",
    "#8A6FA8",
)
_MARKERS = "osD^vPX*"
_FEW, _MANY = 24, 200  # points of a line that are marked; of a cloud that are small
_WIDTH = {1: 7.2, 2: 5.2, 3: 4.0, 4: 3.2}  # inches of a panel, by how many stand side by side
_HEIGHT = {1: 4.3, 2: 3.7, 3: 3.0, 4: 2.5}


def write_figures(study: Analysis, directory: Path) -> list[Path]:
    """Write every figure as SVG and PNG; remove those of an earlier run."""
    directory.mkdir(parents=True, exist_ok=True)
    names = {figure["name"] for figure in study.figures}
    for path in [*directory.glob("*.svg"), *directory.glob("*.png")]:
        if path.stem not in names:
            path.unlink()
    written: list[Path] = []
    with style.styled():
        colors = _colors(study)
        for figure in study.figures:
            written += save_figure(draw(study, figure, colors), directory, figure["name"])
    return written


def draw(study: Analysis, described: Json, colors: dict[str, str]) -> Figure:
    """One figure: panels in rows, one legend below them."""
    columns = min(described["columns"], len(described["panels"]))
    rows = -(-len(described["panels"]) // columns)
    size = min(columns, 4)
    figure = Figure(
        figsize=(_WIDTH[size] * columns, _HEIGHT[size] * rows + 0.7), layout="constrained"
    )
    figure.suptitle(described["title"], fontsize=11.5, fontweight="bold", x=0.01, ha="left")
    grid = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Line2D] = {}
    norm = _shared_norm(study, described)
    for axes, panel in zip(grid.flat, described["panels"], strict=False):
        _draw_panel(axes, study, panel, colors, handles, norm)
    for axes in grid.flat[len(described["panels"]) :]:
        axes.set_visible(False)
    if norm is not None:
        heat = next(panel["heat"] for panel in described["panels"] if "heat" in panel)
        bar = figure.colorbar(ScalarMappable(norm, "viridis"), ax=grid, shrink=0.8, pad=0.02)
        bar.set_label(heat["label"])
    if len(handles) > 1:
        figure.legend(
            handles=list(handles.values()),
            loc="outside lower center",
            ncols=min(len(handles), max(2, int(_WIDTH[size] * columns / 1.9))),
        )
    return figure


def _draw_panel(
    axes: Axes,
    study: Analysis,
    panel: Json,
    colors: dict[str, str],
    handles: dict[str, Line2D],
    norm: Normalize | None,
) -> None:
    if "heat" in panel and norm is not None:
        _draw_heat(axes, study, panel["heat"], norm)
    for curve in panel.get("curves", []):
        for label, rows in _lines(study, curve):
            pairs = [(float(row[curve["x"]]), float(row[curve["y"]])) for row in rows]
            if curve["look"] == "reference":  # a function of x, whatever order its rows have
                pairs.sort()
            x, y = np.array(pairs).T if pairs else (np.array([]), np.array([]))
            look = _look(curve, label, colors, len(pairs))
            axes.plot(x, y, **look)
            if label and label not in handles:
                handles[label] = Line2D([], [], label=label, **look)
    for mark in panel.get("marks", []):
        color = colors.get(mark["curve"], style.FAINT)
        axes.axvline(mark["x"], color=color, lw=0.9, ls=(0, (4, 2)), zorder=1)
    _set_scale(axes, "x", panel["x_scale"])
    _set_scale(axes, "y", panel["y_scale"])
    axes.set_xlabel(panel["x_label"])
    axes.set_ylabel(panel["y_label"])
    axes.set_title(panel["title"])


def _set_scale(axes: Axes, name: str, scale: str) -> None:
    """A logarithm where it was asked for and what is drawn spans a factor that is worth one."""
    low, high = getattr(axes.dataLim, f"interval{name}")
    if scale == "linear" or not low > 0.0 or high < 4.0 * low:
        if name == "x" and all(_whole(line.get_xdata()) for line in axes.get_lines()):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # layers, passes
        return
    getattr(axes, f"set_{name}scale")("log", base=2 if scale == "log2" else 10)


def _whole(values: ArrayLike) -> bool:
    return bool(np.all(np.mod(values, 1) == 0))


def _lines(study: Analysis, curve: Json) -> Iterator[tuple[str, list[Record]]]:
    """Label and rows of every line."""
    rows = study.rows(curve)
    if "by" not in curve:
        yield curve.get("label", ""), rows
        return
    for value in dict.fromkeys(row[curve["by"]] for row in rows):
        yield curve.get("label", "") + value, [row for row in rows if row[curve["by"]] == value]


def _look(curve: Json, label: str, colors: dict[str, str], points: int) -> dict[str, Any]:
    if curve["look"] == "reference":
        return {"color": style.FAINT, "lw": 1.1, "ls": (0, (2, 2)), "zorder": 1.5}
    color = colors.get(label, _PALETTE[0])
    marker = _MARKERS[list(colors).index(label) % len(_MARKERS)] if label in colors else "o"
    if curve["look"] == "points":
        many = points > _MANY
        size, opacity = (2.6, 0.5) if many else (5.0, 0.9)
        return {"color": color, "ls": "", "marker": marker, "ms": size, "alpha": opacity, "mew": 0}
    line = (0, (5, 2)) if curve["look"] == "dashed" else "-"
    return {"color": color, "ls": line, "marker": marker if points <= _FEW else "", "ms": 3.5}


def _draw_heat(axes: Axes, study: Analysis, heat: Json, norm: Normalize) -> None:
    rows = study.rows(heat)
    x = sorted({float(row[heat["x"]]) for row in rows})
    y = sorted({float(row[heat["y"]]) for row in rows})
    values = np.full((len(y), len(x)), np.nan)
    for row in rows:
        place = y.index(float(row[heat["y"]])), x.index(float(row[heat["x"]]))
        values[place] = float(row[heat["value"]])
    axes.pcolormesh(x, y, values, norm=norm, cmap="viridis", shading="gouraud", rasterized=True)
    axes.grid(visible=False)


def _shared_norm(study: Analysis, described: Json) -> Normalize | None:
    """One scale of colours for all panels of a figure; None without any."""
    values = [
        float(row[panel["heat"]["value"]])
        for panel in described["panels"]
        if "heat" in panel
        for row in study.rows(panel["heat"])
    ]
    return Normalize(min(values), max(values)) if values else None


def _colors(study: Analysis) -> dict[str, str]:
    """A colour for every label, the same in all figures of the study."""
    labels = dict.fromkeys(
        label
        for figure in study.figures
        for panel in figure["panels"]
        for curve in panel.get("curves", [])
        if curve["look"] != "reference"
        for label, _ in _lines(study, curve)
        if label
    )
    colors: dict[str, str] = {}
    used = 0
    for label in labels:
        if label == "softmax":
            colors[label] = style.INK
            continue
        colors[label] = _PALETTE[used % len(_PALETTE)]
        used += 1
    return colors
