"""What a converted model is worth: its loss, what heads keep, how fast and what it writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from tsallis.integrations import transformers as tsallis_transformers
from tsallis.integrations.transformers_queries import LogScale

from .start import soften


def load(
    folder: Path,
    attention: str,
    alpha: float,
    softened: Tensor | float = 1.0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """The model of a folder under the attention that it is read with.

    alpha: of entmax, where the model's config names none. softened: what multiplies its queries
    (`soften`).
    """
    tsallis_transformers.register()
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention, dtype=torch.float32
    )
    if not hasattr(model.config, "tsallis_alpha"):
        model.config.tsallis_alpha = alpha
    soften(model, softened)
    model.to(device).eval()
    scales = [part for part in model.modules() if isinstance(part, LogScale)]
    exact = [(p, p.detach().clone()) for part in scales for p in part.parameters()]
    model.to(dtype)
    # Near 1 bfloat16 keeps steps of 0.008, as far as training moves a factor.
    for parameter, value in exact:
        parameter.data = value
    return model  # type: ignore[no-any-return]


@torch.no_grad()
def loss(model: PreTrainedModel, tokens: Tensor) -> list[float]:
    """Nats a token of every sequence: [count]. tokens: [count, length]."""
    return [
        model(input_ids=row[None], labels=row[None], use_cache=False).loss.item() for row in tokens
    ]


@torch.no_grad()
def heads(model: PreTrainedModel, tokens: Tensor) -> dict[str, list[float]]:
    """Means over heads and queries, of every layer: keys that have a weight, their share of the
    keys that a query sees, and the entropy of the weights in nats. tokens: [length]."""
    found: dict[str, list[float]] = {"support": [], "share": [], "entropy": []}
    visible = torch.arange(1, len(tokens) + 1, dtype=torch.float64)

    def look(module: Any, support_size: Tensor, entropy: Tensor) -> None:
        support = support_size.double()
        found["support"].append(support.mean().item())
        # The share is that of all pairs of a query and a key that it sees.
        share = support.sum() / (visible.sum() * support.shape[0] * support.shape[1])
        found["share"].append(share.item())
        found["entropy"].append(entropy.mean().item())

    with tsallis_transformers.observe(look):
        model(input_ids=tokens[None], use_cache=False)
    return found


LAYERS = 4  # of which `inputs` keeps what attention gets, from the first to the last


@torch.no_grad()
def inputs(model: PreTrainedModel, tokens: Tensor, file: Path) -> None:
    """Writes q, k and v of some layers that read tokens [length], as ``tsallis eval --inputs``.

    In bfloat16: layers.L.q is [heads, length, head_dim], k and v have the key heads.
    """
    last = model.config.num_hidden_layers - 1
    wanted = {round(i * last / (LAYERS - 1)) for i in range(LAYERS)}
    tensors: dict[str, Tensor] = {}
    about: dict[str, str] = {}

    def keep(module: Any, q: Tensor, k: Tensor, v: Tensor, settings: dict[str, Any]) -> None:
        if module.layer_idx not in wanted:
            return
        layer = f"layers.{module.layer_idx}"
        # A model's own scale goes into the queries: who reads the file scales by 1 / sqrt(d).
        scale = settings["scale"]
        scaled = q if scale is None else q * (scale * q.shape[-1] ** 0.5)
        for part, x in (("q", scaled), ("k", k), ("v", v)):
            tensors[f"{layer}.{part}"] = x[0].to(torch.bfloat16).contiguous()
        about[f"{layer}.map"] = settings["map"]
        if settings["map"] == "entmax":
            alphas = torch.as_tensor(settings["alpha"], dtype=torch.float32).expand(q.shape[1])
            tensors[f"{layer}.alpha"] = alphas.contiguous()

    with tsallis_transformers.observe_calls(keep):
        model(input_ids=tokens[None], use_cache=False, logits_to_keep=1)
    aside = file.with_suffix(".new")
    save_file(tensors, aside, about)
    aside.replace(file)


@torch.no_grad()
def speed(model: PreTrainedModel, prompt: Tensor, steps: int, paged: bool) -> dict[str, float]:
    """Seconds of reading a prompt [length] and of each greedy token behind it (the median)."""
    cache: Any = (
        tsallis_transformers.TsallisCache(model.config)
        if paged
        else DynamicCache(config=model.config)
    )
    begun = time.perf_counter()
    out = model(input_ids=prompt[None], past_key_values=cache, logits_to_keep=1)
    read = time.perf_counter() - begun
    times = []
    for _ in range(steps):
        token = out.logits[:, -1:].argmax(-1)
        begun = time.perf_counter()
        out = model(input_ids=token, past_key_values=cache, logits_to_keep=1)
        times.append(time.perf_counter() - begun)
    return {"prompt_s": read, "token_s": sorted(times)[len(times) // 2]}


@torch.no_grad()
def text(model: PreTrainedModel, prompt: Tensor, count: int) -> Tensor:
    """What the model writes behind a prompt [length], greedily: [count]."""
    cache = tsallis_transformers.TsallisCache(model.config)
    writer: Any = model  # PreTrainedModel does not declare generate
    out = writer.generate(
        prompt[None],
        attention_mask=torch.ones_like(prompt[None]),
        past_key_values=cache,
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    written: Tensor = out[0, len(prompt) :]
    return written
