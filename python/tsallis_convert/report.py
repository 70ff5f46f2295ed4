"""The page of a conversion: ``results.json``, ``report.md`` and a figure out of the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tsallis_report import style
from tsallis_report.files import replace_text
from tsallis_report.parts import save_figure

# name of a method: label, colour
LOOKS = {
    "softmax": ("softmax", "#222222"),
    "entmax": ("entmax, α = 1.5, softened", "#0072B2"),
    "learned": ("entmax, α of every head learned", "#D55E00"),
    "annealed": ("entmax, α rising from 1", "#56AEE0"),
}


def draw(results: dict[str, Any], target: Path) -> None:
    """Loss of training, and what heads keep, layer by layer: target.svg and target.png."""
    with style.styled():
        figure = Figure(figsize=(9.6, 3.9), layout="constrained")
        training, layers = figure.subplots(1, 2)
        for name, run in results["runs"].items():
            label, color = LOOKS[name]
            losses = run["losses"]
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
            if name == "softmax":
                continue
            label, color = LOOKS[name]
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


def markdown(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    runs = results["runs"]
    lines = [f"# {results['model']} made sparse", ""]
    if {"softmax", "entmax"} <= runs.keys():
        gap = sum(runs["entmax"]["loss"]) - sum(runs["softmax"]["loss"])
        gap /= len(runs["softmax"]["loss"])
        share = runs["entmax"]["heads"]["share"]
        lines += [
            f"Fine-tuned to entmax its loss is {_loss(runs['entmax']['loss'])} nats a token; "
            f"fine-tuned on the same {results['tokens']} tokens with softmax, "
            f"{_loss(runs['softmax']['loss'])}: {gap:+.3f}. A query keeps "
            f"{100 * sum(share) / len(share):.1f} % of the keys that it sees.",
            "",
        ]
    lines += [
        f"Corpus: {results['corpus']}; sequences of {results['length']} tokens; one seed; "
        f"{results['processor']}, {results['threads']} threads.",
        "",
        "![Loss of training, and keys kept by layer](convert.svg)",
        "",
        "## Loss on held-out text",
        "",
        f"Nats a token, {results['held_out']} sequences of {results['length']} tokens.",
        "",
        "| weights | read with | loss |",
        "|---|---|---|",
    ]
    lines += [
        f"| {row['weights']} | {row['map']} | {_loss(row['loss'])} |"
        for row in results["untouched"]
    ]
    for name, run in runs.items():
        map_name = "softmax" if name == "softmax" else "entmax"
        lines.append(f"| {LOOKS[name][0]} | {map_name} | **{_loss(run['loss'])}** |")
    lines += [
        "",
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
            f"| {LOOKS[name][0]} | {sum(found['support']) / count:.1f} "
            f"| {100 * sum(found['share']) / count:.2f} % | {sum(found['entropy']) / count:.2f} "
            f"| {100 * min(found['share']):.2f} %, {100 * max(found['share']):.2f} % |"
        )
    lines += [
        "",
        f"## Writing behind {results['prompt_tokens']} tokens",
        "",
        "Milliseconds a token, all of the model; in turns.",
        "",
        "| | attention on | ms a token | prompt, s |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['weights']} | {row['attention']} | {1e3 * row['token_s']:.0f} "
        f"| {row['prompt_s']:.1f} |"
        for row in results["speed"]
    ]
    lines += ["", "## Text", "", "The prompt, then what each writes greedily.", ""]
    lines += ["```python", results["prompt"], "```", ""]
    for name, run in runs.items():
        lines += [f"{LOOKS[name][0]}:", "", "```python", run["text"], "```", ""]
    return "\n".join(lines)


def write(results: dict[str, Any], folder: Path) -> None:
    """report.md, convert.svg and convert.png in the folder."""
    draw(results, folder / "convert")
    replace_text(folder / "report.md", markdown(results))
