"""Measures the memory that attention takes beyond its arguments and results.

    make bench-attention-memory

Peak resident memory of this process during a call, less what was resident before it and less the
tensors that the call returns: two heads of 64, causal, alpha = 1.5. Beside it SDPA, which keeps a
few floats a row, and plain attention, which keeps every score. Linux only: the kernel is asked to
forget the peak before every call.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import tsallis
from common import document

HEADS, DIM = 2, 64
LIBC = ctypes.CDLL(None)
M_MMAP_THRESHOLD = -3  # of malloc.h; setting it also stops malloc from raising it
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def peak_of(call: Callable[[], object]) -> tuple[int, object]:
    """Bytes of resident memory that `call` took at its peak, and what it returned."""
    gc.collect()
    LIBC.malloc_trim(0)  # what malloc holds for reuse would hide what the call takes
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    result = call()
    return status("VmHWM") - before, result


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    n = q.shape[-2]
    scores = (q @ k.transpose(-2, -1)) * DIM**-0.5
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return tsallis.entmax(scores, 1.5) @ v


def measure(attend: Attend, n: int, dtype: torch.dtype, backward: bool) -> int:
    generator = torch.Generator().manual_seed(1)
    shape = (1, HEADS, n, DIM)
    q, k, v, d_out = (torch.randn(shape, generator=generator).to(dtype) for _ in range(4))
    inputs = [x.requires_grad_(backward) for x in (q, k, v)]

    def call() -> object:
        out = attend(*inputs)
        return (out, torch.autograd.grad(out, inputs, d_out)) if backward else out

    peak, _ = peak_of(call)
    returned = (4 if backward else 1) * q.numel() * q.element_size()
    return max(peak - returned, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384, 65536, 262144])
    parser.add_argument("--most-plain", type=int, default=8192, help="longest plain attention")
    parser.add_argument("--most-sdpa", type=int, default=65536, help="longest SDPA")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        parser.error("this needs Linux: /proc/self/clear_refs is missing")
    torch.set_num_threads(arguments.threads)
    LIBC.mallopt(M_MMAP_THRESHOLD, 128 * 1024)
    contenders: dict[str, Attend] = {
        "tsallis": lambda q, k, v: tsallis.attention(q, k, v, causal=True),
        "tsallis, nothing saved": lambda q, k, v: tsallis.attention(
            q, k, v, causal=True, saved_budget=0
        ),
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "plain": plain,
    }
    most = {"plain": arguments.most_plain, "sdpa": arguments.most_sdpa}
    # Memory that the first call of each keeps for good does not count as a call's.
    for attend in contenders.values():
        measure(attend, 1024, torch.float32, backward=True)
    rows = []
    print(f"{'n':>8} {'dtype':9} {'pass':8} {'who':24} {'MB':>9} {'bytes a query':>14}")
    for n in arguments.lengths:
        for dtype in (torch.float32, torch.bfloat16):
            for backward in (False, True):
                for name, attend in contenders.items():
                    if n > most.get(name, n) or (name.endswith("saved") and not backward):
                        continue
                    extra = measure(attend, n, dtype, backward)
                    row = {
                        "n": n,
                        "dtype": str(dtype).removeprefix("torch."),
                        "pass": "fwd+bwd" if backward else "fwd",
                        "who": name,
                        "bytes": extra,
                        "bytes_per_query": extra / (HEADS * n),
                    }
                    rows.append(row)
                    print(
                        f"{n:>8} {row['dtype']:9} {row['pass']:8} {name:24} {extra / 2**20:>9.1f} "
                        f"{row['bytes_per_query']:>14.0f}",
                        flush=True,
                    )
    document.write(arguments.out, document.build(rows, threads=arguments.threads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
