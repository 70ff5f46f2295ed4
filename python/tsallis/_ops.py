"""Loads the shared library with the operators, once, when the package is imported.

It holds no name of ATen and runs in every torch from 2.10 on.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, NamedTuple

try:
    import torch
except ImportError as error:
    raise ImportError(
        "tsallis: torch could not be imported; install torch 2.10 or newer (pip install "
        f"torch): {error}"
    ) from error

__all__ = [
    "ATTENTION_MAPS",
    "ENTMAX",
    "MAPS",
    "NORMMAX",
    "READS_SCORES",
    "SOFTMAX",
    "CudaInfo",
    "commit",
    "cpu_target",
    "cuda_info",
    "delete_cache",
    "free_sequence",
    "library_path",
    "locate",
    "processor",
    "version",
]

_NAME = "libtsallis_operators.so"
_OLDEST = (2, 10)
_VARIABLE = "TSALLIS_LIBRARY"


def locate(installed: str, built: str) -> tuple[Path | None, list[Path]]:
    """A file of the build, and where it was looked for.

    installed: its path in the installed package; built: in the build folder of the repository. An
    editable install has two package folders: the sources, and what was built for them. The
    folders of the library that ``TSALLIS_LIBRARY`` names come first: two builds do not mix.
    """
    candidates = []
    named = os.environ.get(_VARIABLE)
    if named:
        library = Path(named).absolute()
        candidates += [library.parent / installed, library.parent.parent / built]
    candidates += [Path(folder) / installed for folder in sys.modules["tsallis"].__path__]
    candidates.append(Path(__file__).resolve().parents[2] / "build" / built)
    return next((path for path in candidates if path.is_file()), None), candidates


def _find_library() -> Path:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        raise ImportError(
            f"tsallis: expected Linux on x86-64 or aarch64, got {sys.platform} on {machine}; there "
            "are no binaries for others"
        )
    named = os.environ.get(_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise ImportError(
                f"{_VARIABLE}: expected the path of {_NAME}, got {named}, which is no file"
            )
        return path
    found, candidates = locate(_NAME, f"lib/{_NAME}")
    if found is not None:
        return found
    looked = "\n".join(f"  {path}" for path in candidates)
    raise ImportError(
        f"tsallis: {_NAME} was not found in\n{looked}\n"
        "Build it in the repository with `make`, install the package with\n"
        "  pip install .\n"
        f"or set {_VARIABLE} to its path."
    )


def _load(path: Path) -> ctypes.CDLL:
    version = torch.__version__.split("+")[0]
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise ImportError(
            f"tsallis: expected torch {'.'.join(map(str, _OLDEST))} or newer, got torch {version}"
        )
    try:
        torch.ops.load_library(path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"tsallis: {path} could not be loaded into torch {torch.__version__}: {error}"
        ) from error


def _told(function: str) -> Any:
    tell = _library[function]
    tell.restype = ctypes.c_char_p
    return json.loads(tell().decode())


library_path: Path = _find_library()
_library = _load(library_path)
_ABOUT = _told("TsallisAbout")
MAPS: list[str] = _ABOUT["maps"]  # an operator knows a map by its place here
ATTENTION_MAPS: list[str] = _ABOUT["attention_maps"]
ENTMAX, NORMMAX, SOFTMAX = (MAPS.index(name) for name in ("entmax", "normmax", "softmax"))
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# By map, dtype and kind (0: alpha is at most 2; 1: it is larger; 2: each row has its own): whether
# the backward pass reads the scores, or the probabilities are enough.
READS_SCORES: dict[tuple[int, torch.dtype, int], bool] = {
    (map, dtype, kind): reads
    for map, dtypes in enumerate(_ABOUT["reads_scores"])
    for dtype, kinds in zip(_DTYPES, dtypes, strict=True)
    for kind, reads in enumerate(kinds)
}


def delete_cache(number: int) -> None:
    """Frees a cache and its sequences."""
    _library.TsallisDeleteCache(ctypes.c_int64(number))


def free_sequence(cache: int, sequence: int) -> None:
    """Frees a sequence of a cache, if that is still there."""
    _library.TsallisFreeSequence(ctypes.c_int64(cache), ctypes.c_int64(sequence))


def version() -> str:
    """The version of the library, which is that of the package."""
    return str(_ABOUT["version"])


def commit() -> str:
    """The commit that the library was built from; "unknown" outside a checkout."""
    return str(_ABOUT["commit"])


def processor() -> str:
    """The processor's name; empty where the system does not tell."""
    return str(_ABOUT["processor"])


def cpu_target() -> str:
    """Name of the instruction set that the CPU kernels chose on this machine, e.g. ``AVX3``."""
    return str(_ABOUT["cpu_target"])


class CudaInfo(NamedTuple):
    """What there is for attention on NVIDIA's GPUs.

    Attributes:
        architectures: what the kernels were compiled for, e.g. ``["80", "90a"]``; empty without.
        compiler: which nvcc compiled them.
        why_not_compiled: why there are none, and what to do; empty where there are.
        devices: the machine's, in CUDA's order, each with its capability and memory, and what is
            wrong with one that the kernels do not run on.
        why_no_devices: what CUDA's runtime says where there are kernels and no device.
    """

    architectures: list[str]
    compiler: str
    why_not_compiled: str
    devices: list[str]
    why_no_devices: str


def cuda_info() -> CudaInfo:
    """The CUDA kernels of this build, and the devices of this machine."""
    return CudaInfo(**_told("TsallisAboutCuda"))
