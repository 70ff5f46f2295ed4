"""Row maps and their losses as functions.

All maps take scores of any rank from 1, dtype float32, float64, bfloat16 or float16 and any
strides, and return probabilities of the same shape and dtype, contiguous. 16-bit scores are
computed in float32. Under ``torch.autocast`` scores are cast to float32 first, as torch does for
softmax on accelerators.

At the edges: a score of -inf gets probability 0 and gradient 0; a row of -inf only gets
probabilities 0; a NaN or +inf makes its own row NaN.

First derivatives in reverse mode only, by ``backward``, ``torch.autograd`` and ``torch.func``
(``grad``, ``vjp``, ``jacrev``): differentiating a gradient again raises ``NotImplementedError``, as
does forward-mode differentiation (``torch.func.jvp``, ``jacfwd``, ``hessian``). ``torch.vmap``
makes one call of all slices.

Errors: ``ValueError``, and ``TypeError`` for a value of the wrong type, name the argument, what was
expected and what came; ``IndexError`` for ``dim`` out of range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from tsallis import _autograd, _ops
from tsallis._call import call, number, numbers

__all__ = [
    "AdaptiveTemperatureFit",
    "Reduction",
    "RowStats",
    "adaptive_temperature_softmax",
    "budget",
    "entmax",
    "entmax_loss",
    "fit_adaptive_temperature",
    "is_row_map",
    "normmax",
    "normmax_loss",
    "row_map",
    "row_stats",
    "softmax",
    "softmax_loss",
    "sparsemax",
    "sparsemax_loss",
]

_DEFAULTS = {
    argument.name: argument.default_value
    for argument in torch.ops.tsallis.row_map.default._schema.arguments
    if argument.has_default_value()
}
_MAPS = {name: place for place, name in enumerate(_ops.MAPS)}
Reduction = Literal["mean", "sum", "none"]


class RowStats(NamedTuple):
    """Statistics of every row, without gradients. Shape: that of the scores less ``dim``.

    Attributes:
        tau: the threshold in z = (alpha - 1) x / temperature for entmax with alpha != 1; the
            log-sum-exp of x / temperature for softmax, entmax with alpha = 1 and
            adaptive-temperature softmax, of the kept ones for top-k softmax; the threshold in x for
            normmax and budget; minus the bias for sigmoid; the logarithm of the denominator for
            softpick and of what is left of the stick for stick-breaking. float32 (float64 for
            float64 scores).
        support_size: number of entries with p > 0 (-1 for a row with a NaN). int64.
        entropy: -sum p ln p, in nats, also where p does not sum to 1. dtype as tau.
    """

    tau: Tensor
    support_size: Tensor
    entropy: Tensor


class _Asked:
    """Scores of a call of `row_stats`: `row_map` leaves the statistics here."""

    stats: RowStats

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


def row_map(
    x: Tensor | _Asked, map: str, alpha_rows: Tensor | None = None, **settings: Any
) -> Tensor:
    """Any map of the operator, whose settings have the operator's names."""
    asked = x if type(x) is _Asked else None
    if asked is not None:
        x = asked.scores
    if settings["dim"] is None:
        raise TypeError("dim: expected an integer, got None")
    settings["map"] = _MAPS[map]
    # A default costs a microsecond to hand over.
    given = {
        name: value
        for name, value in settings.items()
        if value is not None and not (type(value) in (int, float) and value == _DEFAULTS[name])
    }
    found = call(
        _autograd.row_map, alpha_rows, given, asked is not None, known_as={"scores": "x"}, x=x
    )
    if asked is None:
        return found  # type: ignore[no-any-return]
    p, tau, support_size, entropy = found
    if p.dtype != torch.float64:
        tau, entropy = tau.float(), entropy.float()
    asked.stats = RowStats(tau, support_size, entropy)
    return p  # type: ignore[no-any-return]


_Settings = ParamSpec("_Settings")
_Map = TypeVar("_Map", bound=Callable[..., Tensor])
_ROW_MAPS: set[Callable[..., Tensor]] = set()


def is_row_map(function: _Map) -> _Map:
    """Lets `row_stats` take the function, which hands its scores to `row_map`."""
    _ROW_MAPS.add(function)
    return function


def row_stats(
    map: Callable[Concatenate[Tensor, _Settings], Tensor],
    x: Tensor,
    *arguments: _Settings.args,
    **settings: _Settings.kwargs,
) -> tuple[Tensor, RowStats]:
    """Probabilities of a row map and statistics of every row, for the price of one call.

    ``p, stats = tsallis.row_stats(tsallis.entmax, x, alpha=1.5)``

    Args:
        map: one of this package's row maps, such as `entmax`.
        x: scores, any shape.
        arguments: the map's other arguments, as the map itself takes them.
        settings: the same by name.

    Returns:
        ``map(x, *arguments, **settings)``, with its gradients, and its `RowStats`.

    Raises:
        TypeError: ``map`` is no row map; a setting that the map does not have; and what the map
            raises.
    """
    if not callable(map) or map not in _ROW_MAPS:
        raise TypeError(f"map: expected a row map, such as tsallis.entmax, got {map!r}")
    asked = _Asked(x)
    p = map(cast(Tensor, asked), *arguments, **settings)
    return p, asked.stats


