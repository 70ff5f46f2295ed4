"""One HTML page that holds a study: facts, table and figures, and loads nothing."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from .data import HOLD, TEST_ERROR, Contrast, Metric, Row, Study, commit_text, tests_text
from .figures import FIGURES, FLOW_NOTE, first_figure, signed
from .files import replace_text
from .quantities import Measure
from .table import probability

_CAPTIONS = {
    "positions": "Mean over the samples of the longest length; a point per half octave of "
    "positions. Lower is better.",
    "spread": "Solid: the largest minus the smallest score of a validation set, mean over 128 sets "
    "and the seeds. Dashed: what it cannot exceed, by the norms of queries and keys and the "
    "largest singular values of their projections (Veličković et al. 2024, proposition 3.1).",
    "groups": "Right answers on samples of each kind alone; of those shown together above.",
    "flow": "Left and middle: how much of the loss's gradient reaches the residual stream where a "
    "layer reads it. Right: keys that heads give weight, mean over heads and scored tokens. "
    f"Validation samples at the longest length of training, mean over seeds. {FLOW_NOTE}",
    "accuracy-families": "Every method, by family. The grey line repeats the method that others "
    "are held against.",
    "difference": "Blue: ours is above the paper's figure; red: below.",
    "heatmap": (
        "One panel per length, one row per set, one column per item; columns are ordered by the "
        "item's key, so a sharp head lights up the rightmost column alone. All panels share one "
        "colour scale."
    ),
    "entropy": (
        "Low entropy is a sharp head; of sequence models, the mean over all heads and scored "
        "tokens. The dotted line is uniform attention."
    ),
    "support": (
        "Entries that get any weight at all; of sequence models, the mean over all heads and "
        "scored tokens. The dotted line is every entry, as in softmax."
    ),
    "heads-learned": (
        "Of the first seed. c multiplies a query's scores: b ln n with SSMax, δ + b (ln n)^g with "
        "a scalar, δ + β (ln n)^γ with ASEntmax, whose β and γ depend on the token; α is that of "
        "the map. Grey: heads without that number; under NAPE only those without ALiBi are scaled."
    ),
    "heads-entropy": (
        "Of the first seed, mean over the scored tokens. 1 is uniform attention over the keys that "
        "a query sees: a head that disperses rises towards it."
    ),
    "heads-support": (
        "Of the first seed: keys with any weight at all, mean over the scored tokens. Softmax "
        "leaves out only those whose weight is below the smallest float."
    ),
    "heads-histograms": (
        "Of the first seed: how many heads give weight to which share of the keys that a query "
        "sees, at the shortest and the longest length; right, where a method learns it, their α."
    ),
    "kinds": (
        "Of the first seed, on up to 256 test pairs of the longest length: how many heads give "
        "weight to which share of the keys that a query sees; right, where a method learns it, "
        "their α. Stacked: encoder, context (target to source) and decoder."
    ),
    "kinds-layers": (
        "Of the first seed. Above: the Jensen–Shannon divergence of a layer's heads, mean over "
        "queries; 0 says that all heads look at the same. Below: the share of the keys with "
        "weight, mean over queries and heads."
    ),
    "attention": (
        "Of the first seed, on the first test sample. Shown of the first, middle and last layer: "
        "of the heads with ALiBi, and of those without, the one of the lowest normalised entropy "
        "at the shortest length. Bold: where the model answers. Black is no weight."
    ),
    "attention-long": (
        "The same heads. Samples of more than 96 tokens are drawn in cells of several: what the "
        "queries of a row give to all keys of a column, on average; every row sums to 1."
    ),
}

# The papers that recipes name as their source.
PAPERS = {
    "softmax-is-not-enough": (
        "Veličković, Perivolaropoulos, Barbero and Pascanu 2024",
        "softmax is not enough (for sharp size generalisation)",
        "https://arxiv.org/abs/2410.01104",
    ),
    "asentmax": (
        "Vasylenko, Pitorro, Martins and Treviso 2025",
        "Long-Context Generalization with Sparse Attention",
        "https://arxiv.org/abs/2506.16640",
    ),
    "scale-invariant-attention": (
        "Anson, Wang and Aitchison 2025",
        "Scale-invariant attention",
        "https://arxiv.org/abs/2505.17083",
    ),
    "adasplash": (
        "Goncalves, Treviso and Martins 2025",
        "AdaSplash: Adaptive Sparse Flash Attention",
        "https://arxiv.org/abs/2502.12082",
    ),
    "sparsefinder": (
        "Treviso, Góis, Fernandes, Fonseca and Martins 2022",
        "Predicting Attention Sparsity in Transformers",
        "https://arxiv.org/abs/2109.12188",
    ),
    "adaptively-sparse-transformers": (
        "Correia, Niculae and Martins 2019",
        "Adaptively Sparse Transformers",
        "https://arxiv.org/abs/1909.00015",
    ),
}

# (word, what it means); shown where the word stands in a title or a method's name.
_WORDS = [
    ("n", "the length: items of a set, symbols of a sequence, or pairs that are asked for"),
    ("Max retrieval", "name the class of the item with the largest number in a set of n items"),
    ("Translation", "write a sentence in another language"),
    ("BLEU", "n-grams of a translation that stand in the reference, 0 to 100 (sacrebleu)"),
    ("Copy", "write the sequence once more"),
    ("Reverse", "write the sequence backwards"),
    ("Sort", "write the sequence in ascending order"),
    ("2Back", "at every symbol, name the one two places before it"),
    ("Local count", "at every symbol, say how often its run has shown it before"),
    ("Flip-flop", "name the bit that was last written, among many that are to be ignored"),
    ("MQMTAR", "find the values that belong to some keys in a list of n pairs"),
    ("Softmax", "every key gets some weight"),
    ("Adaptive temperature", "softmax, sharpened where its weights are spread out"),
    ("SSMax", "softmax of scores that are multiplied by b ln n, b learned"),
    ("Entmax", "keys with low scores get exactly no weight; α says how many: 1 is softmax"),
    ("ASEntmax", "entmax of scores that are multiplied by 1 + β (ln n)^γ, β learned"),
    ("θ", "the temperature that scores are divided by"),
    ("weight decay", "decoupled weight decay, and a learning rate that falls to 0"),
    ("read hard", "the trained weights, read at a thousandth of the temperature"),
    ("NAPE", "half of the heads know distances (ALiBi), the others no positions"),
    ("RoPE", "queries and keys are rotated by their positions"),
]

_CSS = """
:root { color-scheme: light dark;
  --bg: #ffffff; --fg: #1d1d1f; --dim: #5f6368; --line: #dcdfe3; --card: #f6f7f8;
  --up: 0, 114, 178; --down: 213, 74, 30; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #16181b; --fg: #e8e8ea; --dim: #a0a5ab; --line: #34383d; --card: #1f2226;
  --up: 86, 180, 233; --down: 240, 128, 90; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.65rem; line-height: 1.25; margin: 0 0 .35rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p { max-width: 76ch; margin: .4rem 0; }
.dim, figcaption, dt { color: var(--dim); }
code { font: .88em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: 1.1rem 0;
  padding: .9rem 1.1rem; background: var(--card); border-radius: 8px; font-size: .92rem; }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: separate; border-spacing: 0; font-size: .84rem; width: 100%;
  font-variant-numeric: tabular-nums; }
