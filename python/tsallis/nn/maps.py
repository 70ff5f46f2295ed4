"""Row maps and losses as modules; what they compute is said in `tsallis.functional`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from tsallis import functional
from tsallis.functional import Reduction
from tsallis.nn.alpha import AlphaLike, alpha_value

__all__ = [
    "AdaptiveTemperatureSoftmax",
    "Budget",
    "Entmax",
    "EntmaxLoss",
    "Normmax",
    "NormmaxLoss",
    "Sigmoid",
    "Softmax",
    "SoftmaxLoss",
    "Softpick",
    "Sparsemax",
    "SparsemaxLoss",
    "StickBreaking",
    "TopKSoftmax",
]


class _RowMap(nn.Module):
    _map: ClassVar[Callable[..., Tensor]]
    _settings: ClassVar[tuple[str, ...]] = ()  # the map's own, attributes of these names

    def __init__(self, dim: int = -1, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.dim = dim
        self.temperature = temperature

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("dim", "temperature", *self._settings)}

    def forward(self, x: Tensor) -> Tensor:
        return self._map(x, **self._given())

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._given().items())


class Softmax(_RowMap):
    """`tsallis.softmax`."""

    _map = staticmethod(functional.softmax)


class Sparsemax(_RowMap):
    """`tsallis.sparsemax`."""

    _map = staticmethod(functional.sparsemax)


class Entmax(_RowMap):
    """`tsallis.entmax`.

    Args:
        alpha: a number, a tensor or parameter that broadcasts to the scores with size 1 in ``dim``,
            or a module that returns one of these, such as `LearnedAlpha`. An alpha of shape
            [heads] belongs to dimension ``heads_dim`` of the scores.
        dim: dimension to normalise.
        heads_dim: where the heads are: -3 in scores [batch, heads, queries, keys].
        temperature: divides the scores.
    """

    def __init__(
        self,
        alpha: AlphaLike = 1.5,
        dim: int = -1,
        *,
        heads_dim: int = -3,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(dim, temperature=temperature)
        self.alpha = alpha
        self.heads_dim = heads_dim

    def forward(self, x: Tensor) -> Tensor:
        alpha = alpha_value(self.alpha)
        if isinstance(alpha, Tensor) and alpha.dim() == 1 and alpha.numel() > 1:
            if not -x.dim() <= self.heads_dim < x.dim():
                raise ValueError(
                    f"x: expected a dimension {self.heads_dim} of {alpha.numel()} heads (heads_dim)"
                    f", got shape {list(x.shape)}"
                )
            shape = [1] * x.dim()
            shape[self.heads_dim] = alpha.numel()
            alpha = alpha.reshape(shape)
        return functional.entmax(x, alpha, self.dim, temperature=self.temperature)


class Normmax(_RowMap):
    """`tsallis.normmax`."""

    _map = staticmethod(functional.normmax)
    _settings = ("alpha",)

    def __init__(
        self, alpha: float | Tensor = 2.0, dim: int = -1, *, temperature: float = 1.0
    ) -> None:
        super().__init__(dim, temperature=temperature)
        self.alpha = alpha


class Budget(_RowMap):
    """`tsallis.budget`."""

    _map = staticmethod(functional.budget)
    _settings = ("budget",)

    def __init__(self, budget: float = 2.0, dim: int = -1, *, temperature: float = 1.0) -> None:
        super().__init__(dim, temperature=temperature)
        self.budget = budget


class AdaptiveTemperatureSoftmax(_RowMap):
    """`tsallis.adaptive_temperature_softmax`."""

    _map = staticmethod(functional.adaptive_temperature_softmax)
    _settings = ("coefficients", "threshold")

    def __init__(
        self,
        dim: int = -1,
        *,
        coefficients: Sequence[float] | None = None,
        threshold: float | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(dim, temperature=temperature)
        self.coefficients = coefficients
        self.threshold = threshold


class TopKSoftmax(_RowMap):
    """`tsallis.top_k_softmax`."""

    _map = staticmethod(functional.top_k_softmax)
    _settings = ("top_k", "top_k_fraction")

    def __init__(
        self, top_k: int, dim: int = -1, *, top_k_fraction: float = 0.0, temperature: float = 1.0
    ) -> None:
        super().__init__(dim, temperature=temperature)
        self.top_k = top_k
        self.top_k_fraction = top_k_fraction


class Sigmoid(_RowMap):
    """`tsallis.sigmoid`."""

    _map = staticmethod(functional.sigmoid)
    _settings = ("sigmoid_bias",)

    def __init__(
        self, dim: int = -1, *, sigmoid_bias: float | None = None, temperature: float = 1.0
    ) -> None:
        super().__init__(dim, temperature=temperature)
        self.sigmoid_bias = sigmoid_bias


class Softpick(_RowMap):
    """`tsallis.softpick`."""

    _map = staticmethod(functional.softpick)


class StickBreaking(_RowMap):
    """`tsallis.stick_breaking`."""

    _map = staticmethod(functional.stick_breaking)


class _Loss(nn.Module):
    def __init__(self, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f'reduction: expected "mean", "sum" or "none", got {reduction!r}')
        self.ignore_index = ignore_index
        self.reduction: Reduction = reduction

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"


class _AlphaLoss(_Loss):
    def __init__(self, alpha: float, ignore_index: int, reduction: Reduction) -> None:
        super().__init__(ignore_index, reduction)
        self.alpha = alpha

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, {super().extra_repr()}"


class SoftmaxLoss(_Loss):
    """`tsallis.softmax_loss`, the cross-entropy."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.softmax_loss(logits, target, self.ignore_index, self.reduction)


class SparsemaxLoss(_Loss):
    """`tsallis.sparsemax_loss`."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.sparsemax_loss(logits, target, self.ignore_index, self.reduction)


class EntmaxLoss(_AlphaLoss):
    """`tsallis.entmax_loss`."""

    def __init__(
        self, alpha: float = 1.5, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(alpha, ignore_index, reduction)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.entmax_loss(logits, target, self.alpha, self.ignore_index, self.reduction)


class NormmaxLoss(_AlphaLoss):
    """`tsallis.normmax_loss`."""

    def __init__(
        self, alpha: float = 2.0, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(alpha, ignore_index, reduction)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functional.normmax_loss(
            logits, target, self.alpha, self.ignore_index, self.reduction
        )
