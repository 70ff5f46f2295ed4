"""``entmax.losses``: Fenchel-Young losses, one value for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from tsallis import functional
from tsallis._rows import mean_of_counted
from tsallis.compat.entmax import _check

__all__ = [
    "Entmax15Loss",
    "EntmaxBisectLoss",
    "NormmaxBisectLoss",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "entmax15_loss",
    "entmax_bisect_loss",
    "normmax_bisect_loss",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]

_Loss = Callable[[Tensor, Tensor, float, int, functional.Reduction], Tensor]
_IGNORED = -100
_Reduction = Literal["elementwise_mean", "sum", "none"]


def _rows(
    loss: _Loss, X: Tensor, target: Tensor, alpha: float | Tensor, ignore_index: int
) -> Tensor:
    """``loss`` of every row; X: [rows, classes], target: [rows], alpha: one number or [rows]."""
    if X.dim() != 2:
        raise ValueError(f"X: expected shape [rows, classes], got {list(X.shape)}")
    if not isinstance(alpha, Tensor) or alpha.numel() == 1:
        return loss(X, target, float(alpha), ignore_index, "none")
    rows = X.shape[0]
    if list(alpha.shape) not in ([rows], [rows, 1]):
        raise ValueError(
            f"alpha: expected a number, [{rows}] or [{rows}, 1], got {list(alpha.shape)}"
        )
    return _check.by_value(
        alpha.reshape(-1),
        lambda index, value: loss(X[index], target[index], value, ignore_index, "none"),
    )


def _with_support(
    X: Tensor, target: Tensor, alpha: float, k: int | None, support: bool, ignore_index: int
) -> Tensor | tuple[Tensor, Tensor]:
    _check.count(k, "k", none=True)
    losses = _rows(functional.entmax_loss, X, target, alpha, ignore_index)
    if not support:
        return losses
    _, stats = functional.row_stats(functional.entmax, X.detach(), alpha)
    return losses, stats.support_size.unsqueeze(-1)


def sparsemax_loss(
    X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`tsallis.sparsemax_loss` of every row.

    Args:
        X: [rows, classes].
        target: [rows], integers; a row with -100 has loss 0.
        k: an integer >= 1 or None; has no influence.
        return_support_size: also return the number of classes with a probability > 0, [rows, 1].

    Returns:
        [rows]; float32, float64 for float64 ``X``.
    """
    return _with_support(X, target, 2.0, k, return_support_size, _IGNORED)


def entmax15_loss(
    X: Tensor, target: Tensor, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`tsallis.entmax_loss` with alpha = 1.5 of every row; arguments as for `sparsemax_loss`."""
    return _with_support(X, target, 1.5, k, return_support_size, _IGNORED)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int = 50) -> Tensor:
    """`sparsemax_loss`; ``n_iter`` is an integer >= 1 and has no influence."""
    _check.count(n_iter, "n_iter")
    return _rows(functional.entmax_loss, X, target, 2.0, _IGNORED)


def entmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 50
) -> Tensor:
    """`tsallis.entmax_loss` of every row.

    Args:
        X: [rows, classes].
        target: [rows], integers; a row with -100 has loss 0.
        alpha: > 0; one number, or one for each row: [rows] or [rows, 1]. Has no gradient.
        n_iter: an integer >= 1; has no influence.
    """
    _check.count(n_iter, "n_iter")
    return _rows(functional.entmax_loss, X, target, alpha, _IGNORED)


def normmax_bisect_loss(
    X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int = 50
) -> Tensor:
    """`tsallis.normmax_loss` of every row; arguments as for `entmax_bisect_loss`, alpha > 1."""
    _check.count(n_iter, "n_iter")
    return _rows(functional.normmax_loss, X, target, alpha, _IGNORED)


class _GenericLoss(nn.Module):
    """A loss of rows, reduced over those whose target is not ``ignore_index``.

    reduction: "elementwise_mean" (over the rows that count), "sum" or "none".
    """

    def __init__(
        self,
        ignore_index: int | Tensor = -100,
        reduction: _Reduction = "elementwise_mean",
        return_support_size: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("elementwise_mean", "sum", "none"):
            raise ValueError(
                f'reduction: expected "elementwise_mean", "sum" or "none", got {reduction!r}'
            )
        self.reduction = reduction
        self.ignore_index = int(ignore_index)
        self.return_support_size = return_support_size

    def loss(self, X: Tensor, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        raise NotImplementedError

    def forward(self, X: Tensor, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        answer = self.loss(X, target)
        losses, support = answer if isinstance(answer, tuple) else (answer, None)
        if self.reduction != "none":
            losses = losses.sum()
        if self.reduction == "elementwise_mean":
            losses = mean_of_counted(losses, target, self.ignore_index)
        return losses if support is None else (losses, support)


class _SortLoss(_GenericLoss):
    alpha: float

    def __init__(
        self,
        k: int | None = None,
        ignore_index: int | Tensor = -100,
        reduction: _Reduction = "elementwise_mean",
        return_support_size: bool = False,
    ) -> None:
        super().__init__(ignore_index, reduction, return_support_size)
        _check.count(k, "k", none=True)
        self.k = k

    def loss(self, X: Tensor, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return _with_support(
            X, target, self.alpha, self.k, self.return_support_size, self.ignore_index
        )


class SparsemaxLoss(_SortLoss):
    """`sparsemax_loss` as a module, reduced."""

    alpha = 2.0


class Entmax15Loss(_SortLoss):
    """`entmax15_loss` as a module, reduced."""

    alpha = 1.5

    def __init__(
        self,
        k: int | None = 100,
        ignore_index: int | Tensor = -100,
        reduction: _Reduction = "elementwise_mean",
        return_support_size: bool = False,
    ) -> None:
        super().__init__(k, ignore_index, reduction, return_support_size)


class _BisectLoss(_GenericLoss):
    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int = 50,
        ignore_index: int | Tensor = -100,
        reduction: _Reduction = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        _check.count(n_iter, "n_iter")
        self.alpha = alpha
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _rows(functional.entmax_loss, X, target, self.alpha, self.ignore_index)


class SparsemaxBisectLoss(_BisectLoss):
    """`sparsemax_bisect_loss` as a module, reduced."""

    def __init__(
        self,
        n_iter: int = 50,
        ignore_index: int | Tensor = -100,
        reduction: _Reduction = "elementwise_mean",
    ) -> None:
        super().__init__(2.0, n_iter, ignore_index, reduction)


class EntmaxBisectLoss(_BisectLoss):
    """`entmax_bisect_loss` as a module, reduced."""


class NormmaxBisectLoss(_BisectLoss):
    """`normmax_bisect_loss` as a module, reduced."""

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int = 50,
        ignore_index: int | Tensor = -100,
        reduction: _Reduction = "elementwise_mean",
    ) -> None:
        super().__init__(alpha, n_iter, ignore_index, reduction)

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return _rows(functional.normmax_loss, X, target, self.alpha, self.ignore_index)
