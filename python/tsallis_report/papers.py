"""``docs/papers.md``: every table and figure of the papers, beside what this project has of it.

Nothing on the page is written by hand. What a recipe or a study without training repeats stands in
its ``source`` ("asentmax, table 5, figures 4 and 9"), what came out in the reports of ``results/``;
only the list of what the papers contain is here.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import analysis
from .data import Row, Study, load
from .drawn import BY_COMMAND, SCORES_COMMAND, SENTENCES, Runs
from .files import replace_text
from .page import PAPERS
from .run_folder import number
from .table import markdown_table

ROOT = Path(__file__).resolve().parents[2]

_TOLERANCE = {"%": 3.0}  # points; of losses in nats
_LOSS_TOLERANCE = 0.05
_FACT_TOLERANCE = 0.05  # relative, of numbers of studies without training

NO_DATA = "nothing to measure"
NEEDS_GPU = "needs a GPU"
NOT_YET = "not there yet"
_THEORY = "checked against theory"
_OTHERWISE = "trained otherwise"

_OTHER = "another model"
_SMOLLM2 = (
    "[SmolLM2](../results/convert/smollm2/story.md): as in the paper, entropy rises with the items."
)
_GPU_TIMES = "time on GPUs"
_GPU_PEER = "FlashAttention"  # among the rows of gpu/bench.py


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper."""

    name: str  # "table 5"
    shows: str
    absent: str = NOT_YET  # its status while no recipe and no study names it
    elsewhere: str = ""  # what shows it then: a sentence with its link


def _table(number: int, shows: str, absent: str = NOT_YET) -> Item:
    return Item(f"table {number}", shows, absent)


def _figure(number: int, shows: str, absent: str = NOT_YET, elsewhere: str = "") -> Item:
    return Item(f"figure {number}", shows, absent, elsewhere)


CONTENTS: dict[str, list[Item]] = {
    "softmax-is-not-enough": [
        _figure(1, "Illustration of theorem 2.2", NO_DATA),
        _figure(2, "Attention of the head for max retrieval, sets of 16 to 16 384 items"),
        _figure(3, "Entropy of Gemma 2B's heads against the number of items", _OTHER, _SMOLLM2),
        _figure(4, "Listing of adaptive temperature", NO_DATA),
        _figure(5, "Entropy of softmax over spread and temperature"),
        _figure(6, "The polynomial of adaptive temperature"),
        _table(1, "Max retrieval with adaptive temperature, ten seeds, paired test"),
        _figure(7, "Attention of the head with and without adaptive temperature"),
        _figure(8, "CLRS-Text with Gemma 2B, with and without adaptive temperature"),
        _figure(9, "Spread of the logits through training against its bound"),
    ],
    "asentmax": [
        _figure(1, "MQMTAR and reverse against length"),
        _figure(2, "Entmax of five scores against the temperature"),
        _figure(3, "Representational collapse (left), paths and gradients (right)"),
        _figure(4, "Learned factors by position, with three fits"),
        _table(1, "MQMTAR, reverse, copy and sort"),
        _figure(5, "Max retrieval against length"),
        _figure(6, "Representational collapse, constant and random prefixes"),
        _figure(7, "Gradient norms and paths by layer, eight layers"),
        _figure(8, "Centroids of attention by kind of positions"),
        _figure(9, "β and γ of every head, fitted to learned factors"),
        _figure(10, "Examples of the tasks", NO_DATA),
        _table(2, "Sizes of models and data", NO_DATA),
        _table(3, "2Back"),
        _figure(11, "Attention on 2Back at two lengths"),
        _table(4, "Local count"),
        _figure(12, "Attention of entmax on local count"),
        _table(5, "Max retrieval"),
        _table(6, "MQMTAR"),
        _figure(13, "γ by head and layer on copy"),
        _table(7, "Copy"),
        _table(8, "RoPE's factor of Llama 3 on flip-flop"),
        _table(9, "Flip-flop, sparse"),
        _table(10, "Flip-flop, dense"),
        _table(11, "Reverse"),
        _table(12, "Sort"),
    ],
    "scale-invariant-attention": [
        _figure(1, "Entropy, entropy within ranges and local weight"),
        _figure(2, "Entropy within ranges, scale-invariant"),
        _figure(3, "Loss through training, 162 million parameters"),
        _table(1, "Loss at 4k, 16k and 64k, 162 million parameters"),
        _figure(4, "Loss through training, 304 million parameters", NEEDS_GPU),
        _table(2, "Needles in a haystack"),
        _figure(5, "Loss against τ"),
        _figure(6, "Entropy within ranges, unscaled"),
        _figure(7, "Loss of models trained at 16k"),
        _figure(8, "Scale-invariant scores with NoPE, RoPE and p-RoPE"),
        _figure(9, "Logits of trained heads against a normal distribution"),
    ],
    "adasplash": [
        Item("steps of the solver", "Passes until the threshold of a row is found"),
        Item("time against sparsity", "Time of attention against the share of empty blocks"),
        Item(_GPU_TIMES, "Time against length beside FlashAttention-2", NEEDS_GPU),
    ],
    "sparsefinder": [
        Item("recall against sparsity", "Predicted edges against fixed patterns, by layer"),
    ],
    "adaptively-sparse-transformers": [
        _table(1, "BLEU on four corpora: softmax, 1.5-entmax, learned α"),
        _figure(11, "Histograms of learned α by kind of attention"),
        _figure(12, "Histograms of head densities"),
        _figure(13, "Divergence of heads by layer"),
        _figure(14, "Density by layer"),
    ],
}


