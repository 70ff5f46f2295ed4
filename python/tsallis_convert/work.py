"""What ``tsallis convert`` does once its arguments are checked."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from transformers.utils import logging

from tsallis.bench import document

from . import measure, report
from .models import SMOLLM2
from .screen import Screen
from .tokens import Corpus, corpus_of
from .train import Plan, Run, fast_bfloat16, softening

# What a plan has from the command line, under the same names.
PLANNED = ("length", "batch", "micro", "extend", "alpha", "rate", "seed", "device")
SOURCE = Path(__file__).resolve().parents[2]


def _name(model: str) -> str:
    return Path(model).resolve().name if model != SMOLLM2 else SMOLLM2


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
    test = corpus.texts[0].test
    longest = min(options.prompt, len(test) - 512)
    long_text = torch.from_numpy(test[:longest].astype("int64"))
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


def run(options: argparse.Namespace, model: Path) -> int:
    """model: the folder of options.model. Returns the exit code.

    Raises:
        ConvertError: a text or a run is not as it was asked for.
    """
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    screen = Screen(options.quiet)
    name = _name(options.model)
    corpus = corpus_of(options.corpus, model, SOURCE / "data")
    out: Path = options.out or Path("runs") / "convert" / name
    runs: dict[str, Run] = {}
    plan = Plan(
        method="softmax",
        corpus=corpus.name,
        tokens=options.tokens,
        bfloat16=options.device != "cpu" or fast_bfloat16(),
        **{name: getattr(options, name) for name in PLANNED},
    )
    for method in options.methods:
        own = replace(plan, method=method)
        runs[method] = Run(out / method, model, own, options.threads)
        runs[method].begin()
    waiting = [run for run in runs.values() if not run.finished]
    while waiting:
        behind = sum(run.plan.steps for run in waiting[1:])
        waiting.pop(0).train(corpus, screen.step, behind)
    torch.set_num_threads(options.threads)
    results = _measured(options, model, runs, corpus, screen.say)
    found = document.build([], threads=options.threads, **results)
    del found["rows"]
    document.write(out / "results.json", found)
    report.write(found, out)
    if options.json:
        print(document.text(found), end="")
    else:
        print(report.markdown(found))
        screen.say(f"page: {out / 'report.md'}")
    return 0
