"""Times the CUDA kernels against torch's on the same device: gpu/run.py bench.

    gpu/bench.py [--out build-gpu] [--lengths N...] [--head-dims D...] [--peers NAME...]
                 [--decode N...] [--rows N...] [--budget SECONDS]

First the ceilings that the predictions assume: a copy, torch's product of matrices, this library's
matrix instruction by itself, and rows gathered from the second cache. Then forward and both passes,
causal, bfloat16, normal inputs, 64 query heads and 8 key heads, with the time of each kernel; to 8K
keys also with scores as small as those of a model in its first steps. The peers:
scaled_dot_product_attention with its FlashAttention and cuDNN backends, and FlexAttention compiled.
Decoding: one query a sequence, keys in pages of 16, beside scaled_dot_product_attention on the same
keys in one tensor. Row maps, beside torch.softmax and the `entmax` package where it is installed:
bytes that have to be read and written, to be compared with the copy's. Every number is written to
bench.json as soon as it is known, beside the prediction of src/attention/cuda/README.md for an
H200; TFLOP/s count the products of dense attention, so that equal times are equal rates.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEADS, KV_HEADS = 64, 8
# Milliseconds on an H200 at d = 128, by src/attention/cuda/README.md: forward, both passes.
PREDICTED = {16384: (16.0, 39.0), 65536: (84.0, 195.0)}
# Milliseconds of decoding entmax 1.5 there, 8 sequences.
PREDICTED_DECODE = {8192: 0.056, 65536: 0.313}
PEERS = ["FlashAttention", "cuDNN", "FlexAttention"]
BFLOAT16 = 1  # tsallis/types.h's DType

_INTEGERS = ["backward", "dtype", "batch", "heads", "kv_heads", "q_len", "k_len", "head_dim"]
_INTEGERS += ["causal", "softmax"]
_ARRAYS = ["q", "k", "v", "out", "tau", "support_size", "d_out", "dq", "dk", "dv"]


class TsallisCall(ctypes.Structure):
    """gpu/library.cc's TsallisCall."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _INTEGERS),
        ("alpha", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
    ]


class Ours:
    """Attention by the library, on fixed tensors."""

    def __init__(self, library: Path, q: Tensor, k: Tensor, v: Tensor, alpha: float) -> None:
        self.function = ctypes.CDLL(str(library)).tsallis_attention
        batch, heads, q_len, head_dim = q.shape
        self.tensors = {"q": q, "k": k, "v": v, "out": torch.empty_like(q)}
        self.tensors |= {"dq": torch.empty_like(q), "dk": torch.empty_like(k)}
        self.tensors |= {"dv": torch.empty_like(v), "d_out": torch.randn_like(q)}
        rows = (batch, heads, q_len)
        self.tensors["tau"] = torch.empty(rows, dtype=torch.float64, device=q.device)
        self.call = TsallisCall(
            dtype=BFLOAT16,
            batch=batch,
            heads=heads,
            kv_heads=k.shape[1],
            q_len=q_len,
            k_len=k.shape[2],
            head_dim=head_dim,
            causal=1,
            softmax=1 if alpha == 1.0 else 0,
            alpha=alpha,
            **{name: tensor.data_ptr() for name, tensor in self.tensors.items()},
        )
        sizes = [self._run(backward, measure=True) for backward in (0, 1)]
        self.workspace = torch.empty(max(sizes), dtype=torch.uint8, device=q.device)
        self.bytes = sizes

    def _run(self, backward: int, measure: bool = False) -> int:
        call = self.call
        call.backward = backward
        call.stream = torch.cuda.current_stream().cuda_stream
        call.workspace_bytes = 0 if measure else self.workspace.numel()
        call.workspace = None if measure else self.workspace.data_ptr()
        message = ctypes.create_string_buffer(500)
        if self.function(ctypes.byref(call), message, ctypes.c_int64(len(message))):
            raise RuntimeError(message.value.decode())
        return int(call.workspace_bytes)

    def forward(self) -> None:
        self._run(0)

    def both(self) -> None:
        self._run(0)
        self._run(1)

    def kept(self) -> float:
        """The mean number of keys that a query keeps."""
        sizes = torch.empty_like(self.tensors["tau"], dtype=torch.int64)
        self.call.support_size = sizes.data_ptr()
        self._run(0)
        self.call.support_size = None
        return float(sizes.double().mean())


