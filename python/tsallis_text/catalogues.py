"""Pairs of sentences out of gettext's catalogues (.mo)."""

from __future__ import annotations

import gettext
import struct
from typing import IO

LEAST, MOST = 4, 30  # words on either side


class CatalogueError(Exception):
    """A catalogue cannot be read; the text goes to the user."""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def is_prose(source: str, target: str) -> bool:
    """Whether a pair is a sentence and its translation.

    Left out: what is shorter or longer than LEAST to MOST words; formats and tables, less than half
    of whose characters are letters; messages that were not translated, or of names and options
    alone, two thirds of whose words stand in the translation as they are; control characters.
    """
    for text in (source, target):
        if not LEAST <= len(text.split()) <= MOST or not text.isprintable():
            return False
        if 2 * sum(map(str.isalpha, text)) < len(text.replace(" ", "")):
            return False
    words = set(source.split())
    return 3 * len(words & set(target.split())) < 2 * len(words)


def messages(stream: IO[bytes], name: str) -> list[tuple[str, str]]:
    """Every message with its translation, each on one line; the first form where there are several.

    Raises CatalogueError, which names the file and the charset.
    """
    try:
        catalogue = gettext.GNUTranslations(stream)
    except LookupError as error:
        raise CatalogueError(f"{name}: {error}, as its header names") from error
    except UnicodeDecodeError as error:
        raise CatalogueError(f"{name}: its text is not {error.encoding}: {error.reason}") from error
    except (OSError, ValueError, struct.error) as error:
        raise CatalogueError(f"{name}: expected a catalogue of gettext ({error})") from error
    found = []
    # The module has no other way to list what it read.
    for key, target in catalogue._catalog.items():  # type: ignore[attr-defined]
        source, form = key if isinstance(key, tuple) else (key, 0)
        if source == "" or form != 0:  # the header; further forms of a plural
            continue
        source = source.split("\x04")[-1]  # what stands before it is the message's context
        found.append((_one_line(source), _one_line(target)))
    return found


def pairs(stream: IO[bytes], name: str) -> list[tuple[str, str]]:
    """The sentences of a catalogue with their translations."""
    return [pair for pair in messages(stream, name) if is_prose(*pair)]


def same_sentence(text: str) -> str:
    """What two sentences share that are the same but for quotes, punctuation and capitals."""
    return "".join(filter(str.isalnum, text.casefold()))


def apart(
    parts: dict[str, dict[str, list[tuple[str, str]]]],
) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """Catalogues of the parts, where no part has a source sentence of one before it.

    A pair is kept once over all catalogues.
    """
    kept: dict[str, dict[str, list[tuple[str, str]]]] = {}
    taken: set[str] = set()
    for part, catalogues in parts.items():
        seen: set[tuple[str, str]] = set()
        kept[part] = {}
        for name, found in catalogues.items():
            kept[part][name] = new = [
                pair
                for pair in dict.fromkeys(found)
                if pair not in seen and same_sentence(pair[0]) not in taken
            ]
            seen.update(new)
        taken |= {same_sentence(source) for source, _ in seen}
    return kept
