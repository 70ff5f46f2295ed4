"""Sparse attention in the models of Hugging Face's transformers.

::

    from tsallis.integrations import transformers as tsallis_transformers

    tsallis_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tsallis_entmax15")

Works for the models whose attention goes through transformers' attention interface, with padding on
either side, grouped heads, sliding windows, attention sinks, caches and gradient checkpointing.
Everything else raises `ValueError`: a model that transformers does not let other implementations
serve, an argument of its attention that is not understood here, a module that does not say whether
it is causal.

The alpha of "tsallis_entmax" is the attention module's attribute ``tsallis_alpha`` if it has one (a
number, a tensor, or a module such as `tsallis.nn.LearnedAlpha`, which is then trained with the
model), else ``config.tsallis_alpha``: a number, or a list with one entry for each layer, each a
number or a list of one for each head. `learn_alpha` gives every attention module a `LearnedAlpha`
and saves them with the model. `scale_queries` does the same for factors that grow with the
position, `unrotate` takes the rotation out of layers. `save_pretrained` writes the name of our
attention into ``config.json``: after `register` the model comes back with it, without `register`
transformers refuses to load the model. `export` writes a model that names its map and its alphas,
for engines that serve it.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from tsallis._attention import attention
from tsallis._cache import decode
from tsallis._dense import check_heads, dense_attention
from tsallis.integrations.transformers_batching import (
    BATCH_ARGUMENTS,
    allow_batching,
    batch_attention,
)
from tsallis.integrations.transformers_cache import PagedRows, TsallisCache
from tsallis.integrations.transformers_queries import (
    QUERY_KEYS,
    SCALES,
    add_queries,
    attention_modules,
    scale_queries,
    unrotate,
)
from tsallis.nn.alpha import LearnedAlpha, alpha_value, check_alpha
from tsallis_vllm import PREFIX

_active_collector: Any = None
with contextlib.suppress(ImportError):  # from version 5 on
    from transformers.utils.output_capturing import _active_collector

__all__ = [
    "NAMES",
    "TsallisCache",
    "export",
    "learn_alpha",
    "observe",
    "observe_calls",
    "register",
    "scale_queries",
    "unrotate",
]

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


# Arguments that models hand through their layers and that say nothing about which keys are seen,
# beside what the mask says.
_NOT_OURS = frozenset(
    {
        "cache_position",
        "deterministic",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "shift_labels",
        "sliding_window",
        "tokenizer",  # of stop strings: generate hands it on
        "use_cache",
    }
)


def _refuse_unknown(module: nn.Module, arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if value is None or name in _NOT_OURS:
            continue
        raise ValueError(
            f"{name}: expected None, for {type(module).__name__} passes its attention an argument "
            f"that tsallis does not understand, got {type(value).__name__}"
        )


def _check_model(model: PreTrainedModel) -> None:
    """ValueError if a model would not use our attention, or not with the mask that it needs."""
    name = type(model).__name__
    refused = (
        f'attn_implementation: expected one of transformers\' own for {name}, got "tsallis_..."'
    )
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{refused}: its attention does not go through transformers' attention interface"
        )
    # Such a class is chosen by the name of one of transformers' implementations when the model is
    # made: a later request would leave its softmax (the vision encoder of SAM).
    source = inspect.getsource(sys.modules[type(model).__module__])
    if re.search(r"_CLASSES\[\s*[\w.]*_attn_implementation\s*\]", source):
        raise ValueError(
            f"{refused}: it picks attention classes from a table of transformers' implementations"
        )
    flexible = getattr(model, "_supports_attention_backend", False) and getattr(
        model, "_supports_flex_attn", False
    )
    # A mask may be left out where modules say whether they are causal. Models that declare neither
    # support do not keep to that, and some of them choose keys in a way that no mask shows.
    if not (model._supports_sdpa or flexible):
        raise ValueError(f'{refused}: the class does not declare support for "sdpa"')


def _check_requested(model: PreTrainedModel, requested: str | dict[str, Any] | None) -> None:
    """The same for a model and those inside it that a request is for."""
    if isinstance(requested, str):
        if requested in _IMPLEMENTATIONS:
            for part in model.modules():
                if isinstance(part, PreTrainedModel):
                    _check_model(part)
    elif requested:
        parts = {id(model.config): requested.get("")}
        parts |= {
            id(getattr(model.config, key, None)): own for key, own in requested.items() if key
        }
        for part in model.modules():
            if isinstance(part, PreTrainedModel) and parts.get(id(part.config)) in NAMES:
                _check_model(part)


def _add_alphas(model: PreTrainedModel) -> None:
    """Gives attention modules the alphas that the model's config records."""
    record = getattr(model.config, "tsallis_learned_alpha", None)
    if record is None:
        return
    for module in model.modules():
        if type(module).__name__ in record["modules"] and not hasattr(module, "tsallis_alpha"):
            bounds = {key: record[key] for key in ("initial", "low", "high")}
            module.tsallis_alpha = LearnedAlpha(record["heads"], **bounds)


