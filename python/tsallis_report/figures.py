"""The figures of a study. Each ``plot_*`` returns a figure, or None where its data is missing."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from . import heads, kinds, style
from .data import Metric, Study
from .parts import (
    MAX_TOGETHER,
    ByHand,
    Series,
    headline_methods,
    legend_below,
    length_axis,
    plot_series,
    save_figure,
    weight_norm,
    wrapped,
)

_DEEP = 4  # layers from which on it is worth while to draw what arrives at each


def plot_accuracy(study: Study) -> Figure:
    """The metric against length for the methods that tell the story: the figure of the README."""
    figure = Figure(figsize=(8.2, 4.9), layout="constrained")
    axes = figure.subplots()
    methods = headline_methods(study)
    _accuracy_panel(axes, study, methods)
    axes.set_ylabel(study.metric.title)
    length_axis(axes, study.lengths, every=1)
    axes.set_title(study.title, pad=10)
    handles = _line_styles(study, methods)
    legend_below(figure, handles)
    _direct_labels(figure, [(axes, methods)], study, _accuracy_end(study))
    return figure


def plot_accuracy_families(study: Study) -> Figure | None:
    """Accuracy against length, every method, one panel per family."""
    groups = style.families(study.of(study.methods))
    if len(study.methods) <= MAX_TOGETHER:
        return None  # the headline figure has them all
    figure = Figure(figsize=(4.6 * len(groups), 4.9), layout="constrained")
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (name, members) in zip(panels, groups.items(), strict=True):
        if study.baseline in study.about and study.baseline not in members:
            rows = study.rows_of(study.baseline)
            axes.plot(
                [r.n for r in rows], [r.mean for r in rows], color="#b5b5b5", lw=1.4, zorder=1
            )
        _accuracy_panel(axes, study, members)
        length_axis(axes, study.lengths)
        axes.set_title(name)
    panels[0].set_ylabel(study.metric.title)
    handles = _line_styles(study, study.methods)
    if study.baseline in study.about and len(groups) > 1:
        repeated = f"{study.labels[study.baseline]}, ours, for comparison"
        handles.append(Line2D([], [], color="#b5b5b5", lw=1.4, label=repeated))
    legend_below(figure, handles)
    labelled = list(zip(panels, groups.values(), strict=True))
    _direct_labels(figure, labelled, study, _accuracy_end(study))
    return figure


def plot_positions(study: Study) -> Figure | None:
    """Loss against the position, of samples of the longest length."""
    if not study.positions:
        return None
    longest = max(row.n for row in study.positions)

    def loss(method: str) -> Series:
        rows = [r for r in study.positions if r.method == method and r.n == longest]
        middles = [round((r.begin * max(1, r.end - 1)) ** 0.5) + 1 for r in rows]
        return middles, [r.mean for r in rows], [r.std for r in rows]

    figure = Figure(figsize=(8.2, 4.9), layout="constrained")
    axes = figure.subplots()
    methods = headline_methods(study)
    plot_series(axes, study, methods, loss)
    axes.set_xscale("log", base=2)
    axes.set_xlabel(f"Position within samples of n = {longest} (log scale)")
    axes.set_ylabel("Loss (nats)")
    axes.set_title(study.title, pad=10)
    handles = _line_styles(study, methods)
    legend_below(figure, handles)
    _direct_labels(figure, [(axes, methods)], study, loss)
    return figure


def plot_spread(study: Study) -> Figure | None:
    """How far scores lie apart through training, with their bound: figure 9 of its paper."""
    seen = {r.method for r in study.spreads}
    methods = [m for m in headline_methods(study) if m in seen]
    methods = methods or [m for m in study.methods if m in seen]
    if not methods:
        return None
    palette = style.colors(study.of(study.methods))
    figure = Figure(figsize=(8.2, 4.9), layout="constrained")
    axes = figure.subplots()
    for method in methods:
        rows = sorted((r for r in study.spreads if r.method == method), key=lambda r: r.step)
        steps, color = [r.step for r in rows], palette[method]
        axes.fill_between(
            steps, [r.least for r in rows], [r.most for r in rows], color=color, alpha=0.16, lw=0
        )
        axes.plot(steps, [r.mean for r in rows], color=color, lw=1.8)
        axes.plot(steps, [r.bound_mean for r in rows], color=color, lw=1.2, ls=(0, (4, 2)))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("Training step (log scale)")
    axes.set_ylabel("Largest minus smallest score of a set")
    axes.set_title(study.title.split(":")[0] + ": how far scores lie apart", pad=10)
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=palette[m], lw=1.8, label=study.labels[m]) for m in methods
    ]
    handles.append(Line2D([], [], color="#555555", lw=1.2, ls=(0, (4, 2)), label="bound, mean"))
    if study.max_seeds > 1:
        handles.append(Patch(color="#555555", alpha=0.2, lw=0, label="range over seeds"))
    legend_below(figure, handles)
    return figure


def plot_groups(study: Study) -> Figure | None:
    """Accuracy against length, a panel for each kind of samples: figure 8 of its paper."""
    names = list(dict.fromkeys(row.group for row in study.groups))
    if not names:
        return None
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes, name in zip(panels, names, strict=False):

        def accuracy(method: str, name: str = name) -> Series:
            found = [r for r in study.groups if r.method == method and r.group == name]
            found.sort(key=lambda row: row.n)
            return [r.n for r in found], [r.mean for r in found], [r.std for r in found]

        plot_series(axes, study, headline_methods(study), accuracy)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("Size")
        axes.set_ylim(0, 102)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("Right (%)")
    legend_below(figure, panels[0].get_legend_handles_labels()[0])
    return figure


# Beside every figure and table of gradients after the last step.
FLOW_NOTE = (
    "A method that still answers wrong has larger gradients after the last step: read them beside "
    "its accuracy."
)


def has_flow(study: Study) -> bool:
    """Whether there are layers enough to draw what arrives at each."""
    shown = headline_methods(study)
    return any(row.method in shown and row.layer + 1 >= _DEEP for row in study.flows)


def plot_flow(study: Study) -> Figure | None:
    """Gradient and keys with weight by layer: figures 3 (right) and 7 of ASEntmax."""
    if not has_flow(study):
        return None
    methods = [m for m in headline_methods(study) if any(r.method == m for r in study.flows)]
    steps = sorted({r.step for r in study.flows})
    first = f"after {steps[0]} step{'s' if steps[0] > 1 else ''}"
    last = f"after {steps[-1]} steps"
    gradient, keys = "Norm of a token's gradient", "Keys with weight"
    panels = [(first, steps[0], gradient), (last, steps[-1], gradient), (last, steps[-1], keys)]
    figure = Figure(figsize=(13.2, 4.6), layout="constrained")
    for axes, (title, step, quantity) in zip(figure.subplots(1, 3), panels, strict=True):

        def by_layer(method: str, step: int = step, quantity: str = quantity) -> Series:
            rows = [r for r in study.flows if r.method == method and r.step == step]
            rows.sort(key=lambda row: row.layer)
            values = [r.gradient if quantity == gradient else r.keys for r in rows]
            return [r.layer + 1 for r in rows], values, [0.0] * len(rows)

        plot_series(axes, study, methods, by_layer)
        axes.set_yscale("log")
        axes.set_xlabel("Layer")
        axes.set_ylabel(quantity)
        axes.set_title(title)
    legend_below(figure, axes.get_legend_handles_labels()[0])
    return figure


def plot_entropy(study: Study) -> Figure | None:
    """Entropy of the attention weights against length, normalised and in nats."""
    if not study.entropies:
        return None

    def normalised(method: str) -> Series:
        rows = [e for e in study.entropies_of(method) if study.keys(e.n) > 1]
        spread = [e.entropy_std / float(np.log(study.keys(e.n))) for e in rows]
        return [e.n for e in rows], [e.normalised_entropy for e in rows], spread

    def nats(method: str) -> Series:
        rows = study.entropies_of(method)
        return [e.n for e in rows], [e.entropy_mean for e in rows], [e.entropy_std for e in rows]

    figure, grid = _grid(study, 2)
    lengths = np.array(sorted({e.n for e in study.entropies}), dtype=float)
    keys = np.array([study.keys(int(n)) for n in lengths])
    top = 1.08 * float(np.log(keys[-1])) if keys[-1] > 1 else 1.0
    for axes, members in grid[0]:
        axes.axhline(1.0, color=style.FAINT, lw=1.0, ls=(0, (1, 2)), zorder=1)
        plot_series(axes, study, members, normalised)
        axes.set_ylim(-0.03, 1.05)
    for axes, members in grid[1]:
        axes.plot(lengths, np.log(keys), color=style.FAINT, lw=1.0, ls=(0, (1, 2)), zorder=1)
        plot_series(axes, study, members, nats)
        axes.set_ylim(-0.03 * top, top)
    seen = "keys" if study.heads else "n"
    uniform = f"uniform: H = ln {seen}"
    reference = Line2D([], [], color=style.FAINT, lw=1.0, ls=(0, (1, 2)), label=uniform)
    _finish_grid(
        figure,
        study,
        grid,
        [f"Normalised entropy H / ln {seen}", "Entropy H (nats)"],
        [normalised, nats],
        [reference],
    )
    return figure


def plot_support(study: Study) -> Figure | None:
    """Entries with weight > 0 against length."""
    if not study.entropies:
        return None

    def support(method: str) -> Series:
        rows = study.entropies_of(method)
        return [e.n for e in rows], [e.support_mean for e in rows], [0.0] * len(rows)

    figure, grid = _grid(study, 1)
    lengths = sorted({e.n for e in study.entropies})
    keys = [study.keys(n) for n in lengths]
    for axes, members in grid[0]:
        axes.plot(lengths, keys, color=style.FAINT, lw=1.0, ls=(0, (1, 2)), zorder=1)
        plot_series(axes, study, members, support)
        axes.set_yscale("log", base=2)
        axes.set_ylim(0.8, 1.5 * keys[-1])
        ticks = [2**k for k in range(0, 40, 2) if 2**k <= 1.5 * keys[-1]]
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    reference = Line2D(
        [], [], color=style.FAINT, lw=1.0, ls=(0, (1, 2)), label="dense: every entry"
    )
    _finish_grid(
        figure, study, grid, ["Support size (entries with weight > 0)"], [support], [reference]
    )
    return figure


def plot_heat_map(study: Study) -> Figure | None:
    """Attention on the largest items: a row of panels per method, a panel per length."""
    if not study.heat_maps:
        return None
    named = list(dict.fromkeys(method for method, _ in study.heat_maps))
    methods = [m for m in study.methods if m in named] + [m for m in named if m not in study.labels]
    lengths = sorted({n for _, n in study.heat_maps})
    sets, items = next(iter(study.heat_maps.values())).shape
    layout = ByHand(0.96, 1.8 * 0.96, 0.07, 0.07, left=0.75, right=0.95, top=0.72, bottom=0.12)
    figure, panels = layout.panels(len(methods), len(lengths), least=5.0)
    image = None
    for i, method in enumerate(methods):
        for j, n in enumerate(lengths):
            axes = panels[i, j]
            axes.grid(False)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if i == 0:
                axes.set_title(f"n = {n}" if j == 0 else str(n), fontsize=9, loc="center", pad=5)
            if j == 0:
                label = study.labels.get(method, method).replace(", ", ",\n")
                axes.set_ylabel(wrapped(label), fontsize=9, fontweight="bold", labelpad=6)
            weights = study.heat_maps.get((method, n))
            if weights is None:
                axes.text(0.5, 0.5, "–", ha="center", va="center", transform=axes.transAxes)
                continue
            image = axes.imshow(
                weights, norm=weight_norm(), cmap="magma", aspect="auto", interpolation="none"
            )
    title = f"Attention on the {items} largest items, the largest rightmost; "
    layout.finish(figure, image, title + f"each row is one of {sets} sets")
    return figure


def plot_difference(study: Study) -> Figure | None:
    """Ours minus the paper's, method by length."""
    if not study.has_paper:
        return None
    lengths = [
        n for n in study.lengths if any(r.n == n and r.paper is not None for r in study.rows)
    ]
    methods = [m for m in study.methods if any(r.paper is not None for r in study.rows_of(m))]
    table = np.full((len(methods), len(lengths)), np.nan)
    for i, method in enumerate(methods):
        for j, n in enumerate(lengths):
            row = study.row(method, n)
            if row is not None and row.difference is not None:
                table[i, j] = row.difference
    largest = float(np.nanmax(np.abs(table))) if np.isfinite(table).any() else 0.0
    point = study.metric.full_tint / 50.0
    limit = float(np.clip(np.ceil(largest / point), 20.0, 60.0)) * point
    figure = Figure(
        figsize=(0.72 * len(lengths) + 3.4, 0.34 * len(methods) + 1.5), layout="constrained"
    )
    axes = figure.subplots()
    axes.set_facecolor("#f1f1f1")
    cmap = mpl.colormaps["RdBu"]
    norm = TwoSlopeNorm(0.0, -limit, limit)
    image = axes.imshow(
        np.ma.masked_invalid(table), cmap=cmap, norm=norm, aspect="auto", interpolation="none"
    )
    for (i, j), value in np.ndenumerate(table):
        dark = np.isfinite(value) and abs(value) > 0.55 * limit
        text = signed(study.metric, value) if np.isfinite(value) else "–"
        axes.text(
            j, i, text, ha="center", va="center", fontsize=8.2, color="white" if dark else style.INK
        )
    axes.set_xticks(range(len(lengths)), [str(n) for n in lengths])
    axes.set_yticks(range(len(methods)), [study.labels[m] for m in methods])
    axes.set_xticks(np.arange(len(lengths) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(methods) + 1) - 0.5, minor=True)
    axes.grid(False)
    axes.grid(True, which="minor", color="white", lw=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("Length n")
    axes.set_title(f"{study.metric.heading}, ours − paper ({study.metric.points})")
    extend = "both" if largest > limit else "neither"
    bar = figure.colorbar(image, ax=axes, fraction=0.04, aspect=26, pad=0.02, extend=extend)
    bar.set_label(study.metric.points.capitalize())
    bar.outline.set_visible(False)
    return figure


# Name, plot, what a reader who does not see it is told; "{heading}": what the study measures.
FIGURES: list[tuple[str, Callable[[Study], Figure | None], str]] = [
    ("accuracy", plot_accuracy, "{heading} against length"),
    (
        "accuracy-families",
        plot_accuracy_families,
        "{heading} against length, every method, by family",
    ),
    ("positions", plot_positions, "Loss against the position within a sample"),
    ("spread", plot_spread, "How far scores lie apart through training, and their bound"),
    ("groups", plot_groups, "{heading} against size, by kind of samples"),
    ("flow", plot_flow, "Gradient that arrives at each layer, and keys with weight there"),
    ("difference", plot_difference, "{heading}, ours minus the paper's, by method and length"),
    ("heatmap", plot_heat_map, "Attention weights on the largest items, by method and length"),
    ("entropy", plot_entropy, "Entropy of the attention weights against length"),
    ("support", plot_support, "Support size of the attention weights against length"),
    *heads.FIGURES,
    *kinds.FIGURES,
]


def first_figure(study: Study) -> str:
    """The name of the figure that a page begins with."""
    return study.figure if study.figure != "flow" or has_flow(study) else "accuracy"


def write_figures(study: Study, directory: Path) -> list[Path]:
    """Write every figure that has data as SVG and PNG; remove what an earlier run left."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with style.styled():
        for name, plot, _ in FIGURES:
            figure = plot(study)
            written += save_figure(figure, directory, name)
    return written


# ---- pieces --------------------------------------------------------------------------------------


def _accuracy_panel(axes: Axes, study: Study, methods: Sequence[str]) -> None:
    def accuracy(method: str) -> Series:
        rows = study.rows_of(method)
        return [r.n for r in rows], [r.mean for r in rows], [r.std for r in rows]

    palette = style.colors(study.of(study.methods))
    for method in methods:
        published = [(r.n, r.paper) for r in study.rows_of(method) if r.paper is not None]
        if published:
            x, y = zip(*published, strict=True)
            axes.plot(x, y, color=palette[method], lw=1.2, ls=(0, (4, 2)), zorder=2)
    plot_series(axes, study, methods, accuracy)
    if study.metric.unit == "%":
        axes.set_ylim(0, 102)
        axes.set_yticks(range(0, 101, 20))


def _accuracy_end(study: Study) -> Callable[[str], Series]:
    def end(method: str) -> Series:
        rows = study.rows_of(method)
        return [r.n for r in rows], [r.mean for r in rows], []

    return end


def _variant_lines(study: Study, methods: Sequence[str]) -> list[Line2D | Patch]:
    """Legend entries that tell the methods' variants apart; none where there is one."""
    every, shown = style.variants(study.about.values()), style.variants(study.of(methods))
    if len(shown) == 1:
        return []
    names = style.VARIANTS if study.has_paper else {**style.VARIANTS, "": "without"}
    return [
        Line2D(
            [],
            [],
            color="#555555",
            ls=style.line(variant, every),
            label=names.get(variant, variant),
        )
        for variant in shown
    ]


def _line_styles(study: Study, methods: Sequence[str]) -> list[Line2D | Patch]:
    """Legend entries that explain lines, band and dashed."""
    seeds = study.max_seeds
    mean = f"ours, mean of {study.seed_text}" if seeds > 1 else "ours, one seed"
    handles: list[Line2D | Patch] = [Line2D([], [], color="#555555", marker="o", ms=4, label=mean)]
    handles += _variant_lines(study, methods)
    if seeds > 1:
        handles.append(
            Patch(color="#555555", alpha=0.2, lw=0, label="± standard deviation over seeds")
        )
    if study.has_paper:
        handles.append(Line2D([], [], color="#555555", lw=1.2, ls=(0, (4, 2)), label="paper"))
    return handles


Grid = list[list[tuple[Axes, list[str]]]]


def _grid(study: Study, rows: int) -> tuple[Figure, Grid]:
    """Panels with their methods: quantities down, families across.

    Few methods share a panel; then the quantities go across.
    """
    measured = {e.method for e in study.entropies}
    methods = [m for m in study.methods if m in measured]
    groups = (
        [methods]
        if len(methods) <= MAX_TOGETHER
        else list(style.families(study.of(methods)).values())
    )
    if len(groups) == 1:
        figure = Figure(figsize=(5.2 * rows + 0.6 * (rows == 1), 4.2), layout="constrained")
        panels = figure.subplots(1, rows, squeeze=False).T
    else:
        figure = Figure(figsize=(4.6 * len(groups), 3.7 * rows + 0.7), layout="constrained")
        panels = figure.subplots(rows, len(groups), squeeze=False, sharey="row", sharex=True)
        for axes, name in zip(panels[0], style.families(study.of(methods)), strict=True):
            axes.set_title(name)
    return figure, [
        [(axes, group) for axes, group in zip(row, groups, strict=True)] for row in panels
    ]


def _finish_grid(
    figure: Figure,
    study: Study,
    grid: Grid,
    ylabels: Sequence[str],
    series: Sequence[Callable[[str], Series]],
    references: list[Line2D],
) -> None:
    lengths = sorted({e.n for e in study.entropies})
    for row, ylabel in zip(grid, ylabels, strict=True):
        row[0][0].set_ylabel(ylabel)
        for axes, _ in row:
            length_axis(axes, lengths)
            if row is not grid[-1] and len(row) > 1:
                axes.set_xlabel("")
    handles = _variant_lines(study, [m for row in grid for _, group in row for m in group])
    handles += references
    if study.max_seeds > 1 and any(e.entropy_std > 0 for e in study.entropies) and len(ylabels) > 1:
        handles.append(
            Patch(color="#555555", alpha=0.2, lw=0, label="± standard deviation over seeds")
        )
    legend_below(figure, handles)
    for row, values in zip(grid, series, strict=True):
        _direct_labels(figure, row, study, values)


def _direct_labels(
    figure: Figure,
    panels: Sequence[tuple[Axes, Sequence[str]]],
    study: Study,
    series: Callable[[str], Series],
) -> None:
    """Names at the right ends of the lines, moved apart where they would touch."""
    palette = style.colors(study.of(study.methods))
    size = 8.2
    figure.draw_without_rendering()  # the layout, once for all panels: it is what takes time
    for axes, methods in panels:
        height = axes.get_window_extent().height / figure.dpi * 72.0  # points
        to_axes = axes.transData + axes.transAxes.inverted()
        # Where lines end at one place, the best over all lengths has the highest name.
        ends: list[tuple[float, float, float, float, str]] = []
        for method in methods:
            x, y = series(method)[:2]
            if len(y) > 0 and np.isfinite(y[-1]):
                place = float(to_axes.transform((x[-1], y[-1]))[1])
                ends.append((round(place, 4), float(np.nanmean(y)), x[-1], y[-1], method))
        ends.sort()
        gap = 1.3 * size / height
        heights = [
            # Low enough for those above to fit below the top, high enough for those below.
            max(index * gap, min(end[0], 1.0 - (len(ends) - 1 - index) * gap))
            for index, end in enumerate(ends)
        ]
        places = _spread_apart(heights, gap)
        for place, (*_, x_end, y_end, method) in zip(places, ends, strict=True):
            axes.annotate(
                study.labels[method],
                xy=(x_end, y_end),
                xytext=(1.05, place),
                textcoords="axes fraction",
                color=palette[method],
                fontsize=size,
                va="center",
                annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-",
                    "color": palette[method],
                    "lw": 0.6,
                    "alpha": 0.7,
                    "shrinkA": 1,
                    "shrinkB": 3,
                    "relpos": (0.0, 0.5),
                },
            )


def signed(metric: Metric, value: float) -> str:
    """A difference with a true minus sign."""
    return metric.difference(value).replace("-", "−")


def _spread_apart(positions: Sequence[float], gap: float) -> list[float]:
    """Ascending positions moved as little as possible (least squares) to be `gap` apart."""
    blocks: list[tuple[float, int]] = []  # mean of position − index·gap, members
    for index, position in enumerate(positions):
        mean, count = position - index * gap, 1
        while blocks and blocks[-1][0] > mean:
            last, members = blocks.pop()
            mean, count = (mean * count + last * members) / (count + members), count + members
        blocks.append((mean, count))
    flat = [mean for mean, count in blocks for _ in range(count)]
    return [value + index * gap for index, value in enumerate(flat)]
