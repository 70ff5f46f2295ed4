"""The figure of bench/training_sequences.py: rates of all sides, and our time by operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import common  # noqa: F401, makes what lies in python/ importable
from tsallis_report import style

OURS = "Tsallis"
COLORS = {
    OURS: "#0072B2",
    "torch": "#222222",
    "torch + entmax15": "#7a7a7a",
    "torch + entmax_bisect": "#b5b5b5",
}


def draw(rows: list[dict[str, Any]], shares: list[dict[str, Any]], path: Path) -> None:
    """Write path.svg and path.png. rows, shares: of the JSON document; shares may be empty."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    with style.styled():
        figure = Figure(
            figsize=(6.0 + 5.5 * bool(shares), 1.2 + 0.62 * len(cases)), layout="constrained"
        )
        panels = figure.subplots(1, 1 + bool(shares), squeeze=False, sharey=True)[0]
        _rates(panels[0], rows, cases)
        if shares:
            _operators(panels[1], shares, cases)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
        figure.savefig(path.with_suffix(".png"), dpi=160, metadata={"Software": None})


def _rates(axes: Axes, rows: list[dict[str, Any]], cases: list[str]) -> None:
    labelled = set()
    for at, case in enumerate(cases):
        own = [row for row in rows if row["case"] == case]
        bars = [(OURS, own[0]["tokens_per_s"])]
        bars += [(row["peer"], row["tokens_per_s"] / row["process_speedup"]) for row in own]
        height = 0.8 / len(bars)
        for index, (side, rate) in enumerate(bars):
            y = at - 0.4 + height * (index + 0.5)
            label = None if side in labelled else side
            labelled.add(side)
            axes.barh(y, rate, 0.92 * height, color=COLORS[side], label=label)
            axes.text(rate, y, f" {rate:,.0f}", va="center", fontsize=7.5)
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.margins(x=0.14)
    axes.set_xlabel("Tokens a second, training, one thread")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4)


def _operators(axes: Axes, shares: list[dict[str, Any]], cases: list[str]) -> None:
    names = list(dict.fromkeys(row["operator"] for row in shares))
    colors = mpl.color_sequences["tab20"]
    left = dict.fromkeys(cases, 0.0)
    for index, name in enumerate(names):
        own = {row["case"]: row["percent"] for row in shares if row["operator"] == name}
        axes.barh(
            [cases.index(case) for case in own],
            list(own.values()),
            0.62,
            left=[left[case] for case in own],
            color=colors[index % len(colors)],
            label=name,
        )
        for case, share in own.items():
            left[case] += share
    axes.set_xlim(0, 100)
    axes.grid(False, axis="y")
    axes.set_xlabel("Share of our step (%)")
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
