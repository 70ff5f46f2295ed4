"""``entmax.activations``: sparsemax and 1.5-entmax."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor, nn

from tsallis import functional
from tsallis.compat.entmax import _check

__all__ = ["Entmax15", "Sparsemax", "entmax15", "sparsemax"]


def _map(
    X: Tensor, alpha: float, dim: int, k: int | None, return_support_size: bool
) -> Tensor | tuple[Tensor, Tensor]:
    _check.count(k, "k", none=True)
    if not return_support_size:
        return functional.entmax(X, alpha, dim)
    p, stats = functional.row_stats(functional.entmax, X, alpha, dim)
    return p, stats.support_size.unsqueeze(dim)


@overload
def sparsemax(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: Literal[False] = False
) -> Tensor: ...
@overload
def sparsemax(
    X: Tensor, dim: int = -1, k: int | None = None, *, return_support_size: Literal[True]
) -> tuple[Tensor, Tensor]: ...
@overload
def sparsemax(
    X: Tensor, dim: int, k: int | None, return_support_size: Literal[True]
) -> tuple[Tensor, Tensor]: ...
@overload
def sparsemax(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]: ...
def sparsemax(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`tsallis.sparsemax` along ``dim``.

    Args:
        X: scores, any shape.
        dim: dimension to normalise.
        k: an integer >= 1 or None; has no influence.
        return_support_size: also return the number of entries > 0: int64, the shape of ``X`` with
            size 1 in ``dim``.
    """
    return _map(X, 2.0, dim, k, return_support_size)


@overload
def entmax15(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: Literal[False] = False
) -> Tensor: ...
@overload
def entmax15(
    X: Tensor, dim: int = -1, k: int | None = None, *, return_support_size: Literal[True]
) -> tuple[Tensor, Tensor]: ...
@overload
def entmax15(
    X: Tensor, dim: int, k: int | None, return_support_size: Literal[True]
) -> tuple[Tensor, Tensor]: ...
@overload
def entmax15(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]: ...
def entmax15(
    X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`tsallis.entmax` with alpha = 1.5 along ``dim``; arguments as for `sparsemax`."""
    return _map(X, 1.5, dim, k, return_support_size)


class _Map(nn.Module):
    alpha: float

    def __init__(
        self, dim: int = -1, k: int | None = None, return_support_size: bool = False
    ) -> None:
        super().__init__()
        self.dim = dim
        self.k = k
        self.return_support_size = return_support_size

    def forward(self, X: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return _map(X, self.alpha, self.dim, self.k, self.return_support_size)


class Sparsemax(_Map):
    """`sparsemax` as a module."""

    alpha = 2.0


class Entmax15(_Map):
    """`entmax15` as a module."""

    alpha = 1.5