def named(source: str) -> list[tuple[str, str]]:
    """Paper and item of every part of a source: ``"asentmax, tables 1 and 7, figure 13"``."""
    found = []
    for part in source.split(";"):
        paper, _, places = part.strip().partition(", ")
        if paper not in CONTENTS:
            continue
        places = re.sub(r" ?\([^)]*\)", "", places)
        for kind, numbers in re.findall(r"(table|figure)s? ((?:\d+(?:, | and |\s*)?)+)", places):
            found += [(paper, f"{kind} {number}") for number in re.findall(r"\d+", numbers)]
        found += [(paper, item.name) for item in CONTENTS[paper] if item.name in places.split(", ")]
    return list(dict.fromkeys(found))


@dataclass
class Covered:
    """What there is of an item."""

    lines: list[tuple[str, str, str]] = field(default_factory=list)  # where, figures, status
    recipes: list[str] = field(default_factory=list)  # that name it


def _agrees(study: Study, row: Row) -> bool:
    """Within the tolerance of the paper's figure, or within two standard errors of ours."""
    if row.difference is None:
        return True
    error = row.std / row.seeds**0.5 if row.seeds > 1 else 0.0
    tolerance = _TOLERANCE.get(study.metric.unit, _LOSS_TOLERANCE)
    return abs(row.difference) <= max(tolerance, 2.0 * error)


def _of_study(study: Study) -> tuple[str, str]:
    """Our figures beside the paper's, and the status."""
    compared = [row for row in study.rows if row.difference is not None]
    if not compared:
        return _finding(study), "smaller scale"
    others = [row for row in compared if row.method != study.baseline] or compared
    n = max(row.n for row in others)
    shown = [row for row in compared if row.n == n and row.method == study.baseline]
    rest = [row for row in compared if row.n == n and row not in shown]
    shown += [max(rest, key=lambda row: row.paper or 0.0)] if rest else []
    number = study.metric.number
    figures = "; ".join(
        f"{study.labels[row.method]} {study.metric.spread(row)} (paper {number(row.paper or 0.0)})"
        for row in shown
    )
    off = [row for row in compared if not _agrees(study, row)]
    if not off:
        return f"n = {n}: {figures}", "reproduced"
    worst = max(off, key=lambda row: abs(row.difference or 0.0))
    status = (
        f"differs: {len(off)} of {len(compared)} figures, most {study.labels[worst.method]} at "
        f"n = {worst.n} by {study.metric.difference(worst.difference or 0.0)}"
    )
    return f"n = {n}: {figures}", status


