"""A model within and beyond the length that it holds: its loss, the keys it finds, RULER.

That length is ``max_position_embeddings`` of its config. Beyond it positions decide, so that every
measure reads a model with several kinds of them (`methods.rope`). What a measure returns is
{kind: {length: what was found}}, as JSON takes it.
"""

from __future__ import annotations

import io
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from tsallis.integrations.transformers import TsallisCache
from tsallis_report import style
from tsallis_report.data import WITHIN_95, share_interval
from tsallis_report.parts import save_figure
from tsallis_report.table import markdown_table

from . import ConvertError
from .methods import KINDS, POSITIONS, READ, rope, takes_yarn, with_rope

KEYS = 10  # in a context, each with a question
# Of RULER's tasks those whose text is made up: the others take essays or questions from a network.
RULER = (
    "niah_single_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "ruler_vt",
    "ruler_cwe",
    "ruler_fwe",
)
MOST_NATS = 0.75  # above the least loss: a figure's lines of models that are lost leave it there
_MOST_SAMPLES = 500  # that lm-eval makes of a task
_LEAST_LENGTH = 1024  # below it lm-eval looks for a shorter sample without end

_Found = TypeVar("_Found")
_Say = Callable[[str], None]
# A method's label and colour.
Looks = Mapping[str, tuple[str, str]]


class LengthsError(ConvertError, ValueError):
    """A measure cannot be taken; the text goes to the user."""


def _quiet(_: str) -> None:
    pass


def _by_length(
    model: PreTrainedModel,
    lengths: Sequence[int],
    kinds: Sequence[str],
    measure: Callable[[str, int], _Found],
) -> dict[str, dict[int, _Found]]:
    """Measures at every length with every kind of positions; within the length that the model
    holds all kinds are the model's own, and it is measured once, as "rope". YaRN is left out where
    the model's frequencies are changed already."""
    held = model.config.max_position_embeddings
    if not takes_yarn(model.config):
        kinds = [kind for kind in kinds if kind != "yarn"]
    found: dict[str, dict[int, _Found]] = {}
    for kind in dict.fromkeys(("rope", *kinds)):
        for length in lengths:
            if kind in kinds if length > held else kind == "rope":
                with with_rope(model, rope(model.config, kind, length)):
                    found.setdefault(kind, {})[length] = measure(kind, length)
    return found


def _check_lengths(lengths: Sequence[int], least: int, most: int) -> None:
    for length in lengths:
        if not least <= length <= most:
            raise LengthsError(f"lengths: expected from {least} to {most} tokens, got {length}")


@torch.no_grad()
def losses(
    model: PreTrainedModel,
    documents: Tensor,
    lengths: Sequence[int],
    targets: int = 512,
    kinds: Sequence[str] = READ,
    say: _Say = _quiet,
) -> dict[str, dict[int, list[float]]]:
    """Nats a token of the last ``targets`` tokens of every document, behind contexts of different
    lengths: {kind: {length: [documents]}}.

    Args:
        documents: int64 [documents, longest], of which a length n reads the last n tokens.
        lengths: tokens, with the targets.

    Raises:
        LengthsError: a length leaves no token before the targets, or is longer than the documents.
    """
    _check_lengths(lengths, targets + 1, documents.shape[1])

    def of(row: Tensor) -> float:
        out = model(input_ids=row[None, :-1], use_cache=False, logits_to_keep=targets)
        return cross_entropy(out.logits[0].float(), row[-targets:]).item()

    def measure(kind: str, length: int) -> list[float]:
        say(f"loss at {length} tokens, {kind}")
        return [of(row) for row in documents[:, -length:].to(model.device)]

    return _by_length(model, lengths, kinds, measure)


# Names of keys, by what they open: no two share a word, so that the first one says which key it is.
_OPENED = (
    *("red door", "blue box", "green car", "white chest", "black house", "brown locker"),
    *("grey gate", "pink tower", "yellow bag", "golden ship"),
)


@dataclass(frozen=True)
class KeyContext:
    """Text with keys in it, and a question for each key in the order in which they stand."""

    tokens: Tensor  # int64 [length - the longest question with its answer]
    starts: list[int]  # where the sentences with keys begin
    questions: list[tuple[Tensor, Tensor]]  # tokens of a question, tokens of its answer's digits


