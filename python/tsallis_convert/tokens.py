"""Text as the model's tokens: a corpus that ``tsallis data prepare`` made with its tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import ConvertError

HEADER = 1024  # bytes before the tokens of a shard, as llm.c writes them
WIDE = 20240801  # the magic number of shards with 32 bits a token


class TokensError(ConvertError):
    """There is no text to read; the text goes to the user."""


def _shard(path: Path) -> Any:
    magic, _, count = np.fromfile(path, np.int32, 3)
    kind = np.uint32 if magic == WIDE else np.uint16
    return np.memmap(path, kind, "r", HEADER, (int(count),))


@dataclass(frozen=True)
class Text:
    """One prepared corpus. share: of the sequences that are trained on."""

    name: str
    train: Any
    validation: Any
    test: Any
    share: float = 1.0


def _rows(texts: list[Any], length: int, count: int, name: str) -> Tensor:
    """Sequences at equal distances in each of the texts, which take turns: [count, length]."""
    rows = []
    for i in range(count):
        tokens = texts[i % len(texts)]
        at, of = i // len(texts), -(-count // len(texts))
        if len(tokens) < length * of:
            raise TokensError(
                f"--corpus: expected {length * of} tokens to {name} with, got {len(tokens)}"
            )
        begin = at * ((len(tokens) - length) // max(1, of - 1))
        rows.append(tokens[begin : begin + length].astype(np.int64))
    return torch.from_numpy(np.stack(rows))


@dataclass(frozen=True)
class Corpus:
    """Texts that are mixed by their shares."""

    name: str
    texts: tuple[Text, ...]

    def batch(self, length: int, count: int, seed: int, step: int) -> Tensor:
        """Sequences of a training step, [count, length]: a function of seed and step alone.

        Raises:
            TokensError: a text is not longer than a sequence.
        """
        draw = np.random.default_rng((seed, step))
        shares = [text.share for text in self.texts]
        rows = []
        for which in draw.choice(len(shares), count, p=shares):
            train = self.texts[which].train
            if len(train) <= length:
                raise TokensError(
                    f"--corpus: expected more than {length} tokens to train on, got {len(train)}"
                )
            begin = draw.integers(0, len(train) - length)
            rows.append(train[begin : begin + length].astype(np.int64))
        return torch.from_numpy(np.stack(rows))

    def held_out(self, length: int, count: int) -> Tensor:
        """Sequences at equal distances in the validation texts, in turn: [count, length].

        Raises:
            TokensError: a text is shorter than that.
        """
        return _rows([text.validation for text in self.texts], length, count, "validate")

    def documents(self, length: int, count: int) -> Tensor:
        """The same of the test texts."""
        return _rows([text.test for text in self.texts], length, count, "test")


def _text(name: str, share: float, model: Path, data: Path) -> Text:
    folder = Path(name)
    if not (folder / "manifest.json").is_file():
        folder = data / f"{name}-{model.name}"
    if not (folder / "manifest.json").is_file():
        tokenizer = model / "tokenizer.json"
        if not tokenizer.is_file():
            raise TokensError(f"MODEL: expected a tokenizer.json in {model}")
        print(f"preparing the corpus {name}", file=sys.stderr, flush=True)
        prepare = ["data", "prepare", name, "--tokenizer", str(tokenizer)]
        command = [sys.executable, "-m", "tsallis", *prepare, "--folder", str(folder), "--quiet"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise TokensError(f"--corpus: {done.stderr.strip()}")
    manifest = json.loads((folder / "manifest.json").read_text())
    if manifest.get("shards"):
        raise TokensError(f"--corpus: expected one file a part, got several in {folder}")
    train, validation, test = (
        _shard(folder / f"{part}.bin") for part in ("train", "validation", "test")
    )
    return Text(Path(name).name, train, validation, test, share)


def corpus_of(names: str, model: Path, data: Path) -> Corpus:
    """Corpora in tokens of the model, "NAME" or "NAME:SHARE,NAME:SHARE".

    A name is a folder that `tsallis data prepare` made with the model's tokenizer, or one that it
    knows, which is prepared in ``data`` if it is not there.

    Raises:
        TokensError: shares that do not add up to 1, `tsallis data prepare` does not know a name, or
            the model has no tokenizer.json.
    """
    parts = [part.rpartition(":") for part in names.split(",")]
    if len(parts) == 1 and not parts[0][0]:
        return Corpus(Path(names).name, (_text(names, 1.0, model, data),))
    try:
        shares = [float(share) for _, _, share in parts]
    except ValueError:
        shares = []
    if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise TokensError(
            f"--corpus: expected NAME, or NAME:SHARE,… with shares that add up to 1, got {names!r}"
        )
    texts = [
        _text(name, share, model, data) for (name, _, _), share in zip(parts, shares, strict=True)
    ]
    mixed = ", ".join(f"{text.share:g} {text.name}" for text in texts)
    return Corpus(mixed, tuple(texts))
