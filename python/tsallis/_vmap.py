"""``torch.vmap`` of the row maps and losses: one call on all slices instead of one for each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["register"]

_Dims = tuple[int | None, ...]


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The mapped dimension first; a tensor that is not mapped repeats."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _row_map_arguments(
    size: int, in_dims: _Dims, scores: Tensor, alpha_rows: Tensor | None, settings: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Scores and alphas with a leading dimension of slices; counts ``dim`` from the end."""
    scores = _front(scores, in_dims[0], size)
    rank = scores.dim() - 1  # of a slice
    dim = settings.get("dim", -1)
    if not -rank <= dim < rank:
        raise IndexError(f"dim: expected an integer in [{-rank}, {rank - 1}], got {dim}")
    settings["dim"] = dim - rank if dim >= 0 else dim
    if alpha_rows is not None and in_dims[1] is not None:
        alpha_rows = alpha_rows.movedim(in_dims[1], 0)
        missing = rank - (alpha_rows.dim() - 1)
        alpha_rows = alpha_rows.reshape(size, *[1] * missing, *alpha_rows.shape[1:])
    return scores, alpha_rows


def _row_map(
    info: Any, in_dims: _Dims, scores: Tensor, alpha_rows: Tensor | None = None, **settings: Any
) -> tuple[Tensor, int]:
    inputs = _row_map_arguments(info.batch_size, in_dims, scores, alpha_rows, settings)
    return torch.ops.tsallis.row_map(*inputs, **settings), 0


def _row_map_stats(
    info: Any, in_dims: _Dims, scores: Tensor, alpha_rows: Tensor | None = None, **settings: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    inputs = _row_map_arguments(info.batch_size, in_dims, scores, alpha_rows, settings)
    return torch.ops.tsallis.row_map_stats(*inputs, **settings), (0, 0, 0, 0)


def _fenchel_young_loss(
    info: Any, in_dims: _Dims, scores: Tensor, targets: Tensor, **settings: Any
) -> tuple[Tensor, int]:
    scores, targets = (
        _front(x, dim, info.batch_size) for x, dim in zip((scores, targets), in_dims, strict=False)
    )
    return torch.ops.tsallis.fenchel_young_loss(scores, targets, **settings), 0


def register() -> None:
    """Hands the rules to torch; once."""
    torch.library.register_vmap("tsallis::row_map", _row_map)
    torch.library.register_vmap("tsallis::row_map_stats", _row_map_stats)
    torch.library.register_vmap("tsallis::fenchel_young_loss", _fenchel_young_loss)
