"""A conversion's choices: the map, a factor of the queries, and positions. A row each.

A method is a name of `MAPS`, with one of `SCALES` and one of `POSITIONS` behind it, joined by "+":
"entmax", "softmax+sharpen", "learned+log+ntk".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import ConvertError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class MethodError(ConvertError):
    """A method is not of the tables; the text goes to the user."""


@dataclass(frozen=True)
class Map:
    """alpha: how entmax's alpha comes about; None: softmax. softened: begins with softer queries
    (`start.matched`)."""

    label: str
    attention: str
    alpha: str | None = None
    softened: bool = False


@dataclass(frozen=True)
class Scale:
    """kind: of `tsallis_transformers.scale_queries`. rates: of its parameters by their names' ends,
    in terms of the learning rate of weights."""

    label: str
    kind: str
    rates: Mapping[str, float]


@dataclass(frozen=True)
class Positions:
    """kind: of `rope`. unrotated: every so many layers one has no rotation; 0: none."""

    label: str
    kind: str = "rope"
    unrotated: int = 0


MAPS = {
    "entmax": Map("entmax", "tsallis_entmax", "fixed", softened=True),
    "softmax": Map("softmax", "tsallis_softmax"),
    "learned": Map("entmax, α learned", "tsallis_entmax", "learned", softened=True),
    "annealed": Map("entmax, α rising from 1", "tsallis_entmax", "rising"),
}

# Rates of "log" are those of the trial in which c and b moved and training stayed stable.
_LOG_RATES = {".c": 100.0, ".b": 30.0}
SCALES = {
    "log": Scale("learned scale", "log", _LOG_RATES),
    "sharpen": Scale("sharpening scale", "sharpen", _LOG_RATES),
    "asentmax": Scale("ASEntmax's scale", "asentmax", {".bias": 100.0}),
}

POSITIONS = {
    "ntk": Positions("NTK", "ntk"),
    "yarn": Positions("YaRN", "yarn"),
    "p-rope": Positions("p-RoPE", "p-rope"),
    "nope-fourth": Positions("every fourth layer without RoPE", unrotated=4),
    "nope": Positions("no RoPE", "nope"),
}

KINDS = ("rope", "ntk", "yarn", "p-rope", "nope")
READ = KINDS[:3]  # those that a model is read with beyond the length that it holds, by default
UNTOUCHED = "untouched"  # in a method's place: the model as it came
# The share of frequencies that p-RoPE keeps, from the fastest on (Barbero et al. 2025).
KEPT = 0.75


@dataclass(frozen=True)
class Method:
    name: str
    map: Map
    scale: Scale | None
    positions: Positions

    @property
    def label(self) -> str:
        parts = [self.map.label]
        parts += [self.scale.label] if self.scale else []
        parts += [self.positions.label] if self.positions.label else []
        return ", ".join(parts)


def method_of(name: str) -> Method:
    """The method of a name.

    Raises:
        MethodError: a part is not in its table, or there are two of one table.
    """
    first, *rest = name.split("+")
    if first not in MAPS:
        raise MethodError(f"--methods: expected of {', '.join(MAPS)}, got {first!r} in {name!r}")
    scales = [part for part in rest if part in SCALES]
    positions = [part for part in rest if part in POSITIONS]
    if len(scales) > 1 or len(positions) > 1 or len(scales) + len(positions) < len(rest):
        raise MethodError(
            f"--methods: expected behind {first}+ one of {', '.join(SCALES)} and one of "
            f"{', '.join(POSITIONS)}, got {name!r}"
        )
    return Method(
        "+".join((first, *scales, *positions)),
        MAPS[first],
        SCALES[scales[0]] if scales else None,
        POSITIONS[positions[0]] if positions else Positions(""),
    )


def takes_yarn(config: PreTrainedConfig) -> bool:
    """Whether the model's frequencies are RoPE's own, which is what YaRN changes."""
    return bool(config.rope_parameters.get("rope_type", "default") == "default")


def rope(config: PreTrainedConfig, kind: str, length: int) -> dict[str, Any]:
    """``rope_parameters`` of transformers for a model that is read at ``length`` tokens.

    Args:
        config: of the model, whose ``max_position_embeddings`` is the length that it holds.
        kind: "rope": as the model has them. "ntk": the base times (length / held)^(d / (d - 2)),
            which turns the slowest pair of dimensions as far at ``length`` as it turned at the
            length that the model holds. "yarn": Peng et al. 2023 with the factor length / held.
            "p-rope": the slowest quarter of the pairs is not turned. "nope": no pair is.
        length: tokens; up to the length that the model holds "ntk" and "yarn" change nothing.

    Raises:
        ValueError: an unknown kind, or YaRN where the model's frequencies are changed already.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    own: dict[str, Any] = dict(config.rope_parameters)
    held = config.max_position_embeddings
    if kind == "yarn" and not takes_yarn(config):
        raise ValueError(f"kind: expected one beside yarn for {own['rope_type']}, got yarn")
    if kind in ("p-rope", "nope"):
        share = KEPT if kind == "p-rope" else 0.0
        return own | {"rope_type": "proportional", "partial_rotary_factor": share}
    if kind == "rope" or length <= held:
        return own
    if kind == "ntk":
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        return own | {"rope_theta": own["rope_theta"] * (length / held) ** (width / (width - 2))}
    more = {"factor": length / held, "original_max_position_embeddings": held}
    return own | {"rope_type": "yarn", **more}


def set_rope(model: PreTrainedModel, parameters: dict[str, Any]) -> None:
    """Gives a model other ``rope_parameters``, which its config then names.

    Raises:
        MethodError: the model makes its rotation in another way than by one ``rotary_emb``.
    """
    body = model.base_model
    rotary: Any = getattr(body, "rotary_emb", None)
    if rotary is None:
        raise MethodError(f"MODEL: expected a rotary_emb to change, got {type(body).__name__}")
    if parameters == model.config.rope_parameters:
        return
    model.config.rope_parameters = parameters
    made = type(rotary)(model.config)
    body.rotary_emb = made.to(rotary.inv_freq.device)


@contextmanager
def with_rope(model: PreTrainedModel, parameters: dict[str, Any]) -> Iterator[None]:
    """Reads a model with other ``rope_parameters`` for the time of the block."""
    former = dict(model.config.rope_parameters)
    set_rope(model, parameters)
    try:
        yield
    finally:
        set_rope(model, former)
