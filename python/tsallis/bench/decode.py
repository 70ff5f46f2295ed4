"""``tsallis bench decode``: new tokens' attention on a cache, against torch's SDPA."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis
from tsallis.bench import decode_modes, document, llama
from tsallis.bench.cases import MODEL_TEXT, SOURCE, model_cases, trained_cases
from tsallis.bench.cases import Case as AttentionCase
from tsallis.bench.command import interrupted, no_figure, output, require_positive
from tsallis.bench.timing import Sample, clocked, compared, in_turns

ABOUT = """Time new tokens' attention on cached keys: entmax 1.5 of ours, softmax of torch.

Cases have normal queries and keys, sharper queries (spread3), flat ones (spread0.05), entmax 1.25
(alpha1.25), our softmax (alpha1), slopes, heads of 128 and 16 sequences.

Contenders, all in the same process and in turns, medians reported:
  bytes     ours on a cache that screens keys by their bytes
  rows      ours on a cache without bytes
  tensors   tsallis.attention on keys in one tensor
  gqa       torch's scaled_dot_product_attention with enable_gqa
  repeated  the same with keys and values repeated for every query head
  cat       gqa after torch.cat of the new key and value, as transformers' DynamicCache does
  llama f16, llama q8_0
            with --llama: llama.cpp on a cache of these types, with softmax, up to 16384 normal
            keys: the time of a token of a model of one layer, less that of a token behind few keys
The table also has keys that were scored from their rows, bytes that "bytes" reads as a rate, and
that rate's share of the memory's, which is measured before; it can be above 100 % where the
processor's caches hold the bytes. The file has what one append to the cache takes as well.
Several new tokens in one call (--queries) are a guess that a model verifies, or a piece of a
prompt; torch's calls have a mask then, cat and llama.cpp are left out, and so is the rate, for more
than 64 are not answered one by one.

Example:
  tsallis bench decode --quick
  tsallis bench decode --keys 4096,16384 --llama
  tsallis bench decode --keys 16384,65536 --dtype float32 --threads 2
  tsallis bench decode --inputs runs/convert/smollm2/entmax/inputs.safetensors
      on the keys of a trained model, and the query of its last token: a case a layer
  tsallis bench decode --keys 8192 --queries 16,64,512
  tsallis bench decode --models
      what exact decoding, softmax within epsilon and approximations read and lose on the heads of
      the language models in models of the source tree, or with --inputs FILE on those of the
      file; decode-models.json

