"""Loads the shared library with the operators, once, when the package is imported."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

try:
    import torch
except ImportError as error:
    raise ImportError(
        "tsallis: torch could not be imported; install torch 2.6 or newer, then build tsallis "
        f"against it (pip install --no-build-isolation .): {error}"
    ) from error

__all__ = ["CudaInfo", "cpu_target", "cuda_info", "library_path", "locate", "version"]

_NAME = "libtsallis_torch.so"
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
        "  pip install --no-build-isolation .\n"
        f"or set {_VARIABLE} to its path."
    )


def _load(path: Path) -> None:
    advice = (
        "It must be built against the torch that imports it: install the package again with\n"
        "  pip install --no-build-isolation --force-reinstall --no-deps .\n"
        "or, in the repository, remove build/ and run `make`."
    )
    about = path.with_suffix(".json")
    if about.is_file():
        # Compared before loading: another torch may well load the library and crash in it.
        wanted = str(json.loads(about.read_text())["torch"])
        if torch.__version__.split("+")[0] != wanted.split("+")[0]:
            raise ImportError(
                f"tsallis: {path} was built against torch {wanted}, this is torch "
                f"{torch.__version__}. {advice}"
            )
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(
            f"tsallis: {path} could not be loaded into torch {torch.__version__}: {error}\n{advice}"
        ) from error


library_path: Path = _find_library()
_load(library_path)


def version() -> str:
    """The version of the library, which is that of the package."""
    return str(torch.ops.tsallis.version())


def cpu_target() -> str:
    """Name of the instruction set that the CPU kernels chose on this machine, e.g. ``AVX3``."""
    return str(torch.ops.tsallis.cpu_target())


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
    return CudaInfo(*torch.ops.tsallis.cuda_info())
