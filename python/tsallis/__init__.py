"""Tsallis: sparse maps from scores to probabilities, and attention built on them.

Importing the package loads the operators (``torch.ops.tsallis.*``) from a shared library, looked
for in the file that the environment variable ``TSALLIS_LIBRARY`` names, then in this package, then
in ``build/lib`` of the repository that holds it.
"""

from tsallis._ops import cpu_target, library_path, version
from tsallis.functional import (
    AttentionExtras,
    RowStats,
    adaptive_temperature_softmax,
    attention,
    budget,
    entmax,
    entmax_loss,
    normmax,
    normmax_loss,
    sdpa_like,
    softmax,
    softmax_loss,
    sparsemax,
    sparsemax_loss,
)

__version__ = version()

__all__ = [
    "AttentionExtras",
    "RowStats",
    "adaptive_temperature_softmax",
    "attention",
    "budget",
    "cpu_target",
    "entmax",
    "entmax_loss",
    "library_path",
    "normmax",
    "normmax_loss",
    "sdpa_like",
    "softmax",
    "softmax_loss",
    "sparsemax",
    "sparsemax_loss",
]
