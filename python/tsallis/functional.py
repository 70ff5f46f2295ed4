"""Everything that is a function: row maps, their losses, attention.

Row maps take scores of any rank; `attention` and `sdpa_like` take queries, keys and values.
"""

from tsallis._attention import AttentionExtras, attention
from tsallis._baselines import sigmoid, softpick, stick_breaking, top_k_softmax
from tsallis._rows import (
    AdaptiveTemperatureFit,
    Reduction,
    RowStats,
    adaptive_temperature_softmax,
    budget,
    entmax,
    entmax_loss,
    fit_adaptive_temperature,
    normmax,
    normmax_loss,
    row_stats,
    softmax,
    softmax_loss,
    sparsemax,
    sparsemax_loss,
)
from tsallis._sdpa import sdpa_like

__all__ = [
    "AdaptiveTemperatureFit",
    "AttentionExtras",
    "Reduction",
    "RowStats",
    "adaptive_temperature_softmax",
    "attention",
    "budget",
    "entmax",
    "entmax_loss",
    "fit_adaptive_temperature",
    "normmax",
    "normmax_loss",
    "row_stats",
    "sdpa_like",
    "sigmoid",
    "softmax",
    "softmax_loss",
    "softpick",
    "sparsemax",
    "sparsemax_loss",
    "stick_breaking",
    "top_k_softmax",
]