def _add_recorded(model: PreTrainedModel) -> None:
    """Gives a model that is being made what its config records of ours."""
    _add_alphas(model)
    add_queries(model)


def _reset_ours(module: Any) -> None:
    """Gives parameters that a checkpoint lacks their start, which transformers does not know."""
    if not isinstance(module, (LearnedAlpha, *SCALES)):
        return
    if not any(
        getattr(part, "_is_hf_initialized", False) for part in (module, *module.parameters())
    ):
        module.reset_parameters()


def _name_attention(model: PreTrainedModel, _: Any) -> None:
    """Before a model is saved: its config names our attention, so that no other reads it."""
    name = model.config._attn_implementation
    if name in NAMES:
        model.config.attn_implementation = name
    elif getattr(model.config, "attn_implementation", None) in NAMES:
        del model.config.attn_implementation


def learn_alpha(
    model: PreTrainedModel, initial: float = 1.5, low: float = 1.0, high: float | None = 2.0
) -> None:
    """Gives every attention module of a model one learned alpha for each head, and uses them.

    The alphas are parameters of the model, in its dtype and on its device: an optimiser made
    afterwards trains them. `save_pretrained` saves them, and `from_pretrained` brings them back if
    `register` was called before. Learned alphas with the same bounds that are there already stay.

    Args:
        model: one that `register`'s implementations serve.
        initial: the alpha to start from, as in `tsallis.nn.LearnedAlpha`.
        low: the lower bound.
        high: the upper bound; None: none.

    Raises:
        ValueError: the model is refused, has no attention module, another number of heads in some
            of them, or alphas with other bounds; or a bound is wrong. Nothing is changed then.
    """
    register()
    bounds = {"initial": initial, "low": low, "high": high}
    LearnedAlpha(None, initial, low, high)  # names a wrong bound before anything is changed
    parts = attention_modules(model)
    heads = getattr(model.config, "num_attention_heads", None)
    if not isinstance(heads, int):
        raise ValueError(
            f"model: expected num_attention_heads in its config, got {type(model.config).__name__} "
            "without: call learn_alpha for the text or the vision model inside it"
        )
    for part in parts:
        own = getattr(part, "num_heads", heads)
        if own != heads:
            raise ValueError(
                f"model: expected {heads} heads in every attention module, as its config says, got "
                f"{own} in a {type(part).__name__}"
            )
        there = getattr(part, "tsallis_alpha", None)
        # The config records one pair of bounds: other alphas would come back as other numbers.
        if there is not None and not (
            isinstance(there, LearnedAlpha)
            and (there.low, there.high, there.raw.shape) == (low, high, (heads,))
        ):
            raise ValueError(
                f"model: expected no tsallis_alpha yet, or learned ones of {heads} heads in "
                f"({low}, {high}), got {there} in a {type(part).__name__}"
            )
    model.set_attn_implementation("tsallis_entmax")
    classes = sorted({type(part).__name__ for part in parts})
    model.config.tsallis_learned_alpha = {"modules": classes, "heads": heads, **bounds}
    _add_alphas(model)
    weight = next(model.parameters())
    for part in model.modules():
        if isinstance(part, LearnedAlpha):
            part.to(device=weight.device, dtype=weight.dtype)


