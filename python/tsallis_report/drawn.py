"""A sentence on the quantity that a figure of a paper shows, from the runs of a study.

A report's own sentence speaks of accuracies or losses. A figure of entropies, learned numbers or
attention shows something else, and ``docs/papers.md`` says how that came out here. Numbers of heads
are of the first seed: heads of different seeds have nothing in common.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .data import Study
from .quantities import Array
from .runs import SUFFIX, read

_HEAT_ITEMS = 16  # of a row of `heat`: the largest items of a set, ascending


@dataclass(frozen=True)
class Runs:
    """The archived runs of a study at a scale, beside its report."""

    root: Path
    study: Study

    @cached_property
    def _files(self) -> dict[str, str]:
        folder = self.root / "results" / "runs" / self.study.study
        return read(folder / (self.study.scale + SUFFIX))

    def _of(self, file: str, trained: str = "") -> list[str]:
        """A file's texts, the first seed first; ``trained``: of this method's training alone."""
        return [
            text
            for name, text in sorted(self._files.items())
            if name.startswith(trained) and name.rsplit("/", 1)[1] == file
        ]

    def label(self, method: str) -> str:
        """The method's name for people."""
        return self.study.labels[method]

    def table(self, method: str, quantity: str, n: int | None = None) -> Array:
        """A quantity of the heads at a length, the shortest by default: [layers, heads]."""
        heads = json.loads(self._of(f"heads-{method}.json")[0])
        at = next(length for length in heads["lengths"] if n in (None, length["n"]))
        found = next(t["mean"] for t in at["tables"] if t["quantity"] == quantity)
        return np.array([[np.nan if v is None else v for v in row] for row in found])

    def heat(self, method: str, n: int) -> Array:
        """Weights of the largest items of some sets, ascending: [sets, items]."""
        scores = json.loads(self._of(f"eval-{method}.json")[0])
        weights = next(score["heat"] for score in scores if score["n"] == n)
        return np.array(weights).reshape(-1, _HEAT_ITEMS)

    def metrics(self, method: str) -> list[list[dict[str, Any]]]:
        """What every seed's training wrote, entry by entry."""
        texts = self._of("metrics.jsonl", method + "/")
        return [[json.loads(line) for line in text.splitlines()] for text in texts]

    def trained(self, candidates: Iterable[str]) -> list[str]:
        """Those of these methods that the study has."""
        return [method for method in candidates if method in self.study.methods]


def _sharpness(runs: Runs) -> str:
    """Weight of the largest item, from the shortest sets to the longest."""
    first, last = runs.study.lengths[0], runs.study.lengths[-1]
    parts = []
    for method in runs.trained(("softmax", "adaptive-temperature")):
        near, far = (float(runs.heat(method, n)[:, -1].mean()) for n in (first, last))
        parts.append(f"{runs.label(method)} {near:.2f} and {far:.2f}")
    return (
        f"Mean weight of the largest item in sets of {first} and {last} items: {'; '.join(parts)}."
    )


def _spread(runs: Runs) -> str:
    """The logits' spread against its bound, after the last step."""
    ends = [
        [entry["observed"] for entry in seed if "spread" in entry.get("observed", {})][-1]
        for seed in runs.metrics(runs.study.baseline)
    ]
    spread = float(np.mean([end["spread"] for end in ends]))
    bound = float(np.mean([end["bound"] for end in ends]))
    return (
        f"After training the logits of a set spread over {spread:.0f}, and the bound is "
        f"{bound:.0f} ({runs.label(runs.study.baseline)}, mean of {len(ends)} seeds)."
    )


def _of_heads(quantity: str, said: str, *methods: str) -> Callable[[Runs], str]:
    """A mean over the heads, at the shortest length and the longest."""

    def sentence(runs: Runs) -> str:
        first, last = runs.study.lengths[0], runs.study.lengths[-1]
        parts = []
        for method in runs.trained(methods):
            near, far = (float(np.nanmean(runs.table(method, quantity, n))) for n in (first, last))
            parts.append(f"{runs.label(method)} {near:.2f} and {far:.2f}")
        return (
            f"{said} at n = {first} and {last}, mean over heads (first seed): {'; '.join(parts)}."
        )

    return sentence


def _gamma(runs: Runs) -> str:
    """γ and what it does: the factor of the scores at the shortest length and the longest."""
    (method,) = runs.trained(("asentmax-nape",)) or [""]
    if not method:
        return "No method with ASEntmax's γ."
    gamma, beta = runs.table(method, "gamma"), runs.table(method, "beta")
    known = np.isfinite(gamma)
    factors = runs.table(method, "c", runs.study.lengths[-1])
    factors = factors[np.isfinite(factors)]
    return (
        f"{runs.label(method)} (first seed): γ is negative in {int((gamma[known] < 0).sum())} of "
        f"{int(known.sum())} scaled heads, from {gamma[known].min():.2f} to "
        f"{gamma[known].max():.2f} (the paper: in all). β is {beta[known].min():.2g} to "
        f"{beta[known].max():.2g}, so scores are multiplied by {factors.min():.2f} to "
        f"{factors.max():.2f} at n = {runs.study.lengths[-1]}."
    )


