"""How figures look: one colour per method wherever it appears, hues by family, no dates.

Methods that attend alike share a colour, and their variant (positions, another training) decides
the line: a study's first variant has the full colour.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb

from .data import Method

INK = "#222222"
FAINT = "#8a8a8a"
GRID = "#e4e4e4"
MARKERS = "osD^vPX*<>"

VARIANTS = {
    "": "as published",
    "nape": "NAPE",
    "rope": "RoPE",
    "alibi": "ALiBi",
    "nope": "NoPE",
    "sinusoidal": "sinusoidal",
    "ntk": "NTK",
}
_LINES: list[Any] = [
    "-",
    (0, (1, 1.1)),
    (0, (5, 1, 1, 1)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 1.5)),
    (0, (9, 1, 1, 1, 1, 1)),
]

SOFTMAX, ENTMAX, ASENTMAX = "Softmax family", "α-entmax", "ASEntmax family"

# The anchors are Okabe and Ito's colours, which people with any of the common colour-vision
# deficiencies tell apart; shades of one hue differ in lightness. The first method of a map and a
# length scaling has the colour that is fixed for them, if there is one.
_FIXED = {
    ("softmax", "none"): "#222222",
    ("adaptive-temperature", "none"): "#CC79A7",
    ("softmax", "ssmax"): "#009E73",
    ("softmax", "adaptive"): "#004D38",
}
_SHADES = {
    SOFTMAX: ("#D9981A", "#5E3C00"),
    ENTMAX: ("#56AEE0", "#0072B2", "#16235E"),
    ASENTMAX: ("#EE9A55", "#D55E00", "#5A1A00"),
}

_RC: dict[Any, Any] = {  # matplotlib's own type lists every name
    "font.family": "DejaVu Sans",  # comes with matplotlib, and has the Greek letters
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.edgecolor": "#777777",
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 3.0,  # dotted and dashed lines need room to look so
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # text stays text: outlines of its letters take twice the room
    "svg.hashsalt": "tsallis",  # the same data gives the same bytes
    "path.simplify": True,
}


def from_one(count: int) -> list[str]:
    """Names of layers or heads on an axis: people count from 1, data and code from 0."""
    return [str(number + 1) for number in range(count)]


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's defaults plus ours, whatever the user's configuration says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def variants(methods: Iterable[Method]) -> list[str]:
    """The variants among the methods, in the order in which they first appear."""
    return list(dict.fromkeys(method.variant for method in methods))


def line(variant: str, of: Sequence[str]) -> Any:
    """Matplotlib's line style of a variant, one of a study's."""
    return _LINES[of.index(variant) % len(_LINES)]


def family(method: Method) -> str:
    """The family of a method: by its map, and entmax by whether it scales with the length."""
    if method.map != "entmax":
        return SOFTMAX
    return ENTMAX if method.length_scaling == "none" else ASENTMAX


def families(methods: Sequence[Method]) -> dict[str, list[str]]:
    """Names by family, in the order of softmax, entmax, ASEntmax; empty families are left out."""
    groups = {
        name: [m.name for m in methods if family(m) == name] for name in (SOFTMAX, ENTMAX, ASENTMAX)
    }
    return {name: members for name, members in groups.items() if members}


def colors(methods: Sequence[Method]) -> dict[str, str]:
    """One colour per method; it depends on the study's list of methods only, not on the figure."""
    first = variants(methods)[:1]
    bases = _base_colors(methods)
    return {m.name: _tinted(bases[m.like], 0.0 if m.variant in first else 0.35) for m in methods}


def _tinted(color: str, white: float) -> str:
    red, green, blue = (part + white * (1.0 - part) for part in to_rgb(color))
    return to_hex((red, green, blue))


def _base_colors(methods: Sequence[Method]) -> dict[str, str]:
    """A colour for each group of methods that attend alike, by the name of the group."""
    palette: dict[str, str] = {}
    shaded: dict[str, list[str]] = {}
    fixed = dict(_FIXED)
    for like in dict.fromkeys(m.like for m in methods):
        method = next(m for m in methods if m.like == like)
        kind = (method.map, method.length_scaling)
        if kind in fixed:
            palette[like] = fixed.pop(kind)
        else:
            shaded.setdefault(family(method), []).append(like)
    for name, members in shaded.items():
        shades = LinearSegmentedColormap.from_list(name, _SHADES[name])
        for index, like in enumerate(members):
            # A family of one gets its typical colour, the middle.
            palette[like] = to_hex(shades(index / (len(members) - 1) if len(members) > 1 else 0.5))
    return palette


def markers(methods: Sequence[Method]) -> dict[str, str]:
    """One marker per method, distinct within its family, so that colour is never the only cue."""
    return {
        name: MARKERS[index % len(MARKERS)]
        for members in families(methods).values()
        for index, name in enumerate(members)
    }
