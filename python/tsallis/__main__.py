"""``python -m tsallis`` is the program `tsallis` of a checkout; an installed package has none."""

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
        sys.exit(
            "tsallis: the program trains and evaluates models, and is not part of the installed "
            "package: clone the repository and run `make` there. Benchmarks are `python -m "
            "tsallis.bench`. The program was looked for in\n" + looked
        )
    environment = dict(os.environ)
    environment.setdefault("TSALLIS_PYTHON", sys.executable)
    libraries = [str(Path(torch.__file__).parent / "lib"), environment.get("LD_LIBRARY_PATH")]
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    os.execve(program, [str(program), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
