"""The figure of ``tsallis bench decode``: time of a token against the number of keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from tsallis.bench.figure import PALETTE, SVG
from tsallis_report import style

__all__ = ["write"]

OURS, SOFTMAX, LLAMA = PALETTE["entmax-1.5"], PALETTE["softmax"], "#009E73"
# name in the data: label, colour, marker, line
SERIES: dict[str, tuple[str, str, str, Any]] = {
    "bytes": ("entmax, cache with bytes", OURS, "o", "-"),
    "rows": ("entmax, cache without", OURS, "s", (0, (4, 2))),
    "tensors": ("entmax, tsallis.attention", OURS, "^", (0, (1, 1.5))),
    "gqa": ("softmax, SDPA with enable_gqa", SOFTMAX, "o", "-"),
    "repeated": ("softmax, SDPA, keys repeated", SOFTMAX, "s", (0, (4, 2))),
    "cat": ("softmax, torch.cat and SDPA", SOFTMAX, "^", (0, (1, 1.5))),
    "llama f16": ("softmax, llama.cpp, float16", LLAMA, "o", "-"),
    "llama q8_0": ("softmax, llama.cpp, 8 bits", LLAMA, "s", (0, (4, 2))),
}


def points(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[int, float]]:
    """Milliseconds by (dtype, series) and keys, of one sequence with heads of 64."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        plain = f"{row['dtype']}-n{row['n']}-d64-{row['heads']}/{row['kv_heads']}"
        if row["case"] != plain:
            continue
        found.setdefault((row["dtype"], "bytes"), {})[row["n"]] = 1e3 * row["ours_s"]
        found.setdefault((row["dtype"], row["peer"]), {})[row["n"]] = 1e3 * row["peer_s"]
    return found


def write(source: Path, target: Path) -> bool:
    """Plots the benchmark's JSON into target.svg and target.png; whether it has plain cases."""
    found = points(json.loads(source.read_text())["rows"])
    dtypes = sorted({dtype for dtype, _ in found})
    if not dtypes:
        return False
    with style.styled(), mpl.rc_context(SVG):
        figure = Figure(figsize=(4.6 * len(dtypes), 4.4), layout="constrained")
        panels = figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
        for axes, dtype in zip(panels, dtypes, strict=True):
            for name, (label, color, marker, line) in SERIES.items():
                line_points = sorted(found.get((dtype, name), {}).items())
                if not line_points:
                    continue
                keys, ms = zip(*line_points, strict=True)
                axes.plot(keys, ms, color=color, marker=marker, ls=line, label=label)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            lengths = sorted({n for key, times in found.items() if key[0] == dtype for n in times})
            axes.set_xticks(lengths, [f"{n:,}".replace(",", " ") for n in lengths])
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            axes.set_title(dtype)
            axes.set_xlabel("keys")
        panels[0].set_ylabel("ms a token, 32 query heads, 8 key heads")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        figure.savefig(target.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(target.with_suffix(".png"), dpi=130, metadata={"Software": None})
    return True
