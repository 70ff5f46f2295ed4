"""Why a model holds or does not when its context grows: measures that only read it.

The model's attention has to be softmax or entmax of `tsallis.integrations.transformers`. Results
are plain numbers with three digits; all four measures of a model take about 15 KB of JSON. ``say``
gets a line after each part of a measure.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, PreTrainedModel

import tsallis
from tsallis.integrations import transformers as tsallis_transformers
from tsallis_report import style
from tsallis_report.parts import legend_below, length_axis, save_figure

from . import ConvertError
from .lengths import Looks

Say = Callable[[str], None]
Look = Callable[[Tensor, Tensor, dict[str, Any]], None]

ITEMS = tuple(2**i for i in range(1, 11))
ROWS = 128  # queries at the end of a text over which means are taken
LITTLE = 0.01  # a weight up to this counts as none where the map gives none exactly
BLOCK = 256  # rows of scores at a time, which bounds memory
NORMAL = [i / 4 for i in range(-12, 13)]  # standard deviations at which quantiles are compared
ADAPTIVE = "adaptive temperature"


class WhyError(ConvertError):
    """A measure cannot be taken; the text goes to the user."""


def _short(values: Any) -> Any:
    """Numbers with three digits out of a tensor or an array: nested lists, or one number."""
    if isinstance(values, list):
        return [_short(value) for value in values]
    return _short(values.tolist()) if hasattr(values, "tolist") else float(f"{values:.3g}")


def _check(model: PreTrainedModel) -> None:
    name = model.config._attn_implementation
    if name not in tsallis_transformers.NAMES:
        raise WhyError(f"MODEL: expected an attention of tsallis, got {name!r}")


def _check_lengths(document: Tensor, lengths: Sequence[int], least: int) -> None:
    if not lengths or list(lengths) != sorted(set(lengths)) or lengths[0] < least:
        raise WhyError(f"lengths: expected rising numbers from {least} on, got {list(lengths)}")
    if len(document) < lengths[-1]:
        raise WhyError(
            f"document: expected {lengths[-1]} tokens or more, for the last of lengths, got "
            f"{len(document)}"
        )


@torch.no_grad()
def _read(model: PreTrainedModel, tokens: Tensor, look: Look, keep: int = 1) -> Tensor:
    """Reads tokens [length]; calls look(q, k, settings) in every layer, from the first to the last.

    q: [heads, length, head_dim], k: [kv_heads, length, head_dim], settings: those of
    `tsallis.attention`. Returns the logits behind the last ``keep`` tokens: [keep, vocabulary].
    """
    _check(model)

    def call(_: Any, q: Tensor, k: Tensor, v: Tensor, settings: dict[str, Any]) -> None:
        look(q[0], k[0], settings)

    with tsallis_transformers.observe_calls(call):
        out = model(input_ids=tokens[None], use_cache=False, logits_to_keep=keep)
    behind: Tensor = out.logits[0]
    return behind


def _scores(q: Tensor, k: Tensor, settings: dict[str, Any], begin: int, end: int) -> Tensor:
    """Of queries begin to end - 1 over keys 0 to end - 1: [heads, end - begin, end], -inf where a
    key is not seen.

    Raises:
        WhyError: attention has a bias or a sink of its own, or queries see keys behind them.
    """
    for name in ("bias", "sink"):
        if settings[name] is not None:
            raise WhyError(f"MODEL: expected attention without a {name}, got one with it")
    scale = settings["scale"]
    rows = q[:, begin:end].float() * (q.shape[-1] ** -0.5 if scale is None else scale)
    keys = k[:, :end].float().repeat_interleave(q.shape[0] // k.shape[0], 0)
    scores: Tensor = rows @ keys.transpose(1, 2)
    if settings["softcap"] is not None:
        scores = (scores / settings["softcap"]).tanh() * settings["softcap"]
    if settings["mask"] is not None:
        seen = settings["mask"][0, :, begin:end]
        if seen[..., end:].any():
            raise WhyError("MODEL: expected causal attention, got queries that see later keys")
        return scores.masked_fill(~seen[..., :end], -math.inf)
    if not settings["causal"]:
        raise WhyError("MODEL: expected causal attention, got queries that see later keys")
    later = torch.arange(end) > torch.arange(begin, end)[:, None]
    return scores.masked_fill(later, -math.inf)


def _weights(scores: Tensor, settings: dict[str, Any]) -> Tensor:
    """The map of scores [heads, rows, keys]."""
    if settings["map"] == "softmax":
        return tsallis.softmax(scores)
    if settings["map"] != "entmax":
        raise WhyError(f"MODEL: expected softmax or entmax, got {settings['map']}")
    alpha = settings["alpha"]
    return tsallis.entmax(scores, alpha.reshape(-1, 1, 1) if isinstance(alpha, Tensor) else alpha)


def _borders(settings: dict[str, Any], heads: int) -> tuple[Tensor, Tensor]:
    """What a weight has to exceed for a key to be kept, and the distance from a row's largest score
    up to which a key is near; [heads, 1, 1] each.

    Entmax: 0 and 1 / (alpha - 1), from which on a weight is 0 in every row, for tau is at least
    (alpha - 1) max s - 1. Softmax, and entmax with alpha up to 1, give every key a weight: 1 %, and
    ln 100, at which a weight is 1 % of the row's largest.
    """
    alpha = settings["alpha"] if settings["map"] == "entmax" else 1.0
    over = torch.as_tensor(alpha, dtype=torch.float64).reshape(-1, 1, 1).expand(heads, 1, 1) - 1
    return torch.where(over > 0, 0, LITTLE), torch.where(over > 0, 1 / over, -math.log(LITTLE))


def prompt(items: Sequence[int]) -> str:
    """Figure 3's prompt in Veličković et al. 2024."""
    sequence = ", ".join(map(str, items))
    return f"What is the maximum in the following sequence: {sequence}? The maximum is:"


