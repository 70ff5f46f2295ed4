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
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import entmax as peer_package
import torch

import common
import tsallis

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


def timed(apply: Map, x: torch.Tensor, gradient: torch.Tensor, backward: bool) -> float:
    if not backward:
        with torch.no_grad():
            start = time.perf_counter()
            apply(x)
            return time.perf_counter() - start
    x = x.detach().requires_grad_()
    start = time.perf_counter()
    torch.autograd.grad(apply(x), x, gradient)
    return time.perf_counter() - start


def compare(
    runners: dict[str, Map], x: torch.Tensor, backward: bool, budget_s: float, most: int
) -> dict[str, float]:
    """Median seconds of every runner, all taking turns.

    One that has used up its share of the budget stops early; if even its warm-up did, that run is
    the measurement (the peers' sorts of a million scores).
    """
    gradient = torch.randn_like(x)
    share = budget_s / len(runners)
    times: dict[str, list[float]] = {name: [] for name in runners}
    spent: dict[str, float] = {}
    for name, apply in runners.items():
        # What happens once a process (autograd starting up took 1.2 s) is nobody's time.
        timed(apply, x[:1, :16], gradient[:1, :16], backward)
        first = timed(apply, x, gradient, backward)
        spent[name] = first
        if first > share:
            times[name].append(first)
    for _ in range(most):
        for name, apply in runners.items():
            if times[name] and spent[name] >= share:
                continue
            seconds = timed(apply, x, gradient, backward)
            times[name].append(seconds)
            spent[name] += seconds
    return {name: median(values) for name, values in times.items()}


def measure(shapes: list[tuple[int, int]], budget_s: float, most: int) -> list[dict]:
    rows_out: list[dict] = []
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
                seconds = compare(runners, x, direction == "fwd+bwd", budget_s, most)
                ours = seconds.pop("tsallis")
                for peer, theirs in seconds.items():
                    row = {
                        "case": f"entmax-{alpha:g} {rows}x{length}",
                        "rows": rows,
                        "length": length,
                        "alpha": alpha,
                        "pass": direction,
                        "peer": peer,
                        "ours_s": ours,
                        "peer_s": theirs,
                        "speedup": theirs / ours,
                    }
                    rows_out.append(row)
                    print(
                        f"{f'{rows}x{length}':>16} {alpha:>5g} {direction:>8} {peer:>14} "
                        f"{ours * 1e3:>10.3f} {theirs * 1e3:>10.3f} {theirs / ours:>7.2f}x",
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