Written into the folder of --out: decode.json, and as a figure decode.svg and .png; with --queries
decode-chunks.json.
Ctrl-C ends with code 130 and keeps what was measured."""

CONTENDERS = ("bytes", "rows", "tensors", "gqa", "repeated", "cat")


@dataclass(frozen=True)
class Case:
    """The newest ``queries`` tokens of ``batch`` sequences of ``n`` keys."""

    n: int
    dtype: str
    d: int = 64
    heads: int = 32
    kv_heads: int = 8
    batch: int = 1
    spread: float = 1.0  # of queries; keys and values are standard normal
    alpha: float = 1.5  # 1: softmax
    slopes: bool = False  # ALiBi's, geometric
    queries: int = 1
    # A layer of a trained model, whose q, k and v are taken in place of normal ones.
    trained: AttentionCase | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        kind = [] if self.trained is None else [self.trained.kind]
        parts = [*kind, self.dtype, f"n{self.n}", f"d{self.d}", f"{self.heads}/{self.kv_heads}"]
        if self.queries > 1:
            parts.append(f"q{self.queries}")
        if self.batch > 1:
            parts.append(f"batch{self.batch}")
        if self.spread != 1.0:
            parts.append(f"spread{self.spread:g}")
        if self.alpha != 1.5:
            parts.append(f"alpha{self.alpha:g}")
        if self.slopes:
            parts.append("alibi")
        return "-".join(parts)


def cases(keys: list[int], dtypes: list[str], *, quick: bool) -> list[Case]:
    """Of every kind at every length."""
    found = []
    for dtype in dtypes:
        for n in keys:
            case = Case(n, dtype)
            found.append(case)
            if quick:
                continue
            found.append(Case(n, dtype, spread=3.0))
            found.append(Case(n, dtype, spread=0.05))
            found.append(Case(n, dtype, alpha=1.25))
            found.append(Case(n, dtype, alpha=1.0))
            found.append(Case(n, dtype, slopes=True))
            if n <= 65536:
                found.append(Case(n, dtype, d=128))
            if n <= 16384:
                found.append(Case(n, dtype, batch=16))
    return found


def chunks(keys: list[int], dtypes: list[str], queries: list[int]) -> list[Case]:
    """Of several new tokens, at every length that has as many."""
    return [
        Case(n, dtype, queries=count)
        for dtype in dtypes
        for n in keys
        for count in queries
        if count <= n
    ]


def trained_cases_of(file: Path, dtypes: list[str]) -> list[Case]:
    """A case for each layer with entmax of a file of `trained_cases`, which raises."""
    found = []
    for layer in trained_cases(file):
        if layer.inputs is None or layer.map != "entmax":
            raise ValueError(f"{file}: expected a model with entmax, got one with {layer.map}")
        for dtype in dtypes:
            found.append(
                Case(
                    layer.n,
                    dtype,
                    d=layer.d,
                    heads=layer.heads,
                    kv_heads=layer.inputs[1].shape[0],
                    trained=layer,
                )
            )
    return found


def _llama(case: Case) -> dict[str, llama.Writer]:
    """Writers of llama.cpp that serve a case: with ordinary heads and keys of its own."""
    usual = case == Case(case.n, case.dtype, case.d) and case.trained is None
    if not usual or case.n > llama.MOST_KEYS:
        return {}
    threads = torch.get_num_threads()
    return {
        name: llama.Writer(name, case.n, case.heads, case.kv_heads, case.d, threads)
        for name in llama.CACHES
    }


def measure(
    case: Case, *, repeat: int, budget_s: float, with_llama: bool = False
) -> list[dict[str, Any]]:
    """A row for each pair of "bytes" and another contender."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    generator = torch.Generator().manual_seed(1)

    def draw(heads: int, n: int, spread: float = 1.0) -> Tensor:
        numbers = torch.randn(case.batch, heads, n, case.d, generator=generator)
        return (spread * numbers).to(dtype)

    settings: dict[str, Any] = {}
    if case.trained is not None and case.trained.inputs is not None:
        q, k, v = (x.unsqueeze(0).to(dtype) for x in case.trained.inputs)
        q = q[:, :, -1:].contiguous()
        settings = case.trained.settings
    else:
        settings["alpha"] = case.alpha
        q = draw(case.heads, case.queries, case.spread)
        k, v = draw(case.kv_heads, case.n), draw(case.kv_heads, case.n)
    new_k, new_v = draw(case.kv_heads, 1), draw(case.kv_heads, 1)
    group = case.heads // case.kv_heads
    if case.slopes:
        settings["alibi_slopes"] = 2.0 ** -(8.0 * torch.arange(1, case.heads + 1) / case.heads)

    def filled(screen: Any) -> tuple[tsallis.KVCache, list[tsallis.CachedSequence]]:
        cache = tsallis.KVCache(1, case.kv_heads, case.d, dtype=dtype, screen=screen)
        sequences = [cache.sequence() for _ in range(case.batch)]
        cache.append(0, sequences, k, v)
        return cache, sequences

    with_bytes, screened = filled("bytes")
    with_rows, plain = filled("none")
    repeated_k, repeated_v = (x.repeat_interleave(group, 1) for x in (k, v))
    # DynamicCache holds all keys but the new ones.
    before_k, before_v = k[:, :, :-1].contiguous(), v[:, :, :-1].contiguous()

    def cat() -> Tensor:
        all_k, all_v = torch.cat([before_k, new_k], 2), torch.cat([before_v, new_v], 2)
        return F.scaled_dot_product_attention(q, all_k, all_v, enable_gqa=True)

    many = case.queries > 1
    # True: seen. SDPA's is_causal has the first query at the first key.
    mask: Tensor | None = None
    if many:
        mask = torch.ones(case.queries, case.n, dtype=torch.bool).tril(case.n - case.queries)
    calls: dict[str, Callable[[], Any]] = {
        "bytes": lambda: tsallis.decode(q, with_bytes, 0, screened, **settings),
        "rows": lambda: tsallis.decode(q, with_rows, 0, plain, **settings),
        "tensors": lambda: tsallis.attention(q, k, v, causal=True, **settings),
        "gqa": lambda: F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True),
        "repeated": lambda: F.scaled_dot_product_attention(q, repeated_k, repeated_v, mask),
    }
    if not many:
        calls["cat"] = cat

    def turn(call: Callable[[], Any]) -> Callable[[], list[Sample]]:
        return lambda: [clocked(call)]

    with torch.no_grad():
        out, told = tsallis.decode(
            q,
            with_bytes,
            0,
            screened,
            returns=("scored", "support_size", "bytes_read"),
            **settings,
        )
        # One query has the same bits. Several go to kernels with other roundings.
        most = 0.0 if not many else 1e-4 if dtype == torch.float32 else 0.02
        for found in (out, calls["bytes"]()):
            error = (found - calls["tensors"]()).abs().max().item()
            if not error <= most:  # NaN is an error too
                raise RuntimeError(f"{case.name}: the cache and the tensors differ by {error:g}")
        writers = _llama(case) if with_llama else {}
        try:
            turns: dict[str, Callable[[], list[Sample]]] = {
                **{name: turn(call) for name, call in calls.items()},
                **{name: writer.turn for name, writer in writers.items()},
            }
            timings = in_turns(turns, most=repeat, budget_s=budget_s)
        finally:
            for writer in writers.values():
                writer.close()
        appended = clocked(lambda: with_bytes.append(0, screened, new_k, new_v)).wall_s
    answers = case.batch * case.heads * case.queries
    scored = int(told.scored.sum())
    support = int(told.support_size.sum())
    ours = timings.pop("bytes")
    return [
        {
            "case": case.name,
            "dtype": case.dtype,
            "n": case.n,
            "d": case.d,
            "batch": case.batch,
            "queries": case.queries,
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "scored": scored / answers,
            "support": support / answers,
            # Counted for queries that are answered one by one.
            "bytes_read": None if many else int(told.bytes_read.sum()),
            "bytes_of_keys_and_values": 2 * k.numel() * k.element_size(),
            "append_s": appended,
            **compared(ours, peer, timing),
        }
        for peer, timing in timings.items()
    ]