@torch.no_grad()
def _prompted(
    model: PreTrainedModel, tokenizer: Any, drawn: list[int], sizes: Sequence[int]
) -> tuple[list[Tensor], list[float], list[int]]:
    """For each size: entropies of the last query, [layers, heads], nats a token of the answer, and
    the keys of that query.

    The prompts begin alike, so a cache keeps what the next one repeats.
    """
    prompts = [tokenizer(prompt(drawn[:size]))["input_ids"] for size in sizes]
    cache = DynamicCache(config=model.config)
    held = 0
    found, nats = [], []
    for i, tokens in enumerate(prompts):
        following = prompts[i + 1] if i + 1 < len(prompts) else []
        pairs = zip(tokens, following, strict=False)
        common = next((j for j, (a, b) in enumerate(pairs) if a != b), held)
        if common > held:
            part = torch.tensor([tokens[held:common]])
            model(input_ids=part, past_key_values=cache, logits_to_keep=1)
            held = common
        answer = tokenizer(f" {max(drawn[: sizes[i]])}", add_special_tokens=False)["input_ids"]
        layers: list[Tensor] = []
        place = len(tokens) - held - 1

        def look(_: Any, support: Tensor, entropy: Tensor) -> None:
            layers.append(entropy[0, :, place])  # noqa: B023 - called within this turn

        with tsallis_transformers.observe(look):
            out = model(
                input_ids=torch.tensor([tokens[held:] + answer]),
                past_key_values=copy.deepcopy(cache) if following else cache,
                logits_to_keep=len(answer) + 1,
            )
        found.append(torch.stack(layers))
        nats.append(cross_entropy(out.logits[0, :-1], torch.tensor(answer)).item())
    return found, nats, [len(tokens) for tokens in prompts]


def _entropies(
    model: PreTrainedModel,
    tokenizer: Any,
    sizes: Sequence[int],
    prompts: int,
    seed: int,
    say: Callable[[int], None],
) -> dict[str, Any]:
    heads, nats, keys = [], [], []
    for i in range(prompts):
        drawn = np.random.default_rng((seed, i)).integers(0, 1000, sizes[-1]).tolist()
        found, answers, seen = _prompted(model, tokenizer, drawn, sizes)
        heads.append(torch.stack(found))
        nats.append(answers)
        keys.append(seen)
        say(i)
    entropy = torch.stack(heads)  # [prompts, sizes, layers, heads]
    share = entropy / torch.tensor(keys, dtype=torch.float64).log()[:, :, None, None]
    found_of: dict[str, Any] = {
        "keys": _short(np.mean(keys, 0)),
        "answer": _short(np.mean(nats, 0)),
    }
    for name, values in (("", entropy), ("share_", share)):
        every = values.mean(0).flatten(1)
        found_of[f"{name}mean"] = _short(every.mean(1))
        found_of[f"{name}low"] = _short(every.quantile(0.25, 1))
        found_of[f"{name}high"] = _short(every.quantile(0.75, 1))
    return found_of | {"first_block": _short(entropy.mean(0)[:, 0])}