def _shown(figure: tuple[str, str], runs: Runs) -> str:
    """A sentence on what a figure shows; where that is the study's metric, the report's own."""
    if figure in BY_COMMAND:
        return f"{BY_COMMAND[figure]} `{SCORES_COMMAND}`."
    if figure in SENTENCES:
        return SENTENCES[figure](runs)
    return _finding(runs.study)


def _finding(study: Study) -> str:
    """The report's first sentence; the page says once what its ± is of."""
    text = study.finding.replace(" (± standard deviation over seeds)", "")
    longest = r"At (n = \d+), (\S+) times the longest length of training, "
    return re.sub(longest, r"\1 (\2 ×), ", text)


def _of_analysis(about: analysis.Analysis) -> tuple[str, str]:
    expected = [fact for fact in about.facts if fact["expected"] is not None]
    off = [
        fact
        for fact in expected
        if abs(number(fact["value"]) - fact["expected"]) > _FACT_TOLERANCE * abs(fact["expected"])
    ]
    if not off:
        agrees = _THEORY if expected else "drawn"
        return about.finding, agrees if about.scale == "full" else "smaller scale"
    worst = max(off, key=lambda fact: abs(fact["value"] / (fact["expected"] or 1.0) - 1.0))
    return about.finding, (
        f"differs: {len(off)} of {len(expected)} numbers, most the {worst['quantity']}: "
        f"{worst['value']:.3g} instead of {worst['expected']:.3g}"
    )


def _of_gpu_times(root: Path) -> list[tuple[str, str, str]]:
    """Lines of what ``gpu/bench.py`` measured at the greatest length, one for each device."""
    lines = []
    for path in sorted((root / "docs" / "figures").glob("cuda-*.json")):
        measured = json.loads(path.read_text(encoding="utf-8"))
        drawing = path.with_suffix(".svg")
        if not drawing.exists():  # an earlier state, which docs/benchmark.md compares in words
            continue
        both = [row for row in measured["rows"] if "both_ms" in row]
        d = max(row["d"] for row in both)
        n = max(row["n"] for row in both if row["d"] == d)
        times = {row["name"]: row["both_ms"] for row in both if (row["n"], row["d"]) == (n, d)}
        peer = times.pop(_GPU_PEER)
        ours = [name for name in times if name.startswith("entmax")]
        figures = ", ".join(f"{name} {peer / times[name]:.1f} times" for name in ours)
        where = f"[{measured['device']}](figures/{drawing.name})"
        shown = (
            f"n = {n}, head size {d}, causal, forward and backward, "
            f"as fast as {_GPU_PEER}: {figures}"
        )
        lines.append((where, shown, "drawn"))
    return lines


def _sets(scales: dict[str, Any], scale: str, table: str) -> list[dict[str, Any]]:
    """What a scale sets of a table, and then those that it is like, one after the other."""
    settings = scales[scale]
    like = _sets(scales, settings["like"], table) if "like" in settings else []
    return [settings.get("set", {}).get(table, {}), *like]


