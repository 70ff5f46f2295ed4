#!/usr/bin/env python3
"""Predicts the time of CUDA forward passes on an H200 from work that the emulation counts.

    scripts/predict_cuda.py

Counts are those of docs/figures/cuda-counts.json, times those of docs/figures/cuda-h200.json. A
slot is a block's place on a multiprocessor: there are two on each of 132. Blocks go to slots in
the order of their numbers, so that a kernel's last ones leave slots idle. A block of the sweep
takes

    block + tiles (tile + product products / 256) + visit visits      microseconds

where a visit is an entry that a thread looks at in a step of Newton's method while bounds are
raised or lists are solved. A block of the dense kernel takes, for a tile of keys,

    passes (tile + power if weights need powers) + product products / 256

with a tile and a power of its own. A lone block of rows without room takes `lone` for a tile and
16 columns. Decoding takes a wait for its four launches, and its bytes at the rate of a copy. Least
squares of relative errors find the constants on the cases that the table marks.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FIGURES = Path(__file__).resolve().parent.parent / "docs/figures"
SLOTS = 2 * 132
COPY_TB_S = 4.23  # cuda-h200.json's ceiling
PASSES = 10  # of rows that keep hundreds of keys, counted
# Milliseconds of 4 documents of 16 384 tokens (9 heads of 64, commit c914e726), by the layer whose
# counts are nearest: those inputs are gone. Counted are three heads of one document that went
# through another conversion of SmolLM2.
LAYERS = {0: 31.09, 10: 5.04, 19: 13.95, 29: 11.11}


def span(blocks: Iterable[float], slots: int = SLOTS) -> float:
    """The time until blocks of these durations have run, each on the slot that is free first."""
    free = [0.0] * slots
    for duration in blocks:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def at_keys(counted: Sequence[Sequence[float]], keys: float) -> float:
    """The count of a block whose last row sees `keys` keys.

    counted: pairs of keys and a count, ascending. Between them a count is linear in the logarithm
    of keys, and beyond them constant: lists fill in the first tiles, and hardly later.
    """
    logs = [math.log(pair[0]) for pair in counted]
    return float(np.interp(math.log(keys), logs, [pair[1] for pair in counted]))


def least_squares(rows: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """The constants x >= 0 with the least sum of squares of rows x / times - 1.

    A constant that would be negative is left out and is 0, one after the other.
    """
    matrix = np.asarray(rows, dtype=float) / np.asarray(times, dtype=float)[:, None]
    used = list(range(matrix.shape[1]))
    while True:
        found = np.linalg.lstsq(matrix[:, used], np.ones(len(matrix)), rcond=None)[0]
        if (found >= 0).all():
            break
        used.pop(int(np.argmin(found)))
    x = np.zeros(matrix.shape[1])
    x[used] = found
    return [float(value) for value in x]


class Work(NamedTuple):
    """A launch: a block for each 64 or 128 rows, longest first, of `heads` heads.

    blocks: what a block has of each constant's unit, [blocks of a head, constants].
    """

    blocks: np.ndarray
    heads: int

    def time(self, constants: Sequence[float], across: bool = False) -> float:
        """Milliseconds, with constants in microseconds.

        across: the longest blocks of all heads come first, not those of each head.
        """
        durations = self.blocks @ np.asarray(constants)
        ordered = np.repeat(durations, self.heads) if across else np.tile(durations, self.heads)
        return span(ordered.tolist()) / 1000

    def shares(self) -> list[float]:
        """Units a slot if all slots were busy to the end, in thousands."""
        return [float(x) for x in self.blocks.sum(0) * self.heads / SLOTS / 1000]


def sweep(n: int, d: int, heads: int, visits: Sequence[Sequence[float]] = ((1, 0),)) -> Work:
    """The sweep of causal heads of n keys: units of block, tile, product and visit."""
    blocks = []
    for keys in range(n, 0, -128):
        tiles = math.ceil(keys / 64)
        blocks.append([1.0, tiles, tiles * 128 * 64 * d / 2048 / 256, at_keys(visits, keys)])
    return Work(np.array(blocks), heads)


def guessed(document: dict[str, Any], n: int, d: int, heads: int, alpha: str) -> list[Work]:
    """The launches of the sweep with guesses, causal heads of n keys (src/attention/cuda/guess.h).

    No constant was fitted to the two small kernels: a block of them takes what its tiles and
    products do. A hundredth of the rows is swept again.
    """
    name = f"{d} {alpha}"
    pilots, others = visits_of(document, f"normal {name}"), visits_of(document, f"guessed {name}")
    whole = sweep(n, d, heads, others).blocks
    chosen = [0, math.ceil(len(whole) / 2)]  # longest first: of n keys and of half of them
    first = sweep(n, d, heads, pilots).blocks[chosen]
    samples = min(max(n // 4, 512), 2048)
    moments = [0.0, samples / 64, samples * 64 * d * 2 / 2048 / 256, 0.0]
    rows = [0.0, d / 64, 128 * d * d / 2048 / 256, 0.0]
    again = [n * x / 4 for x in range(4, 4 - math.ceil(n / 100 / 64), -1) if x > 0]
    return [
        Work(np.array([moments] * (d // 64)), heads),
        Work(np.array([rows] * len(whole)), heads),
        Work(first, heads),
        Work(np.delete(whole, chosen, 0), heads),
        long_sweep([keys / 64 for keys in again], d, heads, others[-1][1]),
    ]


def long_sweep(tiles: Sequence[float], d: int, heads: int, visits: float) -> Work:
    """The second sweep of blocks of 64 rows."""
    return Work(np.array([[1.0, x, x * 64 * 64 * d / 2048 / 256, visits] for x in tiles]), heads)


def dense(tiles: Sequence[float], d: int, heads: int, passes: float, power: bool = False) -> Work:
    """Blocks of 64 dense rows: units of tile, product and power.

    Each pass makes the products with keys. The last one multiplies weights, of which there are two
    numbers each, with values, too.
    """
    products = (passes + 2) * 64 * 64 * d / 2048 / 256
    blocks = [[x * passes, x * products, x * passes if power else 0.0] for x in tiles]
    return Work(np.array(blocks), heads)


def causal_tiles(n: int) -> list[float]:
    return [keys / 64 for keys in range(n, 0, -64)]


class Case(NamedTuple):
    """What was measured, in ms, and the launches that it is made of.

    fitted: by which group of constants, "sweep" or "dense"; "": predicted.
    """

    name: str
    measured: float | None
    sweeps: Sequence[Work] = ()
    denses: Sequence[Work] = ()
    lone: tuple[int, int] | None = None  # keys and head size of lone blocks of rows without room
    fitted: str = ""


def units_of(case: Case) -> list[float]:
    """What a slot has of each constant's unit in the launches that are fitted."""
    if case.lone is not None:
        return []
    shares = [work.shares() for work in case.denses or case.sweeps]
    return [sum(share) for share in zip(*shares, strict=True)]