class RowsCall(ctypes.Structure):
    """gpu/library.cc's TsallisRowsCall."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("backward", "dtype", "rows", "length")),
        ("alpha", ctypes.c_double),
        *(
            (name, ctypes.c_void_p)
            for name in ("scores", "probabilities", "d_probabilities", "d_scores")
        ),
        ("stream", ctypes.c_void_p),
    ]


class OurRows:
    """A row map by the library, on fixed tensors."""

    def __init__(self, library: Path, scores: Tensor, alpha: float) -> None:
        self.function = ctypes.CDLL(str(library)).tsallis_rows
        self.tensors = {"scores": scores, "d_probabilities": torch.randn_like(scores)}
        self.tensors |= {name: torch.empty_like(scores) for name in ("probabilities", "d_scores")}
        self.call = RowsCall(
            dtype=(torch.float32, torch.bfloat16).index(scores.dtype),
            rows=scores.shape[0],
            length=scores.shape[1],
            alpha=alpha,
            **{name: tensor.data_ptr() for name, tensor in self.tensors.items()},
        )

    def run(self, backward: int) -> None:
        self.call.backward = backward
        self.call.stream = torch.cuda.current_stream().cuda_stream
        message = ctypes.create_string_buffer(500)
        if self.function(ctypes.byref(self.call), message, ctypes.c_int64(len(message))):
            raise RuntimeError(message.value.decode())


class PagesCall(ctypes.Structure):
    """gpu/library.cc's TsallisPagesCall."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("dtype", "batch", "heads", "kv_heads", "head_dim", "softmax")
        ),
        *((name, ctypes.c_int64) for name in ("pages", "page_size", "table_width")),
        ("alpha", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "table", "lengths", "out")),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64),
    ]


class OursOnPages:
    """Decoding by the library: the keys and values of [batch, kv_heads, n, d] in mixed pages."""

    PAGE = 16

    def __init__(self, library: Path, q: Tensor, k: Tensor, v: Tensor, alpha: float) -> None:
        self.function = ctypes.CDLL(str(library)).tsallis_attention_on_pages
        batch, kv_heads, n, d = k.shape
        width = n // self.PAGE
        table = torch.randperm(batch * width, device=q.device)

        def pages(of: Tensor) -> Tensor:
            rows = of.transpose(1, 2).reshape(batch * width, self.PAGE, kv_heads, d)
            mixed = torch.empty_like(rows)
            mixed[table] = rows
            return mixed

        lengths = torch.full((batch,), n, dtype=torch.int32, device=q.device)
        self.tensors = {"q": q.contiguous(), "k": pages(k), "v": pages(v), "lengths": lengths}
        self.tensors |= {"table": table.int(), "out": torch.empty_like(q)}
        self.call = PagesCall(
            dtype=BFLOAT16,
            batch=batch,
            heads=q.shape[1],
            kv_heads=kv_heads,
            head_dim=d,
            softmax=1 if alpha == 1.0 else 0,
            pages=batch * width,
            page_size=self.PAGE,
            table_width=width,
            alpha=alpha,
            **{name: tensor.data_ptr() for name, tensor in self.tensors.items()},
        )
        self._run()
        self.bytes = int(self.call.workspace_bytes)
        self.workspace = torch.empty(self.bytes, dtype=torch.uint8, device=q.device)
        self.call.workspace = self.workspace.data_ptr()

    def _run(self) -> None:
        self.call.stream = torch.cuda.current_stream().cuda_stream
        message = ctypes.create_string_buffer(500)
        if self.function(ctypes.byref(self.call), message, ctypes.c_int64(len(message))):
            raise RuntimeError(message.value.decode())

    def forward(self) -> None:
        self._run()


