"""Sparse attention in the models of Hugging Face's transformers.

::

    from tsallis.integrations import transformers as tsallis_transformers

    tsallis_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tsallis_entmax15")

Works for the models whose attention goes through transformers' attention interface, with padding on
either side, grouped heads, sliding windows, attention sinks, caches and gradient checkpointing.

The alpha of "tsallis_entmax" is the attention module's attribute ``tsallis_alpha`` if it has one (a
number, a tensor, or a module such as `tsallis.nn.LearnedAlpha`, which is then trained with the
model), else ``config.tsallis_alpha``: a number, or a list with one entry for each layer, each a
number or a list of one for each head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tsallis._attention import attention
from tsallis._dense import dense_attention
from tsallis.nn.alpha import alpha_value

__all__ = ["NAMES", "register"]

_Map = Literal["softmax", "entmax", "adaptive_temperature"]

# name -> map and its alpha; None: from the module or its config
_IMPLEMENTATIONS: dict[str, tuple[_Map, float | None]] = {
    "tsallis_entmax": ("entmax", None),
    "tsallis_entmax15": ("entmax", 1.5),
    "tsallis_sparsemax": ("entmax", 2.0),
    "tsallis_softmax": ("softmax", 1.0),
    "tsallis_adaptive_temperature": ("adaptive_temperature", 1.0),
}

NAMES = tuple(_IMPLEMENTATIONS)
"""What ``attn_implementation`` may be after `register`."""


def _alpha_of(module: nn.Module, like: Tensor) -> float | Tensor:
    """The alpha that a module's attribute or its config names."""
    own = getattr(module, "tsallis_alpha", None)
    if own is not None:
        return alpha_value(own)
    alpha = getattr(getattr(module, "config", None), "tsallis_alpha", None)
    if alpha is None:
        raise ValueError(
            'tsallis_alpha: expected in the config of a model with attn_implementation="'
            'tsallis_entmax", e.g. model.config.tsallis_alpha = 1.5, got None'
        )
    if isinstance(alpha, (list, tuple)):
        layer = getattr(module, "layer_idx", None)
        if layer is None or not 0 <= layer < len(alpha):
            raise ValueError(
                f"tsallis_alpha: expected a number or one entry for each layer, got {len(alpha)} "
                f"entries, for layer {layer}"
            )
        alpha = alpha[layer]
    if isinstance(alpha, (list, tuple)):
        return torch.tensor(alpha, dtype=torch.float32, device=like.device)
    return float(alpha)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    map: _Map,
    alpha: float | Tensor,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    softcap: float | None,
    position_bias: Tensor | None,
    sink: Tensor | None,
    weights: bool,
) -> tuple[Tensor, Tensor | None]:
    q_len, k_len = query.shape[2], key.shape[2]
    # Without a mask the interface means: causal if the module is, but a single query sees all keys,
    # and keys beyond the queries are places of the cache that are still empty.
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(is_causal) and q_len > 1 and attention_mask is None
    bias, visible = position_bias, None
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            visible = attention_mask[..., :k_len]
        else:
            mask = attention_mask[..., :k_len]
            bias = mask if bias is None else bias + mask
    if not weights and dropout == 0 and softcap is None:
        out = attention(
            query,
            key,
            value,
            map=map,
            alpha=alpha,
            causal=causal,
            alignment="start",
            mask=visible,
            bias=bias,
            scale=scaling,
            sink=sink,
        )
        return out, None
    if causal:
        visible = torch.ones(q_len, k_len, dtype=torch.bool, device=query.device).tril()
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return dense_attention(
        query,
        key,
        value,
        bias=bias,
        visible=visible,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        map=map,
        alpha=alpha,
        dropout_p=dropout,
        softcap=softcap,
        sink=sink,
    )


def _implementation(map: _Map, alpha: float | None) -> Callable[..., Any]:
    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        position_bias: Tensor | None = None,
        s_aux: Tensor | None = None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """transformers' attention function.

        query: [batch, heads, q_len, head_dim]; key, value: [batch, kv_heads, k_len, head_dim];
        s_aux: [heads], the scores of sinks.
        Returns [batch, q_len, heads, head_dim] and, only with ``output_attentions``, the weights.
        These, dropout in training and soft-capping store [q_len, k_len] weights.
        """
        if rest.get("cache") is not None:
            raise ValueError("cache: expected None, tsallis has no paged cache here")
        if s_aux is not None and map == "adaptive_temperature":
            raise ValueError("s_aux: expected None for adaptive temperature, got sinks")
        out, weights = _attend(
            module,
            query,
            key,
            value,
            attention_mask,
            map=map,
            alpha=_alpha_of(module, query) if alpha is None else alpha,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            softcap=softcap,
            position_bias=position_bias,
            sink=s_aux,
            weights=bool(rest.get("output_attentions", False)),
        )
        return out.transpose(1, 2).contiguous(), weights

    return forward


def register() -> tuple[str, ...]:
    """Makes `NAMES` known to transformers, with boolean masks; returns them. Again is harmless."""
    for name, (map, alpha) in _IMPLEMENTATIONS.items():
        ALL_ATTENTION_FUNCTIONS.register(name, _implementation(map, alpha))
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
    return NAMES