class Model:
    """Constants in microseconds, found on the cases that are fitted."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.sweep = self._fit([c for c in cases if c.fitted == "sweep"])
        self.dense = self._fit([c for c in cases if c.fitted == "dense"])
        rows = [c for c in cases if c.fitted == "lone"]
        self.lone = 0.0
        self.lone = sum((c.measured or 0.0) / self.lone_pass(c) for c in rows) / max(len(rows), 1)

    def _fit(self, cases: Sequence[Case]) -> list[float]:
        sums, times = [], []
        for case in cases:
            sums.append(units_of(case))
            swept = sum(work.time(self.sweep) for work in case.sweeps) if case.denses else 0.0
            times.append((case.measured or 0.0) - swept)
        return least_squares(sums, times)

    def lone_pass(self, case: Case) -> float:
        n, d = case.lone or (0, 0)
        tile, product, _ = self.dense
        return n / 64 * (tile + product * 64 * 64 * d / 2048 / 256) / 1000

    def time(self, case: Case) -> float:
        """Milliseconds."""
        return (
            sum(work.time(self.sweep) for work in case.sweeps)
            + sum(work.time(self.dense) for work in case.denses)
            + self.lone * (self.lone_pass(case) if case.lone else 0.0)
        )


def rows_of(file: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FIGURES / file).read_text())["rows"]
    return rows


def visits_of(document: dict[str, Any], name: str) -> list[tuple[float, float]]:
    return [(block[0], block[4]) for block in document["sweep"][name]]


def normal_cases(document: dict[str, Any]) -> list[Case]:
    """Normal inputs: docs/benchmark.md's forward passes, and times of their kernels."""
    alphas = {"entmax 1.5": "1.5", "entmax 2.0": "2", "entmax 1.25": "1.25"}
    cases = []
    for row in rows_of("cuda-h200.json"):
        if "forward_ms" not in row:
            continue
        n, d, name, measured = row["n"], row["d"], row["name"], row["forward_ms"]
        title, heads = f"{name.removesuffix(', ours')}, {n // 1024}K, d {d}", 64 * row["batch"]
        if name == "softmax, ours":
            work = dense(causal_tiles(n), d, heads, 1)
            cases.append(Case(title, measured, (), [work], None, "dense"))
        if name not in alphas:
            continue
        # At alpha 1.25 head size 128 alone was counted. The head size makes little of a difference.
        counted = 128 if name == "entmax 1.25" else d
        swept = sweep(n, d, heads, visits_of(document, f"normal {counted} {alphas[name]}"))
        if name == "entmax 1.25":
            work = dense(causal_tiles(n), d, heads, PASSES, power=True)
            cases.append(Case(title, measured, [swept], [work], None, "dense" if d == 128 else ""))
        elif "kernels_ms" not in row:
            cases.append(Case(title, measured, [swept]))
        else:
            kernels = row["kernels_ms"]
            left = kernels["DenseKernel"]
            # Kernels are those of both passes, so that the sweep's time is of two launches.
            first, fitted = measured - left, "sweep" if n <= 16384 else ""
            known = Case(
                f"{title}, known thresholds",
                kernels["SweepKernel"] - first,
                [sweep(n, d, heads)],
                fitted=fitted,
            )
            cases += [Case(f"{title}, sweep", first, [swept], fitted=fitted), known]
            lone = (n, d) if left > 0.05 * measured else None
            if lone is not None:
                used = "lone" if n == 32768 else ""
                cases += [Case(f"{title}, lone blocks", left, (), (), lone, used)]
                cases += [Case(title, measured, [swept], (), lone)]
    for row in rows_of("cuda-h200-again.json"):
        if row["name"] == "entmax 1.5, untrained":
            n, d, heads = row["n"], row["d"], 64 * row["batch"]
            swept = sweep(n, d, heads, visits_of(document, f"small scores {d} 1.5"))
            work = dense(causal_tiles(n), d, heads, PASSES)
            cases.append(
                Case(f"small scores, {n // 1024}K, d {d}", row["forward_ms"], [swept], [work])
            )
    return cases


