"""The benchmark's figure: time against length, ours beside the peers'."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tsallis_report import style
from tsallis_report.data import Method

__all__ = ["KIND", "SVG", "doubtful", "plot", "points", "write"]

KIND, HEAD_SIZE = "entmax-1.5", 64
TITLES = {"float32": "float32", "bfloat16": "bfloat16"}
LINES: dict[str, Any] = {"fwd": "-", "fwd+bwd": (0, (4, 2))}
PALETTE = style.colors(
    [
        Method("softmax", "", map="softmax", like="softmax"),
        Method(KIND, "", map="entmax", like=KIND),
    ]
)
# name in the data: label, colour, marker
SERIES = {
    "tsallis": ("α-entmax, Tsallis", PALETTE[KIND], "o"),
    "sdpa": ("softmax, PyTorch SDPA", PALETTE["softmax"], "s"),
    "flex": ("softmax, PyTorch FlexAttention", "#009E73", "^"),
    "flex eager": ("the same, not compiled", "#009E73", "v"),
    "entmax": ("α-entmax, entmax package", style.FAINT, "D"),
}
# Text stays text in an SVG, which makes the file a third as large as outlines of letters do.
SVG: dict[Any, Any] = {"svg.fonttype": "none", "font.family": ["DejaVu Sans", "sans-serif"]}
HOLLOW: dict[str, Any] = {"linestyle": "", "markerfacecolor": "white"}
COLUMNS = ["dtype", "pass", "series", "n", "seconds"]


def points(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a point of the figure, in the order of COLUMNS."""
    found: dict[tuple[str, str, str, int], float] = {}
    rows = [row for row in rows if row["case"].startswith(f"{KIND}-")]
    sizes = {row["d"] for row in rows}
    size = HEAD_SIZE if HEAD_SIZE in sizes else min(sizes, default=HEAD_SIZE)
    for row in rows:
        if row["d"] != size:
            continue
        place = (row["dtype"], row["pass"])
        found[(*place, "tsallis", row["n"])] = row["ours_s"]
        found[(*place, row["peer"], row["n"])] = row["peer_s"]
    return [dict(zip(COLUMNS, (*key, value), strict=True)) for key, value in found.items()]


def doubtful(data: list[dict[str, Any]]) -> set[tuple[str, str, int]]:
    """(dtype, series, n) whose forward pass took longer than forward and backward together.

    Only noise does that: a peer so slow that its budget pays for a call or a few.
    """
    seconds = {(p["dtype"], p["series"], p["n"], p["pass"]): p["seconds"] for p in data}
    return {
        (dtype, series, n)
        for (dtype, series, n, direction), value in seconds.items()
        if direction == "fwd" and value > seconds.get((dtype, series, n, "fwd+bwd"), value)
    }


def _panel(axes: Axes, data: list[dict[str, Any]]) -> None:
    hollow = doubtful(data)
    for direction, line in LINES.items():
        for series, (_, color, marker) in SERIES.items():
            chosen = sorted(
                (p["n"], p["seconds"])
                for p in data
                if p["series"] == series and p["pass"] == direction
            )
            if chosen:
                # A line would read noise as a trend.
                sure = [(n, s) for n, s in chosen if (data[0]["dtype"], series, n) not in hollow]
                rest = [point for point in chosen if point not in sure]
                for part, look in ((sure, {"linestyle": line}), (rest, HOLLOW)):
                    if part:
                        axes.plot(*zip(*part, strict=True), color=color, marker=marker, **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({p["n"] for p in data})
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(lengths, [f"{n:,}".replace(",", " ") for n in lengths])
    axes.minorticks_off()
    axes.margins(x=0.09)  # room for half of the last length's label
    axes.set_xlabel("Length n")


def plot(data: list[dict[str, Any]]) -> Figure | None:
    """The figure of these points, or None if there are none."""
    dtypes = [dtype for dtype in TITLES if any(p["dtype"] == dtype for p in data)]
    if not dtypes:
        return None
    figure = Figure(figsize=(4.6 * len(dtypes), 4.4), layout="constrained")
    panels = figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    for axes, dtype in zip(panels, dtypes, strict=True):
        _panel(axes, [p for p in data if p["dtype"] == dtype])
        axes.set_title(TITLES[dtype])
    panels[0].set_ylabel("Seconds")
    present = [series for series in SERIES if any(p["series"] == series for p in data)]
    handles = [
        Line2D([], [], color=SERIES[s][1], marker=SERIES[s][2], label=SERIES[s][0]) for s in present
    ]
    handles += [
        Line2D([], [], color=style.INK, linestyle=LINES["fwd"], label="forward"),
        Line2D([], [], color=style.INK, linestyle=LINES["fwd+bwd"], label="forward and backward"),
    ]
    if doubtful(data):
        label = "noise: forward alone took longer"
        handles.append(Line2D([], [], color=style.FAINT, marker="D", label=label, **HOLLOW))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 3))
    return figure


def _read(source: Path) -> list[dict[str, Any]]:
    if source.suffix != ".csv":
        return points(json.loads(source.read_text())["rows"])
    with source.open(newline="") as file:
        return [
            row | {"n": int(row["n"]), "seconds": float(row["seconds"])}
            for row in csv.DictReader(file)
        ]


def write(source: Path, target: Path) -> bool:
    """Plots the benchmark's JSON into target.svg, target.png and, as numbers, target.csv.

    source: the JSON, or such a CSV, from which the figure is drawn again without measuring.
    Returns whether it holds a case that is plotted, one of `KIND`.
    """
    data = _read(source)
    with style.styled(), mpl.rc_context(SVG):
        figure = plot(data)
        if figure is None:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(target.with_suffix(".png"), dpi=160, metadata={"Software": None})
    with target.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(data)
    return True
