"""Tsallis: sparse maps from scores to probabilities, and attention built on them.

Importing the package loads the operators (``torch.ops.tsallis.*``) from a shared library, looked
for in the file that the environment variable ``TSALLIS_LIBRARY`` names, then in this package, then
in ``build/lib`` of the repository that holds it. The program of ``python -m tsallis`` is looked for
in the same places, first beside the library that the variable names.
"""

from tsallis import _ops, functional, nn, patterns
from tsallis._cache import CachedSequence, CacheFull, CacheUse, KVCache, decode
from tsallis._decode_modes import (
    DecodeExtras,
    DecodeMode,
    FirstAndLast,
    GaussianPages,
    TopPages,
    Within,
)
from tsallis._ops import CudaInfo, cpu_target, cuda_info, library_path
from tsallis._paged import decode_paged, put_paged, screen_bytes
from tsallis.functional import *

__version__ = _ops.version()

__all__ = [
    "CacheFull",
    "CacheUse",
    "CachedSequence",
    "CudaInfo",
    "DecodeExtras",
    "DecodeMode",
    "FirstAndLast",
    "GaussianPages",
    "KVCache",
    "TopPages",
    "Within",
    "cpu_target",
    "cuda_info",
    "decode",
    "decode_paged",
    "functional",
    "library_path",
    "nn",
    "patterns",
    "put_paged",
    "screen_bytes",
]
__all__ += functional.__all__