def key_context(
    tokenizer: Any, document: Tensor, length: int, keys: int, draw: np.random.Generator
) -> KeyContext:
    """A context of ``length`` tokens with its longest question and answer.

    The pass-key task of Mohtashami and Jaggi 2023, with several named keys: the same stretch of
    text is before, between and behind them, so that key i of n is at the depth (i + 1/2) / n.

    Args:
        document: int64 [at least length], of which a stretch at a random place is the text.

    Raises:
        LengthsError: more keys than names, or too many for that length.
    """
    if not 1 <= keys <= len(_OPENED):
        raise LengthsError(f"keys: expected 1 to {len(_OPENED)}, got {keys}")

    def tokens_of(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    sentences, questions = [], []
    for name in draw.permutation(_OPENED)[:keys]:
        number = str(draw.integers(10000, 100000))
        question = f"\nThe pass key of the {name} is"
        sentences.append(tokens_of(f"{question} {number}.\n"))
        asked, answer = tokens_of(question), tokens_of(f" {number}")
        # A space that is a token of its own is no part of what has to be found.
        while not tokenizer.decode(answer[:1]).strip():
            asked.append(answer.pop(0))
        questions.append((torch.tensor(asked), torch.tensor(answer)))
    room = length - max(len(asked) + len(answer) for asked, answer in questions)
    room -= sum(map(len, sentences))
    if room < keys:
        raise LengthsError(f"length: expected room for {keys} keys and text, got {length} tokens")
    begin = int(draw.integers(0, len(document) - room + 1))
    text = document[begin : begin + room]
    parts: list[Tensor] = []
    starts: list[int] = []
    depth = 0
    for i, sentence in enumerate(sentences):
        next_depth = round(room * (i + 0.5) / keys)
        parts.append(text[depth:next_depth])
        starts.append(sum(map(len, parts)))
        parts.append(torch.tensor(sentence))
        depth = next_depth
    return KeyContext(torch.cat((*parts, text[depth:])), starts, questions)


@torch.no_grad()
def answer_logits(
    model: PreTrainedModel, read: TsallisCache, question: Tensor, answer: Tensor
) -> Tensor:
    """What the model expects in the place of each token of an answer: [answer, vocabulary].

    ``read`` holds the tokens before the question, and stays as it is.
    """
    ids = torch.cat((question, answer[:-1]))[None].to(model.device)
    logits: Tensor = model(
        input_ids=ids, past_key_values=read.fork(), logits_to_keep=len(answer)
    ).logits[0]
    return logits


@torch.no_grad()
def pass_keys(
    model: PreTrainedModel,
    tokenizer: Any,
    documents: Tensor,
    lengths: Sequence[int],
    count: int,
    keys: int = KEYS,
    kinds: Sequence[str] = READ,
    seed: int = 1,
    say: _Say = _quiet,
) -> dict[str, dict[int, dict[str, Any]]]:
    """Keys of five digits that a model finds in text: {kind: {length: {"found", "asked",
    "depths"}}}, where "depths" has what was found of every depth, from the first key on.

    A context is read once, and its questions are asked behind forks of that cache. A key is found
    if every token of it is the most likely one behind those before it, which is what greedy
    decoding would write.

    Args:
        documents: int64 [documents, at least the longest length].
        lengths: tokens, with a question and its answer.
        count: questions at every length; a multiple of ``keys``.
        keys: in a context, each of which is asked for.
        seed: of places, names and digits, which are the same for every model.

    Raises:
        LengthsError: an argument is not as it says.
    """
    if count < 1 or count % keys:
        raise LengthsError(f"count: expected a multiple of {keys}, got {count}")
    _check_lengths(lengths, 1, documents.shape[1])

    def measure(kind: str, length: int) -> dict[str, Any]:
        depths = [0] * keys
        for i in range(count // keys):
            say(f"keys at {length} tokens, {kind}: context {i + 1} of {count // keys}")
            document = documents[i % len(documents)]
            draw = np.random.default_rng((seed, i))
            context = key_context(tokenizer, document, length, keys, draw)
            read = TsallisCache(model.config)
            ids = context.tokens[None].to(model.device)
            model(input_ids=ids, past_key_values=read, logits_to_keep=1)
            for depth, (question, answer) in enumerate(context.questions):
                best = answer_logits(model, read, question, answer).argmax(-1)
                depths[depth] += torch.equal(best.cpu(), answer)
        return {"found": sum(depths), "asked": count, "depths": depths}

    return _by_length(model, lengths, kinds, measure)


@dataclass(frozen=True)
class RulerSample:
    """score: of what is written behind the prompt, in at most so many tokens; from 0 to 1."""

    prompt: str
    most: int
    score: Callable[[str], float]


@cache
def ruler_samples(
    tokenizer: str, task: str, length: int, count: int, seed: int = 1
) -> list[RulerSample]:
    """Samples of a task of RULER (Hsieh et al. 2024) as lm-eval makes and scores them.

    Args:
        tokenizer: the folder of one, which says how long a text is.
        task: of `RULER`.
        length: tokens, with what is written; prompts of ruler_fwe alone fill it.

    Raises:
        LengthsError: lm-eval or what RULER takes beside it is not installed.
    """
    if task not in RULER:
        raise LengthsError(f"task: expected one of {', '.join(RULER)}, got {task!r}")
    if not 1 <= count <= _MOST_SAMPLES:
        raise LengthsError(f"count: expected 1 to {_MOST_SAMPLES} samples, got {count}")
    try:
        import lm_eval.tasks
        import nltk
        import scipy  # noqa: F401
        import wonderwords  # noqa: F401
    except ImportError as error:
        raise LengthsError(
            f"RULER: needs Python packages: pip install 'lm-eval[ruler]==0.4.13' ({error})"
        ) from error
    folder = Path(lm_eval.tasks.__file__).parent / "ruler"
    # The module has a generator of its own: made anew, samples do not depend on earlier ones.
    sys.modules.pop("lm_eval.tasks.ruler.cwe_utils", None)
    states = random.getstate(), np.random.get_state()  # noqa: NPY002, which lm-eval draws from
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        # It prints its progress, and fetches a splitter of sentences, which these tasks do not use.
        with (
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            mock.patch.object(nltk, "download", return_value=False),
        ):
            manager = lm_eval.tasks.TaskManager(
                include_path=folder,
                include_defaults=False,
                metadata={"tokenizer": tokenizer, "max_seq_lengths": [length]},
            )
            made = manager.load([task])["tasks"][task]
            made.build_all_requests(limit=count)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002

    def sample(request: Any) -> RulerSample:
        prompt, settings = request.args

        def score(text: str) -> float:
            return float(made.process_results(request.doc, [text])[str(length)])

        return RulerSample(prompt, settings["max_gen_toks"], score)

    return [sample(request) for request in made.instances]


@torch.no_grad()
def _ruler_score(model: PreTrainedModel, tokenizer: Any, sample: RulerSample) -> float:
    """The score of what the model writes greedily."""
    read = TsallisCache(model.config)
    ids = tokenizer(sample.prompt, return_tensors="pt").input_ids.to(model.device)
    written: list[int] = []
    score = 0.0
    # The score is the share of the answers that stand in the text: nothing lowers it, and behind
    # the last answer nothing raises it.
    while len(written) < sample.most and score < 1.0:
        ids = model(input_ids=ids, past_key_values=read, logits_to_keep=1).logits.argmax(-1)
        if ids.item() == tokenizer.eos_token_id:
            break
        written.append(int(ids))
        score = sample.score(tokenizer.decode(written, skip_special_tokens=True))
    return score


def ruler(
    model: PreTrainedModel,
    tokenizer: Any,
    lengths: Sequence[int],
    count: int,
    tasks: Sequence[str] = RULER,
    kinds: Sequence[str] = READ,
    seed: int = 1,
    say: _Say = _quiet,
) -> dict[str, dict[int, dict[str, list[float]]]]:
    """RULER by lm-eval: {kind: {length: {task: [count] scores from 0 to 1}}}.

    Args:
        tokenizer: of transformers, from a folder.
        lengths: tokens, 1 024 or more.
        count: samples of every task and length, the same for every model.

    Raises:
        LengthsError: lm-eval is not installed, or an argument is not as it says.
    """
    _check_lengths(lengths, _LEAST_LENGTH, sys.maxsize)

    def measure(kind: str, length: int) -> dict[str, list[float]]:
        scores: dict[str, list[float]] = {}
        for task in tasks:
            samples = ruler_samples(tokenizer.name_or_path, task, length, count, seed)
            scores[task] = []
            for sample in samples:
                say(f"{task} at {length} tokens, {kind}: {len(scores[task]) + 1} of {count}")
                scores[task].append(_ruler_score(model, tokenizer, sample))
        return scores

    return _by_length(model, lengths, kinds, measure)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _share(found: Mapping[str, Any]) -> tuple[float, float, float]:
    """Keys found in %, and the 95 % interval."""
    return 100.0 * found["found"] / found["asked"], *share_interval(found["found"], found["asked"])


def _kind(kind: str) -> str:
    return POSITIONS[kind].label if kind in POSITIONS else "its own"


def _measured(results: Mapping[str, Any], part: str) -> list[tuple[str, str, dict[int, Any]]]:
    """Method, kind of positions and what was found by length, of one of the measures."""
    return [
        # JSON makes text of numbers that are keys.
        (name, kind, {int(length): value for length, value in by.items()})
        for name, result in results.items()
        for kind, by in result.get(part, {}).items()
    ]


def _loss_cells(found: Sequence[float]) -> dict[str, str]:
    return {"": f"{_mean(found):.3f}"}


def _key_cells(found: Mapping[str, Any]) -> dict[str, str]:
    return {"": "{:.0f} ({:.0f} to {:.0f})".format(*_share(found))}


def _ruler_mean(found: Mapping[str, list[float]]) -> tuple[float, float, float]:
    """The mean of the tasks in %, and the 95 % interval over samples of these tasks."""
    mean = 100.0 * _mean([_mean(scores) for scores in found.values()])
    if min(map(len, found.values())) < 2:
        return mean, 0.0, 100.0  # one sample does not tell how far others lie
    squares = sum(np.var(scores, ddof=1) / len(scores) for scores in found.values())
    half = WITHIN_95 * 100.0 * math.sqrt(squares) / len(found)
    return mean, max(0.0, mean - half), min(100.0, mean + half)


def _ruler_cells(found: Mapping[str, list[float]]) -> dict[str, str]:
    cells = {task: f"{100.0 * _mean(scores):.0f}" for task, scores in found.items()}
    if len(cells) > 1:
        cells["mean"] = "{:.0f} ({:.0f} to {:.0f})".format(*_ruler_mean(found))
    return cells


# Of every measure: the title of its section, what it is, how many, and its cells by rows.
PARTS: dict[str, tuple[str, str, Callable[[Any], int], Callable[[Any], dict[str, str]]]] = {
    "losses": (
        "Loss by length",
        "Nats a token of the same last tokens of {} held-out documents, behind contexts of "
        "different lengths in tokens.",
        len,
        _loss_cells,
    ),
    "keys": (
        "Keys found by length",
        "In % of {} questions, with the 95 % interval (Wilson) of independent ones. Keys of five "
        "digits stand at even depths of held-out text; several questions share a text.",
        lambda found: int(found["asked"]),
        _key_cells,
    ),
    "ruler": (
        "RULER by length",
        "Scores in % of {} samples of every task, made and scored by lm-eval, without a chat "
        "template; the mean has its 95 % interval over samples of these tasks.",
        lambda found: len(next(iter(found.values()))),
        _ruler_cells,
    ),
}


def tables(results: Mapping[str, Any], looks: Looks) -> list[str]:
    """Lines of Markdown, a section for each measure that was taken.

    Args:
        results: {method: {"losses": ..., "keys": ..., "ruler": ...}}, of `losses`, `pass_keys` and
            `ruler`; each may be missing.
        looks: {method: (label, colour)}.
    """
    lines: list[str] = []
    for part, (title, text, size, cells) in PARTS.items():
        found = _measured(results, part)
        if not found:
            continue
        lengths = sorted({n for _, _, by in found for n in by})
        rows = []
        for name, kind, by in found:
            texts = {n: cells(value) for n, value in by.items()}
            for row in next(iter(texts.values())):
                values = [texts[n][row] if n in texts else "" for n in lengths]
                rows.append([looks[name][0], _kind(kind), *([row] if row else []), *values])
        head = ["method", "positions", "task"][: len(rows[0]) - len(lengths)]
        table = markdown_table([[*head, *map(str, lengths)], *rows], left=len(head))
        counts = sorted({size(value) for _, _, by in found for value in by.values()})
        text = text.format(" or ".join(map(str, counts)))
        lines += [f"## {title}", "", text, "", *table.splitlines(), ""]
    return lines


def draw(results: Mapping[str, Any], looks: Looks, target: Path) -> None:
    """Loss, keys found and RULER, against length: target.svg and target.png.

    A method has its colour and marker, a kind of positions its line. The axis of the loss ends
    above every method's best kind. Arguments as `tables` takes them.

    Raises:
        LengthsError: nothing was measured by length.
    """
    parts = [part for part in PARTS if _measured(results, part)]
    if not parts:
        raise LengthsError(f"results: expected one of {', '.join(PARTS)}, got none")
    with style.styled():
        figure = Figure(figsize=(4.8 * len(parts), 4.2), layout="constrained")
        for part, axes in zip(parts, figure.subplots(1, len(parts), squeeze=False)[0], strict=True):
            _draw_panel(axes, results, looks, part)
        kinds = {kind for part in parts for _, kind, _ in _measured(results, part)}
        signs = [(looks[name][0], _look(results, looks, name)) for name in results]
        if len(kinds) > 1:
            signs += [
                (
                    f"positions: {_kind(kind)}",
                    {"color": style.FAINT, "ls": style.line(kind, KINDS)},
                )
                for kind in KINDS
                if kind in kinds
            ]
        handles = [Line2D([], [], label=label, **look) for label, look in signs]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)))
        save_figure(figure, target.parent, target.name)


