"""Finds out which kind of model the command line names, and reads a text with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tsallis_convert import ConvertError
from tsallis_convert.models import folder_of

from . import LookError
from .models import SOURCE, Reading, Text

__all__ = ["reading_of", "run_of"]


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
