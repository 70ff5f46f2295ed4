"""Figures of what the heads of a sequence model do: learned numbers, entropy, attention maps."""

from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from . import style
from .data import Study
from .parts import (
    ByHand,
    headline_methods,
    histogram_panels,
    legend_below,
    length_axis,
    weight_norm,
    wrapped,
)
from .quantities import Array, AttentionMap, HeadNumber

# The numbers that a head learns: their names in data/heads.csv, and those for people.
_LEARNED = {
    "alpha": "α",
    "learned slope": "slope",
    "b": "b",
    "g": "g",
    "beta": "β",
    "gamma": "γ",
    "c": "c",
}

_MAX_WORDS = 48  # tokens that the axes of a map name one by one


def _table(numbers: Sequence[HeadNumber], size: tuple[int, int]) -> tuple[Array, Array]:
    """Mean and spread as [layers, heads], NaN where a head has no such quantity."""
    mean, std = np.full(size, np.nan), np.full(size, np.nan)
    for number in numbers:
        mean[number.layer, number.head] = number.mean
        std[number.layer, number.head] = number.std
    return mean, std


def _size(study: Study) -> tuple[int, int]:
    """Layers and heads."""
    return 1 + max(h.layer for h in study.heads), 1 + max(h.head for h in study.heads)


def plot_learned(study: Study) -> Figure | None:
    """What each head has learned, layers by heads: a row of panels per method."""
    if not study.heads:
        return None
    n = min(number.n for number in study.heads)
    found: dict[tuple[str, str], list[HeadNumber]] = {}
    for number in study.heads:
        if number.n == n and number.quantity in _LEARNED:
            found.setdefault((number.method, number.quantity), []).append(number)
    methods = [m for m in study.methods if any(method == m for method, _ in found)]
    quantities = [q for q in _LEARNED if any(quantity == q for _, quantity in found)]
    if not methods:
        return None
    layers, heads = size = _size(study)
    columns = {m: [q for q in quantities if (m, q) in found] for m in methods}
    most = max(len(own) for own in columns.values())
    tables = {key: _table(numbers, size) for key, numbers in found.items()}
    norms = {}  # of a quantity, one for all methods
    for quantity in quantities:
        means = [mean for (_, q), (mean, _) in tables.items() if q == quantity]
        norms[quantity] = Normalize(float(np.nanmin(means)), float(np.nanmax(means)) + 1e-9)
    cell_width, cell_height = 0.44, 0.4
    figure = Figure(
        figsize=(
            1.1 + most * (0.55 + max(1.3, cell_width * heads)),
            0.5 + len(methods) * (0.85 + cell_height * layers),
        ),
        layout="constrained",
    )
    panels = figure.subplots(len(methods), most, squeeze=False)
    for row, method in zip(panels, methods, strict=True):
        for axes, quantity in zip(row, columns[method], strict=False):
            _number_panel(axes, *tables[method, quantity], norms[quantity])
            axes.set_title(_LEARNED[quantity], loc="center", pad=4)
            axes.set_xticks(range(heads), style.from_one(heads))
            axes.set_yticks(range(layers), style.from_one(layers))
            axes.set_xlabel("Head", labelpad=2)
            axes.set_ylabel("Layer")
        for axes in row[len(columns[method]) :]:
            axes.set_axis_off()
        row[0].set_ylabel(
            f"{wrapped(study.labels[method])}\n\nLayer", fontweight="bold", fontsize=9
        )
    figure.suptitle(
        f"Mean over the scored tokens at n = {n}, ± standard deviation over tokens", fontsize=10
    )
    return figure


