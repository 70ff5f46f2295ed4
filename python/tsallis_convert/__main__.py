"""``tsallis convert``: the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from transformers.utils import logging

from tsallis.bench import document

from . import measure, report
from .models import SMOLLM2, ModelError, folder_of
from .tokens import Corpus, TokensError, corpus_of
from .train import METHODS, Plan, Run, TrainError, fast_bfloat16, softening

INTERRUPTED = 130
SOURCE = Path(__file__).resolve().parents[2]

ABOUT = f"""Fine-tune a softmax language model to entmax, beside the same tokens with softmax.

MODEL is {SMOLLM2} (SmolLM2-135M-Instruct out of a Python package, 93 MB), or a folder that
save_pretrained wrote. Its queries are multiplied by (1/4)^(alpha - 1), with which entmax begins
close to softmax, and everything is trained on. Measured afterwards: the loss on held-out text, the
keys that heads keep, the time of a token behind a long prompt, and a sample of text. What the
attention of some layers gets from that prompt is kept for tsallis bench.

Example:
  tsallis convert smollm2
  tsallis convert smollm2 --methods entmax,softmax,learned --tokens 1000000 --corpus linux
  tsallis convert ~/models/my-llama --corpus english --alpha 1.25
  tsallis bench decode --inputs runs/convert/smollm2/entmax/inputs.safetensors

Written into the folder of --out: METHOD/model (save_pretrained), METHOD/inputs.safetensors,
results.json, report.md and a figure. Ctrl-C ends with code 130 and keeps what was trained; the same
command goes on."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tsallis convert",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=f"{SMOLLM2}, or a folder")
    parser.add_argument(
        "--methods",
        default="entmax,softmax",
        metavar="NAMES",
        help=f"of {', '.join(METHODS)}, separated by commas (default: entmax,softmax)",
    )
    parser.add_argument(
        "--corpus",
        default="python",
        help="one that tsallis data knows, or a folder that it made with the "
        "model's tokenizer.json (default: python)",
    )
    parser.add_argument(
        "--tokens", type=int, default=163840, metavar="N", help="to train on (default: 163840)"
    )
    parser.add_argument(
        "--length", type=int, default=1024, metavar="N", help="of a sequence (default: 1024)"
    )
    parser.add_argument(
        "--prompt",
        type=int,
        default=8000,
        metavar="N",
        help="tokens before writing (default: 8000)",
    )
    parser.add_argument("--alpha", type=float, default=1.5, help="above 1, up to 2 (default: 1.5)")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate (default: 1e-4)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of text (default: 1)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="default: every core"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/convert/MODEL")
    parser.add_argument("--json", action="store_true", help="print results.json at the end")
    parser.add_argument("--quiet", action="store_true", help="print nothing but results")
    return parser


