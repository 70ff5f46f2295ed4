"""Figures of an encoder-decoder's heads, by the kind of their attention.

Figures 11 to 14 of Adaptively Sparse Transformers (Correia, Niculae and Martins 2019).
"""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from . import style
from .data import Array, Study
from .parts import headline_methods, wrapped

# Where heads stand, as data/heads.csv begins their quantities, and for people.
_KINDS = {
    "encoder": ("Encoder, self", "#0072b2"),
    "context": ("Decoder, context", "#d55e00"),
    "decoder": ("Decoder, self", "#009e73"),
}


def _values(study: Study, method: str, kind: str, quantity: str) -> Array:
    """Of each head at the longest length, [layers, heads]; empty where there is none."""
    n = max((h.n for h in study.heads), default=0)
    found = {
        (h.layer, h.head): h.mean
        for h in study.heads
        if (h.method, h.n, h.quantity) == (method, n, f"{kind} {quantity}")
    }
    if not found:
        return np.zeros((0, 0))
    layers, heads = (1 + max(place[i] for place in found) for i in range(2))
    values = np.full((layers, heads), np.nan)
    for place, value in found.items():
        values[place] = value
    return values


def _methods(study: Study) -> list[str]:
    return [m for m in headline_methods(study) if _values(study, m, "encoder", "density").size]


def plot_kinds(study: Study) -> Figure | None:
    """How many heads of each kind have which density, and which α where it is learned."""
    methods = _methods(study)
    if not methods:
        return None
    alphas = {
        (m, kind): _values(study, m, kind, "alpha").flatten() for m in methods for kind in _KINDS
    }
    columns = 2 if any(len(np.unique(values)) > 1 for values in alphas.values()) else 1
    figure = Figure(figsize=(1.4 + 4.4 * columns, 0.9 + 1.7 * len(methods)), layout="constrained")
    panels = figure.subplots(len(methods), columns, squeeze=False, sharex="col")
    for row, method in zip(panels, methods, strict=True):
        densities = [_values(study, method, kind, "density").flatten() for kind in _KINDS]
        looks: dict[str, list[str]] = {
            "color": [color for _, color in _KINDS.values()],
            "label": [label for label, _ in _KINDS.values()],
        }
        row[0].hist(densities, bins=20, range=(0.0, 1.0), stacked=True, **looks)
        row[0].set_ylabel(f"{wrapped(study.labels[method])}\nHeads", fontsize=9)
        if columns > 1:
            row[1].hist(
                [alphas[method, kind] for kind in _KINDS],
                bins=20, range=(1.0, 2.0), stacked=True, **looks,
            )  # fmt: skip
    panels[-1, 0].set_xlabel("Density: keys with weight, of those seen")
    if columns > 1:
        panels[-1, 1].set_xlabel("α")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def plot_kinds_by_layer(study: Study) -> Figure | None:
    """Divergence of a layer's heads and their density, a column for each kind."""
    methods = _methods(study)
    if not methods:
        return None
    palette = style.colors(study.of(study.methods))
    marks = style.markers(study.of(study.methods))
    figure = Figure(figsize=(11.4, 6.2), layout="constrained")
    panels = figure.subplots(2, len(_KINDS), sharex=True, sharey="row")
    rows = {"divergence": "Divergence of heads (nats)", "density": "Density"}
    for row, (quantity, title) in zip(panels, rows.items(), strict=True):
        for axes, (kind, (label, _)) in zip(row, _KINDS.items(), strict=True):
            for method in methods:
                means = np.nanmean(_values(study, method, kind, quantity), axis=1)
                axes.plot(
                    1 + np.arange(len(means)), means, color=palette[method], marker=marks[method],
                    markeredgecolor="white", markeredgewidth=0.5, label=study.labels[method],
                )  # fmt: skip
            axes.set_ylim(bottom=0.0)
            axes.set_xticks(1 + np.arange(len(means)))
            if quantity == "divergence":
                axes.set_title(label)
            else:
                axes.set_xlabel("Layer")
        row[0].set_ylabel(title)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    return figure


# Name, plot, what a reader who does not see it is told.
FIGURES: list[tuple[str, Callable[[Study], Figure | None], str]] = [
    ("kinds", plot_kinds, "Histograms of the heads' density and α, by kind of attention"),
    ("kinds-layers", plot_kinds_by_layer, "Divergence and density of heads by layer and kind"),
]
