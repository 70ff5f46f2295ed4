"""``python -m tsallis_report.scores FOLDER``: what the scores of a trained model's heads do.

``FOLDER/inputs.safetensors`` holds queries, keys and values of every layer on one text
(``tsallis eval RUN --text FILE --scores FOLDER``). Written: ``scores.json``, ``scores.png`` and,
of a model that scales its scores with length, ``length-scales.png``.

For every head: the spread of a row's scores (Veličković et al. 2024, section 2), how normal they
are (Anson et al. 2025, figure 9), the entropy of its weights against the number of keys, and which
weights and blocks of weights are above zero. For every layer: how far its heads differ, as the
Jensen-Shannon divergence of their weights (Correia et al. 2019, figure 13). Over all heads: what
three ways to scale scores would make of them (Anson et al. 2025, figure 1): none, LogN (0.4 ln N)
and scale-invariant (length scale 10), beside the same for scores drawn from a normal distribution.
Of learned length scalings: the factor of every head against the number of keys, and how well three
functions of it fit (Vasylenko et al. 2025, figures 4 and 9).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors import safe_open

import tsallis

from . import style

Array = np.ndarray[Any, np.dtype[np.float64]]

BLOCKS = (16, 64, 128)
LEAST = 8  # tokens of a sample
LAST = 100  # keys before the query, whose weight figure 1 shows
LENGTH_SCALE = 10.0
LOG_N = 0.4
QUANTILES = 99
RANGES = tuple((10**k, 10 ** (k + 1)) for k in range(1, 8))  # of distances, as figure 1 has them
POWERS = np.linspace(-4.0, 4.0, 1601)  # exponents that a fit tries

LAYERS = ("#0072B2", "#D9981A", "#009E73", "#CC79A7", "#56AEE0", "#D55E00", "#222222", "#5E3C00")
MARKERS = "ox^s"
SCALINGS = {"none": "#222222", "LogN": "#009E73", "scale-invariant": "#D55E00"}


class ScoresError(Exception):
    """The inputs cannot be read."""


def entmax(z: Array, alpha: float) -> Array:
    """Rows of α-entmax; masked scores are -inf."""
    weights: Array = tsallis.entmax(torch.from_numpy(z), alpha=alpha).numpy()
    return weights


def entropy(weights: Array) -> Array:
    """In nats, of the last dimension."""
    each: Array = weights * np.log(np.where(weights > 0.0, weights, 1.0))
    total: Array = -each.sum(-1)
    return total


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


def fits(n: Array, c: Array) -> dict[str, dict[str, Any]]:
    """How functions of the number of keys fit a head's factor c, by least squares.

    Linear b n, logarithm b ln n, power b (ln n)^g; each alone and with a constant d. Without one,
    R^2 = 1 - left / total may be negative: total is taken around the mean.
    """
    total = float(np.square(c - c.mean()).sum())
    log = np.log(n)
    found: dict[str, dict[str, Any]] = {}
    for name, shapes in {
        "linear": n[None],
        "log": log[None],
        "power": log ** POWERS[:, None],
    }.items():
        for constant in (False, True):
            mean = shapes.mean(-1, keepdims=True) if constant else 0.0
            x = shapes - mean
            y = c - c.mean() if constant else c
            # A power of 0 is a constant itself.
            b = (x @ y) / np.maximum(np.square(x).sum(-1), 1e-12)
            residual = np.square(y - b[:, None] * x).sum(-1)
            best = int(residual.argmin())
            missed = float(residual[best])
            fit: dict[str, float | None] = {"b": float(b[best]), "left": missed}
            if name == "power":
                fit["g"] = float(POWERS[best])
            if constant:
                fit["d"] = float(c.mean() - b[best] * shapes[best].mean())
            fit["r2"] = 1.0 - missed / total if total > 1e-12 * len(c) else None
            found[f"d + {name}" if constant else name] = fit
    return found


def length_scales(layers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Factors of the heads against the number of keys, and what fits them; None without any."""
    heads = []
    for number, layer in enumerate(layers):
        for head, c in enumerate(layer.get("c", ())):
            # A head without length scaling, as half of them under NAPE, has c = 1. The first row
            # sees one key, whose ln is 0.
            if np.all(c == 1.0):
                continue
            n = np.arange(1.0, len(c) + 1.0)
            heads.append(
                {"layer": number, "head": head, "c": c.tolist(), "fits": fits(n[1:], c[1:])}
            )
    if not heads:
        return None
    # A head of one value has nothing to explain.
    varying = [head for head in heads if head["fits"]["linear"]["r2"] is not None]
    total = sum(float(np.square(c - c.mean()).sum()) for c in map(_behind_first, varying))
    overall = {
        name: 1.0 - sum(head["fits"][name]["left"] for head in varying) / total
        for name in (heads[0]["fits"] if varying else ())
    }
    return {"overall": overall, "heads": heads}


