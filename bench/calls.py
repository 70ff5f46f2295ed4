"""What a call costs where its arithmetic is small: microseconds, beside torch's own functions.

    python bench/calls.py --out calls.json

One thread, one head of 64 columns, float32. The least time of many batches counts: everything that
can disturb a call makes it longer.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import document

import tsallis  # isort: skip

CALLS = 200  # of a batch


def with_gradients(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> Callable[[], None]:
    """Forward and backward, with gradients in all inputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    upstream = torch.ones_like(function(*leaves))

    def call() -> None:
        function(*leaves).backward(upstream)
        for leaf in leaves:
            leaf.grad = None

    return call


def contenders(length: int) -> dict[str, Callable[[], object]]:
    """Calls by name; what we are compared with has the same name and "torch"."""
    q, k, v = torch.randn(3, 1, 1, length, 64)
    row = torch.randn(1, length)
    cache = tsallis.KVCache(1, 1, 64, dtype=torch.float32)
    sequence = cache.sequence()
    cache.append(0, [sequence], k, v)
    query = q[:, :, :1].contiguous()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        "attention": lambda: tsallis.attention(q, k, v),
        "attention torch": lambda: sdpa(q, k, v),
        "attention, both passes": with_gradients(tsallis.attention, q, k, v),
        "attention, both passes torch": with_gradients(sdpa, q, k, v),
        "entmax": lambda: tsallis.entmax(row),
        "entmax torch": lambda: torch.softmax(row, -1),
        "entmax, both passes": with_gradients(tsallis.entmax, row),
        "entmax, both passes torch": with_gradients(lambda x: torch.softmax(x, -1), row),
        "decode": lambda: tsallis.decode(query, cache, 0, [sequence]),
    }


def measured(length: int, batches: int) -> list[dict[str, Any]]:
    """Rows: microseconds of a call, and torch's where it has one."""
    calls = contenders(length)
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(batches):
        for name, call in calls.items():
            least[name] = min(least[name], timeit.timeit(call, number=CALLS) / CALLS)
    return [
        {
            "case": name,
            "length": length,
            "ours_us": 1e6 * least[name],
            "torch_us": 1e6 * least[f"{name} torch"] if f"{name} torch" in least else None,
        }
        for name in calls
        if not name.endswith(" torch")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--batches", type=int, default=60, help="of 200 calls each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [row for length in (16, 128) for row in measured(length, arguments.batches)]
    for row in rows:
        beside = f"{row['torch_us']:8.1f}" if row["torch_us"] else " " * 8
        print(f"{row['case']:24}{row['length']:6}{row['ours_us']:8.1f}{beside}")
    document.write(arguments.out, document.build(rows, threads=1))


if __name__ == "__main__":
    main()