th, td { padding: .36rem .5rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; line-height: 1.35; }
thead th { font-weight: 600; background: var(--card); vertical-align: bottom; }
tbody th, thead th:first-child { position: sticky; left: 0; text-align: left; background: var(--bg);
  border-right: 1px solid var(--line); font-weight: 600; z-index: 1; }
thead th:first-child { background: var(--card); }
tbody tr:last-child > * { border-bottom: 0; }
td small { color: var(--dim); font-size: .92em; }
td .best { font-weight: 700; }
td .d { display: inline-block; min-width: 3.1em; margin-left: .35em; padding: 0 .3em;
  border-radius: 4px; color: var(--fg); }
figure { margin: 1rem 0 0; }
figure div { background: #ffffff; border: 1px solid var(--line); border-radius: 8px; padding: .9rem;
  overflow-x: auto; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
.finding { font-size: 1.15rem; font-weight: 600; margin: .6rem 0 1rem; }
figcaption { font-size: .9rem; margin-top: .45rem; max-width: 88ch; }
@media (prefers-color-scheme: dark) {
  figure div { background: var(--card); }
  figure img { filter: invert(.9) hue-rotate(180deg); mix-blend-mode: screen; }
  figure.heatmap img, figure.attention img, figure.attention-long img { filter: brightness(.9);
    mix-blend-mode: normal; } }
@media (max-width: 640px) {
  main { padding: 1rem .7rem; }
  figure img { max-width: none; width: 46rem; }
  table { font-size: .78rem; }
  tbody th { max-width: 7.5rem; white-space: normal; }
  dl { grid-template-columns: 1fr; } dt { margin-top: .4rem; } }
@media print { .scroll { overflow: visible; } figure { break-inside: avoid; } }
"""


def write_page(study: Study, directory: Path) -> Path:
    """Write ``report.html`` with the figures that lie in ``figures/``; return its path."""
    return replace_text(directory / "report.html", page(study, directory / "figures"))


def page(study: Study, figures: Path) -> str:
    """The page's text."""
    in_order = sorted(FIGURES, key=lambda figure: figure[0] != first_figure(study))
    heading = study.metric.heading
    sections = [
        _figure(name, text.format(heading=heading), study, figures) for name, _, text in in_order
    ]
    finding = study.finding if study.rows else "No results yet."
    first, *others = [section for section in sections if section] or [""]
    return document(
        study.title,
        f"""<p class="finding">{escape(finding)}</p>
{first}<h2>{escape(study.metric.title)}</h2>
{_table(study)}
{_baseline_table(study)}
{_measures(study)}
{_words(study)}
{steps(study.protocol.split("; ") if study.protocol else [])}
{_facts(study)}
{"".join(others)}""",
    )


def document(title: str, body: str) -> str:
    """A page that loads nothing, around its body."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{body}</main>
</body>
</html>
"""


def steps(parts: Sequence[str]) -> str:
    """How it was done, as a list; empty without steps."""
    if not parts:
        return ""
    items = "".join(f"<li>{escape(part)}</li>" for part in parts)
    return f"<h2>How it was done</h2><ul>{items}</ul>"


def definitions(facts: Iterable[tuple[str, str | bool]]) -> str:
    """Names and values, which are HTML; those without a value are left out."""
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts if value)
    return f"<dl>{rows}</dl>"