def _beta_and_gamma(runs: Runs) -> str:
    """β and γ of the heads that scale."""
    method = "asentmax-nape"
    beta, gamma = (runs.table(method, quantity) for quantity in ("beta", "gamma"))
    known = np.isfinite(gamma)
    return (
        f"{runs.label(method)} (first seed, {int(known.sum())} scaled heads): β from "
        f"{beta[known].min():.2g} to {beta[known].max():.2g}, γ from {gamma[known].min():.2f} to "
        f"{gamma[known].max():.2f}. The paper fits them to factors that a softmax model learned."
    )


def _training_loss(runs: Runs) -> str:
    """The loss of training batches at a fifth of the steps and at the end."""
    parts = []
    for method in runs.trained(("rope", "alibi", "scale-invariant-p-rope")):
        losses: dict[int, list[float]] = {}
        for seed in runs.metrics(method):
            for entry in seed:
                if "loss" in entry:
                    losses.setdefault(entry["step"], []).append(entry["loss"])
        steps = sorted(losses)
        fifth = min(steps, key=lambda step: abs(step - steps[-1] / 5))
        early, late = (float(np.mean(losses[step])) for step in (fifth, steps[-1]))
        parts.append(f"{runs.label(method)} {early:.3f} and {late:.3f}")
    return (
        f"Loss of training in nats a byte, mean over seeds, after {fifth} and {steps[-1]} steps: "
        f"{'; '.join(parts)}."
    )


def _kinds(quantity: str, said: str, by_layer: bool) -> Callable[[Runs], str]:
    """A number of the heads of learned α, by kind of attention, of a layer or as a range."""

    def sentence(runs: Runs) -> str:
        n = runs.study.lengths[-1]
        method = runs.trained(("learned", "learned-spread"))[0]
        parts = []
        for kind in ("encoder", "context", "decoder"):
            values = runs.table(method, f"{kind} {quantity}", n)
            if by_layer:
                layers = ", ".join(f"{value:.2f}" for value in np.nanmean(values, axis=1))
                parts.append(f"{kind} {layers}")
            else:
                parts.append(f"{kind} {np.nanmin(values):.2f} to {np.nanmax(values):.2f}")
        return f"{said} ({runs.label(method)}; first seed): {'; '.join(parts)}."

    return sentence


# Figures that show something else than the study's metric against length.
SENTENCES: Mapping[tuple[str, str], Callable[[Runs], str]] = {
    ("softmax-is-not-enough", "figure 2"): _sharpness,
    ("softmax-is-not-enough", "figure 7"): _sharpness,
    ("softmax-is-not-enough", "figure 9"): _spread,
    ("asentmax", "figure 9"): _beta_and_gamma,
    ("asentmax", "figure 11"): _of_heads(
        "support", "Keys with weight", "softmax-nape", "entmax-nape", "asentmax-nape"
    ),
    ("asentmax", "figure 12"): _of_heads(
        "support", "Keys with weight", "entmax-nape", "entmax-rope", "entmax-alibi"
    ),
    ("asentmax", "figure 13"): _gamma,
    ("scale-invariant-attention", "figure 1"): _of_heads(
        "entropy", "Entropy in nats", "rope", "scale-invariant-p-rope"
    ),
    ("scale-invariant-attention", "figure 3"): _training_loss,
    ("adaptively-sparse-transformers", "figure 11"): _kinds("alpha", "α of the heads", False),
    ("adaptively-sparse-transformers", "figure 12"): _kinds(
        "density", "Share of keys with weight, by head", False
    ),
    ("adaptively-sparse-transformers", "figure 13"): _kinds(
        "divergence", "Divergence of the heads, by layer", True
    ),
    ("adaptively-sparse-transformers", "figure 14"): _kinds(
        "density", "Share of keys with weight, by layer", True
    ),
}

# Figures that `tsallis eval` draws of a model that is trained first; its runs keep no weights.
BY_COMMAND: Mapping[tuple[str, str], str] = {
    ("asentmax", "figure 4"): "The factors and the three fits are drawn for a model by",
    ("scale-invariant-attention", "figure 9"): "The logits of a model's heads are drawn by",
}
SCORES_COMMAND = "tsallis eval FOLDER --text FILE --scores FOLDER"
