"""How figures look: one colour per method wherever it appears, hues by family, no dates.

Methods of sequence models are named map-position (``softmax-rope``): the map decides the colour,
the position the line, and the first position of a study has the full colour.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb

INK = "#222222"
FAINT = "#8a8a8a"
GRID = "#e4e4e4"
MARKERS = "osD^vPX*<>"

POSITIONS = {"nape": "NAPE", "rope": "RoPE", "alibi": "ALiBi", "nope": "NoPE"}
# The same map, trained otherwise; told apart like a position.
POSITIONS |= {"decay": "weight decay"}
_LINES: list[Any] = ["-", (0, (1, 1.1)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1))]

SOFTMAX, ENTMAX, ASENTMAX = "Softmax family", "α-entmax", "ASEntmax"

# The anchors are Okabe and Ito's colours, which people with any of the common colour-vision
# deficiencies tell apart; shades of one hue differ in lightness.
_FIXED = {
    "softmax": "#222222",
    "adaptive-temperature": "#CC79A7",
    "ssmax": "#009E73",
    "assmax": "#004D38",
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
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",  # glyphs travel with the file: the same look everywhere
    "svg.hashsalt": "tsallis",  # the same data gives the same bytes
    "path.simplify": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's defaults plus ours, whatever the user's configuration says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def split(method: str) -> tuple[str, str]:
    """Map and position of a method, by its name in the recipe; the position is often ``""``."""
    base, _, position = method.rpartition("-")
    return (base, position) if position in POSITIONS else (method, "")


def positions(methods: Sequence[str]) -> list[str]:
    """The positions of a study's methods, in the order in which they first appear."""
    return list(dict.fromkeys(split(method)[1] for method in methods))


def line(position: str, of: Sequence[str]) -> Any:
    """Matplotlib's line style of a position, one of a study's."""
    return _LINES[of.index(position) % len(_LINES)]


def family(method: str) -> str:
    """The family of a method by its name in the recipe."""
    if method.startswith("asentmax"):
        return ASENTMAX
    if re.match(r"(s?entmax|sparsemax)", method):
        return ENTMAX
    return SOFTMAX


def families(methods: Sequence[str]) -> dict[str, list[str]]:
    """Methods by family, in the order of softmax, entmax, ASEntmax; empty families are left out."""
    groups = {
        name: [m for m in methods if family(m) == name] for name in (SOFTMAX, ENTMAX, ASENTMAX)
    }
    return {name: members for name, members in groups.items() if members}


def colors(methods: Sequence[str]) -> dict[str, str]:
    """One colour per method; it depends on the study's list of methods only, not on the figure."""
    places = positions(methods)
    bases = _base_colors(list(dict.fromkeys(split(method)[0] for method in methods)))
    return {
        method: _tinted(bases[base], 0.0 if position == places[0] else 0.35)
        for method in methods
        for base, position in [split(method)]
    }


def _tinted(color: str, white: float) -> str:
    red, green, blue = (part + white * (1.0 - part) for part in to_rgb(color))
    return to_hex((red, green, blue))


def _base_colors(methods: Sequence[str]) -> dict[str, str]:
    palette: dict[str, str] = {}
    for name, members in families(methods).items():
        shaded = [method for method in members if method not in _FIXED]
        shades = LinearSegmentedColormap.from_list(name, _SHADES[name])
        for index, method in enumerate(shaded):
            # A family of one gets its typical colour, the middle.
            palette[method] = to_hex(shades(index / (len(shaded) - 1) if len(shaded) > 1 else 0.5))
        palette.update({method: _FIXED[method] for method in members if method in _FIXED})
    return palette


def markers(methods: Sequence[str]) -> dict[str, str]:
    """One marker per method, distinct within its family, so that colour is never the only cue."""
    return {
        method: MARKERS[index % len(MARKERS)]
        for members in families(methods).values()
        for index, method in enumerate(members)
    }