def entropies(
    model: PreTrainedModel,
    tokenizer: Any,
    say: Say,
    sizes: Sequence[int] = ITEMS,
    prompts: int = 8,
    seed: int = 1,
) -> dict[str, Any]:
    """Entropy of heads, in nats, of the last query behind a list of numbers (Veličković et al.
    2024, figure 3).

    The items are drawn from 0 to 999; a prompt of more items continues one of fewer.

    Args:
        sizes: numbers of items, rising.
        prompts: of each size.

    Returns:
        For every size: keys of the last query; "first_block": [sizes][heads], means over prompts;
        mean, lower and upper quartile over all heads of these means, and the same of H / ln(keys)
        ("share_"); nats a token of the right answer. "adaptive": the same of a softmax model that
        is read with adaptive temperature in every layer.

    Raises:
        WhyError: sizes do not rise from 1 or more, or the attention is not of tsallis.
    """
    _check(model)
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or prompts < 1:
        raise WhyError(
            "sizes, prompts: expected rising numbers from 1 on, and 1 or more, got "
            f"{list(sizes)}, {prompts}"
        )

    def each(reading: str) -> dict[str, Any]:
        def line(i: int) -> None:
            say(f"entropies: {reading}, prompt {i + 1} of {prompts}")

        return _entropies(model, tokenizer, sizes, prompts, seed, line)

    own = model.config._attn_implementation
    found = {"items": list(sizes), "prompts": prompts} | each(own.removeprefix("tsallis_"))
    if own == "tsallis_softmax":
        model.set_attn_implementation("tsallis_adaptive_temperature")
        try:
            found["adaptive"] = each(ADAPTIVE)
        finally:
            model.set_attn_implementation(own)
    return found


MEANS = ("kept", "strong", "entropy", "first", "first_four", "distance", "near")


def _row_means(scores: Tensor, settings: dict[str, Any], begin: int) -> dict[str, float]:
    """Means over heads and rows of what `heads_by_length` returns. scores: [heads, rows, keys]."""
    p = _weights(scores, settings).double()
    least, gap = _borders(settings, scores.shape[0])
    kept = (p > least).sum(-1)
    places = torch.arange(scores.shape[-1], dtype=torch.float64)
    back = torch.arange(begin, begin + scores.shape[1])[:, None] - places
    means = (
        kept,
        (p > LITTLE).sum(-1),
        torch.special.entr(p).sum(-1),
        p[..., 0],
        p[..., :4].sum(-1),
        (p * back).sum(-1),
        (scores >= scores.amax(-1, keepdim=True) - gap).sum(-1),
    )
    return {n: values.double().mean().item() for n, values in zip(MEANS, means, strict=True)}


def heads_by_length(
    model: PreTrainedModel, document: Tensor, lengths: Sequence[int], say: Say, rows: int = ROWS
) -> dict[str, Any]:
    """What heads do at the end of a text of each length: means over heads and the last queries.

    One pass over the longest text serves all lengths: a causal query does not know what follows.
    A model whose positions depend on the length of the text needs a call for each.

    Args:
        document: [tokens].
        rows: last queries of each length.

    Returns:
        [lengths][layers] of each: "kept", keys with a weight above 0 (softmax: above 1 %);
        "strong", keys with a weight above 1 %; "entropy", nats; "first" and "first_four", weight on
        the first key and on the first four; "distance", mean distance by weight, in tokens; "near",
        keys whose score lies within a gap of the row's largest, that one included: N_n of Hayase
        and Karakida 2026 (arXiv 2605.12697), at the gap of `_borders`.

    Raises:
        WhyError: lengths do not rise, the document is shorter than the last one, or the attention
            is not causal softmax or entmax of tsallis.
    """
    _check_lengths(document, lengths, 2)
    found: list[list[dict[str, float]]] = [[] for _ in lengths]

    def look(q: Tensor, k: Tensor, settings: dict[str, Any]) -> None:
        for length, layers in zip(lengths, found, strict=True):
            begin = max(0, length - rows)
            scores = _scores(q, k, settings, begin, length)
            layers.append(_row_means(scores, settings, begin))

    _read(model, document[: lengths[-1]], look)
    say(f"heads: {lengths[-1]} tokens")
    return {"lengths": list(lengths), "rows": rows} | {
        name: [_short([layer[name] for layer in layers]) for layers in found] for name in MEANS
    }


