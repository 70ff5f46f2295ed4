"""Encodes texts, trains a tokenizer on them or scores translations, for the program on the other
end of a socket.

``python -m tsallis_text encode FILE`` answers with the number of tokens in the vocabulary, then
every text with its tokens (uint32); ``python -m tsallis_text decode FILE`` answers tokens with
their text in the same way. ``python -m tsallis_text train SIZE FILE`` answers with
nothing, reads texts up to an empty one, writes FILE and answers once more. ``python -m tsallis_text
score`` answers with nothing, reads {"hypotheses": [...], "references": [...]} and answers with
{"bleu": ..., "chrf": ..., "signature": ...}. A message is its length
(four bytes, little-endian) and its bytes; an answer begins with one byte, 0, or 1 before an error.

``python -m tsallis_text fetch NAME FOLDER`` makes the files of a corpus (sources.py).
"""

from __future__ import annotations

import json
import os
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from . import sources
from .tokenizers import Refused, model_of


def receive(source: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    head = source.read(4)
    if len(head) < 4:
        return None
    return source.read(struct.unpack("<I", head)[0])


def answer(target: BinaryIO, content: bytes, *, failed: bool = False) -> None:
    target.write(struct.pack("<IB", len(content) + 1, failed) + content)
    target.flush()


def encode(source: BinaryIO, target: BinaryIO, path: Path) -> None:
    model = model_of(path)
    answer(target, str(model.size).encode())
    while (text := receive(source)) is not None:
        answer(target, array("I", model.encode(text.decode())).tobytes())


def decode(source: BinaryIO, target: BinaryIO, path: Path) -> None:
    model = model_of(path)
    answer(target, str(model.size).encode())
    while (content := receive(source)) is not None:
        tokens = array("I", content)
        if tokens and max(tokens) >= model.size:
            raise Refused(f"{path}: expected tokens below {model.size}, got {max(tokens)}")
        answer(target, model.decode(tokens.tolist()).encode())


def train(source: BinaryIO, target: BinaryIO, size: int, path: Path) -> None:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise Refused("training BPE needs the Python package tokenizers") from error
    answer(target, b"")

    def texts() -> Iterator[str]:
        while text := receive(source):
            yield text.decode()

    # Bytes come first, so that every text has tokens.
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.save(str(path))
    answer(target, b"")


def score(source: BinaryIO, target: BinaryIO) -> None:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise Refused("BLEU needs the Python package sacrebleu") from error
    answer(target, b"")
    while (content := receive(source)) is not None:
        asked = json.loads(content)
        scores = {}
        signatures = []
        for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
            result = metric.corpus_score(asked["hypotheses"], [asked["references"]])
            scores[name] = result.score
            signatures.append(f"{result.name}|{metric.get_signature()}")
        answer(target, json.dumps({**scores, "signature": ", ".join(signatures)}).encode())


def fetch(name: str, folder: Path) -> int:
    try:
        sources.fetch(name, folder)
    except sources.SourceError as error:
        print(f"tsallis_text: {error}", file=sys.stderr)
        return 1
    return 0


def main(arguments: list[str]) -> int:
    if arguments[0] == "fetch":
        return fetch(arguments[1], Path(arguments[2]))
    # Output of libraries goes to the terminal, not into the answers.
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    try:
        if arguments[0] == "train":
            train(source, target, int(arguments[1]), Path(arguments[2]))
        elif arguments[0] == "score":
            score(source, target)
        else:
            work = decode if arguments[0] == "decode" else encode
            work(source, target, Path(arguments[1]))
    except Refused as refused:
        answer(target, str(refused).encode(), failed=True)
    except BrokenPipeError:  # the program has ended
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
