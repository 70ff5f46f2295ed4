#!/usr/bin/env python3
"""Draws docs/figures/patterns: which keys a query sees. Run it to draw the figure again."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap
from PIL import Image

import tsallis

N, BLOCK = 64, 8
FOLDER = Path(__file__).resolve().parent
PATTERNS = {
    "window": tsallis.patterns.Pattern(causal=True, window=12),
    "longformer": tsallis.patterns.longformer(12, 4, causal=True),
    "bigbird": tsallis.patterns.bigbird(12, 4, random=1, random_block=BLOCK, causal=True),
    "strided": tsallis.patterns.strided(8, causal=True),
    "fixed": tsallis.patterns.fixed(16, 2, causal=True),
}


def main() -> None:
    figure, panels = plt.subplots(1, len(PATTERNS), figsize=(10.5, 2.5), dpi=150)
    for axes, (name, pattern) in zip(panels, PATTERNS.items(), strict=True):
        masks = pattern.masks(N, block_size=(BLOCK, BLOCK))
        blocks = masks["block_mask"].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        # 0: of no block, 1: of a block that is cut, 2: seen
        shade = blocks.int() + masks["mask"].int()
        axes.imshow(shade, cmap=ListedColormap(["#ffffff", "#dbe6ef", "#0072b2"]), vmin=0, vmax=2)
        share = masks["mask"].sum().item() / (N * (N + 1) / 2)
        axes.set_title(f"{name}: {100 * share:.0f} %", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    panels[0].set_xlabel("key")
    panels[0].set_ylabel("query")
    figure.tight_layout()
    target = FOLDER / "patterns.png"
    figure.savefig(target, bbox_inches="tight")
    with Image.open(target) as picture:  # a palette makes the file a third as large
        picture.convert("RGB").quantize(48, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


if __name__ == "__main__":
    main()
