"""The README's figure of attention: time against length, ours beside the peers'.

.venv/bin/python bench/attention_figure.py build/bench/attention.json docs/figures/attention
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import common

sys.path.insert(0, str(common.ROOT / "python"))

from tsallis_report import style

KIND, HEAD_SIZE = "entmax-1.5", 64
TITLES = {"float32": "float32", "bfloat16": "bfloat16"}
LINES = {"fwd": "-", "fwd+bwd": (0, (4, 2))}
PALETTE = style.colors(["softmax", "entmax-1.5"])
# name in the data: label, colour, marker
SERIES = {
    "tsallis": ("α-entmax, Tsallis", PALETTE["entmax-1.5"], "o"),
    "sdpa": ("softmax, PyTorch SDPA", PALETTE["softmax"], "s"),
    "entmax": ("α-entmax, entmax package", style.FAINT, "D"),
}
COLUMNS = ["dtype", "pass", "series", "n", "seconds"]


def points(rows: list[dict]) -> list[dict]:
    """One row a point of the figure, in the order of COLUMNS."""
    found: dict[tuple, float] = {}
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


def _panel(axes: Axes, data: list[dict]) -> None:
    for direction, line in LINES.items():
        for series, (_, color, marker) in SERIES.items():
            chosen = sorted(
                (p["n"], p["seconds"])
                for p in data
                if p["series"] == series and p["pass"] == direction
            )
            if chosen:
                n, seconds = zip(*chosen, strict=True)
                axes.plot(n, seconds, color=color, marker=marker, linestyle=line)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = sorted({p["n"] for p in data})
    axes.set_xticks(lengths, [f"{n:,}".replace(",", " ") for n in lengths])
    axes.minorticks_off()
    axes.set_xlabel("Length n")


def plot(document: dict) -> Figure | None:
    data = points(document["rows"])
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
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 3))
    return figure


def write(source: Path, target: Path) -> None:
    """Plots the benchmark's JSON into target.svg, target.png and, as numbers, target.csv."""
    document = json.loads(source.read_text())
    with style.styled():
        figure = plot(document)
        if figure is None:
            print(f"{source} has no {KIND} case: no figure", file=sys.stderr)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(target.with_suffix(".png"), dpi=160, metadata={"Software": None})
    with target.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(points(document["rows"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="JSON of bench/attention.py")
    parser.add_argument("target", type=Path, help="path without suffix")
    arguments = parser.parse_args()
    write(arguments.source, arguments.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