def export(model: PreTrainedModel, folder: str | os.PathLike[str]) -> None:
    """Writes a model as `save_pretrained` does, with its attention in ``config.json``.

    ``tsallis_map`` is "entmax" or "softmax", and ``tsallis_alpha`` of entmax a number or a list by
    layers. Learned alphas go into that list, and not into the weights: `from_pretrained` brings
    them back as numbers, which are trained no further. The architecture of a model that is not a
    softmax model alone is written as "Tsallis" and its name, so that an engine that knows no other
    refuses the model. transformers does not read that name: it reads ``attn_implementation``, and
    refuses the model before `register`. The model itself is left as it is.

    Args:
        model: one with "tsallis_entmax", "tsallis_entmax15", "tsallis_sparsemax" or
            "tsallis_softmax".
        folder: where to write to.

    Raises:
        ValueError: the model has another attention, or alphas that are not those of its layers.
    """
    name = model.config._attn_implementation
    map, alpha = _IMPLEMENTATIONS.get(name, (None, None))
    if map not in ("entmax", "softmax"):
        raise ValueError(f"model: expected entmax or softmax of tsallis, got {name!r}")
    if map == "entmax" and alpha is None:
        alpha = _alphas(model)
    weights = {
        key: value for key, value in model.state_dict().items() if ".tsallis_alpha." not in key
    }
    model.save_pretrained(folder, state_dict=weights)
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text())
    for key in ("tsallis_alpha", "tsallis_learned_alpha", "attn_implementation"):
        config.pop(key, None)
    config["tsallis_map"] = map
    if map == "entmax":
        config["tsallis_alpha"] = alpha
    if map == "entmax" or any(config.get(key) for key in QUERY_KEYS):
        config["architectures"] = [PREFIX + type(model).__name__]
        config["attn_implementation"] = f"tsallis_{map}"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _alphas(model: PreTrainedModel) -> Any:
    """What ``config.tsallis_alpha`` has to be: that of the config, or a list of learned alphas."""
    own = {
        getattr(part, "layer_idx", None): part.tsallis_alpha
        for part in model.modules()
        if hasattr(part, "is_causal") and getattr(part, "tsallis_alpha", None) is not None
    }
    if not own:
        alpha = getattr(model.config, "tsallis_alpha", None)
        if alpha is None:
            raise ValueError("tsallis_alpha: expected in the model's config, got None")
        return alpha
    layers = getattr(model.config, "num_hidden_layers", len(own))
    if own.keys() != set(range(layers)):
        raise ValueError(
            f"model: expected an attention module with tsallis_alpha in each of {layers} layers, "
            f"got layers {list(own)}"
        )
    with torch.no_grad():
        values = [alpha_value(own[layer]) for layer in range(layers)]
    return [v.tolist() if isinstance(v, Tensor) else v for v in values]


def _watch(method: str, check: Callable[[PreTrainedModel, Any], None]) -> None:
    """Has a method of transformers' models check what is requested before it goes on; once."""
    plain = getattr(PreTrainedModel, method)
    if getattr(plain, "checked_by_tsallis", False):
        return

    signature = inspect.signature(plain)

    @wraps(plain)
    def checked(*arguments: Any, **more: Any) -> Any:
        model, *rest = signature.bind(*arguments, **more).arguments.values()
        check(model, rest[0] if rest else None)
        return plain(*arguments, **more)

    checked.checked_by_tsallis = True  # type: ignore[attr-defined]
    setattr(PreTrainedModel, method, checked)


def _mask(*arguments: Any, config: Any = None, **more: Any) -> Tensor | None:
    """transformers' boolean mask; None where the module's `is_causal` says as much.

    Layers that share keys (Gemma 3n, Gemma 4) may drop the first queries; causal without a mask
    would then mean something else.
    """
    if getattr(config, "num_kv_shared_layers", 0):
        more["allow_is_causal_skip"] = False
    mask: Tensor | None = sdpa_mask(*arguments, config=config, **more)
    return mask