def layer(document: dict[str, Any], name: str, n: int, batch: int, measured: float | None) -> Case:
    """A layer of SmolLM2, 9 heads of 64. before: newest tile first, and no second sweep.

    Rows that the sweep leaves lie anywhere among a head's. Up to 64 of them are a lone block.
    """
    left, heads, d = document["left"][name], 9 * batch, 64
    swept = [sweep(n, d, heads, visits_of(document, name))]
    title = f"{name}, {batch} x {n // 1024}K"
    rows = left["rows"] * n
    blocks = math.ceil(rows / 64)
    tiles = [n / 64 * (blocks - i) / blocks for i in range(blocks)]
    if blocks > 0 and "visits" in left:
        swept.append(long_sweep(tiles, d, heads, left["visits"]))
    elif blocks == 1:
        return Case(title, measured, swept, (), (n, d))
    elif blocks > 1:
        return Case(title, measured, swept, [dense(tiles, d, heads, left["passes"])])
    return Case(title, measured, swept)


def decoding(document: dict[str, Any]) -> list[tuple[str, float, float, bool]]:
    """Name, measured ms, ms of all bytes at the rate of a copy, whether it is fitted.

    One token of 8 sequences, 64 heads and 8 key heads of 128.
    """
    found = []
    for row in rows_of("cuda-h200.json"):
        if "on pages" not in row["name"]:
            continue
        alpha = "1" if row["name"].startswith("softmax") else f"{float(row['name'].split()[1]):g}"
        bytes_of, n = document["pages"][alpha], row["n"]
        # pages_run.h: a run is at most 2048 keys, and 512 blocks are enough.
        blocks = 64 * max(8, n // 2048)
        size = bytes_of["key"] * 64 * n + bytes_of["block"] * blocks
        title = f"decoding, {'softmax' if alpha == '1' else 'entmax ' + alpha}, {n // 1024}K"
        found.append((title, row["decode_ms"], size / COPY_TB_S / 1e9, n == 8192))
    return found


def saved_lists(model: Model) -> list[tuple[str, float, float, float]]:
    """Name, measured ms of a forward and a backward pass, ms that saved lists spare both.

    Saved lists are written, read, and written to the backward pass's own, each time a count and
    eight bytes an entry. They spare a sweep with known thresholds. A batch has 64 heads.
    """
    found = []
    for row in rows_of("cuda-h200.json"):
        if row["name"] != "entmax 1.5" or "both_ms" not in row:
            continue
        n, d, heads = row["n"], row["d"], 64 * row["batch"]
        cost = 3 * n * heads * (4 + 8 * row["kept"]) / COPY_TB_S / 1e9
        known = sweep(n, d, heads).time(model.sweep)
        title, forward = f"entmax 1.5, {n // 1024}K, d {d}", row["forward_ms"]
        found.append((title, forward, row["both_ms"] - forward, known - cost))
    return found


def left_out(cases: Sequence[Case]) -> dict[str, float]:
    """Predicted over measured of each fitted case, by constants that are found without it.

    A case that alone has units of a constant is left in.
    """
    ratios = {}
    for case in cases:
        others = [other for other in cases if other is not case]
        same = [units_of(o) for o in others if case.fitted and o.fitted == case.fitted]
        found = all(sum(units) > 0 for units in zip(*same, strict=True))
        if case.fitted and case.measured and found:
            ratios[case.name] = Model(others).time(case) / case.measured
    return ratios


def main() -> None:
    document = json.loads((FIGURES / "cuda-counts.json").read_text())
    cases = normal_cases(document)
    model = Model(cases)
    block, tile, product, visit = model.sweep
    rate = 256 * 4096 * SLOTS / product / 1e6
    print(
        f"Microseconds of a slot. Sweep: block {block:.1f}, tile {tile:.2f}, 256 products "
        f"{product:.2f} ({rate:.0f} TFLOP/s), visit {visit:.2f}. Dense: tile {model.dense[0]:.2f}, "
        f"256 products {model.dense[1]:.2f}, power {model.dense[2]:.2f}. A lone block's tile is "
        f"{model.lone:.1f} passes."
    )
    without = left_out(cases)
    print(f"{'':44}{'predicted':>10}{'measured':>10}{'ratio':>7}{'left out':>10}")

    def line(name: str, time: float, measured: float | None, note: str = "") -> None:
        ratio = f"{measured:10.3f}{time / measured:7.2f}" if measured else ""
        print(f"{name:44}{time:10.3f}{ratio}{note:>10}".rstrip())

    layers = [
        layer(document, f"before at 16K, layer {counted}", 16384, 4, measured)
        for counted, measured in LAYERS.items()
        if f"before at 16K, layer {counted}" in document["sweep"]
    ]
    for case in [*cases, *layers]:
        note = (
            f"{without[case.name]:.2f}" if case.name in without else "fitted" if case.fitted else ""
        )
        line(case.name, model.time(case), case.measured, note)
    print("Normal inputs, ms of the sweep's launches: without and with guesses")
    for d, alpha in ((128, "1.5"), (64, "1.5"), (128, "2")):
        for n in (4096, 16384):
            visits = visits_of(document, f"normal {d} {alpha}")
            parts = [work.time(model.sweep) for work in guessed(document, n, d, 128, alpha)]
            times = [sweep(n, d, 128, visits).time(model.sweep), sum(parts), *parts]
            print(
                f"{n // 1024}K, d {d}, alpha {alpha:<4}"
                "{:8.2f}{:8.2f}  moments {:.2f}, rows {:.2f}, pilots {:.2f}, others {:.2f}, "
                "again {:.2f}".format(*times)
            )
    print("Backward and both passes, ms: measured, and predicted with saved lists")
    for title, forward, backward, spared in saved_lists(model):
        times = [backward, forward + backward]
        times += [time - spared for time in times]
        print(f"{title:44}" + "".join(f"{time:10.1f}" for time in times))
    tokens = decoding(document)
    fitted = [(measured, size) for _, measured, size, used in tokens if used]
    wait = least_squares([[1.0]] * len(fitted), [measured - size for measured, size in fitted])[0]
    for name, measured, size, used in tokens:
        line(name, wait + size, measured, "fitted" if used else "")
    print("One document of 8K, ms: before, now, blocks in order across heads, thresholds known")
    known = sweep(8192, 64, 9).time(model.sweep)
    for counted in LAYERS:
        before, now = (
            layer(document, f"{side}, layer {counted}", 8192, 1, None) for side in ("before", "now")
        )
        times = [model.time(before), model.time(now)]
        across = now.sweeps[0].time(model.sweep, across=True) - now.sweeps[0].time(model.sweep)
        times += [times[1] + across, known]
        print(f"layer {counted:<4}" + "".join(f"{time:8.2f}" for time in times))


if __name__ == "__main__":
    main()
