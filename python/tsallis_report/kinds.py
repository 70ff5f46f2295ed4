"""Figures of an encoder-decoder's heads, by the kind of their attention.

Figures 11 to 14 of Adaptively Sparse Transformers (Correia, Niculae and Martins 2019).
"""

from collections.abc import Callable
from itertools import chain

from matplotlib.figure import Figure

from .data import Study
from .heads import head_values
from .parts import Series, headline_methods, histogram_panels, legend_below, plot_series

# The places of heads: how data/heads.csv begins their quantities, and their names for people.
_KINDS = {
    "encoder": ("Encoder, self", "#0072b2"),
    "context": ("Decoder, context", "#d55e00"),
    "decoder": ("Decoder, self", "#009e73"),
}


def _values(study: Study, method: str, kind: str, quantity: str) -> dict[tuple[int, int], float]:
    """Of each head at the longest length, by layer and head."""
    n = max((h.n for h in study.heads), default=0)
    return head_values(study, method, n, f"{kind} {quantity}")


def _methods(study: Study) -> list[str]:
    return [m for m in headline_methods(study) if _values(study, m, "encoder", "density")]


def plot_kinds(study: Study) -> Figure | None:
    """How many heads of each kind have which density, and which α where it is learned."""
    methods = _methods(study)
    if not methods:
        return None

    def values(method: str, quantity: str) -> list[list[float]]:
        return [list(_values(study, method, kind, quantity).values()) for kind in _KINDS]

    alphas = {method: values(method, "alpha") for method in methods}
    learned = any(len({*chain(*of_kinds)}) > 1 for of_kinds in alphas.values())
    figure, panels = histogram_panels(study, methods, 2 if learned else 1)
    labels, colors = zip(*_KINDS.values(), strict=True)
    for row, method in zip(panels, methods, strict=True):
        found = [(values(method, "density"), (0.0, 1.0)), (alphas[method], (1.0, 2.0))]
        for axes, (of_kinds, ends) in zip(row, found, strict=False):
            axes.hist(of_kinds, bins=20, range=ends, stacked=True, color=colors, label=labels)
    legend_below(figure, panels[0, 0].get_legend_handles_labels()[0])
    return figure


def plot_kinds_by_layer(study: Study) -> Figure | None:
    """Divergence of a layer's heads and their density, a column for each kind."""
    methods = _methods(study)
    if not methods:
        return None
    figure = Figure(figsize=(11.4, 6.2), layout="constrained")
    panels = figure.subplots(2, len(_KINDS), sharex=True, sharey="row")
    rows = {"divergence": "Divergence of heads (nats)", "density": "Density"}
    for row, (quantity, title) in zip(panels, rows.items(), strict=True):
        for axes, (kind, (label, _)) in zip(row, _KINDS.items(), strict=True):

            def by_layer(method: str, kind: str = kind, quantity: str = quantity) -> Series:
                of_heads: dict[int, list[float]] = {}
                for (layer, _), value in _values(study, method, kind, quantity).items():
                    of_heads.setdefault(layer + 1, []).append(value)
                means = [sum(values) / len(values) for values in of_heads.values()]
                return list(of_heads), means, [0.0] * len(means)

            plot_series(axes, study, methods, by_layer)
            axes.set_ylim(bottom=0.0)
            axes.set_xticks(by_layer(methods[0])[0])
            if quantity == "divergence":
                axes.set_title(label)
            else:
                axes.set_xlabel("Layer")
        row[0].set_ylabel(title)
    legend_below(figure, panels[0, 0].get_legend_handles_labels()[0])
    return figure


# Name, plot, what a reader who does not see it is told.
FIGURES: list[tuple[str, Callable[[Study], Figure | None], str]] = [
    ("kinds", plot_kinds, "Histograms of the heads' density and α, by kind of attention"),
    ("kinds-layers", plot_kinds_by_layer, "Divergence and density of heads by layer and kind"),
]