def _words(study: Study) -> str:
    """What the page's symbols and names mean, of those that stand on it."""
    text = " ".join([study.title, *study.labels.values()])
    terms = [(word, said) for word, said in _WORDS if word == "n" or word in text]
    return (
        "<h2>Words on this page</h2><dl>"
        + "".join(f"<dt>{word}</dt><dd>{escape(said)}</dd>" for word, said in terms)
        + "</dl>"
    )


def cited(source: str) -> str:
    """Sources with links: "asentmax, table 7" becomes authors, title and table."""
    parts = []
    for part in filter(None, (piece.strip() for piece in source.split(";"))):
        name, _, place = part.partition(", ")
        paper = PAPERS.get(name)
        if paper is None:
            parts.append(escape(part))
            continue
        authors, title, url = paper
        parts.append(
            f'{escape(authors)}: <a href="{url}">{escape(title)}</a>'
            + (f", {escape(place)}" if place else "")
        )
    return "; ".join(parts)


def _facts(study: Study) -> str:
    facts = [
        ("Study", escape(study.study)),
        ("Scale", escape(study.scale)),
        ("Seeds", study.seed_text),
        ("Paper's figures", study.has_paper and cited(study.source)),
        ("Command", study.command and f"<code>{escape(study.command)}</code>"),
        ("Commit", study.commit and commit_text(escape(study.commit), "<code>{}</code>".format)),
        ("Reported on", escape(study.processor)),
        ("Training time", study.training_time),
    ]
    return definitions(facts)


