"""``python -m tsallis bench``: the command line of the benchmarks."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

import torch

from tsallis.bench import attention, decode, document, serve
from tsallis.bench.cases import (
    MODEL_TEXT,
    SOURCE,
    Case,
    all_cases,
    matching,
    model_cases,
    quick_cases,
    trained_cases,
)
from tsallis.bench.command import interrupted, no_figure, output, require_positive
from tsallis.bench.peers import NAMES

ATTENTION = """Time attention against its peers on this machine, forward and backward.

Peers, all in the same process and in turns, medians reported:
  sdpa     torch's scaled_dot_product_attention: dense softmax, without positions
  entmax   plain attention around the entmax package's exact map, which stores every score
  flex     torch's FlexAttention: dense softmax with the case's positions, compiled; "flex eager"
           where it could not be compiled
Compare ratios, not times, unless nothing else runs.

Example:
  tsallis bench attention --quick
  tsallis bench attention --cases entmax-1.5 --cases 'alibi-*' --threads 2
  tsallis eval runs/copy/quick/asentmax-nape/seed-1 --lengths 2048 --inputs runs/copy.safetensors
  tsallis bench attention --inputs runs/copy.safetensors
  tsallis bench attention --models
  tsallis bench attention --inputs runs/convert/smollm2/entmax/inputs.safetensors

