"""What ``tsallis convert`` does once its arguments are checked."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from tsallis.bench import document
from tsallis_report.files import replace_text

from . import lengths, measure, report, why
from .methods import MAPS, UNTOUCHED
from .models import SMOLLM2
from .screen import Screen
from .tokens import Corpus, corpus_of
from .train import Plan, Run, TrainError, fast_bfloat16

# Fields of a plan that are options of the command line, under the same names.
PLANNED = ("length", "batch", "micro", "extend", "alpha", "soften", "rate", "seed", "device")
TRAINING = 0.6  # the share of --seconds that training gets; the rest is for measuring
SOURCE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Texts:
    """Texts that models are measured on. held: [count, length]; long: [prompt]; documents: [count,
    longest of --lengths and --ask-lengths], empty without them."""

    corpus: Corpus
    tokenizer: Any
    held: Tensor
    long: Tensor
    documents: Tensor

    @property
    def short(self) -> Tensor:
        """A prompt to write behind: [96]."""
        return self.held[len(self.held) // 2][:96]


@dataclass(frozen=True)
class Measure:
    """of: the options that it depends on. when: whether the options ask for it of a model of this
    name; None: always. untouched: whether it is also of the model as it came. rounded: whether the
    model is read in bfloat16 where that is fast."""

    read: Callable[[PreTrainedModel, Texts, argparse.Namespace, Any, Path], Any]
    of: tuple[str, ...]
    when: Callable[[Any, str], bool] | None = None
    untouched: bool = False
    rounded: bool = False


def _losses(model: PreTrainedModel, texts: Texts, options: Any, say: Any, _: Path) -> Any:
    targets = min(512, min(options.lengths) // 2)
    return lengths.losses(model, texts.documents, options.lengths, targets, options.kinds, say)


def _keys(model: PreTrainedModel, texts: Texts, options: Any, say: Any, _: Path) -> Any:
    return lengths.pass_keys(
        model,
        texts.tokenizer,
        texts.documents,
        options.ask_lengths,
        options.keys,
        kinds=options.kinds,
        say=say,
    )


def _ruler(model: PreTrainedModel, texts: Texts, options: Any, say: Any, _: Path) -> Any:
    return lengths.ruler(
        model, texts.tokenizer, options.ask_lengths, options.ruler, kinds=options.kinds, say=say
    )


def _why(model: PreTrainedModel, texts: Texts, options: Any, say: Any, _: Path) -> Any:
    held = model.config.max_position_embeddings
    return why.measure(
        model, texts.tokenizer, texts.documents[0], [n for n in options.lengths if n <= held], say
    )


def _inputs(model: PreTrainedModel, texts: Texts, options: Any, say: Any, folder: Path) -> Any:
    file = folder / "inputs.safetensors"
    measure.inputs(model, texts.long, file)
    return file.name


def _text(model: PreTrainedModel, texts: Texts, options: Any, say: Any, _: Path) -> Any:
    return texts.tokenizer.decode(measure.text(model, texts.short, 96))


def _speed(model: PreTrainedModel, texts: Texts, options: Any, say: Any, _: Path) -> Any:
    sparse = model.config._attn_implementation == MAPS["entmax"].attention
    if not sparse:
        model.set_attn_implementation("sdpa")
    attention = "TsallisCache, exact and sparse" if sparse else "DynamicCache, torch's SDPA"
    return {"attention": attention, **measure.speed(model, texts.long, 12, sparse)}


LENGTHS = ("corpus", "lengths", "kinds", "documents")
# In this order, since the last ones leave the model with another attention.
MEASURES = {
    "loss": Measure(lambda m, t, *_: measure.loss(m, t.held), ("corpus", "length"), rounded=True),
    "heads": Measure(lambda m, t, *_: measure.heads(m, t.held[0]), ("corpus", "length")),
    "losses": Measure(_losses, LENGTHS, lambda o, _: bool(o.lengths), untouched=True, rounded=True),
    "keys": Measure(
        _keys,
        ("corpus", "ask_lengths", "kinds", "documents", "keys"),
        lambda o, _: o.keys > 0,
        untouched=True,
        rounded=True,
    ),
    "ruler": Measure(
        _ruler,
        ("ask_lengths", "kinds", "ruler"),
        lambda o, _: o.ruler > 0,
        untouched=True,
        rounded=True,
    ),
    "why": Measure(_why, LENGTHS, lambda o, name: name in o.why, untouched=True),
    "text": Measure(_text, ("corpus", "length")),
    "inputs": Measure(_inputs, ("corpus", "prompt")),
    "speed": Measure(_speed, ("corpus", "prompt", "threads")),
}


def _rounded(options: argparse.Namespace) -> torch.dtype:
    """The dtype of what is `Measure.rounded`."""
    return torch.bfloat16 if options.device != "cpu" or fast_bfloat16() else torch.float32


def _measured(
    name: str,
    load: Callable[..., PreTrainedModel],
    folder: Path,
    texts: Texts,
    options: argparse.Namespace,
    screen: Screen,
    deadline: float,
) -> dict[str, Any]:
    """All measures of a model, out of measures.json of its folder where they are there."""
    record = folder / "measures.json"
    there = json.loads(record.read_text()) if record.is_file() else {}
    models: dict[torch.dtype, PreTrainedModel] = {}
    found: dict[str, Any] = {}
    for key, row in MEASURES.items():
        if (name == UNTOUCHED and not row.untouched) or (row.when and not row.when(options, name)):
            continue
        of = {option: getattr(options, option) for option in row.of}
        if there.get(key, {}).get("of") != of:
            if row.when and time.monotonic() > deadline:
                found.setdefault("skipped", []).append(key)
                continue
            screen.say(f"measuring {name}: {key}")
            say: Any = partial(
                lambda where, line: screen.step(f"{where}: {line}"), f"{name}, {key}"
            )
            dtype = _rounded(options) if row.rounded else torch.float32
            if dtype not in models:
                models[dtype] = load(dtype=dtype)
            there[key] = {"of": of, "found": row.read(models[dtype], texts, options, say, folder)}
            folder.mkdir(parents=True, exist_ok=True)
            replace_text(record, json.dumps(there) + "\n")
        found[key] = there[key]["found"]
    return found


def _name(model: str) -> str:
    return Path(model).resolve().name if model != SMOLLM2 else SMOLLM2


def _untouched(
    model: Path, run: Run, corpus: Corpus, held: Tensor, dtype: torch.dtype, say: Any
) -> list[dict[str, Any]]:
    plan = run.plan
    rows = []
    entmax = f"entmax, α = {plan.alpha:g}"
    softer = "a factor for each head" if plan.soften is None else f"{plan.soften:.2g}"
    for name, weights, factor, label in (
        ("softmax", UNTOUCHED, 1.0, "softmax"),
        ("entmax", UNTOUCHED, 1.0, entmax),
        ("entmax", f"{UNTOUCHED}, queries × {softer}", run.factors(corpus), entmax),
    ):
        say(f"loss of {weights}, {label}")
        read = measure.load(model, MAPS[name].attention, plan.alpha, factor, held.device, dtype)
        rows.append({"weights": weights, "map": label, "loss": measure.loss(read, held)})
    return rows


def _results(
    options: argparse.Namespace,
    model: Path,
    runs: dict[str, Run],
    corpus: Corpus,
    screen: Screen,
    deadline: float,
) -> dict[str, Any]:
    device = torch.device(options.device)
    held = corpus.held_out(options.length, 16).to(device)
    test = corpus.texts[0].test
    prompt = min(options.prompt, len(test) - 512)
    documents = torch.empty(0, 0, dtype=torch.int64)
    if longest := max([*options.lengths, *options.ask_lengths], default=0):
        documents = corpus.documents(longest, options.documents).to(device)
    texts = Texts(
        corpus,
        AutoTokenizer.from_pretrained(model),
        held,
        torch.from_numpy(test[:prompt].astype("int64")).to(device),
        documents,
    )
    first = next(iter(runs.values()))
    plan = first.plan
    results: dict[str, Any] = {
        "model": _name(options.model),
        "corpus": corpus.name,
        "tokens": plan.tokens,
        "length": options.length,
        "step_tokens": options.length * options.batch,
        "alpha": options.alpha,
        "rate": options.rate,
        "held_out": len(held),
        "heads_tokens": options.length,
        "prompt_tokens": prompt,
        "prompt": texts.tokenizer.decode(texts.short),
        "untouched": _untouched(model, first, corpus, held, _rounded(options), screen.say),
    }

    def measured(name: str, folder: Path, load: Callable[..., PreTrainedModel]) -> dict[str, Any]:
        return _measured(name, load, folder, texts, options, screen, deadline)

    plain = partial(measure.load, model, MAPS["softmax"].attention, options.alpha, device=device)
    results["as_it_came"] = measured(UNTOUCHED, first.folder.parent, plain)
    results["runs"] = {}
    for name, run in runs.items():
        log = json.loads((run.folder / "log.json").read_text())
        load = partial(
            measure.load, run.model, run.plan.kind.map.attention, options.alpha, device=device
        )
        results["runs"][name] = {
            "training": log["losses"],
            "seconds": log["seconds"],
            "commit": log["commit"],
            **measured(name, run.folder, load),
        }
    return results


def _fit(plan: Plan, runs: dict[str, Run], corpus: Corpus, seconds: int, say: Any) -> Plan:
    """The plan with as many tokens for each method as fit into the seconds; that of runs which are
    there already, if there are any."""
    there = next(iter(runs.values())).folder / "plan.json"
    if there.is_file():
        return replace(plan, tokens=json.loads(there.read_text())["tokens"])
    say("timing three steps of each method")
    begun = time.monotonic()
    pace = sum(run.pace(corpus) for run in runs.values())
    steps = int((TRAINING * seconds - (time.monotonic() - begun)) / pace)
    if steps < 1:
        raise TrainError(
            f"--seconds: expected at least one step of every method, {pace:.0f} s, "
            f"beside what timing took, got {seconds}"
        )
    return replace(plan, tokens=steps * plan.length * plan.batch)


def run(options: argparse.Namespace, model: Path) -> int:
    """model: the folder of options.model. Returns the exit code.

    Raises:
        ConvertError: a text or a run is not as it was asked for.
    """
    begun = time.monotonic()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise TrainError("--device: expected a GPU that torch sees for cuda, got none")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    screen = Screen(options.quiet)
    name = _name(options.model)
    corpus = corpus_of(options.corpus, model, SOURCE / "data")
    out: Path = options.out or Path("runs") / "convert" / name
    plan = Plan(
        method="softmax",
        corpus=corpus.name,
        tokens=options.tokens,
        bfloat16=options.device != "cpu" or fast_bfloat16(),
        **{key: getattr(options, key) for key in PLANNED},
    )

    def planned() -> dict[str, Run]:
        return {
            method: Run(out / method, model, replace(plan, method=method), options.threads)
            for method in options.methods
        }

    if options.seconds:
        plan = _fit(plan, planned(), corpus, options.seconds, screen.say)
    runs = planned()
    for one in runs.values():
        one.begin()
    waiting = [one for one in runs.values() if not one.finished]
    while waiting:
        behind = sum(one.plan.steps for one in waiting[1:])
        waiting.pop(0).train(corpus, screen.step, behind)
    torch.set_num_threads(options.threads)
    deadline = begun + options.seconds if options.seconds else float("inf")
    results = _results(options, model, runs, corpus, screen, deadline)
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
