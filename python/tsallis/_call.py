"""Calls operators, and says in our words what torch's dispatcher refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["call", "chosen", "number", "numbers"]

_TYPE = re.compile(r"Expected a value of type '(.+?)' for argument '(\w+)'.* found type '(.+?)'")
_BACKEND = re.compile(r"Could not run '.+?' with arguments from the '(\w+)' backend")
_TRANSFORM = "torch::autograd::Function with functorch transforms"
# Arguments that an operator knows by another name than ours.
_NAMES = {
    "left": "window",
    "right": "window",
    "block_q": "block_size",
    "block_k": "block_size",
}
_TYPES = {"Tensor": "a tensor", "int": "an integer", "float": "a number", "str": "a name"}
_TYPES |= {"bool": "True or False", "List[float]": "numbers"}


def _mistake(error: RuntimeError, operator: Any, arguments: tuple[Any, ...]) -> Exception | None:
    """The error that the user should see; None: ``error`` itself."""
    text = str(error)
    if _TRANSFORM in text:
        return NotImplementedError(
            "tsallis: torch.func.grad, vjp and jacrev are not supported; use backward() or "
            "torch.autograd.grad for a gradient, torch.autograd.functional.vjp or "
            "torch.autograd.functional.jacobian for the others"
        )
    if wrong := _TYPE.search(text):
        expected, name, came = wrong.groups()
        optional = expected.startswith("Optional[")
        expected = expected.removeprefix("Optional[").removesuffix("]" if optional else "")
        if expected == came == "int":
            return ValueError(
                f"{_NAMES.get(name, name)}: expected an integer from -2^63 to 2^63 - 1, got one "
                "beyond"
            )
        expected = _TYPES.get(expected, expected) + (" or None" if optional else "")
        return TypeError(f"{_NAMES.get(name, name)}: expected {expected}, got {came}")
    if wrong := _BACKEND.search(text):
        for argument, value in zip(operator.default._schema.arguments, arguments, strict=False):
            if isinstance(value, Tensor) and (value.device.type != "cpu" or _odd(value)):
                return ValueError(
                    f"{argument.name}: expected a dense tensor on the CPU, the device that "
                    f"{operator.default._schema.name.removeprefix('tsallis::')} has kernels for, "
                    f"got {wrong[1]} on {value.device}"
                )
    return None


def _odd(tensor: Tensor) -> bool:
    return tensor.is_nested or tensor.layout != torch.strided


def call(operator: Any, *arguments: Any, **settings: Any) -> Any:
    """The operator's answer.

    Raises:
        TypeError: a value of another type than the operator's schema has.
        ValueError: a tensor on a device, or of a kind, without kernels; an integer out of range.
        NotImplementedError: a transform of torch.func that torch refuses.
    """
    try:
        return operator(*arguments, **settings)
    except RuntimeError as error:
        mistake = _mistake(error, operator, arguments)
        if mistake is None:
            raise
        raise mistake from None


def chosen(returns: str | Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names of what a call should return, each once; ValueError for one that is not known."""
    names = (returns,) if isinstance(returns, str) else tuple(dict.fromkeys(returns))
    for name in names:
        if name not in known:
            raise ValueError(f"returns: expected names out of {', '.join(known)}, got {name!r}")
    return names


def number(value: Any, name: str) -> float:
    """``value`` as a float; TypeError with its name for what is no number."""
    if isinstance(value, str) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    return float(value)


def numbers(values: Sequence[float] | None, name: str) -> list[float] | None:
    """``values`` as floats; None stays None."""
    return None if values is None else [number(value, name) for value in values]
