"""Modules: maps, losses, attention, learned alpha, length scaling, positions."""

from tsallis.nn import maps
from tsallis.nn.alpha import LearnedAlpha
from tsallis.nn.length_scale import ASEntmaxScale, ScalarScale, SSMaxScale
from tsallis.nn.maps import *
from tsallis.nn.multihead import MultiheadAttention
from tsallis.nn.positions import NAPE, ALiBi, ScaleInvariant
from tsallis.nn.rotary import Rotary

__all__ = [
    "NAPE",
    "ALiBi",
    "ASEntmaxScale",
    "LearnedAlpha",
    "MultiheadAttention",
    "Rotary",
    "SSMaxScale",
    "ScalarScale",
    "ScaleInvariant",
]
__all__ += maps.__all__
