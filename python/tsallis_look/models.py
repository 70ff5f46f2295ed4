"""A model before a text that it reads, whichever of the two kinds of models it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