def milliseconds(run: Callable[[], object], budget: float) -> float:
    """The median of calls until `budget` seconds have passed, 3 to 50 of them."""
    run()
    torch.cuda.synchronize()
    times: list[float] = []
    start = time.monotonic()
    while len(times) < 3 or (len(times) < 50 and time.monotonic() - start < budget):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def kernels(run: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of each kernel of one call, by its name without arguments."""
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profiler.events():
        if str(event.device_type).endswith("CUDA"):
            name = re.sub(r"^(void )?(\w+::)*", "", event.name).split("<")[0].split("(")[0]
            times[name] = times.get(name, 0.0) + event.device_time_total / 1000
    return {name: round(time, 4) for name, time in times.items() if time >= 0.0005}


def ceilings(library: Path, budget: float) -> dict[str, object]:
    """What the device reaches by itself: TB/s and TFLOP/s."""
    functions = ctypes.CDLL(str(library))
    out = torch.zeros(1, device="cuda")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    result = ctypes.c_void_p(out.data_ptr())

    def integers(*values: int) -> list[ctypes.c_int64]:
        return [ctypes.c_int64(value) for value in values]

    found: dict[str, object] = {}
    source, target = torch.empty(2, 1 << 31, dtype=torch.uint8, device="cuda")
    found["copy_tb_s"] = (
        2 * source.numel() / milliseconds(lambda: target.copy_(source), budget) / 1e9
    )
    a, b = torch.randn(2, 8192, 8192, device="cuda").bfloat16()
    found["matmul_tflops"] = 2 * 8192**3 / milliseconds(lambda: a @ b, budget) / 1e9
    blocks = 16 * torch.cuda.get_device_properties(0).multi_processor_count
    time = milliseconds(
        lambda: functions.tsallis_multiply(*integers(blocks, 2000), result, stream), budget
    )
    found["mma_tflops"] = blocks * 4 * 8 * 2000 * 2 * 16 * 8 * 16 / time / 1e9
    for megabytes in (8, 32):
        arguments = [ctypes.c_void_p(source.data_ptr())]
        arguments += [*integers(megabytes * 4096, blocks, 500), result, stream]  # type: ignore[list-item]

        def gather(given: list[ctypes.c_void_p] = arguments) -> None:
            functions.tsallis_gather(*given)

        time = milliseconds(gather, budget)
        found[f"gather_{megabytes}_mb_tb_s"] = blocks * 4 * 8 * 500 * 256 / time / 1e9
    return {name: round(float(str(value)), 2) for name, value in found.items()}


def peer(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    if name == "FlexAttention":
        from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

        compiled = torch.compile(flex_attention)
        masks: dict[int, BlockMask] = {}

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            n = q.shape[2]
            if n not in masks:
                masks[n] = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n)
            out: Tensor = compiled(q, k, v, block_mask=masks[n], enable_gqa=True)
            return out

        return run
    backend = {"FlashAttention": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}

    def with_backend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend[name]):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return with_backend


class Table:
    def __init__(self, out: Path, budget: float) -> None:
        self.budget = budget  # seconds of a measurement
        self.path = out / "bench.json"
        commit = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
        )
        self.document: dict[str, object] = {
            "commit": commit.stdout.strip(),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
        }
        self.rows: list[dict[str, object]] = []

    def add(self, row: dict[str, object]) -> None:
        self.rows.append(row)
        self.document["rows"] = self.rows
        aside = self.path.with_suffix(".part")
        aside.write_text(json.dumps(self.document, indent=1) + "\n")
        aside.replace(self.path)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def measure(table: Table, library: Path, n: int, d: int, peers: list[str]) -> None:
    batch = 2 if n <= 16384 else 1
    generator = torch.Generator("cuda").manual_seed(1)

    def draw(heads: int) -> Tensor:
        shape = (batch, heads, n, d)
        return torch.randn(shape, device="cuda", generator=generator).bfloat16()

    q, k, v = draw(HEADS), draw(KV_HEADS), draw(KV_HEADS)
    # Products of 2 n^2 d each, half of them masked: two forward, five more backward.
    forward_flops = 2 * 2 * batch * HEADS * n * n * d / 2
    about = {"n": n, "d": d, "batch": batch}

    def add(name: str, forward: float, both: float, **more: object) -> None:
        rates = [forward_flops / forward / 1e9, 3.5 * forward_flops / both / 1e9]
        times = {"forward_ms": round(forward, 3), "both_ms": round(both, 3)}
        rate = {"forward_tflops": round(rates[0], 1), "both_tflops": round(rates[1], 1)}
        table.add({**about, "name": name, **times, **rate, **more})

    # The last one is a model in its first steps: scores are small, and rows keep most keys.
    cases = [("entmax 1.5", 1.5, 1.0), ("entmax 2.0", 2.0, 1.0), ("entmax 1.25", 1.25, 1.0)]
    cases += [("softmax, ours", 1.0, 1.0), ("entmax 1.5, untrained", 1.5, 0.05)]
    for name, alpha, spread in cases:
        # Rows that keep many keys go to the dense kernels, whose time is as the square of n.
        sparse = alpha >= 1.5 and spread == 1.0
        if not sparse and n > 8192:
            continue
        try:
            ours = Ours(library, q * spread, k, v, alpha)
            kept: dict[str, object] = {"kept": round(ours.kept(), 1), "workspace": ours.bytes}
            if name == "entmax 1.5" and d == 128 and n in PREDICTED:
                kept["predicted_h200_ms"] = PREDICTED[n]
            if alpha in (1.0, 1.5):
                kept["kernels_ms"] = kernels(ours.both)
            add(
                name,
                milliseconds(ours.forward, table.budget),
                milliseconds(ours.both, table.budget),
                **kept,
            )
        except RuntimeError as error:
            table.add({**about, "name": name, "error": str(error).splitlines()[0]})
        ours = None  # type: ignore[assignment]
        torch.cuda.empty_cache()
    for tensor in (q, k, v):
        tensor.requires_grad_(True)
    d_out = torch.randn_like(q)
    for name in peers:
        try:
            attention = peer(name)

            def both(run: Callable[..., Tensor] = attention) -> None:
                torch.autograd.grad(run(q, k, v), (q, k, v), d_out)

            def forward(run: Callable[..., Tensor] = attention) -> None:
                with torch.no_grad():
                    run(q, k, v)

            add(name, milliseconds(forward, table.budget), milliseconds(both, table.budget))
        except Exception as error:  # a peer that is not there must not end the rest
            table.add({**about, "name": name, "error": str(error).splitlines()[0]})
        torch.cuda.empty_cache()


def measure_decode(table: Table, library: Path, n: int) -> None:
    batch, d = 8, 128
    generator = torch.Generator("cuda").manual_seed(1)

    def draw(heads: int, length: int) -> Tensor:
        shape = (batch, heads, length, d)
        return torch.randn(shape, device="cuda", generator=generator).bfloat16()

    q, k, v = draw(HEADS, 1), draw(KV_HEADS, n), draw(KV_HEADS, n)
    about = {"n": n, "d": d, "batch": batch}

    def add(name: str, time: float, **more: object) -> None:
        # The rate at which a dense pass would read.
        rate = 2 * k.numel() * 2 / time / 1e9
        table.add({**about, "name": name, "decode_ms": round(time, 4), "tb_s": rate, **more})

    for alpha in (1.5, 2.0, 1.0):
        name = "softmax on pages, ours" if alpha == 1.0 else f"entmax {alpha} on pages"
        try:
            ours = OursOnPages(library, q, k, v, alpha)
            more: dict[str, object] = {"workspace": ours.bytes}
            if alpha == 1.5 and n in PREDICTED_DECODE:
                more["predicted_h200_ms"] = PREDICTED_DECODE[n]
            more["kernels_ms"] = kernels(ours.forward)
            add(name, milliseconds(ours.forward, table.budget), **more)
        except RuntimeError as error:
            table.add({**about, "name": name, "error": str(error).splitlines()[0]})
        ours = None  # type: ignore[assignment]
    backends = {"FlashAttention": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
    for name, backend in backends.items():
        try:

            def decode(one: SDPBackend = backend) -> None:
                with torch.no_grad(), sdpa_kernel(one):
                    scaled_dot_product_attention(q, k, v, enable_gqa=True)

            add(f"{name}, decoding", milliseconds(decode, table.budget))
        except Exception as error:  # a peer that is not there must not end the rest
            table.add({**about, "name": name, "error": str(error).splitlines()[0]})
    torch.cuda.empty_cache()


def measure_rows(table: Table, library: Path, length: int) -> None:
    rows = max(1, (1 << 26) // length)
    generator = torch.Generator("cuda").manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        scores = torch.randn(rows, length, device="cuda", generator=generator).to(dtype)
        about = {"length": length, "rows": rows, "dtype": str(dtype).removeprefix("torch.")}

        def add(
            name: str, times: dict[str, float], moved: dict[str, int], about: Any = about
        ) -> None:
            rates = {f"{key[:-3]}_tb_s": moved[key] / time / 1e9 for key, time in times.items()}
            both = {key: round(value, 4) for key, value in (times | rates).items()}
            table.add({**about, "name": name, **both})

        once = scores.numel() * scores.element_size()
        moved = {"forward_ms": 2 * once, "backward_ms": 3 * once}
        for alpha in (1.0, 1.5, 2.0, 1.25):
            name = "softmax of rows, ours" if alpha == 1.0 else f"entmax {alpha} of rows"
            try:
                ours = OurRows(library, scores, alpha)
                times = {
                    key: milliseconds(partial(ours.run, backward), table.budget)
                    for backward, key in enumerate(moved)
                }
                add(name, times, moved)
            except RuntimeError as error:
                table.add({**about, "name": name, "error": str(error).splitlines()[0]})
        peers: dict[str, Callable[[Tensor], Tensor]] = {
            "torch.softmax": partial(torch.softmax, dim=-1)
        }
        try:
            import entmax

            peers |= {"entmax15": entmax.entmax15, "entmax's sparsemax": entmax.sparsemax}
        except ImportError:
            print("no package entmax to compare row maps with")
        for name, map_rows in peers.items():
            time = milliseconds(partial(map_rows, scores), table.budget)
            add(name, {"forward_ms": time}, moved)
        torch.cuda.empty_cache()


def draw_figure(table: Table, out: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no figure: there is no matplotlib")
        return
    matplotlib.use("Agg")
    # Text stays text, which makes the file smaller than outlines of letters do.
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "font.family": ["DejaVu Sans", "sans-serif"]}
    )
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for axis, pass_name in zip(axes, ("forward", "both"), strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in table.rows:
            if row.get("d") == 128 and f"{pass_name}_ms" in row:
                n, batch = int(str(row["n"])), int(str(row["batch"]))
                point = (n, float(str(row[f"{pass_name}_ms"])) / batch)
                lines.setdefault(str(row["name"]), []).append(point)
        for name, points in lines.items():
            axis.loglog(*zip(*sorted(points), strict=True), marker="o", label=name)
        lengths = sorted({n for points in lines.values() for n, _ in points})
        axis.set_xticks(lengths, [f"{n // 1024}K" for n in lengths], minor=False)
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g}")
        title = "forward" if pass_name == "forward" else "forward and backward"
        axis.set(xlabel="keys", ylabel="ms a sequence", title=f"{title}, d = 128")
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(out / "bench.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build-gpu"))
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=[2048 << i for i in range(7)], help="of prefill"
    )
    parser.add_argument("--head-dims", type=int, nargs="*", default=[128, 64])
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS, metavar="NAME")
    parser.add_argument("--decode", type=int, nargs="*", default=[8192, 65536], help="keys")
    parser.add_argument(
        "--rows", type=int, nargs="*", default=[128, 1024, 4096, 32768, 131072], help="of row maps"
    )
    parser.add_argument("--budget", type=float, default=0.4, help="seconds a measurement")
    given = parser.parse_args()
    library = given.out / "lib" / "libtsallis_gpu.so"
    if not library.is_file():
        parser.error(f"{library} is not built: gpu/run.py build")
    table = Table(given.out, given.budget)
    table.document["ceilings"] = ceilings(library.resolve(), given.budget)
    print(table.document["ceilings"], flush=True)
    for n in given.decode:
        measure_decode(table, library.resolve(), n)
    for length in given.rows:
        measure_rows(table, library.resolve(), length)
    for d in given.head_dims:
        for n in given.lengths:
            measure(table, library.resolve(), n, d, given.peers)
    draw_figure(table, given.out)


if __name__ == "__main__":
    main()
