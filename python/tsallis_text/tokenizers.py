"""Tokenizers of corpora: files of Hugging Face and of SentencePiece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class Refused(Exception):
    """Goes to the user as it is."""


@dataclass(frozen=True)
class Model:
    size: int
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    # Where the characters of every token begin and end in a text.
    places: Callable[[str], list[tuple[int, int]]]


def sentence_piece(path: Path) -> Model:
    try:
        import sentencepiece
    except ImportError as error:
        raise Refused(f"{path}: needs the Python package sentencepiece") from error
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise Refused(f"{path}: expected a model of SentencePiece ({error})") from error

    def places(text: str) -> list[tuple[int, int]]:
        pieces = model.encode(text, return_type="proto").pieces
        return [(piece.begin, piece.end) for piece in pieces]

    return Model(model.vocab_size(), lambda text: list(model.encode(text)), model.decode, places)


def hugging_face(path: Path) -> Model:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Refused(f"{path}: needs the Python package tokenizers") from error
    try:
        model = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other type
        raise Refused(f"{path}: expected a tokenizer.json ({error})") from error
    return Model(
        model.get_vocab_size(with_added_tokens=True),
        lambda text: list(model.encode(text, add_special_tokens=False).ids),
        lambda tokens: model.decode(tokens, skip_special_tokens=False),
        lambda text: list(model.encode(text, add_special_tokens=False).offsets),
    )


def model_of(path: Path) -> Model:
    if not path.is_file():
        raise Refused(f"{path}: no such file")
    return (sentence_piece if path.suffix == ".model" else hugging_face)(path)
