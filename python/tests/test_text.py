"""``tsallis_text``: what the program's tokens are made by."""

import io
import json
import math
import struct
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
import sacrebleu
import sentencepiece
from tokenizers import Tokenizer

from tsallis_text.__main__ import decode, encode, score, train
from tsallis_text.tokenizers import Refused, model_of

PYTHON = Path(__file__).resolve().parents[1]
TEXTS = ["Sharp attention.\n", "", "Aufmerksamkeit läßt nach – oder nicht?\n", "1234567\n" * 9]


def message(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<I", len(content)) + content


def answers(output: bytes) -> list[bytes]:
    found = []
    while output:
        size, failed = struct.unpack("<IB", output[:5])
        assert not failed, output
        found.append(output[5 : 4 + size])
        output = output[4 + size :]
    return found


def encoded(path: Path) -> tuple[int, list[list[int]]]:
    target = io.BytesIO()
    encode(io.BytesIO(b"".join(map(message, TEXTS))), target, path)
    size, *tokens = answers(target.getvalue())
    return int(size), [array("I", part).tolist() for part in tokens]


def decoded(path: Path, tokens: list[list[int]]) -> list[str]:
    target = io.BytesIO()
    parts = [array("I", part).tobytes() for part in tokens]
    source = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    decode(io.BytesIO(source), target, path)
    return [text.decode() for text in answers(target.getvalue())[1:]]


def test_byte_level_bpe_gives_every_text_back(tmp_path):
    path = tmp_path / "tokenizer.json"
    target = io.BytesIO()
    train(io.BytesIO(b"".join(map(message, [*TEXTS[:1], *TEXTS[2:], ""]))), target, 280, path)
    assert answers(target.getvalue()) == [b"", b""]
    size, tokens = encoded(path)
    assert 256 < size <= 280
    model = Tokenizer.from_file(str(path))
    assert [model.decode(part) for part in tokens] == TEXTS
    assert decoded(path, tokens) == TEXTS
    # Tokens may share a character of several bytes.
    shown, places = "", model_of(path).places(TEXTS[2])
    for begin, end in places:
        shown += TEXTS[2][max(begin, len(shown)) : end]
    assert shown == TEXTS[2]
    assert len(places) == len(tokens[2])
    with pytest.raises(Refused, match=f"expected tokens below {size}, got {size}"):
        decoded(path, [[size]])


def test_models_of_sentencepiece_are_read(tmp_path):
    (tmp_path / "text.txt").write_text("".join(TEXTS) * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"),
        model_prefix=str(tmp_path / "small"),
        vocab_size=60,
        byte_fallback=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    size, tokens = encoded(tmp_path / "small.model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "small.model"))
    assert size == model.vocab_size()
    assert tokens == [model.encode(text) for text in TEXTS]
    assert decoded(tmp_path / "small.model", tokens) == [model.decode(part) for part in tokens]
    places = model_of(tmp_path / "small.model").places(TEXTS[2])
    assert "".join(TEXTS[2][begin:end] for begin, end in places) == TEXTS[2]


def test_what_is_no_tokenizer_is_named(tmp_path):
    for name, content, why in [
        ("a.json", "{}", "expected a tokenizer.json"),
        ("a.model", "not a model", "expected a model of SentencePiece"),
        ("none.json", None, "no such file"),
    ]:
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(Refused, match=why):
            encoded(tmp_path / name)


def scored(hypotheses: list[str], references: list[str]) -> dict:
    target = io.BytesIO()
    asked = json.dumps({"hypotheses": hypotheses, "references": references})
    score(io.BytesIO(message(asked)), target)
    nothing, scores = answers(target.getvalue())
    assert nothing == b""
    return json.loads(scores)


def test_translations_are_scored_as_sacrebleu_does():
    perfect = scored(["Aufmerksamkeit läßt nicht nach ."], ["Aufmerksamkeit läßt nicht nach ."])
    assert perfect["bleu"] == pytest.approx(100)
    assert perfect["chrf"] == pytest.approx(100)
    version = f"version:{sacrebleu.__version__}"
    assert perfect["signature"] == (
        f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}, "
        f"chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}"
    )
    # All n-grams are there, of six words for eight: the penalty of length alone.
    short = scored(["a b c d e f"], ["a b c d e f g h"])
    assert short["bleu"] == pytest.approx(100 * math.exp(1 - 8 / 6))


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(Refused, match="BLEU needs the Python package sacrebleu"):
        score(io.BytesIO(), io.BytesIO())


def test_errors_reach_the_other_end(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "tsallis_text", "encode", str(tmp_path / "none.json")],
        input=b"",
        capture_output=True,
        cwd=PYTHON,
        check=True,
    )
    size, failed = struct.unpack("<IB", run.stdout[:5])
    assert failed
    assert size == len(run.stdout) - 4
    assert run.stdout[5:].decode().endswith("none.json: no such file")
