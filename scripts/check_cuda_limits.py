#!/usr/bin/env python3
"""Compares registers, spills and stack of the compiled CUDA kernels with a committed table.

    scripts/check_cuda_limits.py TREE NVCC-VERSION [--write]

TREE has the *.ptxas files that compiling leaves (`-Xptxas -v`). A kernel that takes more than
src/core/cuda/limits.json says, or that is not there, is an error: either the change was not
meant, or --write puts the new numbers into the table, for the reviewer to see. Another nvcc than
the table's allots registers differently, and is not compared.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parent.parent / "src/core/cuda/limits.json"
FIELDS = ("registers", "spill_bytes", "stack_bytes")


def short_name(mangled: str) -> str:
    """SweepKernel<BFloat16, 128> from its mangled name; no tool of CUDA's is needed."""
    name = re.search(r"\d+([A-Z][A-Za-z]*Kernel)(I.*)?", mangled)
    if name is None:
        return mangled
    types = re.findall(
        r"\d(BFloat16|Float16|Float32|Float64)E|Li(\d+)E|Lb([01])E", name.group(2) or ""
    )
    arguments = ["".join(group) for group in types]
    return name.group(1) + (f"<{', '.join(arguments)}>" if arguments else "")


def measure(tree: Path) -> dict[str, dict[str, list[int]]]:
    """architecture: {kernel: [registers, bytes spilled, bytes of stack]}"""
    found: dict[str, dict[str, list[int]]] = {}
    for log in sorted(tree.glob("**/*.ptxas")):
        text = log.read_text()
        # Several threads print at once: only the function's name tells what a line is about.
        for entry in re.finditer(
            r"Compiling entry function '(\w+)' for '(sm_\w+)'(.*?)Used (\d+) registers", text, re.S
        ):
            mangled, architecture, between, registers = entry.groups()
            own = re.search(
                re.escape(mangled)
                + r"\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                between,
            )
            stack, stores, loads = map(int, own.groups()) if own else (0, 0, 0)
            row = [int(registers), stores + loads, stack]
            found.setdefault(architecture, {})[short_name(mangled)] = row
    return found


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    version = sys.argv[2]
    found = measure(Path(sys.argv[1]))
    if not found:
        print(f"no *.ptxas file with kernels below {sys.argv[1]}")
        return 1
    table: dict[str, Any] = {"fields": list(FIELDS)}
    if TABLE.exists():
        table = json.loads(TABLE.read_text())
    if "--write" in sys.argv:
        if table.get("nvcc") != version:
            table = {"fields": list(FIELDS), "nvcc": version}
        for architecture, kernels in found.items():
            table[architecture] = dict(sorted(kernels.items()))
        lines = [f' "{name}": {json.dumps(table[name])}' for name in ("fields", "nvcc")]
        for architecture in sorted(set(table) - {"fields", "nvcc"}):
            rows = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(row)}"
                for name, row in table[architecture].items()
            )
            lines.append(f' "{architecture}": {{\n{rows}\n }}')
        TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    if table.get("nvcc") != version:
        print(f"the table is of nvcc {table.get('nvcc')}, not {version}: nothing to compare")
        return 0
    wrong = 0
    for architecture, kernels in found.items():
        known = table.get(architecture, {})
        for name, row in kernels.items():
            for field, got, most in zip(FIELDS, row, known.get(name, [-1, -1, -1]), strict=True):
                if got > most:
                    wrong += 1
                    print(f"{architecture} {name}: {field} {got}, the table has {most}")
        for name in known.keys() - kernels.keys():
            wrong += 1
            print(f"{architecture} {name}: in the table, but not compiled")
    print(f"{sum(map(len, found.values()))} kernels, {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
