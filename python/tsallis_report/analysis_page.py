"""Pages of studies without training: HTML and Markdown, of one and of several together."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path

from .analysis import Analysis
from .data import commit_text
from .files import replace_text
from .page import cited, definitions, document, embedded, steps
from .run_folder import Json, number
from .table import ellipsized, markdown_table, pad_left, pad_right, width

_TOGETHER = "Studies without training"


def write_pages(study: Analysis, directory: Path) -> list[Path]:
    """Write ``report.html`` and ``report.md`` beside the figures; return their paths."""
    return [
        replace_text(
            directory / "report.html",
            document(study.title, _body(study, directory / "figures")),
        ),
        replace_text(directory / "report.md", f"# {study.title}\n\n{_markdown(study, 'figures')}"),
    ]


def write_together(studies: Sequence[tuple[Analysis, Path]], directory: Path) -> list[Path]:
    """Write the pages of several studies, each with its folder below ``directory``."""
    contents = "".join(
        f'<li><a href="#{study.study}">{escape(study.title)}</a></li>' for study, _ in studies
    )
    body = "".join(
        f'<section id="{study.study}"><h1>{escape(study.title)}</h1>'
        f"{_body(study, folder / 'figures')}</section>"
        for study, folder in studies
    )
    text = "".join(
        f"\n## {study.title}\n\n{_markdown(study, f'{folder.name}/figures')}"
        for study, folder in studies
    )
    return [
        replace_text(
            directory / "report.html", document(_TOGETHER, f"<ul>{contents}</ul>\n{body}")
        ),
        replace_text(directory / "report.md", f"# {_TOGETHER}\n{text}"),
    ]


def terminal_text(study: Analysis, columns: int, most: int) -> str:
    """The finding, and up to ``most`` numbers beside what is expected of them."""
    lines = [study.title, *textwrap.wrap(study.finding, columns), ""]
    if study.facts:
        shown = study.facts[:most]
        room = min(max(width(fact["quantity"]) for fact in shown), max(20, columns - 40))
        head = pad_right("", room) + pad_left("ours", 11) + pad_left("expected", 11)
        lines += [head, "─" * (room + 22)]
        for fact in shown:
            ours, expected = _numbers(fact)
            name = pad_right(ellipsized(fact["quantity"], room), room)
            source = f"  {fact['source']}" if fact["source"] else ""
            lines.append(
                ellipsized(name + pad_left(ours, 11) + pad_left(expected, 11) + source, columns)
            )
        if len(study.facts) > most:
            lines.append(f"... and {len(study.facts) - most} more on the page")
        lines.append("")
    return "\n".join(lines) + "\n"


def _body(study: Analysis, figures: Path) -> str:
    drawn = "".join(
        embedded(figure["name"], figure["title"], figure["caption"], figures)
        for figure in study.figures
    )
    return (
        f'<p class="finding">{escape(study.finding)}</p>\n{drawn}{_fact_table(study)}'
        f"{steps(study.setup)}{_about(study)}"
    )


def _about(study: Analysis) -> str:
    return definitions(
        [
            ("Study", f"<code>{escape(study.study)}</code>"),
            ("Paper", cited(study.source)),
            ("Scale", escape(study.scale)),
            ("Seed", str(study.seed)),
            ("Trained model", escape(study.checkpoint)),
            ("Command", f"<code>{escape(study.command)}</code>"),
            ("Commit", commit_text(escape(study.commit), "<code>{}</code>".format)),
            ("Processor", escape(study.processor)),
            ("Time", f"{study.seconds:.1f} s"),
        ]
    )


def _fact_table(study: Analysis) -> str:
    if not study.facts:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(fact["quantity"])}</th>'
        + "".join(f"<td>{escape(text)}</td>" for text in (*_numbers(fact), fact["source"]))
        + "</tr>"
        for fact in study.facts
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", "ours", "expected", "by"))
    return (
        "<h2>Numbers</h2>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        "</div>"
    )


def _markdown(study: Analysis, figures: str) -> str:
    text = f"{study.finding}\n"
    for figure in study.figures:
        text += f"\n![{figure['title']}]({figures}/{figure['name']}.svg)\n\n{figure['caption']}\n"
    if study.facts:
        rows = [["", "by", "ours", "expected"]]
        rows += [[fact["quantity"], fact["source"], *_numbers(fact)] for fact in study.facts]
        text += f"\n{markdown_table([[_cell(cell) for cell in row] for row in rows])}"
    text += "\n" + "".join(f"- {step}\n" for step in study.setup)
    return text + (
        f"\nPaper: {study.source}. Command: `{study.command}`. Commit: "
        f"{commit_text(study.commit, '`{}`'.format)}.\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _numbers(fact: Json) -> tuple[str, str]:
    """Ours and what is expected, both with so many digits that they can be compared."""
    expected = "" if fact["expected"] is None else _number(fact["expected"])
    return _number(number(fact["value"])), expected


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if value != 0.0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.3g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:.0f}"
