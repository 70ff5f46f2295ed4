"""Times the row maps against torch.softmax and the entmax package, in one process and interleaved.

    .venv/bin/python bench/maps.py --out build/bench/maps.json

Peers: torch.softmax (what a dense map costs; for every alpha), the entmax package's sorting solvers
entmax15 and sparsemax (alpha 1.5 and 2), and its entmax_bisect (every alpha). Ours and a peer take
turns, and medians are reported, so that a machine that is shared slows both alike.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import entmax as peer_package
import torch

import common
import tsallis
from common import timing

SHAPES = [(4096, 64), (4096, 1024), (256, 65536), (8, 1048576)]
QUICK_SHAPES = [(1024, 64), (256, 1024)]
ALPHAS = [1.5, 2.0, 1.25]
PASSES = ["fwd", "fwd+bwd"]

Map = Callable[[torch.Tensor], torch.Tensor]


def peers_of(alpha: float) -> dict[str, Map]:
    peers: dict[str, Map] = {"torch.softmax": lambda x: torch.softmax(x, -1)}
    if alpha == 1.5:
        peers["entmax15"] = peer_package.entmax15
    if alpha == 2.0:
        peers["sparsemax"] = peer_package.sparsemax
    peers["entmax_bisect"] = lambda x: peer_package.entmax_bisect(x, alpha)
    return peers


def timed(apply: Map, x: torch.Tensor, gradient: torch.Tensor, backward: bool) -> timing.Sample:
    if not backward:
        with torch.no_grad():
            return timing.clocked(lambda: apply(x))
    x = x.detach().requires_grad_()
    return timing.clocked(lambda: torch.autograd.grad(apply(x), x, gradient))


def compare(
    runners: dict[str, Map], x: torch.Tensor, backward: bool, budget_s: float, most: int
) -> dict[str, timing.Timing]:
    """Every runner's calls, all taking turns."""
    gradient = torch.randn_like(x)
    for apply in runners.values():
        # Work that happens once a process (autograd starting up took 1.2 s) is not timed.
        timed(apply, x[:1, :16], gradient[:1, :16], backward)
    turns = {
        name: lambda apply=apply: [timed(apply, x, gradient, backward)]
        for name, apply in runners.items()
    }
    return timing.in_turns(turns, most=most, budget_s=budget_s)


def measure(shapes: list[tuple[int, int]], budget_s: float, most: int) -> list[dict[str, Any]]:
    rows_out: list[dict[str, Any]] = []
    print(
        f"{'rows x length':>16} {'alpha':>5} {'pass':>8} {'peer':>14} {'ours ms':>10} "
        f"{'peer ms':>10} {'speedup':>8}",
        file=sys.stderr,
    )
    for rows, length in shapes:
        torch.manual_seed(0)
        x = torch.randn(rows, length)
        for alpha in ALPHAS:
            runners = {"tsallis": lambda t, a=alpha: tsallis.entmax(t, a)} | peers_of(alpha)
            for direction in PASSES:
                timings = compare(runners, x, direction == "fwd+bwd", budget_s, most)
                ours = timings.pop("tsallis")
                for peer, theirs in timings.items():
                    row = {
                        "case": f"entmax-{alpha:g} {rows}x{length}",
                        "rows": rows,
                        "length": length,
                        "alpha": alpha,
                        "pass": direction,
                        **timing.compared(ours, peer, theirs),
                    }
                    rows_out.append(row)
                    print(
                        f"{f'{rows}x{length}':>16} {alpha:>5g} {direction:>8} {peer:>14} "
                        f"{ours.wall_s * 1e3:>10.3f} {theirs.wall_s * 1e3:>10.3f} "
                        f"{row['speedup']:>7.2f}x",
                        file=sys.stderr,
                        flush=True,
                    )
    return rows_out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of both (default: every core)"
    )
    parser.add_argument(
        "--budget", type=float, default=6.0, help="seconds a case and pass may take, about"
    )
    parser.add_argument("--repeats", type=int, default=31, help="most repetitions of a case")
    parser.add_argument("--quick", action="store_true", help="small shapes only, in a few seconds")
    arguments = parser.parse_args()
    if arguments.threads is None or arguments.threads < 1:
        parser.error(f"--threads: expected at least 1, got {arguments.threads}")
    torch.set_num_threads(arguments.threads)

    shapes = QUICK_SHAPES if arguments.quick else SHAPES
    budget_s = 0.3 if arguments.quick else arguments.budget
    rows = measure(shapes, budget_s, arguments.repeats)
    common.document.write(arguments.out, common.document.build(rows, threads=arguments.threads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
