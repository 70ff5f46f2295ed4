#!/usr/bin/env python3
"""Writes the index of docs/log.md from the entries' headings, by tag and subject (`make log`).

    scripts/log_index.py

An entry begins with its title and then a date, a tag and a subject, such as
`*2026-11-24, kernel: decoding.*`. An unknown tag or subject, or an entry older than the one below
it, is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "docs" / "log.md"
BEGIN = "<!-- The index, made by `make log`. -->"
END = "<!-- The index ends. -->"
# Tags and their subjects, in the order of the index.
SUBJECTS = {
    "kernel": ("decoding", "CUDA", "sweep", "dense attention", "training", "precision"),
    "tool": ("tests", "builds", "structure"),
}


class Entry(NamedTuple):
    title: str
    date: str
    tag: str
    subject: str


def entries(log: str) -> list[Entry]:
    """The log's entries, newest first."""
    found: list[Entry] = []
    for text in log.split(END)[1].split("\n## ")[1:]:
        title, _, rest = text.partition("\n")
        head = re.match(r"\n\*(\d{4}-\d\d-\d\d), (\w+): ([\w ]+)\.\* ", rest)
        if head is None:
            raise ValueError(f"no date, tag and subject: {title}")
        entry = Entry(title, head[1], head[2], head[3])
        if entry.subject not in SUBJECTS.get(entry.tag, ()):
            raise ValueError(f"unknown tag or subject: {entry}")
        if found and entry.date > found[-1].date:
            raise ValueError(f"newer than the entry above: {entry}")
        found.append(entry)
    return found


def anchor(title: str) -> str:
    """The anchor that GitHub and mkdocs give a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def with_index(log: str) -> str:
    """The log with the index of its entries."""
    lines = []
    for tag, subjects in SUBJECTS.items():
        for subject in subjects:
            chosen = [
                entry for entry in entries(log) if (entry.tag, entry.subject) == (tag, subject)
            ]
            if chosen:
                lines += [f"**{tag.capitalize()}: {subject}**", ""]
                lines += [f"- [{entry.title}](#{anchor(entry.title)})" for entry in chosen]
                lines += [""]
    head, _, rest = log.partition(BEGIN)
    if re.search(r"^\*\d{4}-\d\d-\d\d, ", head, re.MULTILINE):
        raise ValueError("an entry stands above the index, which would leave it out")
    return "\n".join([head + BEGIN, "", *lines, END]) + rest.split(END)[1]


if __name__ == "__main__":
    LOG.write_text(with_index(LOG.read_text()))