def _behind_first(head: dict[str, Any]) -> Array:
    return np.asarray(head["c"][1:])


def scale_invariant(z: Array, distance: Array, length: float) -> Array:
    """a z + m with a^2 = 2 ln(d / length + 1) + 1 and m = 1 - a^2 (docs/definitions.md, P7)."""
    square: Array = 2.0 * np.log(distance / length + 1.0) + 1.0
    result: Array = np.sqrt(square) * z + 1.0 - square
    return result


def scalings(base: Array) -> dict[str, Array]:
    """Scores of one query under each way to scale them; ``[..., N]``, the last key is nearest."""
    n = base.shape[-1]
    return {
        "none": base,
        "LogN": LOG_N * np.log(n) * base,
        "scale-invariant": scale_invariant(base, np.arange(n, 0, -1), LENGTH_SCALE),
    }


def invariance(rows: Callable[[int], Array], lengths: list[int]) -> dict[str, Any]:
    """Entropy and weight of the last keys under each scaling; rows(N): base scores ``[draws, N]``.

    At the longest, the entropy within ranges of distance as well, of the weights in the range made
    to sum to 1. Anson et al. 2025, figure 1.
    """
    result: dict[str, Any] = {"keys": lengths, "entropy": {}, "last": {}, "ranges": {}}
    for n in lengths:
        for name, z in scalings(rows(n)).items():
            weights = entmax(z, 1.0)
            result["entropy"].setdefault(name, []).append(float(entropy(weights).mean()))
            result["last"].setdefault(name, []).append(float(weights[:, -LAST:].sum(-1).mean()))
            if n != max(lengths):
                continue
            result["ranges"][name] = [
                {"begin": begin, "end": end, "entropy": float(entropy(entmax(part, 1.0)).mean())}
                for begin, end in RANGES
                if end <= n and (part := z[:, n + 1 - end : n + 1 - begin]).size
            ]
    return result


