"""``tsallis bench serve``: whole models in vLLM, with its attention and ours, and in its peers."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from tsallis.bench import document, llama
from tsallis.bench.cases import SOURCE
from tsallis.bench.command import interrupted, no_figure, output, require_positive

__all__ = ["ABOUT", "SERIES", "parser", "rows_of"]

ABOUT = """Time a language model in vLLM with its own attention and with ours, and in other engines.

Series, each an engine in a process of its own, which take turns at every case:
  vllm       vLLM's own attention on CPUs, softmax
  screened   entmax, alpha = 1.5, keys screened by bytes
  pages      the same without bytes
  softmax    our softmax
  llama-f16  llama.cpp (the package xllamacpp), softmax, keys and values in float16
  llama-q8   the same in 8 bits, q8_0
  mistral    mistral.rs (the package mistralrs), softmax, keys and values in float16
Each looks for its package in the Pythons of --python and in this one. A series without a package is
named as missing, and so is one whose engine ends; the others go on.
A case is a number of streams whose prompts have as many tokens, out of torch's own sources.
Measured: prompt tokens read a second until every stream has its first token, and tokens written a
second in the steps that only write. Compare ratios, not rates, unless nothing else runs.

Example:
  tsallis bench serve --python build-vllm/env/bin/python
  tsallis bench serve --python build-vllm/env/bin/python --prompts 16000,32000 --streams 1
  tsallis bench serve --python build-vllm/env/bin/python --python peers/bin/python \\
      --series vllm screened llama-f16 llama-q8 mistral --prompts 2000,8000,32000
  tsallis bench serve --converted runs/convert/smollm2/entmax/model
  tsallis bench serve --quick

Written into the folder of --out: serve.json, as a figure serve.svg and .png, and what the engines
print, serve-SERIES.log. Ctrl-C ends with code 130 and keeps what was measured."""


@dataclass(frozen=True)
class Series:
    """package: of the engine. keys: their type where it is not the model's, as llama.cpp calls it.
    own: vLLM's argument for our attention. convertible: whether a converted model may be served."""

    package: str
    keys: str | None = None
    own: dict[str, Any] | None = None
    convertible: bool = False


SERIES = {
    "vllm": Series("vllm"),
    "screened": Series("vllm", own={"map": "entmax", "alpha": 1.5}, convertible=True),
    "pages": Series("vllm", own={"map": "entmax", "alpha": 1.5, "screen": False}, convertible=True),
    "softmax": Series("vllm", own={"map": "softmax"}),
    "llama-f16": Series("xllamacpp", keys="F16"),
    "llama-q8": Series("xllamacpp", keys="Q8_0"),
    "mistral": Series("mistralrs", keys="F16"),
}
ENGINE = Path(__file__).with_name("serve_engine.py")
TEXT = 3_000_000  # characters


def parser(command: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    add = command.add_argument
    add("--prompts", default="100,2000,8000", metavar="N,N", help="tokens of prompts")
    add("--streams", default="1,8", metavar="N,N", help="requests at the same time")
    add("--tokens", type=int, default=32, metavar="N", help="to write (default: 32)")
    add(
        "--series",
        nargs="+",
        choices=SERIES,
        default=list(SERIES),
        metavar="NAME",
        help=f"out of {', '.join(SERIES)} (default: all)",
    )
    add(
        "--model",
        type=Path,
        default=SOURCE / "data" / "models" / "smollm2",
        metavar="DIR",
        help="a softmax model (default: what tsallis convert smollm2 fetched)",
    )
    add(
        "--converted",
        type=Path,
        metavar="DIR",
        help="an entmax model of tsallis convert for screened and pages (default: --model)",
    )
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="default: bfloat16")
    add(
        "--llama-weights",
        choices=("F32", "F16", "BF16", "Q8_0", "Q4_1"),
        help="of llama.cpp's file (default: that of --dtype)",
    )
    add(
        "--python",
        action="append",
        default=[],
        metavar="FILE",
        help="Python of an environment with vLLM or a peer; may be repeated (default: this one)",
    )
    add(
        "--most",
        type=int,
        default=100_000,
        metavar="N",
        help="tokens of all prompts of a case; longer ones are left out (default: 100000)",
    )
    add(
        "--budget",
        type=float,
        default=1800.0,
        metavar="S",
        help="seconds to read the prompts of a case, foretold from a series' last one as if they "
        "grew with the square; it is left out of longer ones (default: 1800)",
    )
    add("--repeat", type=int, metavar="N", help="rounds of a case (default: 3)")
    add("--quick", action="store_true", help="two short cases, to see that it works")
    add(
        "--threads",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="of every engine (default: every core)",
    )
    add("--out", type=Path, default=Path("runs/bench"), metavar="DIR", help="default: runs/bench")
    command.set_defaults(mistake=command.error, run=run)