def _table(study: Study) -> str:
    lengths = study.lengths
    best = {n: study.metric.best(r.mean for r in study.rows if r.n == n) for n in lengths}
    body = {
        method: [_cell(study, study.row(method, n), best[n]) for n in lengths]
        for method in study.methods
    }
    spread = " ± standard deviation over seeds" if study.max_seeds > 1 else ""
    paper = (
        f" Below it the paper's figure and ours minus the paper's in {study.metric.points}: blue "
        "better, red worse, pale where it is within two standard errors of ours or of one seed."
        if study.has_paper
        else ""
    )
    test = f" In brackets the {TEST_ERROR}." if study.test_errors else ""
    split = f" {HOLD[:1].upper()}{HOLD[1:]}." if study.splits else ""
    ours = f"Ours: mean{spread}; the best of each length is bold.{split}{test}"
    return _grid(study, body, f"{study.metric.in_unit}. {ours}{paper}")


def _baseline_table(study: Study) -> str:
    """Every other method against the study's baseline; empty without one."""
    if study.baseline not in study.labels or len(study.methods) == 1:
        return ""
    sure = study.sure if study.tests else None
    body = {
        method: [_contrast_cell(study, study.row(method, n), sure) for n in study.lengths]
        for method in study.methods
        if method != study.baseline
    }
    baseline = escape(study.labels[study.baseline])
    of_runs = " ± the standard error of the difference of independent runs"
    error = of_runs if study.max_seeds > 1 else ""
    pale, test = "within two standard errors, or of one seed", ""
    if study.tests:
        pale = "not sure"
        test = " p: the two-sided paired t-test, which also uses what runs of a seed share. "
        test += f"{tests_text(study.tests, 'Not pale')}."
    note = (
        f"{study.metric.heading} minus that of {baseline}, in {study.metric.points}"
        f"{error}. Blue: better; red: worse; pale: {pale}.{test}"
    )
    return f"<h2>Against {baseline}</h2>{_grid(study, body, note)}"


def _measures(study: Study) -> str:
    """A table for each thing that is measured beside the metric; empty without any."""
    tables = ""
    for measure in dict.fromkeys(row.measure for row in study.measures):
        found = {(r.method, r.n): r for r in study.measures if r.measure == measure}
        body = {
            method: [_measure_cell(found.get((method, n))) for n in study.lengths]
            for method in study.methods
            if any((method, n) in found for n in study.lengths)
        }
        spread = " Mean ± standard deviation over seeds." if study.max_seeds > 1 else ""
        tables += _grid(study, body, f"{escape(measure[:1].upper() + measure[1:])}.{spread}")
    return tables and f"<h2>Beside {escape(study.metric.name)}</h2>{tables}"


def _measure_cell(row: Measure | None) -> str:
    if row is None or not np.isfinite(row.mean):
        return "<td>–</td>"
    digits = 1 if abs(row.mean) >= 9.995 else 3
    spread = f" <small>± {row.std:.{digits}f}</small>" if row.std > 0 else ""
    return f"<td>{row.mean:.{digits}f}{spread}</td>"


def _grid(study: Study, body: dict[str, list[str]], note: str) -> str:
    """A table of methods against lengths, cell by cell."""
    head = "".join(f'<th scope="col">n = {n}</th>' for n in study.lengths)
    rows = "".join(
        f'<tr><th scope="row">{escape(study.labels[method])}</th>{"".join(cells)}</tr>'
        for method, cells in body.items()
    )
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">Method</th>{head}</tr></thead>'
        f'<tbody>{rows}</tbody></table></div><p class="dim">{note}</p>'
    )