def _weights_wanted(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether the caller of the model asked for attention weights; models may drop the argument."""
    if arguments.get("output_attentions") or getattr(
        getattr(module, "config", None), "output_attentions", False
    ):
        return True
    collected = None if _active_collector is None else _active_collector.get()
    return collected is not None and any("attentions" in key for key in collected)


def _alpha_of(module: nn.Module, query: Tensor) -> float | Tensor:
    """The alpha that a module's attribute or its config names."""
    own = getattr(module, "tsallis_alpha", None)
    if own is not None:
        value = alpha_value(own)
        try:
            if isinstance(value, Tensor):
                check_heads(value, query.shape[1])
            else:
                check_alpha(value, query.shape[1])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{type(module).__name__}.tsallis_{error}") from None
        return value
    alpha = getattr(getattr(module, "config", None), "tsallis_alpha", None)
    if alpha is None:
        raise ValueError(
            'tsallis_alpha: expected in the config of a model with attn_implementation="'
            'tsallis_entmax", e.g. model.config.tsallis_alpha = 1.5, got None'
        )
    where = "tsallis_alpha"
    if isinstance(alpha, (list, tuple)):
        layer = getattr(module, "layer_idx", None)
        layers = getattr(module.config, "num_hidden_layers", len(alpha))
        if layer is None or len(alpha) != layers or not 0 <= layer < layers:
            raise ValueError(
                f"tsallis_alpha: expected a number or one entry for each of {layers} layers, got "
                f"{len(alpha)} entries, for layer {layer}"
            )
        alpha, where = alpha[layer], f"tsallis_alpha[{layer}]"
    heads = query.shape[1]
    several = isinstance(alpha, (list, tuple))
    entries = list(alpha) if isinstance(alpha, (list, tuple)) else [alpha]
    if several and len(entries) != heads:
        raise ValueError(
            f"{where}: expected a number or one for each of {heads} heads, got {len(entries)}"
        )
    for entry in entries:
        if (
            isinstance(entry, bool)
            or not isinstance(entry, (int, float))
            or not 0 < entry < math.inf
        ):
            raise ValueError(f"{where}: expected finite numbers > 0, got {entry!r}")
    if several:
        return torch.tensor(entries, dtype=torch.float32, device=query.device)
    return float(entries[0])


_Look = Callable[[nn.Module, Tensor, Tensor], None]
_looks: list[_Look] = []


@contextlib.contextmanager
def observe(look: _Look) -> Iterator[None]:
    """Shows the sparsity of every attention that runs in the ``with`` block.

    Args:
        look: called as ``look(module, support_size, entropy)`` with two tensors [batch, heads,
            q_len]: the keys with a weight > 0 (int64), and the entropy of the weights in nats
            (float64). Not called where weights are stored (dropout, ``output_attentions``).
    """
    _looks.append(look)
    try:
        yield
    finally:
        _looks.remove(look)


_CallLook = Callable[[nn.Module, Tensor, Tensor, Tensor, dict[str, Any]], None]
_call_looks: list[_CallLook] = []


@contextlib.contextmanager
def observe_calls(look: _CallLook) -> Iterator[None]:
    """Shows the arguments of every attention on whole tensors that runs in the ``with`` block.

    Args:
        look: called as ``look(module, q, k, v, settings)`` before the attention runs, which is
            ``tsallis.attention(q, k, v, **settings)``. Not called for keys in pages, nor where
            weights are stored (dropout, ``output_attentions``).
    """
    _call_looks.append(look)
    try:
        yield
    finally:
        _call_looks.remove(look)


def _shown(module: nn.Module, found: Any) -> Tensor:
    """The output of a call with statistics, once every look has seen these."""
    out, extras = found
    for look in _looks:
        look(module, extras.support_size, extras.entropy)
    return out  # type: ignore[no-any-return]


def _decoded(
    module: nn.Module,
    query: Tensor,
    key: PagedRows,
    attention_mask: Tensor | None,
    terms: dict[str, Any],
) -> Tensor | None:
    """Attention on pages; None if `decode` does not serve it."""
    cache, q_len = key.layer.cache, query.shape[2]
    if cache.pages is None or query.dtype != key.dtype or query.requires_grad:
        return None
    begin = cache.first_seen(attention_mask, q_len, key.shape[2])
    if begin is None:
        return None
    # A number is not rounded to a tensor's dtype.
    alpha = terms["alpha"]
    alpha = alpha.flatten().expand(query.shape[1]) if isinstance(alpha, Tensor) else float(alpha)
    if not cache.pages.serves(q_len, begin, terms["map"], alpha):
        return None
    found = decode(
        query,
        cache.pages,
        key.layer.index,
        cache.sequences,
        begin=begin,
        returns=("support_size", "entropy") if _looks else (),
        **(terms | {"alpha": alpha}),
    )
    return _shown(module, found) if _looks else found


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    terms: dict[str, Any],
    *,
    dropout: float,
    is_causal: bool | None,
    position_bias: Tensor | None,
    weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """terms: map, alpha, scale, softcap and sink, as every kind of attention here takes them."""
    if isinstance(key, PagedRows):
        if not weights and dropout == 0 and position_bias is None:
            out = _decoded(module, query, key, attention_mask, terms)
            if out is not None:
                return out, None
        key, value = key.both()
    q_len, k_len = query.shape[2], key.shape[2]
    # Without a mask the interface means: causal if the module is, but a single query sees all keys,
    # and keys beyond the queries are places of the cache that are still empty.
    if is_causal is None:
        is_causal = getattr(module, "is_causal", None)
    if is_causal is None and attention_mask is None and q_len > 1:
        raise ValueError(
            f"attention_mask: expected a mask, for {type(module).__name__} has no is_causal that "
            "says whether queries see the keys after them, got None"
        )
    causal = bool(is_causal) and q_len > 1 and attention_mask is None
    bias, visible = position_bias, None
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            visible = attention_mask[..., :k_len]
        else:
            mask = attention_mask[..., :k_len]
            bias = mask if bias is None else bias + mask
    if not weights and dropout == 0:
        settings = terms | {
            "causal": causal,
            "alignment": "start",
            "mask": visible,
            "bias": bias,
        }
        for look in _call_looks:
            look(module, query, key, value, settings)
        returns: tuple[Any, ...] = ("support_size", "entropy") if _looks else ()
        found: Any = attention(query, key, value, returns=returns, **settings)
        return _shown(module, found) if _looks else found, None
    return dense_attention(
        query, key, value, bias=bias, visible=visible, causal=causal, dropout_p=dropout, **terms
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
        cache: Any = None,
        tsallis_alpha: float | Tensor | None = None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """transformers' attention function.

        query: [batch, heads, q_len, head_dim]; key, value: [batch, kv_heads, k_len, head_dim];
        s_aux: [heads], the scores of sinks; cache: the pages of continuous batching;
        tsallis_alpha: instead of the implementation's, where a call has a share of the heads.
        Returns [batch, q_len, heads, head_dim] and, only with ``output_attentions``, the weights.
        These and dropout in training store [q_len, k_len] weights.
        """
        batch = {}
        if cache is not None:
            batch = {name: rest.pop(name, None) for name in BATCH_ARGUMENTS}
        _refuse_unknown(module, rest)
        if tsallis_alpha is None:
            tsallis_alpha = _alpha_of(module, query) if alpha is None else alpha
        if s_aux is not None and map == "adaptive_temperature":
            raise ValueError("s_aux: expected None for adaptive temperature, got sinks")
        wanted = _weights_wanted(module, rest)
        terms = {"map": map, "alpha": tsallis_alpha, "scale": scaling}
        terms |= {"softcap": softcap, "sink": s_aux}
        if cache is not None:
            # The mask is that of the new tokens alone; lengths say what each of them sees.
            for name, refused in {
                "dropout": dropout > 0,
                "position_bias": position_bias is not None,
                "output_attentions": wanted,
            }.items():
                if refused:
                    raise ValueError(f"{name}: expected none in continuous batching, got one")
            found = batch_attention(
                module,
                query,
                key,
                value,
                cache,
                batch,
                returns=("support_size", "entropy") if _looks else (),
                **terms,
            )
            out = _shown(module, found) if _looks else found
            return out.transpose(1, 2).contiguous(), None
        out, weights = _attend(
            module,
            query,
            key,
            value,
            attention_mask,
            terms,
            dropout=dropout,
            is_causal=is_causal,
            position_bias=position_bias,
            weights=wanted,
        )
        return out.transpose(1, 2).contiguous(), weights

    return forward


def register() -> tuple[str, ...]:
    """Makes `NAMES` known to transformers, with boolean masks, and returns `NAMES`.

    It may be called more than once. When one of `NAMES` is requested for a model that would not use
    it, or would not give it the right mask, ValueError is raised: transformers itself would go on
    with softmax, or without a mask.
    """
    for name, (map, alpha) in _IMPLEMENTATIONS.items():
        ALL_ATTENTION_FUNCTIONS.register(name, _implementation(map, alpha))
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, _mask)

    allow_batching(NAMES)

    def check_one(model: PreTrainedModel, requested: Any) -> None:
        if requested in NAMES:
            _check_model(model)

    _watch("get_correct_attn_implementation", check_one)  # also when a model is made
    _watch("set_attn_implementation", _check_requested)
    _watch("post_init", lambda model, _: _add_recorded(model))  # before weights are loaded
    _watch("_initialize_weights", lambda _, module: _reset_ours(module))
    _watch("save_pretrained", _name_attention)
    return NAMES
