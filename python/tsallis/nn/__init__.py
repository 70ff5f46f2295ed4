"""Modules: maps, losses, attention, learned alpha, length scaling, positions."""

from tsallis.nn.alpha import LearnedAlpha
from tsallis.nn.length_scale import ASEntmaxScale, ScalarScale, SSMaxScale
from tsallis.nn.maps import (
    AdaptiveTemperatureSoftmax,
    Budget,
    Entmax,
    EntmaxLoss,
    Normmax,
    NormmaxLoss,
    Sigmoid,
    Softmax,
    SoftmaxLoss,
    Softpick,
    Sparsemax,
    SparsemaxLoss,
    StickBreaking,
    TopKSoftmax,
)
from tsallis.nn.multihead import MultiheadAttention
from tsallis.nn.positions import NAPE, ALiBi, ScaleInvariant
from tsallis.nn.rotary import Rotary

__all__ = [
    "NAPE",
    "ALiBi",
    "ASEntmaxScale",
    "AdaptiveTemperatureSoftmax",
    "Budget",
    "Entmax",
    "EntmaxLoss",
    "LearnedAlpha",
    "MultiheadAttention",
    "Normmax",
    "NormmaxLoss",
    "Rotary",
    "SSMaxScale",
    "ScalarScale",
    "ScaleInvariant",
    "Sigmoid",
    "Softmax",
    "SoftmaxLoss",
    "Softpick",
    "Sparsemax",
    "SparsemaxLoss",
    "StickBreaking",
    "TopKSoftmax",
]