def _cell(study: Study, row: Row | None, best: float | None) -> str:
    if row is None or not np.isfinite(row.mean):
        return "<td>–</td>"
    number = study.metric.number
    mark = ' class="best"' if study.metric.is_best(row.mean, best) else ""
    spread = f" <small>± {number(row.std)}</small>" if row.seeds > 1 else ""
    if study.test_errors and row.test_error is not None:
        spread += f" <small>({row.test_error:.1f})</small>"
    text = f"<span{mark}>{number(row.mean)}</span>{spread}"
    if row.split is not None:
        text += f"<br><small>{row.split.text}</small>"
    if row.paper is not None and row.difference is not None:
        sure = _is_sure(Contrast(row.difference, _error(row)))
        tinted = _tinted(study.metric, row.difference, sure)
        text += f"<br><small>{number(row.paper)}</small>{tinted}"
    return f"<td>{text}</td>"


def _error(row: Row) -> float | None:
    """The standard error of a mean over seeds; of one seed there is none."""
    return row.std / row.seeds**0.5 if row.seeds > 1 else None


def _contrast_cell(study: Study, row: Row | None, marked: set[tuple[str, int]] | None) -> str:
    """``marked``: ``Study.sure``, where differences are tested."""
    if row is None or row.ahead is None or not np.isfinite(row.ahead.difference):
        return "<td>–</td>"
    shown = "" if row.ahead.error is None else study.metric.number(row.ahead.error)
    error = f" <small>± {shown}</small>" if shown else ""
    if row.ahead.p is not None:
        error += f"<br><small>p = {probability(row.ahead.p)}</small>"
    sure = _is_sure(row.ahead) if marked is None else (row.method, row.n) in marked
    return f"<td>{_tinted(study.metric, row.ahead.difference, sure)}{error}</td>"


def _is_sure(difference: Contrast) -> bool:
    """More than two standard errors; nothing is sure of one seed."""
    return difference.error is not None and abs(difference.difference) > 2.0 * difference.error


def _tinted(metric: Metric, difference: float, sure: bool) -> str:
    """A difference with a tint that says how sure it is; the sign says it without colour.

    One that is not sure is pale; of a sure one the tint grows up to the metric's full tint.
    """
    strength = (0.12 + 0.43 * min(abs(difference) / metric.full_tint, 1.0)) if sure else 0.06
    side = "up" if (difference >= 0) == metric.higher_is_better else "down"
    return (
        f'<span class="d" style="background: rgba(var(--{side}), {strength:.2f})">'
        f"{signed(metric, difference)}</span>"
    )


def _figure(name: str, text: str, study: Study, figures: Path) -> str:
    return embedded(name, text, _caption(name, study), figures)


def embedded(name: str, text: str, caption: str, figures: Path) -> str:
    """A figure of that folder under a heading; empty where it was not drawn."""
    svg = figures / f"{name}.svg"
    if not svg.exists():
        return ""
    # The figure is an image rather than inline: its ids cannot clash with another figure's.
    data = base64.b64encode(svg.read_bytes()).decode("ascii")
    return (
        f'<h2>{escape(text)}</h2><figure class="{name}"><div><img alt="{escape(text)}" '
        f'src="data:image/svg+xml;base64,{data}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
    )


def _caption(name: str, study: Study) -> str:
    """What is drawn, and no more."""
    if name == "accuracy":
        band = ", with a band of ± one standard deviation" if study.max_seeds > 1 else ""
        paper = " Dashed: the papers." if study.has_paper else ""
        return f"Solid or dotted: ours{band}.{paper}"
    if name == "attention" and not any(any(s.scored) for s in study.samples.values()):
        return _CAPTIONS[name].replace(" Bold: where the model answers.", "")
    return _CAPTIONS[name]