def _checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    options.methods = [name.strip() for name in options.methods.split(",")]
    for name in options.methods:
        if name not in METHODS:
            parser.error(f"--methods: expected of {', '.join(METHODS)}, got {name!r}")
    for name, least in (("tokens", 1), ("length", 16), ("prompt", 1), ("threads", 1), ("seed", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: expected {least} or more, got {getattr(options, name)}")
    if not 1.0 < options.alpha <= 2.0:
        parser.error(f"--alpha: expected a number above 1, up to 2, got {options.alpha}")
    if not 0.0 < options.rate < 1.0:
        parser.error(f"--rate: expected a number above 0 and below 1, got {options.rate}")
    return options


def _name(model: str) -> str:
    return Path(model).resolve().name if model != SMOLLM2 else SMOLLM2


class Screen:
    """Lines of progress on standard error: in place on a terminal, else now and then."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.live = sys.stderr.isatty()
        self.lines = 0

    def step(self, line: str) -> None:
        self.lines += 1
        if self.quiet or not (self.live or self.lines % 10 == 1):
            return
        end = "\r" if self.live else "\n"
        print(f"\x1b[K{line}" if self.live else line, end=end, file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        if not self.quiet:
            print(f"\x1b[K{line}" if self.live else line, file=sys.stderr, flush=True)


def _untouched(model: Path, alpha: float, held: torch.Tensor, say: Any) -> list[dict[str, Any]]:
    rows = []
    factor = softening(alpha)
    for map_name, weights, softened, label in (
        (measure.SOFTMAX, "untouched", False, "softmax"),
        (measure.ENTMAX, "untouched", False, f"entmax, α = {alpha:g}"),
        (measure.ENTMAX, f"untouched, queries × {factor:.2g}", True, f"entmax, α = {alpha:g}"),
    ):
        say(f"loss of {weights}, {label}")
        read = measure.load(measure.Reading(weights, model, map_name, softened), alpha)
        rows.append({"weights": weights, "map": label, "loss": measure.loss(read, held)})
    return rows


def _measured(
    options: argparse.Namespace, model: Path, runs: dict[str, Run], corpus: Corpus, say: Any
) -> dict[str, Any]:
    held = corpus.held_out(options.length, 16)
    longest = min(options.prompt, len(corpus.test) - 512)
    long_text = torch.from_numpy(corpus.test[:longest].astype("int64"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    results: dict[str, Any] = {
        "model": _name(options.model),
        "corpus": corpus.name,
        "tokens": options.tokens,
        "length": options.length,
        "step_tokens": options.length,
        "held_out": len(held),
        "heads_tokens": options.length,
        "prompt_tokens": longest,
        "untouched": _untouched(model, options.alpha, held, say),
        "runs": {},
        "speed": [],
    }
    short = held[len(held) // 2][:96]
    results["prompt"] = tokenizer.decode(short)
    for name, run in runs.items():
        say(f"measuring {name}")
        map_name = measure.SOFTMAX if name == "softmax" else measure.ENTMAX
        read = measure.load(measure.Reading(name, run.model, map_name), options.alpha)
        log = json.loads((run.folder / "log.json").read_text())
        results["runs"][name] = {
            "losses": log["losses"],
            "seconds": log["seconds"],
            "loss": measure.loss(read, held),
            "heads": measure.heads(read, held[0]),
            "text": tokenizer.decode(measure.text(read, short, 96)),
        }
        measure.inputs(read, long_text, run.folder / "inputs.safetensors")
        if name != "softmax":
            results["speed"].append(
                {
                    "weights": name,
                    "attention": "TsallisCache, exact and sparse",
                    **measure.speed(read, long_text, 12, True),
                }
            )
        read.set_attn_implementation("sdpa")
        if name == "softmax":
            results["speed"].append(
                {
                    "weights": name,
                    "attention": "DynamicCache, torch's SDPA",
                    **measure.speed(read, long_text, 12, False),
                }
            )
    return results


def _work(options: argparse.Namespace) -> int:
    screen = Screen(options.quiet)
    model = folder_of(options.model, SOURCE / "data" / "models")
    name = _name(options.model)
    corpus = corpus_of(options.corpus, model, SOURCE / "data")
    out: Path = options.out or Path("runs") / "convert" / name
    runs: dict[str, Run] = {}
    for method in options.methods:
        plan = Plan(
            method=method,
            corpus=corpus.name,
            tokens=options.tokens,
            length=options.length,
            alpha=options.alpha,
            rate=options.rate,
            seed=options.seed,
            bfloat16=fast_bfloat16(),
        )
        run = runs[method] = Run(out / method, model, plan, options.threads)
        run.begin()
        if not run.finished:
            run.train(corpus, screen.step)
    torch.set_num_threads(options.threads)
    results = _measured(options, model, runs, corpus, screen.say)
    found = document.build([], threads=options.threads, **results)
    del found["rows"]
    document.write(out / "results.json", found)
    report.write(found, out)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(report.markdown(found))
        screen.say(f"page: {out / 'report.md'}")
    return 0


def main() -> int:
    """Exit code: 0, 2 for a mistake on the command line, 130 if interrupted."""
    options = _checked(_parser())
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        return _work(options)
    except (ModelError, TokensError, TrainError) as error:
        print(f"tsallis convert: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ntsallis convert: interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
