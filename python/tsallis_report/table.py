"""Tables in plain text: the terminal's and the Markdown page's."""

import unicodedata
from collections.abc import Sequence

from .data import Row, Study

_RESET, _BOLD, _DIM = "\033[0m", "\033[1m", "\033[2m"
_GREEN, _YELLOW, _RED = "\033[32m", "\033[33m", "\033[31m"

_GAP = 2  # columns between cells
_MARK = 6  # columns of "ours", "paper" and a space


def width(text: str) -> int:
    """Columns that a text takes: none for combining marks, two for wide characters."""
    return sum(
        0
        if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf")
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )


def pad_right(text: str, columns: int) -> str:
    """The text followed by spaces; one that is longer comes back as it is."""
    return text + " " * max(0, columns - width(text))


def pad_left(text: str, columns: int) -> str:
    """The text after spaces; one that is longer comes back as it is."""
    return " " * max(0, columns - width(text)) + text


def ellipsized(text: str, columns: int) -> str:
    """The text, cut with an ellipsis where it takes more columns."""
    if width(text) <= columns:
        return text
    cut = ""
    for c in text:
        if width(cut + c) + 1 > columns:
            break
        cut += c
    return cut + "…" if columns > 0 else ""


def probability(p: float) -> str:
    """The p-value of a test: ``0.032``, ``4e-06``."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def markdown_table(rows: Sequence[Sequence[str]], left: int = 2, widest: int | None = None) -> str:
    """A table whose raw text is aligned too: ``left`` columns to the left, the rest to the right.

    Columns with a cell of more than ``widest`` are not filled up.
    """
    widths = [max(3, *(width(row[i]) for row in rows)) for i in range(len(rows[0]))]
    widths = [3 if widest is not None and room > widest else room for room in widths]

    def line(cells: Sequence[str]) -> str:
        return "|" + "".join(f" {cell} |" for cell in cells) + "\n"

    def padded(row: Sequence[str]) -> list[str]:
        return [
            pad_right(cell, room) if i < left else pad_left(cell, room)
            for i, (cell, room) in enumerate(zip(row, widths, strict=True))
        ]

    rule = ["-" * (room - 1) + ("-" if i < left else ":") for i, room in enumerate(widths)]
    head, *body = rows
    return line(padded(head)) + line(rule) + "".join(line(padded(row)) for row in body)


def terminal_table(study: Study, columns: int, color: bool) -> str:
    """Methods as rows, lengths as columns: ours ± spread, below it the paper's and the difference.

    The lengths are split into blocks, one under another, where they do not fit.
    """
    if not study.rows:
        return "No results yet.\n"
    label_room = max(width("method"), *(width(study.labels[m]) for m in study.methods))
    label_room = min(label_room, max(12, columns // 3))
    texts = [text for row in study.rows for text in _texts(study, row)]
    cell = max(map(width, texts)) + _GAP
    margin = label_room + 1 + (_MARK if study.has_paper else 0)
    lengths = study.lengths
    fitting = max(1, (columns - margin) // cell)
    blocks = -(-len(lengths) // fitting)
    even = -(-len(lengths) // blocks)  # lengths of a block
    parts = [
        _block(study, lengths[begin : begin + even], margin, label_room, cell, color)
        for begin in range(0, len(lengths), even)
    ]
    spread = ", mean ± standard deviation over seeds" if study.max_seeds > 1 else ""
    legend = f"{study.metric.heading} in {study.metric.unit}{spread}."
    if study.has_paper:
        legend += f"\nBelow it the paper's, and ours minus the paper's in {study.metric.points}."
    return "\n".join(parts) + _painted(legend, _DIM, color) + "\n"


def _block(
    study: Study, lengths: list[int], margin: int, label_room: int, cell: int, color: bool
) -> str:
    head = pad_right("method", margin) + "".join(pad_left(str(n), cell) for n in lengths)
    lines = [_painted(head, _BOLD, color), "─" * (margin + len(lengths) * cell)]
    for method in study.methods:
        label = ellipsized(study.labels[method], label_room)
        ours, paper = pad_right(label, label_room + 1), " " * (label_room + 1)
        if study.has_paper:
            ours += _painted(pad_right("ours", _MARK), _DIM, color)
            paper += _painted(pad_right("paper", _MARK), _DIM, color)
        rows = [study.row(method, n) for n in lengths]
        for row in rows:
            above = pad_left("–" if row is None else _ours(study, row), cell)
            best = row is not None and _is_best(study, row)
            ours += _painted(above, _BOLD if best else "", color)
            below = "" if row is None else _paper(study, row)
            paper += _painted(pad_left(below, cell), _tone(study, row), color and bool(below))
        lines.append(ours)
        if any(row is not None and row.difference is not None for row in rows):
            lines.append(paper.rstrip(" "))
    return "".join(line + "\n" for line in lines)


def _texts(study: Study, row: Row) -> tuple[str, str, str]:
    return _ours(study, row), _paper(study, row), str(row.n)


def _ours(study: Study, row: Row) -> str:
    return study.metric.spread(row, " ±")


def _paper(study: Study, row: Row) -> str:
    if row.difference is None or row.paper is None:
        return ""
    return f"{study.metric.number(row.paper)} ({study.metric.difference(row.difference)})"


def _tone(study: Study, row: Row | None) -> str:
    """A colour to find rows by: at most a point worse than the paper, at most three, more."""
    if row is None or row.difference is None:
        return ""
    point = study.metric.full_tint / 50.0
    worse = -row.difference if study.metric.higher_is_better else row.difference
    return _GREEN if worse <= point else _YELLOW if worse <= 3.0 * point else _RED


def _is_best(study: Study, row: Row) -> bool:
    """Whether no method is better at this length; those that tie share it."""
    best = study.metric.best(r.mean for r in study.rows if r.n == row.n)
    return study.metric.is_best(row.mean, best)


def _painted(text: str, color: str, on: bool) -> str:
    """A text that is padded already, so that escapes take no columns."""
    return f"{color}{text}{_RESET}" if on and color else text