def _with_places(tokenizer: Any, text: str, part: str) -> tuple[list[int], list[int]]:
    """The tokens of a text, and the places of those that the last occurrence of a part lies in."""
    found = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    begin = text.rindex(part)
    places = [
        i
        for i, (first, last) in enumerate(found["offset_mapping"])
        if last > begin and first < begin + len(part)
    ]
    return found["input_ids"], places


def needle(
    model: PreTrainedModel,
    tokenizer: Any,
    document: Tensor,
    lengths: Sequence[int],
    say: Say,
    keys: int = 2,
    seed: int = 1,
) -> dict[str, Any]:
    """Weight of the last token before the answer on a pass key in the middle of a text.

    The text ends with a question for the key and the key itself; its length counts all of it.

    Args:
        document: [tokens], around the key.
        lengths: of the whole text in tokens, rising.
        keys: drawn keys of five digits, over which weights are averaged.

    Returns:
        For every length: "best": [layers], the largest weight that a head puts on the key's tokens
        together; "top": the five best heads of all, [layer, head, weight] each, and "five", their
        sum; "nats" a token of the key in the answer, and "found", the share of keys of which every
        token was the most likely one.

    Raises:
        WhyError: lengths do not rise or leave no room for the question, the document is shorter
            than the last one, or the attention is not causal softmax or entmax of tsallis.
    """
    draws = []
    for i in range(keys):
        key = str(np.random.default_rng((seed, i)).integers(10_000, 100_000))
        hidden = _with_places(tokenizer, f"\nThe pass key is {key}. Remember it.\n", key)
        asked = _with_places(tokenizer, f"\nWhat is the pass key? The pass key is {key}", key)
        draws.append((hidden, asked))
    least = max((len(hidden[0]) + len(asked[0]) for hidden, asked in draws), default=0) + 2
    _check_lengths(document, lengths, least)
    found: dict[str, Any] = {"lengths": list(lengths), "keys": keys}
    found |= {name: [] for name in ("best", "top", "five", "nats", "found")}
    for length in lengths:
        weights, nats, right = [], [], 0
        for (sentence, places), (question, answers) in draws:
            spare = length - len(sentence) - len(question)
            half = spare // 2
            parts = (document[:half], torch.tensor(sentence), document[half:spare])
            tokens = torch.cat((*parts, torch.tensor(question)))
            row = length - len(question) + answers[0] - 1
            columns = half + torch.tensor(places)
            layers: list[Tensor] = []

            def look(q: Tensor, k: Tensor, settings: dict[str, Any]) -> None:
                scores = _scores(q, k, settings, row, row + 1)  # noqa: B023 - within this turn
                layers.append(_weights(scores, settings)[:, 0, columns].sum(-1))  # noqa: B023

            keep = len(question) - answers[0] + 1
            logits = _read(model, tokens, look, keep)[:-1]
            answer = tokens[row + 1 :]
            weights.append(torch.stack(layers))
            nats.append(cross_entropy(logits, answer).item())
            right += int((logits.argmax(-1) == answer).all())
        mean = torch.stack(weights).mean(0)  # [layers, heads]
        top = mean.flatten().topk(min(5, mean.numel()))
        found["best"].append(_short(mean.amax(1)))
        pairs = zip(top.indices.tolist(), top.values, strict=True)
        found["top"].append([[*divmod(i, mean.shape[1]), _short(weight)] for i, weight in pairs])
        found["five"].append(_short(top.values.sum()))
        found["nats"].append(_short(np.mean(nats)))
        found["found"].append(_short(right / keys))
        say(f"needle: {length} tokens")
    return found


def _moments(values: np.ndarray[Any, Any]) -> list[float]:
    """Mean, standard deviation, skewness and excess kurtosis."""
    mean, deviation = values.mean(), values.std()
    z = (values - mean) / max(deviation, 1e-30)  # equal scores deviate by 0
    return [mean, deviation, (z**3).mean(), (z**4).mean() - 3]


