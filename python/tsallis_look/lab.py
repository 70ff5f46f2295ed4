"""The lab's language models: the program runs them and keeps what attention gets."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tsallis.bench.cases import trained_cases
from tsallis_text.tokenizers import Refused, model_of

from . import LookError
from .calls import Call
from .models import LONGEST, SOURCE, Reading, Text, pieces_of

_BYTES = 256  # the vocabulary of models that read bytes


def _pieces(run: dict[str, Any], text: str) -> list[str]:
    task = run.get("task", {})
    if task.get("name") != "text" or task.get("vocabulary", _BYTES) == _BYTES:
        return [piece for char in text for piece in (char, *[""] * (len(char.encode()) - 1))]
    corpus = str(task["corpus"])
    folder = Path(corpus) if "/" in corpus else SOURCE / "data" / corpus
    files = [folder / name for name in ("tokenizer.json", "tokenizer.model")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise LookError(f"MODEL: expected the tokenizer of its corpus in {folder}")
    try:
        places = model_of(file).places(text)
    except Refused as error:
        raise LookError(f"MODEL: {error}") from error
    return pieces_of(text, places, ["" for _ in places])


def reading(model: Path, run: dict[str, Any], text: Text) -> Reading:
    """A run, or a file of its weights. The last token of a text is not read: the model predicts it.

    Raises:
        LookError: the model has no tokenizer, or the text is too long.
    """
    pieces = _pieces(run, text.content)
    count = text.count(len(pieces) - 1, LONGEST, "the most that a page holds")

    def visit(look: Callable[[Call], None]) -> None:
        with tempfile.TemporaryDirectory() as aside:
            inputs = Path(aside) / "inputs.safetensors"
            command = [sys.executable, "-m", "tsallis", "eval", model, "--text", text.file]
            command += ["--lengths", count, "--samples", 1, "--inputs", inputs, "--quiet"]
            done = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise LookError(f"MODEL: {model}: {done.stderr.strip()}")
            cases = trained_cases(inputs)
        for case in cases:
            assert case.inputs is not None
            q, k, _ = (x[None] for x in case.inputs)
            look(Call(q, k, {**case.settings, "causal": True}))

    return Reading(pieces[:count], int(run["model"]["layers"]), "", visit)
