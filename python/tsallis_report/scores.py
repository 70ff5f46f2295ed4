"""``python -m tsallis_report.scores FOLDER``: what the scores of a trained model's heads do.

``FOLDER/inputs.safetensors`` holds queries, keys and values of every layer on one text
(``tsallis eval RUN --text FILE --scores FOLDER``). Written: ``scores.json`` and ``scores.png``.

For every head: the spread of a row's scores (Veličković et al. 2024, section 2), how normal they
are (Anson et al. 2025, figure 9), the entropy of its weights against the number of keys, and which
weights and blocks of weights are above zero. Over all heads: what three ways to scale scores would
make of them (Anson et al. 2025, figure 1): none, LogN (0.4 ln N) and scale-invariant (length scale
10), beside the same for scores drawn from a normal distribution.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors import safe_open

from . import style

Array = np.ndarray[Any, np.dtype[np.float64]]

BLOCKS = (16, 64, 128)
LAST = 100  # keys before the query, whose weight figure 1 shows
LENGTH_SCALE = 10.0
LOG_N = 0.4
QUANTILES = 99

LAYERS = ("#0072B2", "#D9981A", "#009E73", "#CC79A7", "#56AEE0", "#D55E00", "#222222", "#5E3C00")
MARKERS = "ox^s"
SCALINGS = {"none": "#222222", "LogN": "#009E73", "scale-invariant": "#D55E00"}


class ScoresError(Exception):
    """The inputs cannot be read."""


def entmax(z: Array, alpha: float) -> Array:
    """Rows of α-entmax, by bisection; masked scores are -inf."""
    if alpha == 1.0:
        weights = np.exp(z - z.max(-1, keepdims=True))
    else:
        scaled = (alpha - 1.0) * z
        top = scaled.max(-1, keepdims=True)
        low, high = top - 1.0, top.copy()
        for _ in range(50):
            middle = 0.5 * (low + high)
            above = np.clip(scaled - middle, 0.0, None) ** (1.0 / (alpha - 1.0))
            too_low = above.sum(-1, keepdims=True) >= 1.0
            low, high = np.where(too_low, middle, low), np.where(too_low, high, middle)
        weights = np.clip(scaled - low, 0.0, None) ** (1.0 / (alpha - 1.0))
    return weights / weights.sum(-1, keepdims=True)


def entropy(weights: Array) -> Array:
    """In nats, of the last dimension."""
    return -np.sum(weights * np.log(np.where(weights > 0.0, weights, 1.0)), -1)


def causal(z: Array) -> Array:
    """Scores of later keys are -inf: ``[n, n]``."""
    return np.where(np.tril(np.ones(z.shape, dtype=bool)), z, -np.inf)


def head_numbers(z: Array, weights: Array) -> dict[str, Any]:
    """What one head's scores and weights do: both ``[n, n]``, causal."""
    n = len(z)
    rows = range(1, n)
    spread = np.array([z[i, : i + 1].max() - z[i, : i + 1].min() for i in rows])
    # The first key is often where heads put what they have no use for.
    seen = z[n // 2 :, 1:][np.isfinite(z[n // 2 :, 1:])]
    levels = np.linspace(0.5 / QUANTILES, 1.0 - 0.5 / QUANTILES, QUANTILES)
    bounds = [b for b in (2**k for k in range(1, 40)) if b <= n]
    entropies = entropy(weights)
    positive = weights > 0.0
    pairs = n * (n + 1) // 2
    density = {1: float(positive.sum() / pairs)}
    for block in BLOCKS:
        whole = n // block
        if whole < 2:
            continue
        any_positive = (
            positive[: whole * block, : whole * block]
            .reshape(whole, block, whole, block)
            .any((1, 3))
        )
        density[block] = float(any_positive.sum() / (whole * (whole + 1) // 2))
    return {
        "spread": {
            "min": float(spread.min()),
            "max": float(spread.max()),
            "mean": float(spread.mean()),
            "std": float(spread.std()),
        },
        "quantiles": np.quantile((seen - seen.mean()) / seen.std(), levels).tolist(),
        "keys": bounds,
        # Rows that see up to this many keys, and more than half as many.
        "entropy": [float(entropies[b // 2 : b].mean()) for b in bounds],
        "density": {str(block): value for block, value in density.items()},
    }


def scalings(base: Array) -> dict[str, Array]:
    """Scores of one query under each way to scale them; ``[..., N]``, the last key is nearest."""
    n = base.shape[-1]
    square = 2.0 * np.log(np.arange(n, 0, -1) / LENGTH_SCALE + 1.0) + 1.0
    return {
        "none": base,
        "LogN": LOG_N * np.log(n) * base,
        "scale-invariant": np.sqrt(square) * base + 1.0 - square,
    }


def invariance(rows: Callable[[int], Array], lengths: list[int]) -> dict[str, Any]:
    """Entropy and weight of the last keys under each scaling; rows(N): base scores ``[draws, N]``.

    Anson et al. 2025, figure 1.
    """
    result: dict[str, Any] = {"keys": lengths, "entropy": {}, "last": {}}
    for n in lengths:
        for name, z in scalings(rows(n)).items():
            weights = entmax(z, 1.0)
            result["entropy"].setdefault(name, []).append(float(entropy(weights).mean()))
            result["last"].setdefault(name, []).append(float(weights[:, -LAST:].sum(-1).mean()))
    return result


def _layers(path: Path) -> list[dict[str, Any]]:
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            names = set(file.keys())
            layers = []
            while f"layers.{len(layers)}.q" in names:
                prefix = f"layers.{len(layers)}."
                layer: dict[str, Any] = {"map": metadata.get(prefix + "map", "softmax")}
                for part in ("q", "k", "alpha", "slopes"):
                    if prefix + part in names:
                        layer[part] = np.asarray(file.get_tensor(prefix + part), dtype=np.float64)
                layers.append(layer)
    except Exception as error:  # the library raises types of its own
        raise ScoresError(f"{path}: cannot be read ({error})") from error
    if not layers:
        raise ScoresError(f"{path}: expected layers.0.q, got {sorted(names)[:3]}")
    unknown = {layer["map"] for layer in layers} - {"softmax", "entmax"}
    if unknown:
        raise ScoresError(f"{path}: expected softmax or entmax, got {sorted(unknown)}")
    return layers


def measure(path: Path) -> dict[str, Any]:
    """Everything that ``scores.json`` holds."""
    heads = []
    base: list[Array] = []
    for number, layer in enumerate(_layers(path)):
        q, k = layer["q"], layer["k"]
        for head in range(len(q)):
            product = q[head] @ k[head].T / np.sqrt(q.shape[-1])
            n = len(product)
            z = product
            if "slopes" in layer:
                behind = np.arange(n)[:, None] - np.arange(n)[None, :]
                z = z - layer["slopes"][head] * behind
            z = causal(z)
            alpha = float(layer["alpha"][head]) if "alpha" in layer else 1.0
            weights = entmax(z, alpha)
            heads.append({"layer": number, "head": head, **head_numbers(z, weights)})
            # Without the first key, and standardised, as the normal scores beside them are.
            row = product[n // 2 :]
            mean, spread = np.tril(row, n // 2)[:, 1:].mean(), row[:, 1 : n // 2].std()
            base.append((row - mean) / max(spread, 1e-12))
    n = base[0].shape[1]
    lengths = [length for length in (10**k for k in range(2, 9)) if length < n // 2]
    lengths = sorted({*lengths, *(2**k for k in range(5, 40) if 2**k < n // 2)})
    random = np.random.default_rng(1)

    def trained(length: int) -> Array:
        # Row i of the lower half ends at key n // 2 + i.
        rows = [
            part[i, n // 2 + i + 1 - length : n // 2 + i + 1]
            for part in base
            for i in range(0, len(part), max(1, len(part) // 16))
        ]
        return np.stack(rows)

    return {
        "heads": heads,
        "trained": invariance(trained, lengths),
        "normal": invariance(lambda length: random.standard_normal((200, length)), lengths),
    }


def _lines(axes: Axes, study: dict[str, Any], key: str, dashed: bool) -> None:
    for name, values in study[key].items():
        axes.plot(
            study["keys"],
            values,
            color=SCALINGS[name],
            lw=1.6,
            ls="--" if dashed else "-",
            label=f"{name}, normal scores" if dashed else f"{name}, this model's",
        )
    axes.set_xscale("log")
    axes.set_xlabel("keys")


def draw(numbers: dict[str, Any]) -> Figure:
    """Six panels: spread, normality, entropy; blocks, and figure 1's two."""
    heads = numbers["heads"]
    layers = 1 + max(head["layer"] for head in heads)
    figure = Figure(figsize=(13.5, 7.6), layout="constrained")
    panels = figure.subplots(2, 3)
    colors = [LAYERS[layer % len(LAYERS)] for layer in range(layers)]

    axes = panels[0][0]
    for i, head in enumerate(heads):
        spread = head["spread"]
        axes.plot([i, i], [spread["min"], spread["max"]], color=colors[head["layer"]], lw=1.2)
        axes.plot([i], [spread["mean"]], "o", color=colors[head["layer"]], ms=4)
    axes.set_title("Spread of a row's scores, by head")
    axes.set_xlabel("head, layer by layer")
    axes.set_ylabel("largest - smallest score")

    axes = panels[0][1]
    levels = np.linspace(0.5 / QUANTILES, 1.0 - 0.5 / QUANTILES, QUANTILES)
    normal = np.quantile(np.random.default_rng(0).standard_normal(400_000), levels)
    for layer in range(layers):
        own = [head["quantiles"] for head in heads if head["layer"] == layer]
        axes.plot(normal, np.mean(own, 0), color=colors[layer], lw=1.4, label=f"layer {layer}")
    axes.plot(normal, normal, color=style.FAINT, lw=1.0, ls=":")
    axes.set_title("Are scores normal? (dotted: yes)")
    axes.set_xlabel("quantile of a normal distribution")
    axes.set_ylabel("of the scores, mean of a layer's heads")
    axes.legend()

    axes = panels[0][2]
    for head in heads:
        axes.plot(head["keys"], head["entropy"], color=colors[head["layer"]], lw=1.0)
    keys = heads[0]["keys"]
    axes.plot(keys, np.log(keys), color=style.FAINT, lw=1.0, ls=":")
    axes.set_xscale("log", base=2)
    axes.set_title("Entropy of weights (dotted: equal)")
    axes.set_xlabel("keys")
    axes.set_ylabel("nats")

    axes = panels[1][0]
    sizes = list(heads[0]["density"])
    for i, head in enumerate(heads):
        values = [100.0 * head["density"][size] for size in sizes]
        axes.plot([i] * len(sizes), values, color=colors[head["layer"]], lw=0.8)
        for marker, value in zip(MARKERS, values, strict=False):
            axes.plot([i], [value], marker, color=colors[head["layer"]], ms=4)
    axes.set_ylim(0, 103)
    names = ["weights", *(f"blocks of {size}" for size in sizes[1:])]
    for marker, name in zip(MARKERS, names, strict=False):
        axes.plot([], [], marker, color=style.FAINT, ms=4, label=name)
    axes.legend()
    axes.set_title("Weights, and blocks of them, above 0")
    axes.set_xlabel("head, layer by layer")
    axes.set_ylabel("%")

    for axes, key, title in (
        (panels[1][1], "entropy", "Entropy, were scores scaled so"),
        (panels[1][2], "last", f"Weight of the last {LAST} keys"),
    ):
        _lines(axes, numbers["trained"], key, dashed=False)
        _lines(axes, numbers["normal"], key, dashed=True)
        axes.set_title(title)
    panels[1][1].set_ylabel("nats")
    panels[1][2].legend()
    return figure


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 with the reason on standard error."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    try:
        numbers = measure(folder / "inputs.safetensors")
    except ScoresError as error:
        print(f"tsallis_report: {error}", file=sys.stderr)
        return 1
    (folder / "scores.json").write_text(json.dumps(numbers) + "\n")
    with style.styled():
        draw(numbers).savefig(folder / "scores.png", dpi=110)
    return 0


if __name__ == "__main__":
    sys.exit(main())
