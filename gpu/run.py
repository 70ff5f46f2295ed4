#!/usr/bin/env python3
"""Everything that takes a GPU: builds the CUDA kernels, tests them on the device and measures them.

    gpu/run.py [build] [test] [sanitize] [torch] [bench] [--out build-gpu] [--architectures 90a]

Without names all parts run, in this order. A part that cannot run says why in one line. Needs nvcc
12.8 or newer, CMake and a C++20 compiler; for `bench` a Python with a CUDA build of torch (this
one), for `torch` an installed tsallis. Writes build.json, test.json, sanitize.json and bench.json,
each as soon as there is something to write. Ends with 1 if something is wrong; a machine without a
GPU is nothing wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
NO_GPU = 3  # device_test's code


class Part(Exception):
    """Why a part did not run; `wrong`: whether that is a failure."""

    def __init__(self, why: str, wrong: bool = False) -> None:
        super().__init__(why)
        self.wrong = wrong


def gpu() -> tuple[str, str]:
    """Name and architecture ("90") of the first GPU; raises Part without one."""
    if shutil.which("nvidia-smi") is None:
        raise Part("no GPU on this machine: there is no nvidia-smi")
    answer = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    if answer.returncode != 0 or "," not in answer.stdout:
        said = (answer.stdout + answer.stderr).strip().splitlines()
        raise Part(f"no GPU on this machine: nvidia-smi says {said[0] if said else 'nothing'!r}")
    name, capability = answer.stdout.splitlines()[0].rsplit(",", 1)
    return name.strip(), capability.strip().replace(".", "")


def architectures() -> str:
    """What to compile for: the GPU that is here, else every generation."""
    try:
        _, number = gpu()
    except Part:
        return "80;90a;100;120"
    return {"90": "90a"}.get(number, number)


def git_commit() -> str:
    answer = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    return answer.stdout.strip()


def shown(command: list[str], **settings: Any) -> int:
    print("+", " ".join(command), flush=True)
    status: int = subprocess.run(command, **settings).returncode
    return status


def write(out: Path, name: str, document: dict[str, object]) -> None:
    document["commit"] = git_commit()
    aside = out / f"{name}.json.part"
    aside.write_text(json.dumps(document, indent=1) + "\n")
    aside.replace(out / f"{name}.json")


def build(out: Path, wanted: str) -> str:
    for tool in ("cmake", "nvcc"):
        if tool == "nvcc" and Path("/usr/local/cuda/bin/nvcc").is_file():
            continue
        if shutil.which(tool) is None:
            raise Part(f"no {tool} on this machine", wrong=True)
    start = time.monotonic()
    configure = ["cmake", "-S", str(ROOT / "gpu"), "-B", str(out)]
    configure += ["-DCMAKE_BUILD_TYPE=Release", f"-DTSALLIS_CUDA_ARCHITECTURES={wanted}"]
    jobs = os.environ.get("JOBS", str(os.cpu_count() or 1))
    if shown(configure) or shown(["cmake", "--build", str(out), "-j", jobs]):
        raise Part("the build failed", wrong=True)
    # This program's own host side, where no GPU is needed: 4 s.
    if shown([program(out), "--emulated", "1", "--cases", "40", "--most", "24"]):
        raise Part("device_test is wrong on the emulation", wrong=True)
    seconds = time.monotonic() - start
    write(out, "build", {"architectures": wanted.split(";"), "seconds": round(seconds, 1)})
    names = ", ".join(f"sm_{one}" for one in wanted.split(";"))
    return f"the kernels, device_test and the benchmark's library for {names}, {seconds:.0f} s"


def program(out: Path) -> str:
    path = out / "bin" / "device_test"
    if not path.is_file():
        raise Part(f"{path} is not built: gpu/run.py build", wrong=True)
    return str(path)


def test(out: Path, cases: int) -> str:
    command = [program(out), "--cases", str(cases), "--json", str(out / "test.json")]
    code = shown(command)
    if code == NO_GPU:
        raise Part("no GPU on this machine")
    if code != 0:
        raise Part(f"device_test ended with {code}", wrong=True)
    found = json.loads((out / "test.json").read_text())
    write(out, "test", found)
    return (
        f"{found['served']} drawn problems and {found['row_calls']} calls of row maps on "
        f"{found['device']}, each twice; {found['sums']}"
    )


def sanitize(out: Path) -> str:
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        raise Part("no compute-sanitizer on this machine")
    gpu()
    results: dict[str, object] = {}
    for name in TOOLS:
        # Small problems: a checked kernel takes a hundred times as long.
        checked = [program(out), "--cases", "12", "--most", "24", "--threads", "1"]
        try:
            answer = subprocess.run(
                [tool, "--tool", name, "--error-exitcode", "9", *checked],
                capture_output=True,
                text=True,
                timeout=240,
            )
        except subprocess.TimeoutExpired:
            results[name] = "took more than 240 s"
        else:
            tail = (answer.stdout + answer.stderr).strip().splitlines()[-20:]
            results[name] = "nothing found" if answer.returncode == 0 else "\n".join(tail)
        write(out, "sanitize", {"tools": results})
    wrong = {name: said for name, said in results.items() if said != "nothing found"}
    if wrong:
        raise Part("\n".join(f"{name}: {said}" for name, said in wrong.items()), wrong=True)
    return "nothing found by " + ", ".join(results)


def with_torch() -> None:
    try:
        import torch
    except ImportError:
        raise Part(f"{sys.executable} has no torch") from None
    if not torch.cuda.is_available():
        raise Part(f"torch {torch.__version__} sees no CUDA device")


def torch_operators() -> str:
    with_torch()
    answer = subprocess.run(
        [sys.executable, "-c", "import tsallis; print(tsallis.cuda_info().why_not_compiled)"],
        capture_output=True,
        text=True,
    )
    why = (
        answer.stdout.strip() if answer.returncode == 0 else answer.stderr.strip().splitlines()[-1]
    )
    if why:
        raise Part(f"the Python package has no CUDA kernels here: {why}")
    if shown([sys.executable, "-m", "pytest", "-q", str(ROOT / "python/tests/test_cuda.py")]):
        raise Part("python/tests/test_cuda.py failed", wrong=True)
    return "the operators of torch pass python/tests/test_cuda.py"


def bench(out: Path, longest: int) -> str:
    gpu()
    with_torch()
    command = [sys.executable, str(ROOT / "gpu/bench.py"), "--out", str(out)]
    lengths = [str(2048 << i) for i in range(7) if 2048 << i <= longest]
    if shown([*command, "--lengths", *lengths]):
        raise Part("gpu/bench.py failed", wrong=True)
    return f"times are in {out / 'bench.json'}"


def main() -> int:
    parts = ("build", "test", "sanitize", "torch", "bench")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; all")
    parser.add_argument("--out", type=Path, default=ROOT / "build-gpu")
    parser.add_argument("--architectures", default="", help="such as 80;90a; the GPU's, or all")
    parser.add_argument("--cases", type=int, default=400, help="drawn problems of the test")
    parser.add_argument("--longest", type=int, default=131072, help="keys of the benchmark")
    given = parser.parse_args()
    for name in given.parts:
        if name not in parts:
            parser.error(f"PART: expected names out of {', '.join(parts)}, got {name!r}")
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, Callable[[], str]] = {
        "build": lambda: build(out, given.architectures or architectures()),
        "test": lambda: test(out, given.cases),
        "sanitize": lambda: sanitize(out),
        "torch": torch_operators,
        "bench": lambda: bench(out, given.longest),
    }
    lines, wrong = [], False
    for name in parts:
        if given.parts and name not in given.parts:
            continue
        try:
            lines.append(f"{name:<9} done: {runs[name]()}")
        except Part as part:
            lines.append(f"{name:<9} {'FAILED' if part.wrong else 'not run'}: {part}")
            wrong = wrong or part.wrong
            if part.wrong and name == "build":
                break
    print("\n" + "\n".join(lines))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
