"""The queries that entmax begins with: a softmax model's, softer by a factor for each head.

Entmax of a softmax model's own scores keeps too few keys. A head's factor is the one with which its
answers, the weighted sums of values, come closest to those of softmax.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import tsallis
from tsallis.integrations import transformers as tsallis_transformers
from tsallis.integrations.transformers_queries import attention_modules
from tsallis_report.files import replace_text

from . import ConvertError

# Steps of a quarter of an octave from 1 down to 0.1. Heads that mix many keys alike would take
# less, but keep more keys by it, and SmolLM2's loss stays the same.
GRID = tuple(2.0 ** (-i / 4) for i in range(14))
SEQUENCES, STEP = 2, 2**32 - 1  # of training text, as of a step that training does not reach


class StartError(ConvertError):
    """The model's queries cannot be changed; the text goes to the user."""


@torch.no_grad()
def matched(model: Any, tokens: Tensor, alpha: float) -> Tensor:
    """Factors of the queries, [layers, heads], with which entmax answers most as softmax does.

    The sum over queries of |out of entmax(c s) - out of softmax(s)|^2 is least at a head's c among
    `GRID`, with the model's own masks and terms. Every layer gets what it gets under softmax,
    whatever the layers before it would do.

    Args:
        model: one of Hugging Face's under tsallis_softmax.
        tokens: [count, length]
        alpha: of entmax.
    """
    errors: dict[int, Tensor] = {}  # of every layer: [factors, heads]

    def compare(module: Any, q: Tensor, k: Tensor, v: Tensor, settings: dict[str, Any]) -> None:
        wanted = tsallis.attention(q, k, v, **settings)
        sparse = settings | {"map": "entmax", "alpha": alpha}
        found = []
        for factor in GRID:
            out = tsallis.attention(q * factor, k, v, **sparse)
            found.append((out - wanted).float().square().sum((0, 2, 3)))
        layer = module.layer_idx
        errors[layer] = errors.get(layer, 0.0) + torch.stack(found).cpu()

    with tsallis_transformers.observe_calls(compare):
        for row in tokens:
            model(input_ids=row[None], use_cache=False, logits_to_keep=1)
    grid = torch.tensor(GRID)
    return torch.stack([grid[errors[layer].argmin(0)] for layer in sorted(errors)])


@torch.no_grad()
def soften(model: nn.Module, factors: Tensor | float) -> None:
    """Multiplies the queries of every attention module in its weights.

    Args:
        model: one of Hugging Face's whose attention has a q_proj.
        factors: one for all heads, or [layers, heads]. Heads that share a norm of their queries
            get the geometric mean of theirs.

    Raises:
        StartError: a module has no query projection of its own.
    """
    try:
        modules = attention_modules(model)
    except ValueError as error:
        raise StartError("MODEL: expected attention modules, got none") from error
    for i, module in enumerate(modules):
        projection, norm = (getattr(module, name, None) for name in ("q_proj", "q_norm"))
        if projection is None:
            raise StartError(
                f"MODEL: expected q_proj in every attention module, got none in "
                f"{type(module).__name__}"
            )
        own = torch.as_tensor(factors, dtype=torch.float32)
        own = own[i] if own.ndim else own[None]
        if norm is not None:
            norm.weight.mul_(own.log().mean().exp())
            continue
        for parameter in projection.parameters():
            by_head = parameter.view(len(own), -1)
            by_head.mul_(own.to(by_head)[:, None])


def factors_of(record: Path, model: Path, tokens: Tensor, of: dict[str, Any]) -> Tensor:
    """`matched` of the model in a folder, [layers, heads]; kept in ``record``.

    of: what the factors depend on beside `GRID`, compared with what the record says.
    """
    of = of | {"grid": list(GRID)}
    there = json.loads(record.read_text()) if record.is_file() else {}
    if there.get("of") != of:
        tsallis_transformers.register()
        made: Any = AutoModelForCausalLM.from_pretrained(
            model, attn_implementation="tsallis_softmax", dtype=torch.float32
        )
        made.to(tokens.device).eval()
        found = matched(made, tokens, of["alpha"])
        there = {"of": of, "factors": [[round(c, 4) for c in row] for row in found.tolist()]}
        record.parent.mkdir(parents=True, exist_ok=True)
        replace_text(record, json.dumps(there) + "\n")
    return torch.tensor(there["factors"])