def bandwidth() -> float:
    """Bytes a second that all threads together read from memory, the best of a few passes."""
    numbers = torch.ones(64 << 20)  # 256 MiB: no cache holds them
    best = min(clocked(numbers.sum).wall_s for _ in range(8))
    return numbers.numel() * numbers.element_size() / best


def _models(arguments: argparse.Namespace) -> int:
    try:
        if arguments.inputs is not None:
            known = trained_cases(arguments.inputs)
        else:
            known = model_cases(SOURCE, MODEL_TEXT)
    except (ImportError, OSError, ValueError) as error:
        arguments.mistake(f"--{'models' if arguments.inputs is None else 'inputs'}: {error}")
    out = output(arguments, "decode-models.json")
    rows: list[dict[str, Any]] = []
    status = 0
    try:
        for case in known:
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            rows += decode_modes.measure(case)
    except KeyboardInterrupt:
        status = interrupted(out, bool(rows))
    found = decode_modes.summaries(rows)
    table = sys.stderr if arguments.json else sys.stdout
    print("\n".join([decode_modes.TITLE, *map(decode_modes.line, found)]), file=table)
    document.write(
        out, document.build(rows, threads=arguments.threads, keys=known[0].n, models=found)
    )
    print(f"numbers: {out}", file=sys.stderr)
    if arguments.json:
        print(out.read_text())
    return status


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return f"{'-':>16}"
    return f"{row['peer_s'] * 1e3:>9.2f}{row['speedup']:>6.1f}x"


def _figure(source: Path) -> None:
    if (why := no_figure()) is not None:
        print(why, file=sys.stderr)
        return
    from tsallis.bench import decode_figure

    if decode_figure.write(source, source):
        names = f"{source.with_suffix('.svg')}, .png"
        print(f"figure: {names}", file=sys.stderr)


def parser(command: argparse.ArgumentParser) -> None:
    """The options of ``tsallis bench decode``."""
    command.add_argument(
        "--keys", metavar="N,...", help="of normal ones (default: 4096,16384,65536)"
    )
    command.add_argument(
        "--dtype",
        action="append",
        choices=("bfloat16", "float16", "float32"),
        help="may be repeated (default: bfloat16 and float32)",
    )
    command.add_argument(
        "--queries",
        metavar="N,...",
        help="new tokens of a sequence in one call (default: 1), of normal numbers",
    )
    command.add_argument(
        "--models",
        action="store_true",
        help="what modes read and lose on the heads of trained models, in place of times",
    )
    command.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE",
        help="keys of a trained model in place of normal ones: what tsallis convert wrote, or "
        "tsallis eval CHECKPOINT --lengths N --inputs FILE",
    )
    command.add_argument(
        "--llama",
        action="store_true",
        help="llama.cpp too, through the package xllamacpp; minutes at 16384 keys",
    )
    command.add_argument("--quick", action="store_true", help="one small case, a second")
    command.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    command.add_argument("--repeat", type=int, default=21, metavar="N", help="most calls")
    command.add_argument(
        "--budget", type=float, default=6.0, metavar="S", help="seconds a case (default: 6)"
    )
    command.add_argument("--out", type=Path, default=Path("runs/bench"), metavar="DIR")
    command.add_argument("--json", action="store_true", help="print the JSON document too")
    command.set_defaults(mistake=command.error, run=run)