def _look(results: Mapping[str, Any], looks: Looks, name: str) -> dict[str, Any]:
    marker = style.MARKERS[list(results).index(name) % len(style.MARKERS)]
    return {"color": looks[name][1], "marker": marker}


# Of the panels in %: a share and its interval, the label of the axis, the title.
_SHARES: dict[str, tuple[Callable[[Any], tuple[float, float, float]], str, str]] = {
    "keys": (_share, "% of keys, and the 95 % interval", "Keys found in text"),
    "ruler": (_ruler_mean, "mean of tasks in %, and the 95 % interval", "RULER"),
}


def _draw_panel(axes: Axes, results: Mapping[str, Any], looks: Looks, part: str) -> None:
    found = _measured(results, part)
    own = {name: by for name, kind, by in found if kind == "rope"}
    best: dict[tuple[str, int], float] = {}
    for name, kind, by in found:
        # Other positions go on from the last length at which they are the model's own.
        shared = sorted(n for n in own.get(name, {}) if kind != "rope" and n < min(by))
        points = {n: own[name][n] for n in shared[-1:]} | by
        look = _look(results, looks, name) | {"ls": style.line(kind, KINDS)}
        if part == "losses":
            means = {n: _mean(values) for n, values in points.items()}
            axes.plot(list(means), list(means.values()), **look)
            best |= {(name, n): min(m, best.get((name, n), m)) for n, m in means.items()}
        else:
            shares, lows, highs = np.array([_SHARES[part][0](v) for v in points.values()]).T
            # Rounding may put a share of 0 or 1 a little outside of its interval.
            bars = np.maximum(0.0, [shares - lows, highs - shares])
            axes.errorbar(list(points), shares, bars, elinewidth=0.7, capsize=2, **look)
    if part == "losses":
        # Models that are lost would leave no room for what differs between the others.
        low = min(best.values())
        high = min(max(best.values()), low + MOST_NATS)
        room = 0.08 * (high - low) or 0.1
        axes.set_ylim(low - room, high + room)
        axes.set_ylabel("nats a token")
        axes.set_title("Loss of the same tokens")
    else:
        axes.set_ylim(-3, 103)
        axes.set_ylabel(_SHARES[part][1])
        axes.set_title(_SHARES[part][2])
    lengths = sorted({n for _, _, by in found for n in by})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    axes.set_xlabel("tokens of context")
