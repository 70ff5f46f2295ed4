"""Which attention a model asks for: the engine's arguments, the environment, the model's config."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tsallis.integrations.transformers_queries import QUERY_KEYS
from tsallis.nn.alpha import check_alpha

__all__ = ["Settings", "settings_of"]

VARIABLE = "TSALLIS_ATTENTION"

# The names of `tsallis.integrations.transformers` without their "tsallis_": map, alpha.
_NAMES: dict[str, tuple[str, float | None]] = {
    "entmax": ("entmax", None),
    "entmax15": ("entmax", 1.5),
    "sparsemax": ("entmax", 2.0),
    "softmax": ("softmax", None),
}


@dataclass(frozen=True)
class Settings:
    """alpha: a number, or an entry for each layer, a number or a list of one for each head."""

    map: str
    alpha: Any
    screen: bool

    def __str__(self) -> str:
        if self.map == "softmax":
            return "softmax"
        alpha = "by layers" if isinstance(self.alpha, list | tuple) else self.alpha
        return f"entmax, alpha {alpha}, " + ("screened by bytes" if self.screen else "unscreened")


def settings_of(config: Any) -> Settings | None:
    """What a VllmConfig asks for; None: nothing of ours.

    ``--additional-config '{"tsallis": {"map": "entmax", "alpha": 1.5, "screen": true}}'`` goes
    before TSALLIS_ATTENTION, and that before ``tsallis_map`` and ``tsallis_alpha`` of the model.

    Raises:
        ValueError: names the setting, what was expected and what came.
    """
    own = dict((config.additional_config or {}).get("tsallis", {}))
    model = config.model_config.hf_text_config
    if unknown := sorted(set(own) - {"map", "alpha", "screen"}):
        raise _wrong("tsallis", "map, alpha or screen", ", ".join(unknown))
    kind, alpha = own.get("map"), own.get("alpha")
    if kind is None and (name := os.environ.get(VARIABLE)):
        if name not in _NAMES:
            raise _wrong(VARIABLE, f"one of {', '.join(_NAMES)}", name)
        kind, fixed = _NAMES[name]
        alpha = fixed if alpha is None else alpha
    for key in QUERY_KEYS:
        if refused := getattr(model, key, None):
            raise _wrong(key, "none, which transformers alone serves", repr(refused))
    recorded = {key: getattr(model, f"tsallis_{key}", None) for key in ("map", "alpha")}
    kind = recorded["map"] if kind is None else kind
    if kind is None and not own and recorded["alpha"] is None:
        return None
    if kind is None:
        where = f"in the model's config, or map beside alpha, or {VARIABLE}"
        raise _wrong("tsallis_map", where, f"none, but {own or recorded}")
    if kind not in ("entmax", "softmax"):
        raise _wrong("tsallis_map", "'entmax' or 'softmax'", repr(kind))
    if kind == "softmax":
        return Settings(kind, None, False)
    if alpha is None and getattr(model, "tsallis_learned_alpha", None):
        exported = "a list tsallis_alpha, as tsallis.integrations.transformers.export writes it"
        raise _wrong("tsallis_learned_alpha", exported, "alphas among the weights")
    alpha = recorded["alpha"] if alpha is None else alpha
    _check(alpha, model.num_hidden_layers, model.num_attention_heads)
    return Settings(kind, alpha, bool(own.get("screen", True)))


def _wrong(name: str, expected: str, came: object) -> ValueError:
    return ValueError(f"{name}: expected {expected}, got {came}")


def _check(alpha: Any, layers: int, heads: int) -> None:
    """ValueError for an alpha that the layers and heads of a model cannot use."""
    by_layer = list(alpha) if isinstance(alpha, list | tuple) else [alpha] * layers
    if len(by_layer) != layers:
        one = f"a number or one entry for each of {layers} layers"
        raise _wrong("tsallis_alpha", one, len(by_layer))
    for layer, entry in enumerate(by_layer):
        by_head = list(entry) if isinstance(entry, list | tuple) else [entry] * heads
        if len(by_head) != heads:
            one = f"a number or one for each of {heads} heads"
            raise _wrong(f"tsallis_alpha[{layer}]", one, len(by_head))
        for number in by_head:
            try:
                check_alpha(number, heads)
            except (TypeError, ValueError) as error:
                raise ValueError(f"tsallis_{error}") from None
