"""The numbers of heads as data and as a table for terminals."""

from __future__ import annotations

from typing import Any

from .gather import Gathered, Head


def numbers(found: Gathered, head: Head, level: int) -> dict[str, Any]:
    """What people read of a head: means over its queries."""
    rows, weight = found.tokens, max(head.weight, 1e-30)
    return {
        "keys": head.keys / rows,
        "share": head.keys / max(1, head.visible),
        "entropy": head.entropy / rows,
        "first": head.first / rows,
        "distance": head.distance / weight,
        "shown": head.shown(level),
        "alpha": head.alpha,
    }


def map_of(found: Gathered) -> str:
    """The map of a model in words: "entmax, α = 1.5"."""
    names = dict.fromkeys(found.maps)
    alphas = [head.alpha for head in found.heads if head.alpha is not None]
    text = " and ".join(name.replace("_", " ") for name in names)
    if alphas and min(alphas) < max(alphas):
        return f"{text}, α from {min(alphas):.2f} to {max(alphas):.2f}"
    return f"{text}, α = {alphas[0]:g}" if alphas else text


def percent(share: float) -> str:
    """Two digits, as people write them."""
    value = 100 * share
    if value >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 1.0 else f"{value:.2g} %"


_COLUMNS = (
    ("keys kept", "keys", "{:.1f}"),
    ("of those seen", "share", ""),
    ("entropy, nats", "entropy", "{:.2f}"),
    ("on the first key", "first", ""),
    ("mean distance", "distance", "{:.0f}"),
)


def table(document: dict[str, Any], layer: int | None) -> str:
    """A line for every layer, or for every head of one."""
    if layer is None:
        kind = "layer"
        lines = []
        for one in document["layers"]:
            heads = one["heads"]
            lines.append({n: sum(h[n] for h in heads) / len(heads) for _, n, _ in _COLUMNS})
    else:
        kind = "head"
        lines = document["layers"][layer - 1]["heads"]
    rows = [[kind, *(title for title, _, _ in _COLUMNS)]]
    for i, line in enumerate(lines):
        cells = (form.format(line[n]) if form else percent(line[n]) for _, n, form in _COLUMNS)
        rows.append([str(i + 1), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