def _numbers(arguments: argparse.Namespace, option: str, default: str) -> list[int]:
    """What an option lists."""
    given = getattr(arguments, option)
    words = (default if given is None else given).split(",")
    least = 1 if option == "queries" else 2  # cat holds all keys but the newest
    if not all(re.fullmatch("[0-9]{1,18}", word) and int(word) >= least for word in words):
        arguments.mistake(
            f"--{option}: expected numbers >= {least} separated by commas, got {given}"
        )
    return [int(word) for word in words]


def _check_memory(arguments: argparse.Namespace, chosen: list[Case]) -> None:
    """Ends with code 2 if the keys and values of a case are more than this machine holds."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for case in chosen:
        size: int = getattr(torch, case.dtype).itemsize
        # In one tensor, in two caches, and repeated for every query head.
        rows = 3 * case.kv_heads + case.heads
        if 2 * rows * case.batch * case.n * case.d * size > memory:
            arguments.mistake(
                f"--keys: expected keys and values that fit into {memory / 2**30:.0f} GiB of "
                f"memory four times, got {case.n}"
            )


def run(arguments: argparse.Namespace) -> int:
    """Exit code: 0, or 130 if interrupted."""
    for of in ("models", "inputs"):
        for option in ("keys", "queries", "quick", "llama"):
            if getattr(arguments, of) and getattr(arguments, option):
                arguments.mistake(
                    f"--{option}: expected without --{of}, whose keys are what they are"
                )
    lengths = _numbers(arguments, "keys", "4096,16384,65536")
    queries = _numbers(arguments, "queries", "1")
    single = queries == [1]
    if not single and arguments.llama:
        arguments.mistake("--llama: expected without --queries, as it is timed by single tokens")
    require_positive(arguments, "threads", "repeat", "budget")
    torch.set_num_threads(arguments.threads)
    if arguments.llama and (reason := llama.why_absent()) is not None:
        arguments.mistake(f"--llama: {reason}")
    if arguments.models:
        return _models(arguments)
    dtypes = arguments.dtype or ["bfloat16", "float32"]
    keys = [512] if arguments.quick else lengths
    try:
        if arguments.inputs is not None:
            chosen = trained_cases_of(arguments.inputs, dtypes)
        elif not single:
            chosen = chunks(keys, dtypes, queries)
        else:
            chosen = cases(keys, dtypes, quick=arguments.quick)
    except (ImportError, OSError, ValueError) as error:
        arguments.mistake(f"--inputs: {error}")
    if not chosen:
        arguments.mistake(f"--queries: expected at most {max(keys)}, as many as there are keys")
    _check_memory(arguments, chosen)
    out = output(arguments, "decode.json" if single else "decode-chunks.json")
    table = sys.stderr if arguments.json else sys.stdout
    contenders = (*CONTENDERS, *llama.CACHES) if arguments.llama else CONTENDERS
    titles = "".join(f"{name:>16}" for name in contenders[1:])
    print(f"{'case':40}{'bytes ms':>10}{titles}{'scored':>8}{'GB/s':>7}{'share':>7}", file=table)
    memory = bandwidth()
    print(f"memory: {memory / 1e9:.1f} GB/s read by {arguments.threads} threads", file=table)
    rows: list[dict[str, Any]] = []
    status = 0
    try:
        for case in chosen:
            found = measure(
                case,
                repeat=arguments.repeat,
                budget_s=arguments.budget,
                with_llama=arguments.llama,
            )
            rows += found
            whole = document.build(
                rows,
                threads=arguments.threads,
                memory_bytes_per_s=memory,
                **({"llama": llama.build()} if arguments.llama else {}),
            )
            document.write(out, whole)
            by_peer = {row["peer"]: row for row in found}
            cells = "".join(map(_cell, map(by_peer.get, contenders[1:])))
            first = found[0]
            ours = f"{first['ours_s'] * 1e3:>10.3f}"
            read = f"{'-':>7}{'-':>7}"
            if first["bytes_read"] is not None:
                rate = first["bytes_read"] / first["ours_s"]
                read = f"{rate / 1e9:>7.1f}{100 * rate / memory:>6.0f}%"
            print(
                f"{case.name:40}{ours}{cells}{math.ceil(first['scored']):>8}{read}",
                file=table,
                flush=True,
            )
    except KeyboardInterrupt:
        status = interrupted(out, bool(rows))
    if rows:
        print(f"numbers: {out}", file=sys.stderr)
        if single:
            _figure(out)
        if arguments.json:
            print(out.read_text())
    return status