class Engine:
    """A process that serves one series."""

    def __init__(
        self,
        name: str,
        arguments: argparse.Namespace,
        python: str,
        model: Path,
        limits: dict[str, int],
    ) -> None:
        series = SERIES[name]
        own = series.own
        if series.convertible and arguments.converted is not None:
            model = arguments.converted
            own = {"screen": name == "screened"}  # the model names its map and alpha
        cores = sorted(os.sched_getaffinity(0))[: arguments.threads]
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": str(limits["space"]),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "OMP_NUM_THREADS": str(len(cores)),
            "RAYON_NUM_THREADS": str(len(cores)),
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        environment.pop("TSALLIS_ATTENTION", None)
        if own is None:
            environment["VLLM_PLUGINS"] = ""
        self.log = arguments.out / f"serve-{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, ENGINE],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        options = {
            "package": series.package,
            "model": str(model.absolute()),
            "dtype": arguments.dtype,
            "keys": series.keys,
            "cores": cores,
            "additional_config": {} if own is None else {"tsallis": own},
            **limits,
        }
        weights = arguments.dtype
        if series.package == "xllamacpp" and arguments.llama_weights is not None:
            weights = arguments.llama_weights
        self.about = {
            "package": series.package,
            **self.ask(options),
            "weights": weights,
            "keys": series.keys or arguments.dtype,
            "threads": len(cores),
        }

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a line; RuntimeError with the end of the log if the engine has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the log says why
        with self.log.open("a") as log:
            for line in self.process.stdout:
                if line.startswith("RESULT "):
                    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                    return found
                log.write(line)
        end = "\n".join(self.log.read_text().splitlines()[-12:])
        raise RuntimeError(f"the engine ended; the end of {self.log}:\n{end}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def rows_of(
    case: dict[str, int], rounds: dict[str, list[dict[str, float]]]
) -> list[dict[str, Any]]:
    """A row for each series: medians of rounds, and ratios to vLLM's own, taken round by round."""
    rows = []
    for name, own in rounds.items():
        row: dict[str, Any] = {**case, "series": name, "rounds": len(own)}
        row["read_per_s"] = case["prompt"] * case["streams"] / _median(own, "prompt_s")
        row["written_per_s"] = case["streams"] / _median(own, "step_s")
        for key, ratio in (("prompt_s", "read_ratio"), ("step_s", "written_ratio")):
            pairs = zip(rounds.get("vllm", []), own, strict=False)
            ratios = [plain[key] / ours[key] for plain, ours in pairs]
            row[ratio] = statistics.median(ratios) if ratios else None
        rows.append(row)
    return rows


def _median(rounds: list[dict[str, float]], key: str) -> float:
    return statistics.median(found[key] for found in rounds)


def _space(model: Path, tokens: int, itemsize: int) -> int:
    """GiB for the keys and values of so many tokens, with bytes to screen by and some room."""
    config: dict[str, int] = json.loads((model / "config.json").read_text())
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    columns = config["num_hidden_layers"] * config.get("num_key_value_heads", heads)
    return 1 + math.ceil(1.1 * tokens * columns * (2 * size * itemsize + size + 16) / 2**30)


def _numbers(arguments: argparse.Namespace, name: str) -> list[int]:
    text = getattr(arguments, name)
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        arguments.mistake(f"--{name}: expected positive integers, got {text}")
    return found


