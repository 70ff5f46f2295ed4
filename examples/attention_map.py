"""Attention maps of a long sequence as a picture, from weights stored sparsely.

    python examples/attention_map.py --length 8192 --out map.png

The dense matrix of one head would have 67 million entries at this length; of the half that a causal
query may see, entmax leaves some hundredths of a per cent, and those alone are stored.
"""

import argparse

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

import tsallis


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--out", default="map.png")
    arguments = parser.parse_args()
    length, size = arguments.length, 64

    # Keys that repeat with a period, so that there is something to see.
    generator = torch.Generator().manual_seed(0)
    motif = torch.randn(1, 1, length // 8, size, generator=generator)
    k = motif.repeat(1, 1, 8, 1)[:, :, :length]
    q = k + 0.5 * torch.randn(k.shape, generator=generator)
    slopes = torch.tensor([0.002])

    panels = (("softmax", 1.0), ("entmax, α = 1.5", 1.5), ("sparsemax", 2.0))
    figure, axes = plt.subplots(1, len(panels), figsize=(12, 4.2), layout="constrained")
    for axis, (title, alpha) in zip(axes, panels, strict=True):
        _, extra = tsallis.attention(
            q, k, k, alpha=alpha, causal=True, alibi_slopes=slopes, returns="weights"
        )
        weights = extra.weights  # sparse CSR, [length, length]
        counts = weights.crow_indices().diff()
        rows = torch.repeat_interleave(torch.arange(length), counts)
        # Cells of the picture hold the weight that falls into them.
        cells = 256
        picture, _, _ = np.histogram2d(
            rows.numpy(),
            weights.col_indices().numpy(),
            bins=cells,
            range=((0, length), (0, length)),
            weights=weights.values().numpy(),
        )
        axis.imshow(np.sqrt(picture), cmap="magma", extent=(0, length, length, 0))
        share = 2 * weights.values().numel() / (length * (length + 1))
        axis.set(title=f"{title}: {100 * share:.2f} % of the weights", xlabel="key", ylabel="query")
        print(f"{title}: {weights.values().numel()} weights, {100 * share:.2f} % of the visible")
    figure.savefig(arguments.out, dpi=150)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