def _layers(path: Path) -> list[dict[str, Any]]:
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            names = set(file.keys())
            layers: list[dict[str, Any]] = []
            while f"layers.{len(layers)}.q" in names:
                prefix = f"layers.{len(layers)}."
                layer: dict[str, Any] = {"map": metadata.get(prefix + "map", "softmax")}
                if prefix + "scale_invariant" in metadata:
                    layer["scale_invariant"] = float(metadata[prefix + "scale_invariant"])
                for part in ("q", "k", "alpha", "slopes", "c"):
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
    divergences = []
    layers = _layers(path)
    tokens = layers[0]["q"].shape[1]
    if tokens < LEAST:
        raise ScoresError(f"{path}: expected a sample of at least {LEAST} tokens, got {tokens}")
    for number, layer in enumerate(layers):
        q, k = layer["q"], layer["k"]
        n = q.shape[1]
        behind = np.clip(np.arange(n)[:, None] - np.arange(n)[None, :], 0, None)
        everywhere = np.zeros((n, n))  # the mean of the heads' weights
        entropies = np.zeros(n)
        for head in range(len(q)):
            product = q[head] @ k[head].T / np.sqrt(q.shape[-1])
            z = product
            if "scale_invariant" in layer:
                z = scale_invariant(z, behind, layer["scale_invariant"])
            if "slopes" in layer:
                z = z - layer["slopes"][head] * behind
            z = causal(z)
            alpha = float(layer["alpha"][head]) if "alpha" in layer else 1.0
            weights = entmax(z, alpha)
            everywhere += weights / len(q)
            entropies += entropy(weights) / len(q)
            heads.append({"layer": number, "head": head, **head_numbers(z, weights)})
            # Without the first key, and standardised, as the normal scores beside them are.
            row = product[n // 2 :]
            mean, spread = np.tril(row, n // 2)[:, 1:].mean(), row[:, 1 : n // 2].std()
            base.append((row - mean) / max(spread, 1e-12))
        # Correia et al. 2019, section 5.2: H(mean of the heads) - mean of H(head), over queries.
        divergences.append(float((entropy(everywhere) - entropies).mean()))
    n = base[0].shape[1]
    lengths = [length for length in (10**k for k in range(2, 9)) if length < n // 2]
    lengths = sorted({*lengths, *(2**k for k in range(5, 40) if 2**k < n // 2)}) or [n // 2]
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
        "divergence": divergences,
        "length_scales": length_scales(layers),
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


def _colors(heads: list[dict[str, Any]]) -> list[str]:
    layers = 1 + max(head["layer"] for head in heads)
    return [LAYERS[layer % len(LAYERS)] for layer in range(layers)]


def _draw_spread(axes: Axes, heads: list[dict[str, Any]]) -> None:
    colors = _colors(heads)
    for i, head in enumerate(heads):
        spread = head["spread"]
        axes.plot([i, i], [spread["min"], spread["max"]], color=colors[head["layer"]], lw=1.2)
        axes.plot([i], [spread["mean"]], "o", color=colors[head["layer"]], ms=4)
    axes.set_title("Spread of a row's scores, by head")
    axes.set_xlabel("head, layer by layer")
    axes.set_ylabel("largest - smallest score")


def _draw_normality(axes: Axes, heads: list[dict[str, Any]]) -> None:
    levels = np.linspace(0.5 / QUANTILES, 1.0 - 0.5 / QUANTILES, QUANTILES)
    normal = np.quantile(np.random.default_rng(0).standard_normal(400_000), levels)
    for layer, color in enumerate(_colors(heads)):
        own = [head["quantiles"] for head in heads if head["layer"] == layer]
        axes.plot(normal, np.mean(own, 0), color=color, lw=1.4, label=f"layer {layer + 1}")
    axes.plot(normal, normal, color=style.FAINT, lw=1.0, ls=":")
    axes.set_title("Are scores normal? (dotted: yes)")
    axes.set_xlabel("quantile of a normal distribution")
    axes.set_ylabel("of the scores, mean of a layer's heads")
    axes.legend()


def _draw_entropy(axes: Axes, heads: list[dict[str, Any]]) -> None:
    colors = _colors(heads)
    for head in heads:
        axes.plot(head["keys"], head["entropy"], color=colors[head["layer"]], lw=1.0)
    keys = heads[0]["keys"]
    axes.plot(keys, np.log(keys), color=style.FAINT, lw=1.0, ls=":")
    axes.set_xscale("log", base=2)
    axes.set_title("Entropy of weights (dotted: equal)")
    axes.set_xlabel("keys")
    axes.set_ylabel("nats")


def _draw_density(axes: Axes, heads: list[dict[str, Any]]) -> None:
    colors = _colors(heads)
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


def _draw_divergence(axes: Axes, numbers: dict[str, Any]) -> None:
    axes.bar(
        range(len(numbers["divergence"])),
        numbers["divergence"],
        color=_colors(numbers["heads"]),
        width=0.6,
    )
    layers = len(numbers["divergence"])
    axes.set_xticks(range(layers), style.from_one(layers))
    axes.set_title("How far a layer's heads differ")
    axes.set_xlabel("layer")
    axes.set_ylabel("Jensen-Shannon divergence, nats")


def _draw_ranges(axes: Axes, numbers: dict[str, Any]) -> None:
    for study, dashed in (("trained", False), ("normal", True)):
        for name, ranges in numbers[study]["ranges"].items():
            axes.plot(
                range(len(ranges)),
                [part["entropy"] for part in ranges],
                "o--" if dashed else "o-",
                color=SCALINGS[name],
                lw=1.6,
                ms=4,
            )
    ranges = next(iter(numbers["trained"]["ranges"].values()))
    axes.set_xticks(range(len(ranges)), [f"{part['begin']} to {part['end']}" for part in ranges])
    axes.set_xlim(-0.4, max(len(ranges), 1) - 0.6)
    axes.set_title("Entropy within ranges of distance")
    axes.set_xlabel("keys before the query")
    axes.set_ylabel("nats")


def draw(numbers: dict[str, Any]) -> Figure:
    """Eight panels: what the heads do; below, figure 1's three and how far heads differ."""
    heads = numbers["heads"]
    figure = Figure(figsize=(18.0, 7.6), layout="constrained")
    panels = figure.subplots(2, 4)
    _draw_spread(panels[0][0], heads)
    _draw_normality(panels[0][1], heads)
    _draw_entropy(panels[0][2], heads)
    _draw_density(panels[0][3], heads)
    for axes, key, title in (
        (panels[1][0], "entropy", "Entropy, were scores scaled so"),
        (panels[1][2], "last", f"Weight of the last {LAST} keys"),
    ):
        _lines(axes, numbers["trained"], key, dashed=False)
        _lines(axes, numbers["normal"], key, dashed=True)
        axes.set_title(title)
    panels[1][0].set_ylabel("nats")
    panels[1][2].legend()
    _draw_ranges(panels[1][1], numbers)
    _draw_divergence(panels[1][3], numbers)
    return figure


def draw_length_scales(scales: dict[str, Any]) -> Figure:
    """Factors against the number of keys, b and g of the power of every head, R^2 of the fits."""
    heads = scales["heads"]
    colors = _colors(heads)
    figure = Figure(figsize=(18.0, 4.2), layout="constrained")
    curves, first, second, quality = figure.subplots(1, 4)

    seen = set()
    for head in heads:
        c = np.asarray(head["c"])
        n = np.arange(1, len(c) + 1)
        # Means of 4 % of the axis: factors of single rows vary with their text.
        edges = np.unique(np.geomspace(1, len(c) + 1, 80).astype(int))
        bins = list(pairwise(edges))
        curves.plot(
            [n[a - 1 : b - 1].mean() for a, b in bins],
            [c[a - 1 : b - 1].mean() for a, b in bins],
            color=colors[head["layer"]],
            lw=1.2,
            label=None if head["layer"] in seen else f"layer {head['layer'] + 1}",
        )
        seen.add(head["layer"])
    curves.set_xscale("log")
    curves.set_title("Factor of the scores, by head")
    curves.set_xlabel("keys")
    curves.set_ylabel("c")
    curves.legend()

    rows = 1 + max(head["layer"] for head in heads)
    columns = 1 + max(head["head"] for head in heads)
    for axes, key, title in (
        (first, "b", "b of d + b (ln n)$^g$"),
        (second, "g", "g of d + b (ln n)$^g$"),
    ):
        cells = np.full((rows, columns), np.nan)
        for head in heads:
            cells[head["layer"], head["head"]] = head["fits"]["d + power"][key]
        limit = max(float(np.nanmax(np.abs(cells))), 1e-9)
        image = axes.imshow(cells, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                dark = abs(value) > 0.6 * limit
                axes.text(
                    column,
                    row,
                    f"{value:.2g}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if dark else "black",
                )
        axes.grid(visible=False)
        axes.set_xticks(range(columns), style.from_one(columns))
        axes.set_yticks(range(rows), style.from_one(rows))
        axes.set_title(title)
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        figure.colorbar(image, ax=axes)

    for i, name in enumerate(heads[0]["fits"]):
        values = [
            (max(head["fits"][name]["r2"], -1.0), colors[head["layer"]])
            for head in heads
            if head["fits"][name]["r2"] is not None
        ]
        quality.scatter([i] * len(values), [v for v, _ in values], c=[c for _, c in values], s=16)
        if scales["overall"]:
            overall = max(scales["overall"][name], -1.0)
            quality.plot([i - 0.3, i + 0.3], [overall, overall], color="#222222", lw=1.6)
    quality.set_xticks(range(len(heads[0]["fits"])), heads[0]["fits"], rotation=30)
    quality.set_ylim(-1.05, 1.05)
    quality.set_title("R² of fits (bar: all heads; below -1 at -1)")
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
    scales = folder / "length-scales.png"
    scales.unlink(missing_ok=True)
    with style.styled():
        draw(numbers).savefig(folder / "scores.png", dpi=110)
        if numbers["length_scales"] is not None:
            draw_length_scales(numbers["length_scales"]).savefig(scales, dpi=110)
    return 0


if __name__ == "__main__":
    sys.exit(main())
