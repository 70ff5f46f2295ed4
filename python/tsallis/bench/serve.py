"""``tsallis bench serve``: our attention in vLLM beside vLLM's own, on a whole model."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tsallis.bench import document
from tsallis.bench.cases import SOURCE
from tsallis.bench.command import INTERRUPTED, no_figure, output, require_positive

__all__ = ["ABOUT", "SERIES", "parser", "rows_of"]

ABOUT = """Time a language model in vLLM with its own attention and with ours, on this machine.

Series, each an engine in a process of its own, which take turns at every case:
  vllm      vLLM's own attention on CPUs, softmax
  screened  entmax, alpha = 1.5, keys screened by bytes
  pages     the same without bytes
  softmax   our softmax
A case is a number of streams whose prompts have as many tokens, out of torch's own sources.
Measured: prompt tokens read a second until every stream has its first token, and tokens written a
second in the steps that only write. Compare ratios, not rates, unless nothing else runs.

Example:
  tsallis bench serve --python build-vllm/env/bin/python
  tsallis bench serve --python build-vllm/env/bin/python --prompts 16000,32000 --streams 1
  tsallis bench serve --converted runs/convert/smollm2/entmax/model
  tsallis bench serve --quick

Written into the folder of --out: serve.json, as a figure serve.svg and .png, and what the engines
print, serve-SERIES.log. Ctrl-C ends with code 130 and keeps what was measured."""

# name: the engine's argument, and whether the model may be a converted one
SERIES: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "vllm": (None, False),
    "screened": ({"map": "entmax", "alpha": 1.5}, True),
    "pages": ({"map": "entmax", "alpha": 1.5, "screen": False}, True),
    "softmax": ({"map": "softmax"}, False),
}
ENGINE = Path(__file__).with_name("serve_engine.py")


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
        "--python",
        default=sys.executable,
        metavar="FILE",
        help="Python of the environment with vLLM (default: this one)",
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

    def __init__(self, name: str, arguments: argparse.Namespace, longest: int, space: int) -> None:
        own, convertible = SERIES[name]
        model = arguments.model
        if convertible and arguments.converted is not None:
            model = arguments.converted
            own = {"screen": name == "screened"}  # the model names its map and alpha
        cores = sorted(os.sched_getaffinity(0))[: arguments.threads]
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": str(space),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "OMP_NUM_THREADS": str(len(cores)),
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
                [arguments.python, ENGINE],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        options = {
            "model": str(model.absolute()),
            "dtype": arguments.dtype,
            "longest": longest,
            "additional_config": {} if own is None else {"tsallis": own},
        }
        self.about = self.ask(options)

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


def run(arguments: argparse.Namespace) -> int:
    """Exit code: 0, 1 if an engine ended, 130 if interrupted."""
    require_positive(arguments, "tokens", "repeat", "threads")
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
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([arguments.python, "-c", code], check=False).returncode != 0:
        arguments.mistake(f"--python: expected one that has vLLM, got {arguments.python}")
    out = output(arguments, "serve.json")
    longest = max(prompts) + tokens
    itemsize = 2 if arguments.dtype == "bfloat16" else 4
    space = _space(arguments.model, longest * max(streams), itemsize)
    engines: dict[str, Engine] = {}
    rows: list[dict[str, Any]] = []
    status = 0
    print(f"{'prompt × streams':20}" + "".join(f"{name:>24}" for name in arguments.series))
    try:
        for name in arguments.series:
            engines[name] = Engine(name, arguments, longest, space)
            engines[name].ask({"prompt": 32, "streams": 1, "tokens": 4})
        for prompt in prompts:
            for count in streams:
                case = {"prompt": prompt, "streams": count}
                rounds: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
                for _ in range(repeat):
                    for name, engine in engines.items():
                        rounds[name].append(engine.ask(case | {"tokens": tokens}))
                found = rows_of(case, rounds)
                rows += found
                more = {"model": arguments.model.name, "dtype": arguments.dtype, "tokens": tokens}
                if arguments.converted is not None:
                    more["converted"] = arguments.converted.name
                about = {"vllm": next(iter(engines.values())).about["version"]}
                whole = document.build(rows, threads=arguments.threads, **about, **more)
                document.write(out, whole)
                cells = "".join(
                    f"{row['read_per_s']:>12.0f} /{row['written_per_s']:>10.1f}" for row in found
                )
                print(f"{f'{prompt} × {count}':20}{cells}", flush=True)
    except RuntimeError as error:
        print(f"tsallis bench: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        kept = f"what was measured is in {out}" if rows else "nothing was measured"
        print(f"\ntsallis bench: interrupted; {kept}", file=sys.stderr)
        status = INTERRUPTED
    finally:
        for engine in engines.values():
            engine.end()
    if rows:
        print(f"numbers: {out}", file=sys.stderr)
        if (why := no_figure()) is not None:
            print(why, file=sys.stderr)
        else:
            from tsallis.bench import serve_figure

            serve_figure.write(out, out)
            print(f"figure: {out.with_suffix('.svg')}, .png", file=sys.stderr)
    return status