def logits(
    model: PreTrainedModel, tokens: Tensor, say: Say, few: int = 500, drawn: int = 4
) -> dict[str, Any]:
    """How far scores spread, and how normal they are; scores are q·k times attention's scale.

    Args:
        tokens: [length], for spreads.
        few: tokens from the first on whose scores are compared with a normal distribution.
        drawn: layers whose quantiles are kept, from the first to the last.

    Returns:
        "spread": [layers][heads], mean over queries of delta, the difference of a row's largest and
        least score (Veličković et al. 2024, section 2); "largest": [layers], of all rows. "bound":
        log10 of the number of keys from which lemma 2.1, weights <= e^delta / n, keeps every
        softmax weight below 1 %: by the largest delta of a head, the least, median and greatest
        over heads; "bounded": the share of rows of this text where it does. Both are None under
        entmax, for which the lemma does not hold.

        As Anson et al. 2025, figure 9, without the first key: "moments": [layers] of mean, standard
        deviation, skewness and excess kurtosis over all heads, "head_moments": [layers], means over
        heads of skewness and excess kurtosis of each, "layers" and "quantiles": those of `drawn`
        layers in standard deviations from the mean, at those of "normal".

    Raises:
        WhyError: the text is shorter than ``few``, or the attention is not causal softmax or entmax
            of tsallis.
    """
    length = len(tokens)
    if not 2 < few <= length:
        raise WhyError(f"few: expected from 3 to the {length} tokens of the text, got {few}")
    last = model.config.num_hidden_layers - 1
    wanted = sorted({round(i * last / max(1, drawn - 1)) for i in range(drawn)})
    levels = [0.5 * (1 + math.erf(z / math.sqrt(2))) for z in NORMAL]
    found: dict[str, Any] = {"tokens": length, "few": few, "layers": wanted, "normal": NORMAL}
    names = ("spread", "largest", "moments", "head_moments", "quantiles")
    found |= {name: [] for name in names}
    bounded, maps, largest = [], [], []

    def look(q: Tensor, k: Tensor, settings: dict[str, Any]) -> None:
        spreads = []
        for begin in range(0, length, BLOCK):
            scores = _scores(q, k, settings, begin, min(length, begin + BLOCK))
            least = scores.masked_fill(scores == -math.inf, math.inf).amin(-1)
            spreads.append(scores.amax(-1) - least)
        spread = torch.cat(spreads, 1).double()  # [heads, length]
        keys = torch.arange(1, length + 1)
        bounded.append((spread < (LITTLE * keys).log()).double().mean().item())
        maps.append(settings["map"])
        found["spread"].append(_short(spread.mean(1)))
        found["largest"].append(_short(spread.max()))
        largest.append(spread.amax(1))
        scores = _scores(q, k, settings, 1, few)[..., 1:].double()
        heads = [head[head.isfinite()].numpy() for head in scores]
        every = np.concatenate(heads)
        mean, deviation, *shape = _moments(every)
        if len(found["moments"]) in wanted:
            z = (np.quantile(every, levels) - mean) / max(deviation, 1e-30)
            found["quantiles"].append(_short(z))
        found["moments"].append(_short([mean, deviation, *shape]))
        found["head_moments"].append(_short(np.mean([_moments(head)[2:] for head in heads], 0)))

    _read(model, tokens, look)
    say(f"logits: {length} tokens")
    found["bound"] = found["bounded"] = None
    if set(maps) == {"softmax"}:
        bound = (torch.cat(largest).numpy() - math.log(LITTLE)) / math.log(10)
        found["bound"] = _short(np.quantile(bound, (0, 0.5, 1)))
        found["bounded"] = _short(np.mean(bounded))
    return found


def measure(
    model: PreTrainedModel, tokenizer: Any, document: Tensor, lengths: Sequence[int], say: Say
) -> dict[str, Any]:
    """All four measures, as `tables` and `draw` take them. document: [tokens]."""
    return {
        "entropies": entropies(model, tokenizer, say),
        "heads": heads_by_length(model, document, lengths, say),
        "needle": needle(model, tokenizer, document, lengths, say),
        "logits": logits(model, document[:4000], say, few=min(500, len(document))),
    }


def _table(title: str, note: str, head: str, rows: Sequence[str]) -> str:
    """head and rows: cells with " | " between them."""
    line = "|".join(["---"] * (head.count(" | ") + 1))
    body = [f"| {row} |" for row in (head, *rows)]
    return "\n".join([f"### {title}", "", note, "", body[0], f"|{line}|", *body[1:], ""])


