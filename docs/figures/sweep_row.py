#!/usr/bin/env python3
"""Draws docs/figures/sweep-row: what a sweep lists of one row. Run it to draw the figure again."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

N, D, ALPHA = 4096, 64, 1.5
FOLDER = Path(__file__).resolve().parent


def threshold(z: np.ndarray) -> float:
    """tau with sum [z - tau]_+^2 = 1, by bisection."""
    low, high = z.max() - 1.0, z.max()
    for _ in range(100):
        middle = 0.5 * (low + high)
        if (np.maximum(z - middle, 0.0) ** 2).sum() >= 1.0:
            low = middle
        else:
            high = middle
    return low


def main() -> None:
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal(D), rng.standard_normal((N, D))
    z = (ALPHA - 1.0) * (k @ q) / np.sqrt(D)
    tau = threshold(z)
    bound = tau - 0.2 * z.std()
    support, listed = z > tau, (z >= bound) & (z <= tau)

    figure, axes = plt.subplots(figsize=(8.6, 3.7), dpi=110)
    j = np.arange(N)
    rest = ~(support | listed)
    axes.scatter(j[rest], z[rest], s=2, color="#b9b9b9", linewidths=0)
    axes.scatter(j[listed], z[listed], s=12, color="#0072b2", linewidths=0)
    axes.scatter(j[support], z[support], s=16, color="#d55e00", linewidths=0)
    axes.axhline(bound, color="#0072b2", lw=1.2)
    axes.axhline(tau, color="#d55e00", lw=1.2)
    x = N * 1.015
    axes.text(x, tau + 0.02, "threshold τ", color="#d55e00", va="bottom", fontsize=9)
    axes.text(x, bound - 0.02, "bound", color="#0072b2", va="top", fontsize=9)
    axes.set_title(
        f"{support.sum()} keys in the support, {listed.sum()} listed besides, "
        f"{rest.sum()} compared and forgotten",
        fontsize=10,
        loc="left",
    )
    axes.annotate(
        "guessed from the keys' mean and covariance,\nproved when the list is solved",
        (N * 0.3, bound),
        (N * 0.22, bound - 0.95),
        fontsize=9,
        color="#0072b2",
        arrowprops={"arrowstyle": "-", "color": "#0072b2", "lw": 0.7},
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85},
    )
    axes.set_xlim(0, N)
    axes.set_xlabel("key")
    axes.set_ylabel("z = (α − 1) score")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    target = FOLDER / "sweep-row.png"
    figure.savefig(target, bbox_inches="tight")
    with Image.open(target) as picture:  # a palette makes the file a third as large
        picture.convert("RGB").quantize(48, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


if __name__ == "__main__":
    main()