def gather(root: Path) -> dict[tuple[str, str], Covered]:
    """What recipes and committed results under ``root`` have of every item."""
    covered: dict[tuple[str, str], Covered] = {}

    def of(key: tuple[str, str]) -> Covered:
        return covered.setdefault(key, Covered())

    sources: dict[tuple[str, str], str] = {}  # of recipe and scale
    own_training: set[tuple[str, str]] = set()  # scales that train as no paper does
    for path in sorted((root / "experiments").glob("*.toml")):
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
        own = str(recipe["study"].get("source", ""))
        for key in named(own):
            of(key).recipes.append(f"tsallis reproduce {path.stem}")
        for scale in recipe.get("scale", {}):
            told = _sets(recipe["scale"], scale, "study")
            other = str(next((study["source"] for study in told if "source" in study), ""))
            changes = set().union(*_sets(recipe["scale"], scale, "train"))
            if not other and changes - {"lr_grid"}:
                own_training.add((path.stem, scale))
            sources[path.stem, scale] = other or own
            for key in named(other):
                of(key).recipes.append(f"tsallis reproduce {path.stem} --scale {scale}")
    for results in sorted((root / "results").glob("*/results.json")):
        study = load(results.parent)
        if study.scale == "quick":
            continue
        figures, status = _of_study(study)
        drawn = "drawn" if study.has_paper else status
        if study.has_paper and (study.study, study.scale) in own_training:
            status = drawn = _OTHERWISE
        where = (
            f"[{study.study}, {study.scale}](../results/{results.parent.name}/report.md), "
            f"{study.seed_text}"
        )
        runs = Runs(root, study)
        for key in named(sources.get((study.study, study.scale), study.source)):
            # A study's numbers are those of its tables; of a figure the report has a drawing.
            is_figure = key[1].startswith("figure")
            line = (where, _shown(key, runs), drawn) if is_figure else (where, figures, status)
            of(key).lines.append(line)
    for path in sorted((root / "results" / "studies").glob("*/study.json")):
        about = analysis.load_numbers(path.parent)
        figures, status = _of_analysis(about)
        where = f"[study {about.study}](guide/studies.md)"
        for key in named(about.source):
            of(key).lines.append((where, figures, status))
    for line in _of_gpu_times(root):
        of(("adasplash", _GPU_TIMES)).lines.append(line)
    return covered


def markdown(root: Path) -> str:
    """The page."""
    covered = gather(root)
    text = (
        "# The papers, table by table\n\n"
        "<!-- Made by `make papers` from recipes and results: changes by hand are lost. -->\n\n"
        "Every table and figure of the papers, and what came out; a report ends with the command "
        "that repeats it, ± is the standard deviation over seeds, and 4 × is four times the "
        "longest length of training. "
        "*Reproduced*: every figure of ours is within 3 points (0.05 nats, 5 % of a number that "
        "is no percentage) or two standard errors of the paper's. *Differs*: how many are not, "
        "and the one that is furthest off. *Smaller scale*: shorter sequences and smaller models "
        "than the paper's, whose figures therefore do not stand beside ours. *Trained "
        "otherwise*: by our own optimiser and schedule; left out where there is a repetition. "
        "*Drawn*: the paper has a figure without numbers to hold ours against. *Checked against "
        "theory*: so, too, but our numbers agree with a closed form or with draws of NumPy. "
        "*Another model*: measured on one that is not the paper's. A study "
        "appears once for each scale whose report is kept in `results/`.\n"
    )
    for paper, items in CONTENTS.items():
        authors, title, url = PAPERS[paper]
        text += f"\n## {title}\n\n{authors}. [{url.removeprefix('https://')}]({url})\n\n"
        table = [["item", "shows", "ours", "status"]]
        told: dict[str, str] = {}  # by sentence: the item that has it first
        for item in items:
            there = covered.get((paper, item.name), Covered())
            # Where there is a repetition, runs that no paper has are left to their reports.
            lines = [line for line in there.lines if line[2] != _OTHERWISE] or there.lines
            if not lines:
                commands = "; ".join(f"`{command}`" for command in dict.fromkeys(there.recipes))
                absent = "no report yet" if there.recipes else item.absent
                lines = [(commands or item.elsewhere, "", absent)]
            for i, (where, figures, status) in enumerate(lines):
                first = [item.name, item.shows] if i == 0 else ["", ""]
                first_with = told.setdefault(figures, item.name)
                if figures and first_with != item.name:
                    figures = f"as {first_with}"
                ours = f"{where}: {figures}" if figures else where
                table.append([*first, ours.replace("|", "\\|"), status.replace("|", "\\|")])
        text += markdown_table(table, left=4, widest=72)
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write the page; exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m tsallis_report.papers", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    print(replace_text(options.root / "docs" / "papers.md", markdown(options.root)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
