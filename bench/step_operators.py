"""Where a training step's time goes: perf's samples of bench/decoder_steps, by operator."""

from __future__ import annotations

import collections
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT

# The first that matches "symbol (library)" counts.
OPERATORS = {
    "matrix products": r"\[JIT\]|/tmp/perf-|\(inlined\)|dnnl|Xbyak|mkl|gemm|GEMM",
    "transposing gradients": r"TransposeImpl",
    "gated GeLU": r"::Gated",
    "norms and residuals": r"RmsNorm",
    "length scaling": r"Adaptive",
    "cross-entropy": r"CrossEntropy",
    "attention": r"tsallis::(?!lab::)",
    "Adam": r"AdamStep",
    "torch: rounding, sums, copies": r"at::native|at::|c10::|memmove|memcpy|memset|lab::",
    "memory, from the system": r"\[kernel",
}
REST = "the rest"

# Samples of a run with few steps are taken from those of one with many: steps alone are left.
FEW, MANY = 1, 7


def operator(place: str) -> str:
    """The operator of a sample at "symbol (library)"."""
    for name, pattern in OPERATORS.items():
        if re.search(pattern, place):
            return name
    return REST


def _samples(command: list[str]) -> collections.Counter[str]:
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        record = ["perf", "record", "-q", "-e", "task-clock", "-F", "999", "-o", data, *command]
        subprocess.run(record, check=True, stdout=subprocess.DEVNULL)
        script = ["perf", "script", "-i", data, "-F", "ip,sym,dso"]
        lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    return collections.Counter(
        operator(line.strip().partition(" ")[2]) for line in lines.splitlines() if line.strip()
    )


def shares(config: dict[str, Any], shape: tuple[int, int]) -> dict[str, float]:
    """Share in % of each operator of a step of this decoder, largest first.

    Raises FileNotFoundError without perf (Debian: linux-perf).
    """
    if shutil.which("perf") is None:
        raise FileNotFoundError("perf is not installed (Debian: linux-perf)")
    program = str(ROOT / "build" / "bin" / "decoder_steps")

    def samples(steps: int) -> collections.Counter[str]:
        return _samples([program, json.dumps(config), *map(str, shape), str(steps), "1"])

    counts = samples(MANY)
    counts.subtract(samples(FEW))
    counts = collections.Counter({name: count for name, count in counts.items() if count > 0})
    total = sum(counts.values())
    return {name: 100.0 * count / total for name, count in counts.most_common()}
