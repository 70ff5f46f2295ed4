"""Factors of the queries that grow with the position, and layers without rotation.

Both are hooks on the attention modules of a model of Hugging Face's, recorded in its config: they
work under every ``attn_implementation``, and `tsallis.integrations.transformers.register` brings
them back when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.nn.length_scale import ASEntmaxScale

__all__ = [
    "QUERY_KEYS",
    "SCALES",
    "add_queries",
    "attention_modules",
    "scale_queries",
    "unrotate",
]

QUERY_KEYS = ("tsallis_query_scale", "tsallis_unrotated_layers")
"""The keys under which a model's config records factors, and layers without rotation."""


class LogScale(nn.Module):
    """Factors c_h (1 + b_h ln(1 + i)) of the queries at positions i from 0, learned for each head.

    Args:
        heads: number of heads.
        sharpen: whether `project` keeps c >= 1 and b >= 0, so that scores only grow.
    """

    def __init__(self, heads: int, sharpen: bool = False) -> None:
        super().__init__()
        self.sharpen = sharpen
        self.c = nn.Parameter(torch.empty(heads))
        self.b = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets every factor to 1."""
        nn.init.ones_(self.c)
        nn.init.zeros_(self.b)

    @torch.no_grad()
    def project(self) -> None:
        """Brings the parameters back to where they may be: call it after a step of training."""
        if self.sharpen:
            self.c.clamp_(min=1.0)
            self.b.clamp_(min=0.0)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Factors [batch, q_len, heads]; x: [batch, q_len, width], positions: [batch, q_len]."""
        # In float32 at least: bfloat16 keeps three digits, and neighbours far out would get the
        # same factor.
        dtype = torch.promote_types(self.c.dtype, torch.float32)
        logs = positions.to(dtype).log1p()[..., None]
        return self.c.to(dtype) * (1.0 + self.b.to(dtype) * logs)


class _ByInput(ASEntmaxScale):
    """ASEntmax's factors 1 + beta ln(i + 2)^gamma, with a beta that begins near 0."""

    # softplus(-5) = 0.007: the model begins as it was.
    START = -5.0

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.beta.bias, self.START)

    def project(self) -> None:
        """As `LogScale.project`: nothing to do."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, positions).mT


SCALES = (LogScale, _ByInput)
"""The modules that hold the factors."""

# name of `scale_queries`: the module for a width and a number of heads
_KINDS: dict[str, Callable[[int, int], nn.Module]] = {
    "log": lambda width, heads: LogScale(heads),
    "sharpen": lambda width, heads: LogScale(heads, sharpen=True),
    "asentmax": lambda width, heads: _ByInput(width, heads),
}


def attention_modules(model: nn.Module) -> list[Any]:
    """Those of a model; ValueError if there are none."""
    parts = [part for part in model.modules() if hasattr(part, "is_causal")]
    if not parts:
        raise ValueError(f"model: expected attention modules, got {type(model).__name__} without")
    return parts


def _keep_factors(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Before attention: the factors of this call, where the projection's hook finds them."""
    hidden = named.get("hidden_states", arguments[0] if arguments else None)
    positions = named.get("position_ids")
    if hidden is None or positions is None:
        raise ValueError(
            f"position_ids: expected in the call of {type(module).__name__}, whose queries have "
            "factors that grow with the position, got None"
        )
    module.q_proj.tsallis_factors = module.tsallis_query_scale(hidden, positions)


def _use_factors(projection: Any, _: tuple[Any, ...], out: Tensor) -> Tensor:
    """Behind the projection of queries, [batch, q_len, heads * head_dim]."""
    factors: Tensor = projection.tsallis_factors
    projection.tsallis_factors = None
    by_head = out.view(*out.shape[:-1], factors.shape[-1], -1)
    return (by_head * factors[..., None].to(out.dtype)).flatten(-2)


def _turn_nothing(
    module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before attention: cosines of 1 and sines of 0."""
    if named.get("position_embeddings") is None:
        raise ValueError(
            f"position_embeddings: expected in the call of {type(module).__name__}, which is a "
            "layer without rotation, got None"
        )
    cos, sin = named["position_embeddings"]
    turned = (torch.ones_like(cos), torch.zeros_like(sin))
    return arguments, named | {"position_embeddings": turned}


def add_queries(model: Any) -> None:
    """Gives attention modules what the model's config records, once."""
    config = model.config
    kind = getattr(config, "tsallis_query_scale", None)
    layers = getattr(config, "tsallis_unrotated_layers", None) or ()
    if kind is None and not layers:
        return
    for part in attention_modules(model):
        if kind is not None and not hasattr(part, "tsallis_query_scale"):
            if not hasattr(part, "q_proj") or hasattr(part, "q_norm"):
                raise ValueError(
                    f"model: expected q_proj without a norm behind it, got {type(part).__name__}"
                )
            part.tsallis_query_scale = _KINDS[kind](config.hidden_size, config.num_attention_heads)
            part.register_forward_pre_hook(_keep_factors, with_kwargs=True)
            part.q_proj.register_forward_hook(_use_factors)
        if getattr(part, "layer_idx", None) in layers and not hasattr(part, "tsallis_unrotated"):
            part.tsallis_unrotated = True
            part.register_forward_pre_hook(_turn_nothing, with_kwargs=True)


def scale_queries(model: Any, kind: str) -> None:
    """Multiplies the queries of every attention module by factors that are learned with the model.

    The parameters, ``tsallis_query_scale`` of every attention module, are the model's, in its dtype
    and on its device: an optimiser made afterwards trains them, `save_pretrained` saves them.

    Args:
        model: one of Hugging Face's whose attention has a q_proj without a norm behind it, and is
            told ``position_ids``.
        kind: "log": c (1 + b ln(1 + i)) for each head. "sharpen": the same with c >= 1
            and b >= 0 (`LogScale.project` after every step). "asentmax": 1 + beta ln(i + 2)^gamma
            read off each query's input (Vasylenko et al. 2025). All begin at 1 or within 2 % of it.

    Raises:
        ValueError: an unknown kind, another kind than the model has, or a model that is not served.
    """
    if kind not in _KINDS:
        raise ValueError(f"kind: expected one of {', '.join(_KINDS)}, got {kind!r}")
    there = getattr(model.config, "tsallis_query_scale", None)
    if there not in (None, kind):
        raise ValueError(f"kind: expected {there!r}, which the model has already, got {kind!r}")
    model.config.tsallis_query_scale = kind
    try:
        add_queries(model)
    except ValueError:
        del model.config.tsallis_query_scale
        raise
    weight = next(model.parameters())
    for part in attention_modules(model):
        part.tsallis_query_scale.to(device=weight.device, dtype=weight.dtype)


def unrotate(model: Any, layers: list[int]) -> None:
    """Takes the rotation of queries and keys out of some layers.

    Args:
        model: one of Hugging Face's whose attention modules get ``position_embeddings``.
        layers: their numbers from 0. Those that have none already stay without.

    Raises:
        ValueError: a number that no layer has, or a model without attention modules.
    """
    count = model.config.num_hidden_layers
    if wrong := [layer for layer in layers if not 0 <= layer < count]:
        raise ValueError(f"layers: expected numbers in [0, {count}), got {wrong[0]}")
    there = getattr(model.config, "tsallis_unrotated_layers", None) or ()
    model.config.tsallis_unrotated_layers = sorted({*there, *layers})
    add_queries(model)
