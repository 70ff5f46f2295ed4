"""Times fused attention against PyTorch's dense softmax and the entmax package.

    .venv/bin/python bench/attention.py --out build/bench/attention.json

Peers. sdpa: torch's scaled_dot_product_attention, without ALiBi and the like: what a dense map
costs at the least. entmax: plain attention around the entmax package's map, up to --most-plain
keys, since it stores scores of every pair. All take turns within a case, and medians are reported,
so that a machine that is shared slows all alike; compare ratios, not times.

`roofline` is our time over the time that the operations of dense attention take at the rate of
torch's bfloat16 matrix product, measured here (forward 4 n^2 d a head, half of it if causal;
backward 2.5 times as many). Below 1 no dense implementation can follow.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

import common
from attention_cases import Case, all_cases, matching, quick_cases

sys.path.insert(0, str(common.ROOT / "python"))

import entmax as peer_package

import tsallis

PASSES = ["fwd", "fwd+bwd"]
BACKWARD_FLOPS = 2.5  # of the forward pass's: five products for two

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def plain(case: Case, apply: Callable[[torch.Tensor], torch.Tensor]) -> Attend:
    """Attention with every score in memory; the map sees float32."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-2, -1)).float() * case.d**-0.5
        if case.causal:
            n = scores.shape[-1]
            hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return apply(scores).to(v.dtype) @ v

    return attend


def fused(case: Case) -> Attend:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return tsallis.attention(q, k, v, causal=case.causal, **settings)

    settings: dict = {"map": case.map}
    if isinstance(case.alpha, tuple):
        settings["alpha"] = torch.tensor(case.alpha)
    elif case.alpha is not None:
        settings["alpha"] = case.alpha
    if case.slopes is not None:
        settings["alibi_slopes"] = torch.tensor(case.slopes)
    if case.scale_invariant is not None:
        settings["scale_invariant"] = case.scale_invariant
    return attend


def rows(case: Case) -> Attend:
    """Plain attention around our row maps, without positions: what fusing is worth."""
    if case.map == "softmax":
        return plain(case, tsallis.softmax)
    if case.map == "adaptive_temperature":
        return plain(case, tsallis.adaptive_temperature_softmax)
    alpha = case.alpha
    if isinstance(alpha, tuple):
        alpha = torch.tensor(alpha).view(-1, 1, 1)
    return plain(case, lambda scores: tsallis.entmax(scores, alpha))


def peers_of(case: Case, most_plain: int) -> dict[str, Attend]:
    peers: dict[str, Attend] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=case.causal)
    }
    # 24 bytes a pair: scores, sorted scores and their order, and what autograd keeps.
    pairs = case.batch * case.heads * case.n**2
    if case.slopes is None and case.scale_invariant is None and pairs <= 2 * most_plain**2:
        if case.alpha == 1.5:
            peers["entmax"] = plain(case, lambda scores: peer_package.entmax15(scores, -1))
        elif case.alpha == 2.0:
            peers["entmax"] = plain(case, lambda scores: peer_package.sparsemax(scores, -1))
    return peers


def timed(attend: Attend, inputs: list[torch.Tensor], backward: bool) -> float:
    *qkv, gradient = inputs
    if not backward:
        with torch.no_grad():
            start = time.perf_counter()
            attend(*qkv)
            return time.perf_counter() - start
    leaves = [x.detach().requires_grad_() for x in qkv]
    start = time.perf_counter()
    torch.autograd.grad(attend(*leaves), leaves, gradient)
    return time.perf_counter() - start


def compare(
    runners: dict[str, Attend],
    inputs: list[torch.Tensor],
    backward: bool,
    budget_s: float,
    most: int,
) -> dict[str, float]:
    """Median seconds of every runner, all taking turns.

    One that has used up its share of the budget stops early; if even its warm-up did, that run is
    the measurement (dense attention over 65 536 keys).
    """
    share = budget_s / len(runners)
    times: dict[str, list[float]] = {name: [] for name in runners}
    spent: dict[str, float] = {}
    few = [x[:, :, :32].contiguous() for x in inputs]
    for name, attend in runners.items():
        timed(attend, few, backward)  # what happens once a process is nobody's time
        first = timed(attend, inputs, backward)
        spent[name] = first
        if first > share:
            times[name].append(first)
    for _ in range(most):
        for name, attend in runners.items():
            if times[name] and spent[name] >= share:
                continue
            seconds = timed(attend, inputs, backward)
            times[name].append(seconds)
            spent[name] += seconds
    return {name: median(values) for name, values in times.items()}


def matmul_rate(size: int) -> float:
    """Operations a second of torch's bfloat16 matrix product: the best of a few."""
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def draw(case: Case) -> list[torch.Tensor]:
    """q, k, v and the gradient of the output: [batch, heads, n, d]."""
    torch.manual_seed(0)
    shape = (case.batch, case.heads, case.n, case.d)
    scales = [case.spread, 1.0, 1.0, 1.0]
    return [(torch.randn(shape) * scale).to(getattr(torch, case.dtype)) for scale in scales]