def _split_alpha(alpha: float | Tensor) -> tuple[Tensor | None, float]:
    if isinstance(alpha, Tensor):
        return alpha, 1.5  # the number is not read when there is a tensor
    return None, number(alpha, "alpha")


@is_row_map
def softmax(x: Tensor, dim: int = -1, *, temperature: float = 1.0) -> Tensor:
    """softmax(x / temperature) along ``dim``; ``stats.tau`` is the log-sum-exp.

    Args:
        x: scores, any shape.
        dim: dimension to normalise.
        temperature: finite and > 0.
    """
    return row_map(x, "softmax", dim=dim, temperature=temperature)


@is_row_map
def entmax(
    x: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    *,
    temperature: float = 1.0,
) -> Tensor:
    """alpha-entmax along ``dim``: p = [(alpha - 1) x - tau]_+^(1 / (alpha - 1)) with sum p = 1.

    alpha = 1 is softmax, alpha = 2 sparsemax; larger alpha gives sparser p. For alpha in (0, 1) no
    entry is 0, tau lies below (alpha - 1) max x, and far entries keep more than softmax gives them:
    p falls like a power of the distance. Solved to a tolerance, exact for any alpha > 0. Peters,
    Niculae and Martins 2019, eq. 8-9; gradient in alpha: Correia, Niculae and Martins 2019,
    proposition 1, continued to alpha = 1 and below.

    Args:
        x: scores, any shape.
        alpha: finite and > 0. A number, or a floating-point tensor that broadcasts to the shape of
            ``x`` with size 1 in ``dim``, e.g. [heads, 1, 1] for scores [batch, heads, queries,
            keys]; it receives a gradient of its own shape and dtype.
        dim: dimension to normalise.
        temperature: divides the scores; finite and > 0.
    """
    rows, number = _split_alpha(alpha)
    return row_map(x, "entmax", rows, alpha=number, dim=dim, temperature=temperature)


@is_row_map
def sparsemax(x: Tensor, dim: int = -1, *, temperature: float = 1.0) -> Tensor:
    """sparsemax along ``dim``, the Euclidean projection onto the simplex: entmax with alpha = 2.

    Martins and Astudillo 2016, eq. 2.

    Args:
        x: scores, any shape.
        dim: dimension to normalise.
        temperature: divides the scores; finite and > 0.
    """
    return row_map(x, "entmax", alpha=2.0, dim=dim, temperature=temperature)


@is_row_map
def normmax(
    x: Tensor,
    alpha: float | Tensor = 2.0,
    dim: int = -1,
    *,
    temperature: float = 1.0,
) -> Tensor:
    """normmax along ``dim``: argmax over the simplex of <p, x> - ||p||_alpha.

    Norm entropies of Blondel, Martins and Niculae 2020; defined as in the ``entmax`` package.

    Args:
        x: scores, any shape.
        alpha: finite and > 1; a number, or a tensor as for `entmax`, but without a gradient.
        dim: dimension to normalise.
        temperature: divides the scores; finite and > 0.
    """
    rows, number = _split_alpha(alpha)
    return row_map(x, "normmax", rows, alpha=number, dim=dim, temperature=temperature)


@is_row_map
def budget(
    x: Tensor,
    budget: float = 2.0,
    dim: int = -1,
    *,
    temperature: float = 1.0,
) -> Tensor:
    """A relaxed choice of ``budget`` entries: p = clip(x - tau, 0, 1) with sum p = budget.

    Defined as ``budget_bisect`` in the ``entmax`` package. A row with fewer finite scores than
    ``budget`` gives each of them 1.

    Args:
        x: scores, any shape.
        budget: > 0.
        dim: dimension to normalise.
        temperature: divides the scores; finite and > 0.
    """
    return row_map(
        x,
        "budget",
        budget=number(budget, "budget"),
        dim=dim,
        temperature=temperature,
    )