def _some(values: Sequence[int], most: int) -> list[int]:
    """Indices of at most so many values, from the first to the last."""
    last = len(values) - 1
    return sorted({round(i * last / (most - 1)) for i in range(most)})


def _span(values: Any, form: str) -> str:
    """The median, least and most."""
    low, middle, high = np.quantile(np.ravel(values), (0, 0.5, 1))
    return f"{middle:{form}} ({low:{form}} … {high:{form}})"


def _entropy_table(results: dict[str, Any], looks: Looks) -> str:
    of = next(iter(results.values()))["entropies"]
    some, rows = _some(of["items"], 5), []
    for name, found in results.items():
        readings = {looks[name][0]: found["entropies"]}
        if "adaptive" in found["entropies"]:
            readings[f"{looks[name][0]}, {ADAPTIVE}"] = found["entropies"]["adaptive"]
        for label, r in readings.items():
            cells = [
                f"{r['mean'][i]:.2f} ({r['share_mean'][i]:.2f}), {r['answer'][i]:.2f}" for i in some
            ]
            rows.append(" | ".join((label, *cells)))
    note = (
        "Entropy of the last query, in nats, mean over all heads; in brackets over ln of the keys; "
        f"then nats a token of the right answer. {of['prompts']} prompts."
    )
    head = " | ".join(("items", *(str(of["items"][i]) for i in some)))
    return _table("Entropy behind a list of numbers", note, head, rows)


def _heads_table(results: dict[str, Any], looks: Looks) -> str:
    rows = []
    for name, found in results.items():
        of = found["heads"]
        for i in _some(of["lengths"], 3):
            length = of["lengths"][i]
            mean = {key: np.mean(of[key][i]) for key in MEANS}
            seen = length - (min(length, of["rows"]) - 1) / 2
            rows.append(
                f"{looks[name][0]} | {length} | {mean['kept']:.1f} "
                f"({100 * mean['kept'] / seen:.2f} %) | "
                f"{mean['strong']:.1f} | {mean['entropy']:.2f} | {mean['first']:.3f} | "
                f"{mean['first_four']:.3f} | {mean['distance']:.0f} | {mean['near']:.1f}"
            )
    note = (
        "Means over layers, heads and the last queries. Kept: weight above 0, of softmax above "
        "1 %. Near: keys whose score lies within 1 / (α - 1) of the row's largest, of softmax "
        "within ln 100."
    )
    head = (
        " | tokens | kept | above 1 % | entropy | weight on the first key | on the first four | "
        "distance | near"
    )
    return _table("Heads by length", note, head, rows)


def _needle_table(results: dict[str, Any], looks: Looks) -> str:
    rows = []
    for name, found in results.items():
        of = found["needle"]
        rows += [
            f"{looks[name][0]} | {of['lengths'][i]} | {of['five'][i]:.2f} | "
            f"{max(of['best'][i]):.2f} | {of['nats'][i]:.2f} | {100 * of['found'][i]:.0f} %"
            for i in _some(of["lengths"], 3)
        ]
    note = "Weight that the last token before the answer puts on the key's tokens together."
    head = " | tokens | five best heads | best head | nats a token of the answer | found"
    return _table("A pass key in the middle", note, head, rows)


def _scores_table(results: dict[str, Any], looks: Looks) -> str:
    rows = []
    for name, found in results.items():
        of = found["logits"]
        bound = "- | -"
        if of["bound"] is not None:
            least, middle, most = of["bound"]
            bound = (
                f"10^{middle:.1f} (10^{least:.1f} … 10^{most:.1f}) | {100 * of['bounded']:.2f} %"
            )
        shape = np.array(of["moments"])[:, 2:]
        rows.append(
            f"{looks[name][0]} | {_span(of['spread'], '.1f')} | {_span(of['largest'], '.1f')} | "
            f"{bound} | {_span(shape[:, 0], '.2f')} | {_span(shape[:, 1], '.2f')} | "
            f"{_span(np.array(of['head_moments'])[:, 1], '.2f')}"
        )
    of = next(iter(results.values()))["logits"]
    note = (
        f"δ: a row's largest score less its least, {of['tokens']} tokens; median over heads (the "
        "largest: over layers), least and most in brackets. Bound: keys from which e^δ / n is "
        "below 1 %, by a head's largest δ. "
        f"Skewness and excess kurtosis by layer, {of['few']} tokens without the first key; 0 where "
        "normal."
    )
    head = (
        " | mean δ | largest δ | bound | rows under it | skewness | kurtosis | kurtosis of a head"
    )
    return _table("Scores", note, head, rows)