def measure_case(case: Case, arguments: argparse.Namespace, rate: float) -> list[dict]:
    ours = fused(case) if arguments.ours == "fused" else rows(case)
    runners = {"tsallis": ours} | peers_of(case, arguments.most_plain)
    inputs = draw(case)
    out = []
    for direction in PASSES:
        backward = direction == "fwd+bwd"
        seconds = compare(runners, inputs, backward, arguments.budget, arguments.repeats)
        ours_s = seconds.pop("tsallis")
        dense = case.forward_flops * (1 + BACKWARD_FLOPS if backward else 1) / rate
        for peer, peer_s in seconds.items():
            out.append(
                {
                    "case": case.name,
                    "map": case.map,
                    "alpha": case.alpha,
                    "dtype": case.dtype,
                    "batch": case.batch,
                    "heads": case.heads,
                    "n": case.n,
                    "d": case.d,
                    "causal": case.causal,
                    "pass": direction,
                    "spread": case.spread,
                    "peer": peer,
                    "ours_s": ours_s,
                    "peer_s": peer_s,
                    "speedup": peer_s / ours_s,
                    "roofline": ours_s / dense,
                }
            )
    return out


def show(row: dict) -> None:
    print(
        f"{row['case']:32} {row['pass']:>8} {row['peer']:>7} {row['ours_s'] * 1e3:>11.3f} "
        f"{row['peer_s'] * 1e3:>11.3f} {row['speedup']:>8.2f}x {row['roofline']:>9.3f}",
        file=sys.stderr,
        flush=True,
    )


def measure(cases: list[Case], arguments: argparse.Namespace, rate: float, keep) -> None:
    """Measures case by case; `keep` takes the rows so far after each."""
    print(
        f"{'case':32} {'pass':>8} {'peer':>7} {'ours ms':>11} {'peer ms':>11} {'speedup':>9} "
        f"{'roofline':>9}",
        file=sys.stderr,
    )
    rows_out: list[dict] = []
    start = time.perf_counter()
    # A case takes its budget for either pass, or what dense attention takes once if that is more.
    expected = [2 * arguments.budget + 15 * case.forward_flops / rate for case in cases]
    for index, case in enumerate(cases):
        found = measure_case(case, arguments, rate)
        rows_out += found
        keep(rows_out)
        for row in found:
            show(row)
        elapsed = time.perf_counter() - start
        left = elapsed / sum(expected[: index + 1]) * sum(expected[index + 1 :])
        print(
            f"  {index + 1} of {len(cases)} cases, about {left / 60:.1f} minutes left",
            file=sys.stderr,
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--figure", type=Path, help="also plot: this path with .svg, .png and .csv")
    parser.add_argument(
        "--cases", action="append", default=[], metavar="NAME", help="part of names, or a pattern"
    )
    parser.add_argument("--list", action="store_true", help="print the cases' names and stop")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of all (default: every core)"
    )
    parser.add_argument(
        "--budget", type=float, default=12.0, help="seconds a case and pass may take, about"
    )
    parser.add_argument("--repeats", type=int, default=21, help="most repetitions of a case")
    parser.add_argument(
        "--most-plain", type=int, default=4096, help="most keys for the entmax package (2 heads)"
    )
    parser.add_argument(
        "--ours",
        choices=["fused", "rows"],
        default="fused",
        help="rows: plain attention around our row maps in place of the fused kernels",
    )
    parser.add_argument("--quick", action="store_true", help="one small case of each kind")
    arguments = parser.parse_args()
    if arguments.threads is None or arguments.threads < 1:
        parser.error(f"--threads: expected at least 1, got {arguments.threads}")
    if arguments.quick:
        arguments.budget, arguments.repeats = min(arguments.budget, 0.02), 3
    cases = matching(quick_cases() if arguments.quick else all_cases(), arguments.cases)
    if not cases:
        parser.error(f"--cases: no case's name has {' or '.join(arguments.cases)} in it")
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    torch.set_num_threads(arguments.threads)

    kept = 0

    def keep(rows_so_far: list[dict]) -> None:
        nonlocal kept
        kept = len(rows_so_far)
        isa = tsallis.cpu_target()
        common.write(arguments.out, isa=isa, threads=arguments.threads, rows=rows_so_far)

    rate = matmul_rate(256 if arguments.quick else 2048)
    print(f"bfloat16 matrix product: {rate / 1e9:.0f} Gflop/s", file=sys.stderr)
    status = 0
    try:
        measure(cases, arguments, rate, keep)
    except KeyboardInterrupt:
        where = f"the finished cases are in {arguments.out}" if kept else "nothing was finished"
        print(f"\ninterrupted; {where}", file=sys.stderr)
        status = 130
    if arguments.figure is not None and kept:
        import attention_figure

        attention_figure.write(arguments.out, arguments.figure)
    return status


if __name__ == "__main__":
    sys.exit(main())
