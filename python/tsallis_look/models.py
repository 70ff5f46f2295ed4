"""A model before a text that it reads, whichever of the two kinds of models it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsallis_convert import ConvertError
from tsallis_convert.models import folder_of

from . import LookError
from .calls import Call

SOURCE = Path(__file__).resolve().parents[2]
LONGEST = 32768  # tokens of a page


@dataclass(frozen=True)
class Reading:
    """A model before a text that it reads."""

    pieces: list[str]  # the text, token by token; "" where a token adds no character
    layers: int
    note: str  # what people should know of how the model is read, or ""
    visit: Callable[[Callable[[Call], None]], None]  # calls with every layer, the first first


@dataclass(frozen=True)
class Text:
    file: Path
    content: str
    tokens: int | None  # that are read at most; None: all

    def count(self, there: int, most: int, why: str) -> int:
        """How many of the tokens that are there are read.

        Raises:
            LookError: more than ``most``, which is said why.
        """
        count = there if self.tokens is None else min(there, self.tokens)
        if count > most:
            raise LookError(
                f"--text {self.file}: expected at most {most} tokens, {why}, got {count}; "
                f"--tokens {most} reads the first of them"
            )
        if count < 1:
            raise LookError(f"--text {self.file}: expected a token or more, got none")
        return count


def text_of(file: Path, tokens: int | None) -> Text:
    """Raises LookError for a file without text."""
    try:
        content = file.read_bytes().decode()
    except OSError as error:
        raise LookError(f"--text {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LookError(
            f"--text {file}: expected UTF-8, got the byte {error.object[error.start]:#04x} at "
            f"{error.start}"
        ) from error
    if not content.strip():
        raise LookError(f"--text {file}: expected a text, got an empty one")
    return Text(file, content, tokens)


def pieces_of(text: str, places: list[tuple[int, int]], names: list[str]) -> list[str]:
    """What every token adds to the text, with the spaces that belong to no token before it.

    places: where its characters begin and end. A token without any shows its name. Of several
    tokens that share a character of several bytes the first shows it.
    """
    found, shown = [], 0
    for (begin, end), name in zip(places, names, strict=True):
        found.append(name if begin == end else text[shown:end])
        shown = max(shown, end)
    return found


def run_of(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """The folder of a run of the lab that holds ``path``, and its config.json; None for others."""
    for folder in (path, *list(path.absolute().parents)[:2]):
        file = folder / "config.json"
        if not file.is_file():
            continue
        try:
            config = json.loads(file.read_text())
        except ValueError as error:
            raise LookError(f"MODEL: {file}: expected JSON: {error}") from error
        return (folder, config) if "study" in config else None
    return None


def reading_of(model: str, map_name: str | None, text: Text) -> Reading:
    """A model, as the command line names it, before a text.

    map_name: of a model of Hugging Face; None: that of its config.json.

    Raises:
        LookError: the model cannot be had, or cannot read the text.
    """
    found = run_of(Path(model))
    if found is not None:
        if map_name is not None:
            raise LookError(f"--map: expected a model of Hugging Face, {model} is one of the lab")
        from . import lab

        return lab.reading(Path(model), found[1], text)
    try:
        folder = folder_of(model, SOURCE / "data" / "models")
    except ConvertError as error:
        raise LookError(str(error)) from error
    # transformers takes seconds to load.
    from . import hugging_face

    return hugging_face.reading(folder, map_name, text)
