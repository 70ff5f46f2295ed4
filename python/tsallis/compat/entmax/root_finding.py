"""``entmax.root_finding``: the maps that the original finds by bisection."""

from __future__ import annotations

from torch import Tensor, nn

from tsallis import functional
from tsallis.compat.entmax import _check

__all__ = [
    "BudgetBisect",
    "EntmaxBisect",
    "NormmaxBisect",
    "SparsemaxBisect",
    "budget_bisect",
    "entmax_bisect",
    "normmax_bisect",
    "sparsemax_bisect",
]


def entmax_bisect(
    X: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    n_iter: int = 50,
    ensure_sum_one: bool = True,
) -> Tensor:
    """`tsallis.entmax`, with a gradient in ``alpha``.

    Args:
        X: scores, any shape.
        alpha: > 0; a number, or a tensor that broadcasts to the shape of ``X`` with size 1 in
            ``dim``.
        dim: dimension to normalise.
        n_iter: an integer >= 1; has no influence, nor has ``ensure_sum_one``.
    """
    _check.count(n_iter, "n_iter")
    return functional.entmax(X, _check.alpha_argument(alpha), dim)


def sparsemax_bisect(
    X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Tensor:
    """`tsallis.sparsemax`; arguments as for `entmax_bisect`, ``n_iter`` may be None."""
    _check.count(n_iter, "n_iter", none=True)
    return functional.sparsemax(X, dim)


def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """`tsallis.normmax`; arguments as for `entmax_bisect`, alpha > 1 and without a gradient."""
    _check.count(n_iter, "n_iter")
    return functional.normmax(X, _check.alpha_argument(alpha), dim)


def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> Tensor:
    """`tsallis.budget`.

    Args:
        X: scores, any shape.
        budget: >= 0; a number, or a tensor that broadcasts to the shape of ``X`` with size 1 in
            ``dim`` (one call of the kernel for each of its values).
        dim: dimension to normalise.
        n_iter: an integer >= 1; has no influence.
    """
    _check.count(n_iter, "n_iter")

    if not isinstance(budget, Tensor):
        return _budget(X, budget, dim)
    if not -X.dim() <= dim < X.dim():
        return _budget(X, 1.0, dim)  # which says so
    shape = list(X.shape)
    shape[dim] = 1
    try:
        numbers = budget.expand(shape).movedim(dim, -1).reshape(-1)
    except RuntimeError:
        raise ValueError(
            f"budget: expected a shape that broadcasts to {shape}, got {list(budget.shape)}"
        ) from None
    moved = X.movedim(dim, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    p = _check.by_value(numbers, lambda index, number: _budget(rows[index], number, -1))
    return p.reshape(moved.shape).movedim(-1, dim)


def _budget(X: Tensor, budget: float, dim: int) -> Tensor:
    if budget == 0:  # the limit of small budgets, where the kernel wants one above 0
        return X.masked_fill(~X.isnan(), 0)
    return functional.budget(X, budget, dim)


class SparsemaxBisect(nn.Module):
    """`sparsemax_bisect` as a module."""

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim, self.n_iter)


class EntmaxBisect(nn.Module):
    """`entmax_bisect` as a module; an ``alpha`` that is a parameter is registered as one."""

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter
        self.alpha = alpha

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim, self.n_iter)


class NormmaxBisect(nn.Module):
    """`normmax_bisect` as a module."""

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter
        self.alpha = alpha

    def forward(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim, self.n_iter)


class BudgetBisect(nn.Module):
    """`budget_bisect` as a module."""

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int = 50) -> None:
        super().__init__()
        self.dim = dim
        self.n_iter = n_iter
        self.budget = budget

    def forward(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim, self.n_iter)
