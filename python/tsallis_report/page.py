"""One HTML page that holds a study: facts, table and figures, and loads nothing."""

import base64
import os
from html import escape
from pathlib import Path

import numpy as np

from .data import Row, Study
from .figures import FIGURES, signed

_CAPTIONS = {
    "accuracy": (
        "Solid: ours, with a band of ± one standard deviation where several seeds ran. "
        "Dashed, where there are any: the paper's figures."
    ),
    "accuracy-families": "Every method, by family. The grey line repeats softmax.",
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
figcaption { font-size: .9rem; margin-top: .45rem; max-width: 88ch; }
@media (max-width: 640px) { dl { grid-template-columns: 1fr; } dt { margin-top: .4rem; } }
@media print { .scroll { overflow: visible; } figure { break-inside: avoid; } }
"""


def write_page(study: Study, directory: Path) -> Path:
    """Write ``report.html`` with the figures that lie in ``figures/``; return its path."""
    path = directory / "report.html"
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_text(page(study, directory / "figures"), encoding="utf-8")
    aside.replace(path)
    return path


def page(study: Study, figures: Path) -> str:
    """The page's text."""
    title = escape(study.title)
    sections = [_figure(name, text, figures) for name, _, text in FIGURES]
    protocol = f"<p>{escape(study.protocol)}</p>" if study.protocol else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{protocol}
{_summary(study)}
{_facts(study)}
<h2>Accuracy (%)</h2>
{_table(study)}
{_baseline_table(study)}
{"".join(section for section in sections if section)}</main>
</body>
</html>
"""


def _summary(study: Study) -> str:
    """For a reader in a hurry: the best where something is still right, how close the paper is."""
    if not study.rows:
        return "<p>No results yet.</p>"
    right = [row for row in study.rows if np.isfinite(row.mean) and round(row.mean, 1) > 0.0]
    sentences = []
    if right:
        longest = max(row.n for row in right)
        beyond = "" if longest == study.lengths[-1] else ", the longest with anything right"
        there = [row for row in right if row.n == longest]
        highest = max(round(row.mean, 1) for row in there)
        best = [row for row in there if round(row.mean, 1) == highest]  # as told apart in the table
        names = "; ".join(escape(study.labels[row.method]) for row in best)  # labels have commas
        methods = _count(len(study.methods), "method")
        said = (
            f"{names} is the most accurate of {methods}: {_mean(best[0])} %."
            if len(best) == 1
            else f"the most accurate are {len(best)} of {methods}, with {highest:.1f} %: {names}."
        )
        sentences.append(f"At n = {longest}{beyond}, {said}")
    compared = [row for row in study.rows if row.difference is not None and np.isfinite(row.mean)]
    if compared:
        far = max(compared, key=lambda row: abs(row.difference or 0.0))
        mean = float(np.mean([abs(row.difference or 0.0) for row in compared]))
        sentences.append(
            f"Ours and the paper's differ by {mean:.1f} points on average over "
            f"{_count(len(compared), 'figure')}, and by {signed(far.difference or 0.0)} at most "
            f"({escape(study.labels[far.method])}, n = {far.n})."
        )
    return f"<p>{' '.join(sentences)}</p>"


def _facts(study: Study) -> str:
    seeds = sorted({row.seeds for row in study.rows})
    shown_seeds = (
        "" if not seeds else str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    )
    facts = [
        ("Study", escape(study.study)),
        ("Scale", escape(study.scale)),
        ("Seeds", shown_seeds),
        ("Paper's figures", study.has_paper and escape(study.source)),
        ("Command", study.command and f"<code>{escape(study.command)}</code>"),
        ("Commit", study.commit and f"<code>{escape(study.commit)}</code>"),
        ("Processor", escape(study.processor)),
        ("Training time", _duration(study.train_seconds)),
    ]
    return (
        "<dl>"
        + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts if value)
        + "</dl>"
    )


def _table(study: Study) -> str:
    lengths = study.lengths
    best = {  # none where nothing is right
        n: max(
            (round(r.mean, 1) for r in study.rows if r.n == n and np.isfinite(r.mean)), default=0.0
        )
        or None
        for n in lengths
    }
    body = {
        method: [_cell(study.row(method, n), best[n]) for n in lengths] for method in study.methods
    }
    spread = " ± standard deviation over seeds" if study.max_seeds > 1 else ""
    paper = (
        " Below it the paper's figure and ours minus the paper's in points: blue above, red below."
        if study.has_paper
        else ""
    )
    return _grid(study, body, f"Ours: mean{spread}; the best of each length is bold.{paper}")


def _baseline_table(study: Study) -> str:
    """Every other method against the study's baseline; empty without one."""
    if study.baseline not in study.labels or len(study.methods) == 1:
        return ""
    body = {
        method: [_contrast_cell(study.row(method, n)) for n in study.lengths]
        for method in study.methods
        if method != study.baseline
    }
    baseline = escape(study.labels[study.baseline])
    error = " ± the standard error of the difference" if study.max_seeds > 1 else ""
    note = f"Accuracy minus that of {baseline}, in points{error}. Blue: ahead; red: behind."
    return f"<h2>Against {baseline}</h2>{_grid(study, body, note)}"


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


def _cell(row: Row | None, best: float | None) -> str:
    if row is None or not np.isfinite(row.mean):
        return "<td>–</td>"
    mark = ' class="best"' if round(row.mean, 1) == best else ""
    spread = f" <small>± {row.std:.1f}</small>" if row.seeds > 1 else ""
    text = f"<span{mark}>{row.mean:.1f}</span>{spread}"
    if row.paper is not None and row.difference is not None:
        text += f"<br><small>{row.paper:.1f}</small>{_tinted(row.difference)}"
    return f"<td>{text}</td>"


def _contrast_cell(row: Row | None) -> str:
    if row is None or row.ahead is None or not np.isfinite(row.ahead.difference):
        return "<td>–</td>"
    error = "" if row.ahead.error is None else f" <small>± {row.ahead.error:.1f}</small>"
    return f"<td>{_tinted(row.ahead.difference)}{error}</td>"


def _tinted(difference: float) -> str:
    """Points with a tint that says how far, up to ten; the sign says it without colour."""
    strength = min(abs(difference) / 10.0, 1.0) * 0.55
    side = "up" if difference >= 0 else "down"
    return (
        f'<span class="d" style="background: rgba(var(--{side}), {strength:.2f})">'
        f"{signed(difference)}</span>"
    )


def _figure(name: str, text: str, figures: Path) -> str:
    svg = figures / f"{name}.svg"
    if not svg.exists():
        return ""
    # As an image rather than inline: the ids inside cannot clash with another figure's.
    data = base64.b64encode(svg.read_bytes()).decode("ascii")
    return (
        f'<h2>{escape(text)}</h2><figure><div><img alt="{escape(text)}" '
        f'src="data:image/svg+xml;base64,{data}"></div>'
        f"<figcaption>{escape(_CAPTIONS[name])}</figcaption></figure>\n"
    )


def _mean(row: Row) -> str:
    return f"{row.mean:.1f} ± {row.std:.1f}" if row.seeds > 1 else f"{row.mean:.1f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _duration(seconds: float) -> str:
    if not seconds > 0:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s, summed over jobs"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min, summed over jobs"
    return f"{seconds / 3600:.1f} h, summed over jobs"
