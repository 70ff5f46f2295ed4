"""Which attention a model asks for: the engine's arguments, the environment, the model's config."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

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

    def alpha_of(self, layer: int) -> Any:
        """A number, or a list of one for each head of the model."""
        return self.alpha[layer] if isinstance(self.alpha, list | tuple) else self.alpha


def settings_of(config: Any) -> Settings | None:
    """What a VllmConfig asks for; None: nothing of ours.

    ``--additional-config '{"tsallis": {"map": "entmax", "alpha": 1.5, "screen": true}}'`` goes
    before TSALLIS_ATTENTION, and that before ``tsallis_map`` and ``tsallis_alpha`` of the model.

    Raises:
        ValueError: names the setting, what was expected and what came.
    """
    own = dict((config.additional_config or {}).get("tsallis", {}))
    model = config.model_config.hf_text_config
    if unknown := set(own) - {"map", "alpha", "screen"}:
        raise ValueError(
            f"tsallis: expected map, alpha or screen, got {', '.join(sorted(unknown))}"
        )
    kind, alpha = own.get("map"), own.get("alpha")
    if kind is None and (name := os.environ.get(VARIABLE)):
        if name not in _NAMES:
            raise ValueError(f"{VARIABLE}: expected one of {', '.join(_NAMES)}, got {name}")
        kind, fixed = _NAMES[name]
        alpha = fixed if alpha is None else alpha
    kind = getattr(model, "tsallis_map", None) if kind is None else kind
    if kind is None:
        for where, given in (("tsallis", own), ("tsallis_alpha", _of(model, "alpha"))):
            if given:
                raise ValueError(
                    f"tsallis_map: expected in the model's config, or map beside tsallis, or "
                    f"{VARIABLE}, since there is {where} = {given!r}, got none"
                )
        return None
    if kind not in ("entmax", "softmax"):
        raise ValueError(f"tsallis_map: expected 'entmax' or 'softmax', got {kind!r}")
    if kind == "softmax":
        return Settings(kind, None, False)
    if alpha is None and _of(model, "learned_alpha"):
        raise ValueError(
            "tsallis_learned_alpha: expected a list tsallis_alpha, as "
            "tsallis.integrations.transformers.export writes it, got alphas among the weights"
        )
    alpha = _of(model, "alpha") if alpha is None else alpha
    _check(alpha, model)
    return Settings(kind, alpha, bool(own.get("screen", True)))


def _of(model: Any, name: str) -> Any:
    return getattr(model, f"tsallis_{name}", None)


def _check(alpha: Any, model: Any) -> None:
    """ValueError for an alpha that the layers and heads of a model cannot use."""
    layers, heads = model.num_hidden_layers, model.num_attention_heads
    entries = alpha if isinstance(alpha, list | tuple) else [alpha]
    if isinstance(alpha, list | tuple) and len(alpha) != layers:
        raise ValueError(
            f"tsallis_alpha: expected a number or one entry for each of {layers} layers, got "
            f"{len(alpha)}"
        )
    for layer, entry in enumerate(entries):
        several = isinstance(entry, list | tuple)
        if several and len(entry) != heads:
            raise ValueError(
                f"tsallis_alpha[{layer}]: expected a number or one for each of {heads} heads, got "
                f"{len(entry)}"
            )
        for number in entry if several else [entry]:
            try:
                check_alpha(number, heads)
            except (TypeError, ValueError) as error:
                raise ValueError(f"tsallis_{error}") from None
