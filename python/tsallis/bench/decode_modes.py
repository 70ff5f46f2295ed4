"""``tsallis bench decode --models``: what modes of decoding read and lose on trained heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

import tsallis
from tsallis.bench.cases import Case

__all__ = ["MODES", "TITLE", "line", "measure", "summaries"]

BUDGETS = (256, 1024)
MODES: dict[str, tsallis.DecodeMode | None] = {
    "exact": None,
    **{f"within {epsilon:g}": tsallis.Within(epsilon) for epsilon in (0.1, 0.01, 0.001)},
    **{f"top pages {budget}": tsallis.TopPages(budget) for budget in BUDGETS},
    **{f"gaussian pages {budget}": tsallis.GaussianPages(budget) for budget in BUDGETS},
    **{f"first and last {budget}": tsallis.FirstAndLast(budget) for budget in BUDGETS},
}
# Softmax gives every key a weight: an answer that lost no more is called whole.
WHOLE = 1e-3
QUERIES = 16  # of a layer, at tokens spread over its second half


def measure(case: Case) -> Iterable[dict[str, Any]]:
    """A row for each mode, of the queries of one layer of a trained model."""
    if case.inputs is None or case.map not in ("entmax", "softmax"):
        raise ValueError(f"{case.name}: expected inputs of a model with entmax or softmax")
    q, k, v = (x.unsqueeze(0) for x in case.inputs)
    heads, n, d = q.shape[1:]
    kv_heads = k.shape[1]
    cache = tsallis.KVCache(
        1, kv_heads, d, value_dim=v.shape[-1], dtype=q.dtype, ranges=True, moments=True
    )
    sequence = cache.sequence()
    cache.append(0, [sequence], k, v)
    lengths = torch.linspace(n // 2, n, QUERIES).long().tolist()
    forks = [sequence.fork(length) for length in lengths]
    newest = torch.cat([q[:, :, length - 1 : length] for length in lengths])
    dense = kv_heads * (d + v.shape[-1]) * q.element_size() * sum(lengths)
    softmax = case.map == "softmax"
    for name, mode in MODES.items():
        if isinstance(mode, tsallis.Within) and not softmax:
            continue
        _, told = tsallis.decode(
            newest,
            cache,
            0,
            forks,
            mode=mode,
            returns=("certificate", "lost", "scored", "bytes_read"),
            **case.settings,
        )
        proved = told.certificate <= (WHOLE if softmax else 0.0)
        yield {
            "case": case.name,
            "model": case.kind.rpartition("-")[0],
            "map": case.map,
            "mode": name,
            "queries": told.lost.numel(),
            "mass": max(0.0, 1.0 - float(told.lost.mean())),
            "least_mass": max(0.0, 1.0 - float(told.lost.max())),
            "whole": float((told.lost <= (WHOLE if softmax else 1e-9)).double().mean()),
            "proved": float(proved.double().mean()),
            "scored": float(told.scored.sum()) / (heads * sum(lengths)),
            "bytes_read": float(told.bytes_read.sum()) / dense,
        }


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the layers of each model, for every mode in turn."""
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for mode in MODES:
            of = [row for row in rows if (row["model"], row["mode"]) == (model, mode)]
            if not of:
                continue
            mean = {
                name: sum(row[name] for row in of) / len(of)
                for name in ("mass", "whole", "proved", "scored", "bytes_read")
            }
            least = min(row["least_mass"] for row in of)
            found.append(
                {"model": model, "map": of[0]["map"], "mode": mode, "least_mass": least, **mean}
            )
    return found


TITLE = (
    f"{'model':24}{'map':9}{'mode':22}{'mass %':>9}{'least':>8}{'whole %':>9}{'proved %':>10}"
    f"{'scored %':>10}{'read %':>8}"
)


def line(row: dict[str, Any]) -> str:
    """A row of `summaries` under `TITLE`, in per cent."""
    numbers = [100.0 * row[name] for name in ("mass", "least_mass", "whole", "proved", "scored")]
    mass, least, whole, proved, scored = numbers
    return (
        f"{row['model']:24}{row['map']:9}{row['mode']:22}{mass:>9.3f}{least:>8.1f}{whole:>9.1f}"
        f"{proved:>10.1f}{scored:>10.2f}{100.0 * row['bytes_read']:>8.1f}"
    )
