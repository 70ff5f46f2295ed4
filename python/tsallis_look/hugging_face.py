"""Models of Hugging Face, under one of our maps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging

from tsallis.integrations import transformers as tsallis_transformers

from . import LookError
from .calls import Call
from .models import LONGEST, Reading, Text, pieces_of

_PREFIX = "tsallis_"


def _map_of(config: Any) -> str | None:
    """The map that a config names; None if it names none of ours."""
    if hasattr(config, "tsallis_map"):
        return str(config.tsallis_map)
    has_alpha = hasattr(config, "tsallis_alpha") or hasattr(config, "tsallis_learned_alpha")
    return "entmax" if has_alpha else None


def _chosen(folder: Path, config: Any, map_name: str | None) -> tuple[str, str]:
    """The map that a model is read with, and what people should know of that."""
    own = _map_of(config)
    name = map_name or own or "softmax"
    if name == "entmax" and own != "entmax":
        raise LookError(
            f"--map entmax: expected tsallis_alpha in {folder / 'config.json'}, got none; entmax15 "
            "and sparsemax need none"
        )
    if own is None and map_name is None:
        return name, (
            "The model's config.json names no map of ours (tsallis_map): it is read with softmax, "
            "and with another map by --map."
        )
    if map_name is not None and map_name != own:
        return name, (
            f"The model is read with {map_name}, which its config.json does not name: what it "
            "learned with another map need not hold."
        )
    return name, ""


def reading(folder: Path, map_name: str | None, text: Text) -> Reading:
    """The model that ``save_pretrained`` wrote to a folder.

    Raises:
        LookError: transformers cannot load it, it has no such map, or the text is too long.
    """
    tsallis_transformers.register()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise LookError(f"MODEL: {folder}: {error}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise LookError(
            f"MODEL: {folder}: expected a model that reads one text, got one of an encoder and a "
            f"decoder ({config.model_type})"
        )
    if not tokenizer.is_fast:
        raise LookError(f"MODEL: expected a tokenizer.json in {folder}")
    name, note = _chosen(folder, config, map_name)

    encoded = tokenizer(text.content, return_offsets_mapping=True, verbose=False)
    tokens = encoded["input_ids"]
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(tokens)]
    pieces = pieces_of(text.content, encoded["offset_mapping"], names)
    most = getattr(config.get_text_config(), "max_position_embeddings", None) or LONGEST
    why = "as many as the model has positions" if most <= LONGEST else "the most of a page"
    count = text.count(len(tokens), min(most, LONGEST), why)

    config.use_cache = False
    try:
        # Without its head: logits of a long text take gigabytes.
        model = AutoModel.from_pretrained(
            folder, config=config, attn_implementation=_PREFIX + name, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        raise LookError(f"MODEL: {folder}: {error}") from error
    model.eval()

    def visit(look: Callable[[Call], None]) -> None:
        def see(_: Any, q: Tensor, k: Tensor, __: Tensor, settings: dict[str, Any]) -> None:
            look(Call(q, k, settings))

        with torch.no_grad(), tsallis_transformers.observe_calls(see):
            try:
                model(input_ids=torch.tensor([tokens[:count]]))
            except ValueError as error:
                raise LookError(f"MODEL: {folder}: {error}") from error

    return Reading(pieces[:count], config.get_text_config().num_hidden_layers, note, visit)