Written into the folder of --out: attention.json, and as a figure attention.svg, .png and .csv.
Ctrl-C ends with code 130 and keeps what was measured."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tsallis bench", description="Measure Tsallis against its peers on this machine."
    )
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    command = commands.add_parser(
        "attention",
        help="attention against torch's SDPA, the entmax package and FlexAttention",
        description=ATTENTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--cases",
        action="append",
        default=[],
        metavar="NAME",
        help="part of names, or a pattern; may be repeated (default: all, some half an hour)",
    )
    trained = command.add_mutually_exclusive_group()
    trained.add_argument(
        "--models",
        action="store_true",
        help="measure on q, k and v of the small language models in models of the "
        "source tree, which read 8192 bytes of torch's Python: a case a layer",
    )
    trained.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE",
        help="measure on q, k and v of a trained model instead, which tsallis eval CHECKPOINT "
        "--lengths N --inputs FILE or tsallis convert wrote: a case a layer",
    )
    command.add_argument("--list", action="store_true", help="print the cases' names and stop")
    command.add_argument(
        "--quick",
        action="store_true",
        help="one small case of each kind, seconds in all; without flex, which compiles for each",
    )
    command.add_argument(
        "--peers",
        nargs="+",
        choices=NAMES,
        metavar="PEER",
        help=f"out of {', '.join(NAMES)} (default: all)",
    )
    command.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="threads of all (default: every core)",
    )
    command.add_argument(
        "--repeat", type=int, metavar="N", help="most repetitions of a case (default: 21)"
    )
    command.add_argument(
        "--budget", type=float, metavar="S", help="seconds a case and pass may take (default: 12)"
    )
    command.add_argument(
        "--most-plain",
        type=int,
        default=4096,
        metavar="N",
        help="most keys for the entmax package, with two heads (default: 4096)",
    )
    command.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    command.add_argument(
        "--out",
        type=Path,
        default=Path("runs/bench"),
        metavar="DIR",
        help="folder of the files (default: runs/bench)",
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="print the JSON document too; the table goes to standard error",
    )
    command.add_argument("--quiet", action="store_true", help="print the table only")
    command.set_defaults(mistake=command.error, run=_attention)
    for name, module, summary in (
        ("decode", decode, "one token's attention on a cache against torch's SDPA"),
        (
            "serve",
            serve,
            "a model in vLLM with our attention and its own, and in llama.cpp and mistral.rs",
        ),
    ):
        module.parser(
            commands.add_parser(
                name,
                help=summary,
                description=module.ABOUT,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return parser


class Screen:
    """The table, and on another line below it how far it is."""

    def __init__(self, peers: list[str], table: TextIO, quiet: bool) -> None:
        self.peers = peers
        self.table = table
        self.quiet = quiet
        self.live = sys.stderr.isatty() and not quiet
        titles = "".join(f" {name + ' ms':>11}{'':8}" for name in peers)
        self.line(f"{'case':32} {'pass':8} {'ours ms':>11}{titles} {'of dense':>9}")

    def line(self, text: str) -> None:
        self._clear()
        print(text.rstrip(), file=self.table, flush=True)

    def say(self, text: str) -> None:
        if self.quiet:
            return
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def row(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        first = rows[0]
        cells = ""
        for name in self.peers:
            row = next((row for row in rows if row["peer"].split()[0] == name), None)
            if row is None:
                cells += f" {'-':>11}{'':8}"
            else:
                cells += f" {_ms(row['peer_s']):>11}{_times(row['speedup']):>8}"
        roofline = "-" if first["roofline"] is None else f"{first['roofline']:.3f}"
        self.line(
            f"{first['case']:32} {first['pass']:8} {_ms(first['ours_s']):>11}{cells} {roofline:>9}"
        )

    def progress(self, done: int, total: int, case: Case, minutes: float) -> None:
        text = f"{done} of {total} cases, about {minutes:.1f} minutes left; now {case.name}"
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        else:
            self.say(f"  {text}")

    def _clear(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.{3 if ms < 10 else 2 if ms < 100 else 1 if ms < 1000 else 0}f}"


def _times(factor: float) -> str:
    return f"{factor:.{2 if factor < 10 else 1 if factor < 100 else 0}f}x"


def _figure(source: Path, screen: Screen) -> None:
    if (why := no_figure()) is not None:
        screen.say(why)
        return
    from tsallis.bench import figure

    if figure.write(source, source.with_suffix("")):
        screen.say(f"figure: {source.with_suffix('.svg')}, .png, .csv")
    else:
        screen.say(f"no figure: none of the measured cases is of the kind {figure.KIND}")


def _attention(arguments: argparse.Namespace) -> int:
    require_positive(arguments, "threads", "repeat", "budget", "most_plain")
    quick: bool = arguments.quick
    known = quick_cases() if quick else all_cases()
    try:
        if arguments.models:
            known = model_cases(SOURCE, MODEL_TEXT)
        elif arguments.inputs is not None:
            known = trained_cases(arguments.inputs)
    except (ImportError, OSError, ValueError) as error:
        arguments.mistake(f"--{'models' if arguments.models else 'inputs'}: {error}")
    cases = matching(known, arguments.cases)
    if not cases:
        arguments.mistake(f"--cases: no case's name has {' or '.join(arguments.cases)} in it")
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    asked = list(dict.fromkeys(arguments.peers or (NAMES[:2] if quick else NAMES)))
    options = attention.Options(
        peers=asked,
        budget_s=arguments.budget or (0.02 if quick else 12.0),
        repeat=arguments.repeat or (3 if quick else 21),
        most_plain=arguments.most_plain,
        seed=arguments.seed,
    )
    torch.set_num_threads(arguments.threads)
    out = output(arguments, "attention.json")
    screen = Screen(asked, sys.stderr if arguments.json else sys.stdout, arguments.quiet)
    rows: list[dict[str, Any]] = []
    absent: dict[str, list[str]] = {}
    if quick and not arguments.peers:
        absent["flex"] = ["left out by --quick, it compiles for each case (--peers asks for it)"]
        screen.say(f"flex: {absent['flex'][0]}")

    def keep(measured: attention.Measured) -> None:
        rows.extend(measured.rows)
        _write(out, arguments.threads, absent, rows)
        screen.row(measured.rows)
        for peer in measured.absent:
            if peer.reason is not None and peer.reason not in absent.get(peer.name, []):
                absent.setdefault(peer.name, []).append(peer.reason)
                screen.say(f"{peer.name}: {peer.reason}")

    status = 0
    try:
        rate, dtype = attention.matmul_rate(256 if quick else 2048)
        name = str(dtype).removeprefix("torch.")
        screen.say(f"torch's {name} matrix product: {rate / 1e9:.0f} Gflop/s")
        attention.measure(
            cases,
            options,
            rate,
            keep,
            lambda done, case, minutes: screen.progress(done, len(cases), case, minutes),
        )
    except KeyboardInterrupt:
        status = interrupted(out, bool(rows))
    if rows:
        found = _write(out, arguments.threads, absent, rows)
        screen.say(f"numbers: {out}")
        _figure(out, screen)
        if arguments.json:
            print(document.text(found), end="")
    return status


def _write(
    out: Path, threads: int, absent: dict[str, list[str]], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    found = document.build(rows, threads=threads, absent=absent)
    document.write(out, found)
    return found


def main() -> int:
    """Exit code: 0, 2 for a mistake on the command line, 130 if interrupted."""
    arguments = _parser().parse_args()
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
