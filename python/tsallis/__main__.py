"""``python -m tsallis`` is the program `tsallis`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import torch

from tsallis import _ops


def main() -> NoReturn:
    """Replaces this process by the program, with the same arguments."""
    program, candidates = _ops.locate("bin/tsallis", "bin/tsallis")
    if program is None:
        looked = "\n".join(f"  {path}" for path in candidates)
        sys.exit(f"tsallis: the program was not found in\n{looked}\nRun `make` in the repository.")
    environment = dict(os.environ)
    environment.setdefault("TSALLIS_PYTHON", sys.executable)
    share = program.parents[1] / "share"
    if share.is_dir():  # an installed package; a build tree knows where its sources are
        environment.setdefault("TSALLIS_SOURCE_DIR", str(share))
    libraries = [str(Path(torch.__file__).parent / "lib"), environment.get("LD_LIBRARY_PATH")]
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    os.execve(program, [str(program), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
