"""Calls operators, and says in our words what torch or the library refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["call", "choice", "chosen", "number", "numbers"]

_TYPE = re.compile(r"Expected a value of type '(.+?)' for argument '(\w+)'.* found type '(.+?)'")
_BACKEND = re.compile(r"Could not run '.+?' with arguments from the '(\w+)' backend")
# The library's own; torch from 2.15 on makes a RuntimeError of its exceptions.
_MISTAKE = re.compile(r"[a-z_.]+(\[[\d, ]+\])?: expected .*, got ", re.DOTALL)
# Arguments that an operator knows by another name than ours.
_NAMES = {
    "left": "window",
    "right": "window",
    "block_q": "block_size",
    "block_k": "block_size",
    "alpha_heads": "alpha",
    "alpha_rows": "alpha",
}
_TYPES = {"Tensor": "a tensor", "int": "an integer", "float": "a number", "str": "a name"}
_TYPES |= {"bool": "True or False", "List[float]": "numbers"}


def _mistake(error: Exception, tensors: dict[str, Any]) -> Exception | None:
    """The error that the user should see; None: ``error`` itself."""
    text = str(error)
    if isinstance(error, RuntimeError) and _MISTAKE.match(text):
        return ValueError(text.split("\nException raised from")[0])
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
        for name, value in tensors.items():
            if isinstance(value, Tensor) and (value.device.type != "cpu" or _odd(value)):
                return ValueError(
                    f"{name}: expected a dense tensor on the CPU, got {wrong[1]} on {value.device}"
                )
    for name, value in tensors.items():
        if isinstance(error, AttributeError) and not isinstance(value, Tensor):
            return TypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    return None


def _odd(tensor: Tensor) -> bool:
    return tensor.is_nested or tensor.layout != torch.strided


def call(
    function: Callable[..., Any],
    *arguments: Any,
    known_as: dict[str, str] | None = None,
    **tensors: Any,
) -> Any:
    """function(*tensors, *arguments). The tensors have the names that errors should have.

    known_as: names of operators' arguments, and what the caller calls them.

    Raises:
        TypeError: a value of another type than the operator's schema has.
        ValueError: names the argument, what was expected and what came.
    """
    try:
        return function(*tensors.values(), *arguments)
    except (RuntimeError, AttributeError, ValueError, TypeError) as error:
        for settings in arguments:
            if isinstance(settings, dict):
                terms = {n: x for n, x in settings.items() if isinstance(x, Tensor)}
                tensors |= {_NAMES.get(n, n): x for n, x in terms.items()}
        mistake = _mistake(error, tensors)
        if known_as is not None and isinstance(mistake or error, ValueError | TypeError):
            text = str(mistake or error)
            for name, ours in known_as.items():
                text = re.sub(rf"\b{name}\b", ours, text)
            mistake = type(mistake or error)(text)
        if mistake is None:
            raise
        raise mistake from None


def choice(value: Any, argument: str, names: Sequence[str]) -> int:
    """The place of a name among ``names``; an error that names the argument for another."""
    if not isinstance(value, str):
        raise TypeError(f"{argument}: expected a name, got {type(value).__name__}")
    if value not in names:
        if len(names) == 2:
            expected, value = " or ".join(f'"{name}"' for name in names), f'"{value}"'
        else:
            expected = "one of " + ", ".join(names)
        raise ValueError(f"{argument}: expected {expected}, got {value}")
    return names.index(value)


def chosen(returns: str | Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names of what a call should return, each once; ValueError for one that is not known."""
    if isinstance(returns, tuple) and not returns:
        return returns
    if not isinstance(returns, str | Iterable):
        raise TypeError(f"returns: expected names, got {returns!r}")
    names = (returns,) if isinstance(returns, str) else tuple(dict.fromkeys(returns))
    for name in names:
        if name not in known:
            raise ValueError(f"returns: expected names out of {', '.join(known)}, got {name!r}")
    return names


def number(value: Any, name: str) -> float:
    """``value`` as a float; TypeError with its name for what is no number."""
    if isinstance(value, str) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if isinstance(value, Tensor) and value.numel() != 1:
        raise TypeError(f"{name}: expected a number, got a tensor of shape {list(value.shape)}")
    return float(value)


def numbers(values: Sequence[float] | None, name: str) -> list[float] | None:
    """``values`` as floats; None stays None."""
    if values is None:
        return None
    if not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected numbers, got {values!r}")
    return [number(value, name) for value in values]
