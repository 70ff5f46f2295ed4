"""Loads the shared library with the operators, once, when the package is imported."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_NAME = "libtsallis_torch.so"
_VARIABLE = "TSALLIS_LIBRARY"


def _find_library() -> Path:
    named = os.environ.get(_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise ImportError(
                f"{_VARIABLE}: expected the path of {_NAME}, got {named}, which is no file"
            )
        return path
    package = Path(__file__).resolve().parent
    candidates = [package / _NAME, package.parents[1] / "build" / "lib" / _NAME]
    for path in candidates:
        if path.is_file():
            return path
    looked = "\n".join(f"  {path}" for path in candidates)
    raise ImportError(
        f"tsallis: {_NAME} was not found in\n{looked}\n"
        "Build it in the repository with\n"
        "  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release \\\n"
        "    -DCMAKE_PREFIX_PATH="
        "\"$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')\"\n"
        "  ninja -C build tsallis_torch\n"
        f"or set {_VARIABLE} to its path."
    )


library_path: Path = _find_library()
try:
    torch.ops.load_library(library_path)
except OSError as error:
    raise ImportError(
        f"tsallis: {library_path} could not be loaded into torch {torch.__version__}: {error}\n"
        "It must be built against the torch that imports it: run `ninja -C build tsallis_torch` "
        "again with CMAKE_PREFIX_PATH pointing at this one."
    ) from error


def cpu_target() -> str:
    """Name of the instruction set that the CPU kernels chose on this machine, e.g. ``AVX3``."""
    return torch.ops.tsallis.cpu_target()
