"""The attention benchmark: cases one after the other, ours and the peers in turns within each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tsallis.bench import peers
from tsallis.bench.cases import Case
from tsallis.bench.timing import Sample, Timing, clocked, compared, in_turns

__all__ = ["Measured", "Options", "draw", "matmul_rate", "measure", "minutes_left"]

Pass = Literal["fwd", "fwd+bwd"]
PASSES: tuple[Pass, Pass] = ("fwd", "fwd+bwd")
BACKWARD_FLOPS = 2.5  # of the forward pass's: five products for two
# Operations of a forward pass from which on its time says something of products: below, what a
# call costs beside them counts for more, and on a busy machine thousands of times as much.
LEAST_FLOPS = 1e8


@dataclass(frozen=True)
class Options:
    """How long and against whom."""

    peers: Sequence[str] = peers.NAMES
    budget_s: float = 12.0  # a case and pass may take, about
    repeat: int = 21  # at most
    most_plain: int = 4096  # keys, for a peer that stores every score of two heads
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """One pass of one case."""

    rows: list[dict[str, Any]]  # one for each peer
    absent: list[peers.Absent]


def timed(attend: peers.Attend, inputs: Sequence[Tensor], backward: bool) -> Sample:
    """One call; inputs: q, k, v and the gradient of the output."""
    q, k, v, gradient = inputs
    if not backward:
        with torch.no_grad():
            return clocked(lambda: attend(q, k, v))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return clocked(
        lambda: torch.autograd.grad(attend(leaves[0], leaves[1], leaves[2]), leaves, gradient)
    )


def compare(
    runners: Sequence[peers.Runner], inputs: Sequence[Tensor], backward: bool, options: Options
) -> dict[str, Timing]:
    """Every runner's calls, all taking turns."""
    few = [x[:, :, :32].contiguous() for x in inputs]
    for runner in runners:
        if not runner.fixed:
            timed(runner.attend, few, backward)  # what happens once a process is nobody's time
    turns = {
        runner.name: lambda attend=runner.attend: [timed(attend, inputs, backward)]
        for runner in runners
    }
    return in_turns(turns, most=options.repeat, budget_s=options.budget_s)


def matmul_rate(size: int) -> tuple[float, torch.dtype]:
    """Operations a second of torch's matrix product, and the dtype that it was measured in.

    That is bfloat16 or float32, whichever is faster at 256: without instructions for bfloat16
    torch's products in it are some fifty times slower than those in float32.
    """
    dtype = max((torch.bfloat16, torch.float32), key=lambda dtype: _product_rate(dtype, 256))
    return _product_rate(dtype, size), dtype


def _product_rate(dtype: torch.dtype, size: int) -> float:
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def draw(case: Case, seed: int) -> list[Tensor]:
    """q, k, v and the gradient of the output: [batch, heads, n, d]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (case.batch, case.heads, case.n, case.d)
    if case.inputs is not None:
        gradient = torch.randn(shape, generator=generator).to(case.inputs[0].dtype)
        return [*(x.unsqueeze(0) for x in case.inputs), gradient]
    scales = [case.spread, 1.0, 1.0, 1.0]
    dtype: torch.dtype = getattr(torch, case.dtype)
    return [(torch.randn(shape, generator=generator) * scale).to(dtype) for scale in scales]


def measure_pass(case: Case, direction: Pass, options: Options, rate: float) -> Measured:
    """Ours and every peer that can take part."""
    inputs = draw(case, options.seed)
    backward = direction == "fwd+bwd"
    found = [peers.peer(name, case, inputs, backward, options.most_plain) for name in options.peers]
    runners = [peers.ours(case)] + [x for x in found if isinstance(x, peers.Runner)]
    timings = compare(runners, inputs, backward, options)
    ours = timings.pop("tsallis")
    dense = case.forward_flops * (1 + BACKWARD_FLOPS if backward else 1) / rate
    roofline = ours.wall_s / dense if case.forward_flops >= LEAST_FLOPS else None
    rows = [
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
            "spread": case.spread if case.inputs is None else None,
            **compared(ours, peer, theirs),
            "roofline": roofline,
        }
        for peer, theirs in timings.items()
    ]
    return Measured(rows, [x for x in found if isinstance(x, peers.Absent)])


def minutes_left(expected: Sequence[float], done: int, elapsed: float) -> float:
    """What is left of tasks expected to take these times, ``done`` of which took ``elapsed``."""
    if done == 0:
        return sum(expected) / 60
    return elapsed / sum(expected[:done]) * sum(expected[done:]) / 60


def measure(
    cases: Sequence[Case],
    options: Options,
    rate: float,
    keep: Callable[[Measured], None],
    progress: Callable[[int, Case, float], None],
) -> None:
    """Measures case by case.

    keep: takes each pass as soon as it is measured. progress: is told before each case how many are
    done, which comes next, and how many minutes are left, about.
    """
    start = time.perf_counter()
    # A case takes its budget for either pass, or what dense attention takes once if that is more;
    # FlexAttention is compiled for most.
    expected = [
        2 * options.budget_s
        + 15 * case.forward_flops / rate
        + (10.0 if "flex" in options.peers else 0.0)
        for case in cases
    ]
    for index, case in enumerate(cases):
        elapsed = time.perf_counter() - start
        progress(index, case, minutes_left(expected, index, elapsed))
        for direction in PASSES:
            keep(measure_pass(case, direction, options, rate))
