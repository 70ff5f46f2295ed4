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
class Corpus:
    name: str
    train: Any
    validation: Any
    test: Any

    def batch(self, length: int, count: int, seed: int, step: int) -> Tensor:
        """Sequences of a training step, [count, length]: a function of seed and step alone."""
        if len(self.train) <= length:
            raise TokensError(
                f"--corpus: expected more than {length} tokens to train on, got {len(self.train)}"
            )
        begin = np.random.default_rng((seed, step)).integers(0, len(self.train) - length, count)
        rows = [self.train[b : b + length].astype(np.int64) for b in begin]
        return torch.from_numpy(np.stack(rows))

    def held_out(self, length: int, count: int) -> Tensor:
        """Sequences at equal distances in the validation text, [count, length].

        Raises:
            TokensError: the text is shorter than that.
        """
        tokens = self.validation
        if len(tokens) < length * count:
            raise TokensError(
                f"--corpus: expected {length * count} tokens to validate with, got {len(tokens)}"
            )
        step = (len(tokens) - length) // max(1, count - 1)
        return torch.from_numpy(
            np.stack([tokens[i * step : i * step + length].astype(np.int64) for i in range(count)])
        )


def corpus_of(name: str, model: Path, data: Path) -> Corpus:
    """A corpus in tokens of the model: a folder that `tsallis data prepare` made with its
    tokenizer, or one that it knows by name, which is prepared in ``data`` if it is not there.

    Raises:
        TokensError: `tsallis data prepare` does not know it, or the model has no tokenizer.json.
    """
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
    parts = [_shard(folder / f"{part}.bin") for part in ("train", "validation", "test")]
    return Corpus(Path(name).name, *parts)
