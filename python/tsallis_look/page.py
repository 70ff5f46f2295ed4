"""The page: one file of HTML that loads nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from . import LookError
from .gather import LEVELS, STEPS, Gathered
from .pack import Packed, fit
from .report import map_of, numbers, percent

_PARTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Subject:
    """What a page is about."""

    model: str
    text: str  # the name of its file
    pieces: list[str]
    note: str


def _grouped(count: int) -> str:
    """8192 as "8 192", with a narrow space."""
    return f"{count:,}".replace(",", "\u2009")


def _facts(found: Gathered, subject: Subject, packed: Packed, size: int) -> str:
    heads = sorted({len(layer) for layer in found.layers})
    cut, shown = percent(found.cut(packed.level)), percent(found.shown(packed.level))
    if packed.level < LEVELS - 1:
        rest = (
            f"Weights of at least {cut} are shown, so that the page has at most {size / 1e6:g} MB. "
            f"They are {shown} of all weight."
        )
    elif not found.has_zeros:
        rest = (
            f"Every key has some weight under this map: those of at least {cut} are shown. They "
            f"are {shown} of all weight."
        )
    else:
        rest = "Keys without weight stay white."
    count = " or ".join(map(str, heads))
    parts = (
        f"{subject.model} reads {_grouped(len(subject.pieces))} tokens of {subject.text} with "
        f"{len(found.layers)} layers of {count} heads: {map_of(found)}.",
        subject.note,
        rest,
    )
    return " ".join(part for part in parts if part)


def _about(found: Gathered, subject: Subject, packed: Packed, size: int) -> dict[str, Any]:
    def short(x: float | None) -> float | None:
        return None if x is None else float(f"{x:.4g}")

    layers = [
        [{k: short(v) for k, v in numbers(found, head, packed.level).items()} for head in layer]
        for layer in found.layers
    ]
    return {
        "facts": _facts(found, subject, packed, size),
        "text": subject.text,
        "causal": found.causal,
        "steps": STEPS,
        "cut": short(found.cut(packed.level)),
        "pieces": subject.pieces,
        "layers": layers,
    }


def _filled(found: Gathered, subject: Subject, packed: Packed, size: int) -> str:
    about = json.dumps(_about(found, subject, packed, size), ensure_ascii=False)
    parts = {
        "title": escape(f"Attention of {subject.model} on {subject.text}"),
        "css": (_PARTS / "page.css").read_text(),
        "js": (_PARTS / "page.js").read_text(),
        # A text may hold the end of a script.
        "about": about.replace("<", "\\u003c"),
        "weights": packed.text,
    }
    template = (_PARTS / "page.html").read_text()
    return re.sub(r"@(\w+)@", lambda match: parts[match[1]], template)


def page(found: Gathered, subject: Subject, size: int) -> tuple[str, Packed]:
    """The page's text, of at most ``size`` bytes, and the weights in it.

    Raises:
        LookError: not even the text fits.
    """
    # The share that is shown of a head is as long as 0.1234 at most, where this has 0.0.
    frame = len(_filled(found, subject, Packed(0, 0, ""), size).encode())
    frame += 100 + 3 * len(found.heads)
    packed = fit(found, size - frame)
    text = _filled(found, subject, packed, size)
    if len(text.encode()) > size:
        least = (len(text.encode()) + 99_999) // 100_000 / 10
        raise LookError(
            f"--megabytes: expected at least {least:g}, for the text and its heads without any "
            f"weight, got {size / 1e6:g}"
        )
    return text, packed