def tables(results: dict[str, Any], looks: Looks) -> list[str]:
    """In Markdown, one for each measure.

    Args:
        results: a model's name, then "entropies", "heads", "needle" and "logits": what the four
            measures returned.
        looks: {name: (label, colour)}.
    """
    parts = (_entropy_table, _heads_table, _needle_table, _scores_table)
    return [part(results, looks) for part in parts]


_ADAPTIVE_COLOR = "#CC79A7"


def _draw_lengths(results: dict[str, Any], looks: Looks) -> Figure:
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    first, every, weight = figure.subplots(1, 3)
    every.sharey(first)
    for name, found in results.items():
        color = looks[name][1]
        of, key, heads = found["entropies"], found["needle"], found["heads"]
        block = np.array(of["first_block"])
        if name in list(results)[:2]:  # more would hide each other
            # One line with gaps, so that its style stands in the file once.
            gaps = np.pad(block, ((0, 1), (0, 0)), constant_values=np.nan)
            items = np.tile([*of["items"], np.nan], block.shape[1])
            first.plot(items, gaps.T.ravel(), color=color, lw=0.6, alpha=0.5)
        first.plot(of["items"], block.mean(1), color=color, lw=2.2)
        readings = [(of, color, "-", looks[name][0])]
        if "adaptive" in of:
            readings.append((of["adaptive"], _ADAPTIVE_COLOR, "--", ADAPTIVE))
        for reading, shade, line, label in readings:
            band = {"color": shade, "alpha": 0.13, "lw": 0}
            every.fill_between(of["items"], reading["low"], reading["high"], **band)
            every.plot(of["items"], reading["mean"], line, color=shade, label=label)
        weight.plot(key["lengths"], np.array(key["five"]) / 5, color=color)
        weight.plot(heads["lengths"], np.mean(heads["first"], 1), ":", color=color)
    of = next(iter(results.values()))
    for axes, lengths, label, title in (
        (first, of["entropies"]["items"], "items", "Heads of layer 1, and mean"),
        (every, of["entropies"]["items"], "items", "All heads: mean, quartiles"),
        (weight, of["heads"]["lengths"], "tokens", "On a pass key; dotted: first key"),
    ):
        length_axis(axes, lengths[:: math.ceil(len(lengths) / 5)], 1)
        axes.locator_params(axis="y", nbins=5)
        axes.set_xlabel(label)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
    first.set_ylabel("entropy, nats")
    weight.set_ylabel("weight")
    every.tick_params(labelleft=False)
    legend_below(figure, every.get_legend_handles_labels()[0])
    return figure


def _draw_scores(results: dict[str, Any], looks: Looks) -> Figure:
    wanted = next(iter(results.values()))["logits"]["layers"]
    figure = Figure(figsize=(9.6, 3.3), layout="constrained")
    panels = figure.subplots(1, len(wanted), sharey=True, squeeze=False)[0]
    for i, (axes, layer) in enumerate(zip(panels, wanted, strict=True)):
        axes.plot([-3, 3], [-3, 3], color=style.FAINT, lw=1, label="normal")
        for name, found in results.items():
            color = looks[name][1]
            of = found["logits"]
            axes.plot(of["normal"], of["quantiles"][i], color=color, label=looks[name][0])
        axes.set_title(f"Layer {layer + 1}")
        axes.set_xticks([-2, 0, 2])
        axes.set_xlabel("normal quantiles")
    panels[0].set_ylabel("scores, deviations")
    panels[0].locator_params("y", nbins=5)
    legend_below(figure, panels[0].get_legend_handles_labels()[0])
    return figure


def draw(results: dict[str, Any], looks: Looks, target: Path) -> list[Path]:
    """Two figures, as `tables` takes the data: target-length and target-scores, SVG and PNG each.

    The first has the entropy of heads against items, and the weight on a pass key and on the first
    key against length; the second quantiles of scores against a normal distribution's.
    """
    # Titles in one weight with all else share its glyphs, a quarter of the file.
    with style.styled(), mpl.rc_context({"axes.titleweight": "normal"}):
        written = []
        for name, figure in (("length", _draw_lengths), ("scores", _draw_scores)):
            made = figure(results, looks)
            written += save_figure(made, target.parent, f"{target.name}-{name}")
    return written