@is_row_map
def adaptive_temperature_softmax(
    x: Tensor,
    dim: int = -1,
    *,
    coefficients: Sequence[float] | None = None,
    threshold: float | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """softmax(beta x) along ``dim``, sharper where softmax(x) is flat.

    beta = max(1, sum_i coefficients[i] H^i) where the entropy H of softmax(x) exceeds
    ``threshold``, else 1. The gradient goes through beta as well. Velickovic et al. 2024, eq. 15-18
    and appendix G.

    Args:
        x: scores, any shape.
        dim: dimension to normalise.
        coefficients: of the polynomial, lowest degree first; None means the paper's
            (-1.791, 4.917, -2.3, 0.481, -0.037).
        threshold: entropy in nats; None means the paper's 0.5.
        temperature: divides the scores before anything else; finite and > 0.
    """
    return row_map(
        x,
        "adaptive_temperature",
        dim=dim,
        temperature=temperature,
        coefficients=numbers(coefficients, "coefficients"),
        threshold=threshold,
    )


class AdaptiveTemperatureFit(NamedTuple):
    """A polynomial for `adaptive_temperature_softmax`.

    Attributes:
        coefficients: lowest degree first, as that function takes them.
        samples: rows that counted; with 0 the coefficients are 0.
        rms_error: root mean square of what is left of 1/theta.
    """

    coefficients: tuple[float, ...]
    samples: int
    rms_error: float


def fit_adaptive_temperature(
    scores: Tensor,
    targets: Tensor,
    *,
    degree: int = 4,
    theta_max: float = 10.0,
    theta_step: float = 0.1,
) -> AdaptiveTemperatureFit:
    """Fit the polynomial of `adaptive_temperature_softmax` to scores of a trained model.

    Rows whose target does not have the largest score count. For each of them the theta is found,
    out of ``theta_step``, ``2 theta_step``, ..., ``theta_max``, that gives the target its largest
    weight. Then 1/theta is fitted by least squares to powers of the entropy of softmax(scores).
    Velickovic et al. 2024, appendix F.

    Args:
        scores: [..., n], on the CPU; rows that are shorter end with -inf.
        targets: [...], any integer dtype: the entry that matters in each row.
        degree: of the polynomial, 0 to 16.
        theta_max: the largest theta that is tried; at least ``theta_step``.
        theta_step: finite and > 0.

    Raises:
        ValueError: a target out of range, shapes that do not match, a number out of range.
    """
    coefficients, samples, rms_error = call(
        torch.ops.tsallis.fit_adaptive_temperature,
        degree,
        number(theta_max, "theta_max"),
        number(theta_step, "theta_step"),
        scores=scores.detach() if isinstance(scores, Tensor) else scores,
        targets=targets,
    )
    return AdaptiveTemperatureFit(tuple(coefficients.tolist()), samples, rms_error)


def _loss(
    logits: Tensor, target: Tensor, map: str, alpha: float, ignore_index: int, reduction: Reduction
) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction: expected "mean", "sum" or "none", got {reduction!r}')
    losses: Tensor = call(
        _autograd.losses,
        {
            "map": _ops.MAPS.index(map),
            "alpha": number(alpha, "alpha"),
            "ignore_index": ignore_index,
        },
        known_as={"scores": "logits", "targets": "target"},
        logits=logits,
        target=target,
    )
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "sum":
        return total
    return mean_of_counted(total, target, ignore_index)


def mean_of_counted(total: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """``total`` over the rows that count; NaN with gradient 0 where none does, as torch has it."""
    # In int64, as the kernel compares: -100 would become 156 beside targets of bytes.
    counted = (target.long() != ignore_index).sum()
    return torch.where(counted > 0, total / counted.clamp(min=1), math.nan)


def entmax_loss(
    logits: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Fenchel-Young loss of entmax: L = H(p) + <p - e_target, logits>, p = entmax(logits, alpha).

    H is Tsallis' entropy, (1 - sum p^alpha) / (alpha (alpha - 1)), Shannon's at alpha = 1 (then L
    is cross-entropy). For alpha > 1, L is 0 exactly when the target leads every other class by
    1 / (alpha - 1) or more. The gradient is p - e_target. Blondel, Martins and Niculae 2020;
    Peters, Niculae and Martins 2019.

    Args:
        logits: [..., classes].
        target: [...], any integer dtype, in [0, classes) or ``ignore_index``.
        alpha: finite and > 0.
        ignore_index: rows with this target give loss 0 and gradient 0 and do not count in the mean;
            any integer, also a valid class.
        reduction: "mean" over the rows that count (NaN if none does, as in torch), "sum" or "none".

    Returns:
        A scalar, or [...] for "none"; float32, float64 for float64 logits.

    Raises:
        ValueError: a target out of range, shapes that do not match, an alpha out of range, an
            unknown reduction.
    """
    return _loss(logits, target, "entmax", alpha, ignore_index, reduction)


def sparsemax_loss(
    logits: Tensor, target: Tensor, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """Fenchel-Young loss of sparsemax: `entmax_loss` with alpha = 2.

    Martins and Astudillo 2016.
    """
    return _loss(logits, target, "entmax", 2.0, ignore_index, reduction)


def softmax_loss(
    logits: Tensor, target: Tensor, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """Fenchel-Young loss of softmax, the cross-entropy. Arguments as for `entmax_loss`."""
    return _loss(logits, target, "softmax", 1.5, ignore_index, reduction)


def normmax_loss(
    logits: Tensor,
    target: Tensor,
    alpha: float = 2.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Fenchel-Young loss of normmax, H(p) = 1 - ||p||_alpha, alpha > 1; see `entmax_loss`."""
    return _loss(logits, target, "normmax", alpha, ignore_index, reduction)