def _text(model: Path) -> Iterator[int]:
    """Tokens of real text that every machine with torch has, its own sources, without end."""
    from tokenizers import Tokenizer

    files = sorted((Path(torch.__file__).parent / "nn").rglob("*.py"))
    text = "".join(file.read_text(errors="replace") for file in files)[:TEXT]
    tokens = Tokenizer.from_file(str(model / "tokenizer.json")).encode(
        text, add_special_tokens=False
    )
    return cycle(tokens.ids)


def _pythons(arguments: argparse.Namespace) -> dict[str, str]:
    """The first Python that has it, for each package that the series want."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    found = {}
    for package in {SERIES[name].package for name in arguments.series}:
        for python in [*arguments.python, sys.executable]:
            try:
                has = subprocess.run([python, "-c", code, package], check=False).returncode == 0
            except OSError as error:
                arguments.mistake(f"--python: expected a Python, got {python}: {error.strerror}")
            if has:
                found[package] = python
                break
    return found


class Engines:
    """Those that run, and why others do not."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.running: dict[str, Engine] = {}
        self.missing: dict[str, str] = {}
        self.failed = False
        self.about: dict[str, dict[str, Any]] = {}
        # Tokens of a prompt and of all, and seconds to read them, of the last case.
        self.last: dict[str, tuple[int, int, float]] = {}

    def start(self, pythons: dict[str, str], limits: dict[str, int], folder: Path) -> None:
        """folder: for llama.cpp's file."""
        model, file = self.arguments.model, folder / "model.gguf"
        for name in self.arguments.series:
            package = SERIES[name].package
            if package not in pythons:
                self._miss(name, f"no Python has {package} (pip install {package})")
                continue
            try:
                if package == "xllamacpp" and not file.is_file():
                    plain = {"bfloat16": "BF16", "float32": "F32"}[self.arguments.dtype]
                    llama.write_folder(model, file, self.arguments.llama_weights or plain)
                own = file if package == "xllamacpp" else model
                engine = Engine(name, self.arguments, pythons[package], own, limits)
            except (ImportError, KeyError, RuntimeError, ValueError) as error:
                self._fail(name, error)
                continue
            self.running[name] = engine
            self.about[name] = engine.about

    def slow(self, prompt: int, streams: int) -> list[str]:
        """Those of which more than the budget is foretold."""
        foretold = {
            name: seconds * prompt * streams / tokens * max(1.0, prompt / length)
            for name, (length, tokens, seconds) in self.last.items()
        }
        return [name for name, s in foretold.items() if s > self.arguments.budget]

    def ask(
        self, prompts: list[list[int]], tokens: int, without: Collection[str] = ()
    ) -> dict[str, dict[str, float]]:
        """The times of each; one that ends is left out from then on."""
        found = {}
        for name, engine in list(self.running.items()):
            if name in without:
                continue
            try:
                found[name] = engine.ask({"prompts": prompts, "tokens": tokens})
                length = len(prompts[0])
                self.last[name] = (length, length * len(prompts), found[name]["prompt_s"])
            except RuntimeError as error:
                self._fail(name, error)
        return found

    def end(self) -> None:
        for engine in self.running.values():
            engine.end()

    def _fail(self, name: str, error: Exception) -> None:
        self.failed = True
        if name in self.running:
            self.running.pop(name).end()
        self._miss(name, str(error))

    def _miss(self, name: str, why: str) -> None:
        self.missing[name] = why
        print(f"missing: {name}: {why}", file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    """Exit code: 0, 1 if an engine ended, 130 if interrupted."""
    require_positive(arguments, "tokens", "repeat", "threads", "most", "budget")
    prompts, streams = _numbers(arguments, "prompts"), _numbers(arguments, "streams")
    repeat, tokens = arguments.repeat or 3, arguments.tokens
    if arguments.quick:
        prompts, streams, repeat, tokens = [40], [1, 2], arguments.repeat or 1, 4
    if tokens < 2:
        arguments.mistake(f"--tokens: expected 2 or more, got {tokens}")
    for name in ("model", "converted"):
        folder = getattr(arguments, name)
        if folder is not None and not (folder / "config.json").is_file():
            arguments.mistake(f"--{name}: expected a folder with config.json, got {folder}")
    cases = [(prompt, count) for prompt in prompts for count in streams]
    long = [case for case in cases if math.prod(case) > arguments.most]
    cases = [case for case in cases if case not in long]
    if not cases:
        arguments.mistake(f"--most: expected at least {min(prompts)}, got {arguments.most}")
    pythons = _pythons(arguments)
    if not pythons:
        packages = " or ".join(sorted({SERIES[name].package for name in arguments.series}))
        tried = ", ".join([*arguments.python, sys.executable])
        arguments.mistake(f"--python: expected one that has {packages}, got {tried}")
    out = output(arguments, "serve.json")
    try:
        text = _text(arguments.model)
    except Exception as error:  # of tokenizers, which has no class for its own
        arguments.mistake(f"--model: expected a folder with tokenizer.json: {error}")
    # The streams that are read first write until the last has written: in vLLM a token a step.
    more = tokens + 64 + max(math.prod(case) for case in cases) // 1024
    itemsize = 2 if arguments.dtype == "bfloat16" else 4
    kept = max(count * (prompt + more) for prompt, count in cases)
    limits = {
        "longest": max(prompt for prompt, _ in cases) + more,
        "streams": max(count for _, count in cases),
        "space": _space(arguments.model, kept, itemsize),
    }
    engines = Engines(arguments)
    rows: list[dict[str, Any]] = []
    status = 0
    left_out: list[dict[str, Any]] = []

    def leave_out(name: str, prompt: int, count: int, why: str) -> None:
        left_out.append({"series": name, "prompt": prompt, "streams": count, "why": why})
        print(f"left out: {name}, {prompt} × {count}: {why}", file=sys.stderr)

    for prompt, count in long:
        leave_out("all", prompt, count, f"more than --most {arguments.most} tokens")
    print(f"{'prompt × streams':20}" + "".join(f"{name:>24}" for name in arguments.series))
    folder = tempfile.TemporaryDirectory(prefix="tsallis-serve-")
    try:
        engines.start(pythons, limits, Path(folder.name))
        engines.ask([list(islice(text, 32))], 4)
        engines.last.clear()  # it was cold
        for prompt, count in cases:
            case = {"prompt": prompt, "streams": count}
            rounds: dict[str, list[dict[str, float]]] = {}
            slow = engines.slow(prompt, count)
            for name in slow:
                leave_out(name, prompt, count, f"more than --budget {arguments.budget:g} s")
            for _ in range(repeat):
                asked = [list(islice(text, prompt)) for _ in range(count)]
                for name, own in engines.ask(asked, tokens, slow).items():
                    rounds.setdefault(name, []).append(own)
            found = {row["series"]: row for row in rows_of(case, rounds)}
            rows += found.values()
            about = {"model": arguments.model.name, "dtype": arguments.dtype, "tokens": tokens}
            if arguments.converted is not None:
                about["converted"] = arguments.converted.name
            about |= {"engines": engines.about, "missing": engines.missing, "left_out": left_out}
            if rows:
                document.write(out, document.build(rows, threads=arguments.threads, **about))
            cells = "".join(_cell(found.get(name)) for name in arguments.series)
            print(f"{f'{prompt} × {count}':20}{cells}", flush=True)
    except KeyboardInterrupt:
        status = interrupted(out, bool(rows))
    finally:
        engines.end()
        folder.cleanup()
    if rows:
        print(f"numbers: {out}", file=sys.stderr)
        if (why := no_figure()) is not None:
            print(why, file=sys.stderr)
        else:
            from tsallis.bench import serve_figure

            serve_figure.write(out, out)
            print(f"figure: {out.with_suffix('.svg')}, .png", file=sys.stderr)
    return status or int(engines.failed)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return f"{'-':>24}"
    return f"{row['read_per_s']:>12.0f} /{row['written_per_s']:>10.1f}"
