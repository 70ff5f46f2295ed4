"""The figure of ``tsallis bench serve``: tokens a second against the prompt, streams as lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from tsallis.bench.figure import PALETTE, SVG
from tsallis_report import style

__all__ = ["write"]

# name in the data: label, colour, marker
SERIES = {
    "vllm": ("softmax, vLLM's own", PALETTE["softmax"], "s"),
    "screened": ("entmax, screened", PALETTE["entmax-1.5"], "o"),
    "pages": ("entmax, every key scored", "#D55E00", "^"),
    "softmax": ("softmax, Tsallis", "#009E73", "D"),
    "llama-f16": ("softmax, llama.cpp", "#CC79A7", "v"),
    "llama-q8": ("softmax, llama.cpp, q8_0", "#E69F00", "<"),
    "mistral": ("softmax, mistral.rs", "#7F7F7F", "P"),
}
LINES: list[Any] = ["-", (0, (4, 2)), (0, (1, 1.5))]
PANELS = {"read_per_s": "prompt tokens read a second", "written_per_s": "tokens written a second"}


def write(source: Path, target: Path) -> None:
    """Plots the benchmark's JSON into target.svg and target.png."""
    rows: list[dict[str, Any]] = json.loads(source.read_text())["rows"]
    streams = sorted({row["streams"] for row in rows})
    prompts = sorted({row["prompt"] for row in rows})
    with style.styled(), mpl.rc_context(SVG):
        figure = Figure(figsize=(9.2, 4.6), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, (key, title) in zip(panels, PANELS.items(), strict=True):
            for name, (label, color, marker) in SERIES.items():
                for count, line in zip(streams, LINES * len(streams), strict=False):
                    points = sorted(
                        (row["prompt"], row[key])
                        for row in rows
                        if (row["series"], row["streams"]) == (name, count)
                    )
                    if points:
                        several = f"{count} stream{'s' if count > 1 else ''}"
                        axes.plot(
                            *zip(*points, strict=True),
                            color=color,
                            marker=marker,
                            ls=line,
                            label=f"{label}, {several}",
                        )
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(prompts, [f"{n:,}".replace(",", " ") for n in prompts])
            # Long prompts stand close together on this axis.
            axes.tick_params(axis="x", labelrotation=30)
            axes.minorticks_off()
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xlabel("tokens of a prompt")
            axes.set_title(title)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        figure.savefig(target.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(target.with_suffix(".png"), dpi=130, metadata={"Software": None})