def _number_panel(axes: Axes, mean: Array, std: Array, norm: Normalize) -> None:
    cmap = mpl.colormaps["viridis"].with_extremes(bad="#efefef")
    axes.imshow(
        np.ma.masked_invalid(mean), cmap=cmap, norm=norm, aspect="auto", interpolation="none"
    )
    for (layer, head), value in np.ndenumerate(mean):
        if not np.isfinite(value):
            axes.text(head, layer, "–", ha="center", va="center", fontsize=7, color=style.FAINT)
            continue
        dark = float(np.dot(cmap(norm(value))[:3], (0.299, 0.587, 0.114))) < 0.5
        color = "white" if dark else style.INK
        spread = float(std[layer, head])
        raised = 0.13 if spread > 0 else 0.0
        axes.text(
            head, layer - raised, _short(value), ha="center", va="center", fontsize=7, color=color
        )
        if spread > 0:
            text = f"± {_short(spread)}"
            axes.text(head, layer + 0.22, text, ha="center", va="center", fontsize=5.2, color=color)
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _short(value: float) -> str:
    """Three digits at most, with a true minus sign."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}".replace("-", "−")


def plot_entropy(study: Study) -> Figure | None:
    """Normalised entropy against length, a line per head: layers across, methods down."""
    figure = _by_head(study, "normalised entropy", "H / ln keys")
    if figure is not None:
        for axes in figure.axes:
            axes.set_ylim(-0.03, 1.05)
    return figure


def plot_support(study: Study) -> Figure | None:
    """Support size against length, a line per head: layers across, methods down."""
    figure = _by_head(study, "support", "Support size", [_every_key()])
    if figure is None:
        return None
    lengths = sorted({number.n for number in study.heads})
    keys = [study.keys(n) for n in lengths]
    ticks = [2**k for k in range(0, 40, 2) if 2**k <= 1.5 * keys[-1]]
    for axes in figure.axes:
        axes.add_line(_every_key(lengths, keys))
        axes.set_yscale("log", base=2)
        axes.set_ylim(0.8, 1.5 * keys[-1])
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    return figure


def plot_histograms(study: Study) -> Figure | None:
    """How many heads have which density, and which α where it is learned.

    Figures 11 and 12 of Adaptively Sparse Transformers (Correia et al. 2019).
    """
    counted = {h.method for h in study.heads if h.quantity == "support"}
    methods = [m for m in headline_methods(study) if m in counted]
    if not methods:
        return None
    lengths = sorted({number.n for number in study.heads})
    ends = dict.fromkeys((lengths[0], lengths[-1]))
    alphas = {m: head_values(study, m, lengths[0], "alpha") for m in methods}
    columns = 2 if any(alphas.values()) else 1
    figure, panels = histogram_panels(study, methods, columns)
    colors = dict(zip(ends, ("#8a8a8a", "#0072b2"), strict=False))
    for row, method in zip(panels, methods, strict=True):
        for n in ends:
            support = head_values(study, method, n, "support")
            keys = head_values(study, method, n, "keys")
            shares = [support[at] / keys[at] for at in support if at in keys]
            row[0].hist(
                shares, bins=20, range=(0.0, 1.0), histtype="stepfilled", alpha=0.55,
                color=colors[n], label=f"n = {n}",
            )  # fmt: skip
        if columns > 1:
            row[1].hist(list(alphas[method].values()), bins=20, color="#d55e00", alpha=0.7)
    legend_below(figure, panels[0, 0].get_legend_handles_labels()[0])
    return figure


def head_values(study: Study, method: str, n: int, quantity: str) -> dict[tuple[int, int], float]:
    """Of each head, by layer and head."""
    return {
        (h.layer, h.head): h.mean
        for h in study.heads
        if (h.method, h.n, h.quantity) == (method, n, quantity)
    }


def _every_key(lengths: Sequence[float] = (), keys: Sequence[float] = ()) -> Line2D:
    return Line2D(
        lengths, keys, color=style.FAINT, lw=1.0, ls=(0, (1, 2)), zorder=1, label="every key"
    )


def _by_head(
    study: Study, quantity: str, label: str, references: Sequence[Line2D] = ()
) -> Figure | None:
    found: dict[tuple[str, int, int], list[HeadNumber]] = {}
    for number in study.heads:
        if number.quantity == quantity:
            found.setdefault((number.method, number.layer, number.head), []).append(number)
    methods = [m for m in headline_methods(study) if any(method == m for method, _, _ in found)]
    if not methods:
        return None
    layers, heads = _size(study)
    lengths = sorted({number.n for number in study.heads})
    sloped = {(h.method, h.layer, h.head) for h in study.heads if h.quantity.endswith("slope")}
    figure = Figure(
        figsize=(1.2 + 2.7 * layers + 0.8, 0.9 + 2.3 * len(methods)), layout="constrained"
    )
    panels = figure.subplots(len(methods), layers, squeeze=False, sharex=True, sharey=True)
    colors = _head_colors(heads)
    for i, method in enumerate(methods):
        for layer in range(layers):
            axes = panels[i, layer]
            for head in range(heads):
                rows = sorted(found.get((method, layer, head), []), key=lambda row: row.n)
                axes.plot(
                    [row.n for row in rows],
                    [row.mean for row in rows],
                    color=colors[head],
                    lw=1.4,
                    ls=(0, (4, 1.5)) if (method, layer, head) in sloped else "-",
                    marker=style.MARKERS[head % len(style.MARKERS)],
                    ms=3.6,
                    markeredgewidth=0,
                )
            length_axis(axes, lengths)
            if i < len(methods) - 1:
                axes.set_xlabel("")
            if i == 0:
                axes.set_title(f"Layer {layer + 1}")
        panels[i, 0].set_ylabel(f"{wrapped(study.labels[method])}\n{label}", fontsize=9)
    handles = [
        Line2D(
            [],
            [],
            color=colors[head],
            marker=style.MARKERS[head % len(style.MARKERS)],
            ms=4,
            label=f"head {head + 1}",
        )
        for head in range(heads)
    ]
    if sloped:
        handles.append(Line2D([], [], color="#555555", ls=(0, (4, 1.5)), label="with ALiBi"))
    if any(key not in sloped for key in found):
        handles.append(Line2D([], [], color="#555555", label="without"))
    handles += references
    figure.legend(handles=handles, loc="outside right upper", ncols=1 + (len(handles) > 10))
    return figure


def _head_colors(heads: int) -> list[str]:
    """A colour a head; neighbours differ in lightness too."""
    cmap = mpl.colormaps["turbo"]
    return [to_hex(cmap(0.06 + 0.86 * head / max(1, heads - 1))) for head in range(heads)]


def plot_attention(study: Study) -> Figure | None:
    """Attention maps at the shortest length that is drawn: a row of panels per method."""
    lengths = sorted({attention.n for attention in study.maps})
    return _maps(study, lengths[:1])


def plot_attention_long(study: Study) -> Figure | None:
    """Attention maps at the other lengths."""
    lengths = sorted({attention.n for attention in study.maps})
    return _maps(study, lengths[1:])


def _maps(study: Study, lengths: Sequence[int]) -> Figure | None:
    drawn: dict[tuple[str, int], list[AttentionMap]] = {}
    for attention in study.maps:
        drawn.setdefault((attention.method, attention.n), []).append(attention)
    rows = [
        (method, n) for method in headline_methods(study) for n in lengths if (method, n) in drawn
    ]
    if not rows:
        return None
    sloped = {(h.method, h.layer, h.head) for h in study.heads if h.quantity.endswith("slope")}
    columns = max(len(drawn[row]) for row in rows)
    named = max((len(study.samples[n].words) for _, n in rows if n in study.samples), default=0)
    words = 0 < named <= _MAX_WORDS
    side = float(np.clip(0.125 * named, 1.9, 4.0)) if words else 2.1
    between = 0.75 if words else 0.62
    layout = ByHand(side, side, 0.3, between, left=1.25, right=0.95, top=0.75, bottom=0.65)
    figure, panels = layout.panels(len(rows), columns)
    image = None
    for i, (method, n) in enumerate(rows):
        for j, axes in enumerate(panels[i]):
            if j >= len(drawn[method, n]):
                axes.set_axis_off()
                continue
            attention = drawn[method, n][j]
            image = _map_panel(axes, attention)
            place = f"layer {attention.layer + 1}, head {attention.head + 1}"
            if (method, attention.layer, attention.head) in sloped:
                place += ", ALiBi"
            axes.set_title(place, fontsize=8.5, fontweight="normal", pad=4)
            if n in study.samples and len(study.samples[n].words) <= _MAX_WORDS:
                _name_tokens(axes, study.samples[n].words, study.samples[n].scored, j == 0)
            else:
                _number_tokens(axes, attention, j == 0)
        label = f"{wrapped(study.labels[method])}\nn = {n}"
        place_y = panels[i, 0].get_position()
        figure.text(
            0.1 / figure.get_figwidth(),
            (place_y.y0 + place_y.y1) / 2,
            label,
            rotation=90,
            ha="left",
            va="center",
            fontsize=9,
            fontweight="bold",
            linespacing=1.3,
        )
    layout.finish(figure, image, "Attention on one test sample: queries down, keys across")
    return figure


def _map_panel(axes: Axes, attention: AttentionMap) -> AxesImage:
    cmap = mpl.colormaps["magma"].with_extremes(bad="#f1f1f1")  # keys after the query
    cells = len(attention.weights)
    after = np.triu(np.ones((cells, cells), dtype=bool), 1)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes.imshow(
        np.ma.array(attention.weights, mask=after),
        norm=weight_norm(),
        cmap=cmap,
        interpolation="none",
    )


def _name_tokens(axes: Axes, words: Sequence[str], scored: Sequence[bool], first: bool) -> None:
    """The tokens on both axes; bold where the model answers."""
    size = float(np.clip(190.0 / len(words), 3.8, 7.0))
    axes.set_xticks(range(len(words)), words, fontsize=size, rotation=90)
    axes.set_yticks(range(len(words)), words if first else [], fontsize=size)
    axes.tick_params(pad=1)
    for tick, answers in zip(axes.get_yticklabels(), scored, strict=False):
        tick.set_fontweight("bold" if answers else "normal")


def _number_tokens(axes: Axes, attention: AttentionMap, first: bool) -> None:
    """Positions on both axes."""
    step = max(1, attention.tokens // 4)
    step = max(1, round(step, -(len(str(step)) - 1)))
    ticks = np.arange(0, attention.tokens, step)
    places = ticks / attention.cell
    texts = [str(tick) for tick in ticks]
    axes.set_xticks(places, texts, fontsize=7)
    axes.set_yticks(places, texts if first else [""] * len(texts), fontsize=7)
    axes.tick_params(pad=2)


# Name, plot, what a reader who does not see it is told.
FIGURES: list[tuple[str, Callable[[Study], Figure | None], str]] = [
    ("heads-learned", plot_learned, "What each head has learned, by layer and head"),
    ("heads-entropy", plot_entropy, "Entropy of each head's attention against length"),
    ("heads-support", plot_support, "Support size of each head's attention against length"),
    ("heads-histograms", plot_histograms, "Histograms of the heads' density, and of a learned α"),
    ("attention", plot_attention, "Attention maps of chosen heads, token by token"),
    ("attention-long", plot_attention_long, "Attention maps of chosen heads on a long sample"),
]
