"""The page of a conversion: ``results.json``, ``report.md`` and figures out of the same data."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tsallis_report import style
from tsallis_report.files import replace_text
from tsallis_report.parts import save_figure

from . import lengths, why
from .methods import UNTOUCHED, method_of

_COLORS = {
    UNTOUCHED: style.FAINT,
    "softmax": "#222222",
    "entmax": "#0072B2",
    "learned": "#D55E00",
    "annealed": "#56AEE0",
}
_MORE = ("#009E73", "#CC79A7", "#D9981A", "#882255", "#44AA99", "#999933")


def looks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Label and colour of methods, and of the model as it came."""
    more = cycle(_MORE)
    return {
        name: (
            f"{UNTOUCHED}, softmax" if name == UNTOUCHED else method_of(name).label,
            _COLORS.get(name) or next(more),
        )
        for name in names
    }


def draw(results: dict[str, Any], target: Path) -> None:
    """Loss of training, and what heads keep, layer by layer: target.svg and target.png."""
    look = looks(results["runs"])
    with style.styled():
        figure = Figure(figsize=(9.6, 3.9), layout="constrained")
        training, layers = figure.subplots(1, 2)
        for name, run in results["runs"].items():
            label, color = look[name]
            losses = run["training"]
            window = max(1, len(losses) // 12)
            smooth = [
                sum(losses[max(0, i - window + 1) : i + 1]) / min(i + 1, window)
                for i in range(len(losses))
            ]
            tokens = [(i + 1) * results["step_tokens"] / 1e3 for i in range(len(losses))]
            training.plot(tokens, smooth, color=color, label=label)
        training.set_xlabel("thousand tokens trained on")
        training.set_ylabel(f"loss, nats a token (mean of {window} steps)")
        training.set_title("Fine-tuning")
        training.legend()
        for name, run in results["runs"].items():
            if min(run["heads"]["share"]) == 1.0:
                continue
            label, color = look[name]
            share = run["heads"]["share"]
            layers.plot(range(len(share)), [100 * s for s in share], "o-", color=color, label=label)
        layers.set_xlabel("layer")
        layers.set_ylabel("keys with a weight, % of those seen")
        layers.set_yscale("log")
        layers.set_title(f"What heads keep of {results['heads_tokens']} tokens")
        layers.legend()
        save_figure(figure, target.parent, target.name)


def _loss(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3f}"


def _gap(found: list[float], control: list[float]) -> str:
    """The difference of losses on the same sequences, and its standard error over these."""
    apart = [x - y for x, y in zip(found, control, strict=True)]
    return f"{statistics.fmean(apart):+.3f} ± {statistics.stdev(apart) / len(apart) ** 0.5:.3f}"


def _measured(results: dict[str, Any]) -> dict[str, Any]:
    """Of the model as it came, if that was measured, and of every method."""
    runs: dict[str, Any] = results["runs"]
    return ({UNTOUCHED: results["as_it_came"]} if results["as_it_came"] else {}) | runs


def markdown(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    runs = results["runs"]
    look = looks([UNTOUCHED, *runs])
    control = runs["softmax"]["loss"]
    lines = [f"# {results['model']} made sparse", ""]
    for name in ("entmax", "learned"):
        if name in runs:
            share = runs[name]["heads"]["share"]
            lines += [
                f"Fine-tuned to {look[name][0]}, its loss is {_loss(runs[name]['loss'])} nats a "
                f"token; fine-tuned on the same {results['tokens']} tokens with softmax, "
                f"{_loss(control)}: {_gap(runs[name]['loss'], control)}. A query keeps "
                f"{100 * sum(share) / len(share):.1f} % of the keys that it sees.",
                "",
            ]
    lines += [
        f"Corpus: {results['corpus']}; sequences of {results['length']} tokens, "
        f"{results['step_tokens']} tokens a step; α = {results['alpha']:g}; rate "
        f"{results['rate']:g}; one seed; {results['processor']}, {results['threads']} threads. "
        "Trained with the library of commit "
        f"{', '.join(sorted({run['commit'][:8] for run in runs.values()}))}.",
        "",
        "![Loss of training, and keys kept by layer](convert.svg)",
        "",
        "## Loss on held-out text",
        "",
        f"Nats a token, {results['held_out']} sequences of {results['length']} tokens. Differences "
        "have their standard error over these sequences: other seeds of training are not in it.",
        "",
        "| weights | read with | loss | beside softmax |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['weights']} | {row['map']} | {_loss(row['loss'])} | {_gap(row['loss'], control)} |"
        for row in results["untouched"]
    ]
    for name, run in runs.items():
        gap = "" if name == "softmax" else _gap(run["loss"], control)
        map_name = "entmax" if method_of(name).map.alpha else "softmax"
        lines.append(f"| {look[name][0]} | {map_name} | **{_loss(run['loss'])}** | {gap} |")
    if skipped := [
        f"{name}: {key}" for name, run in runs.items() for key in run.get("skipped", [])
    ]:
        lines += ["", f"Not measured, for want of time: {', '.join(skipped)}."]
    lines += ["", *lengths.tables(_measured(results), look)]
    if has_lengths(results):
        lines += ["![What was measured, against length](lengths.svg)", ""]
    if found := _why(results):
        lines += ["## Why", "", "![Entropy of heads, weight on a key](why-length.svg)", ""]
        lines += why.tables(found, look)
    lines += [
        "## What heads keep",
        "",
        f"Means over heads and queries of {results['heads_tokens']} tokens of held-out text.",
        "",
        "| | keys with a weight | of those seen | entropy, nats | least, most of a layer |",
        "|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        found = run["heads"]
        count = len(found["share"])
        lines.append(
            f"| {look[name][0]} | {sum(found['support']) / count:.1f} "
            f"| {100 * sum(found['share']) / count:.2f} % | {sum(found['entropy']) / count:.2f} "
            f"| {100 * min(found['share']):.2f} %, {100 * max(found['share']):.2f} % |"
        )
    lines += [
        "",
        f"## Writing behind {results['prompt_tokens']} tokens",
        "",
        "Milliseconds a token, all of the model.",
        "",
        "| | attention on | ms a token | prompt, s |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {look[name][0]} | {run['speed']['attention']} | {1e3 * run['speed']['token_s']:.0f} "
        f"| {run['speed']['prompt_s']:.1f} |"
        for name, run in runs.items()
        if "speed" in run
    ]
    lines += ["", "## Text", "", "The prompt, then what each writes greedily.", ""]
    lines += ["```python", results["prompt"], "```", ""]
    for name, run in runs.items():
        if "text" not in run:
            continue
        lines += [f"{look[name][0]}:", "", "```python", run["text"], "```", ""]
    return "\n".join(lines)


def _why(results: dict[str, Any]) -> dict[str, Any]:
    return {name: run["why"] for name, run in _measured(results).items() if "why" in run}


def has_lengths(results: dict[str, Any]) -> bool:
    """Whether there is a figure over lengths."""
    return any(part in run for run in _measured(results).values() for part in lengths.PARTS)


def write(results: dict[str, Any], folder: Path) -> None:
    """report.md and its figures in the folder."""
    look = looks([UNTOUCHED, *results["runs"]])
    draw(results, folder / "convert")
    if has_lengths(results):
        lengths.draw(_measured(results), look, folder / "lengths")
    if found := _why(results):
        why.draw(found, look, folder / "why")
    replace_text(folder / "report.md", markdown(results))
