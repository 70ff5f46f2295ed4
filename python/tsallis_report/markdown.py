"""The Markdown page of a study: the same tables as report.html, to be read where it lies."""

from pathlib import Path

from .data import HOLD, TEST_ERROR, Contrast, Study, commit_text, tests_text
from .figures import FLOW_NOTE, first_figure
from .files import replace_text
from .table import markdown_table, probability


def write_markdown(study: Study, directory: Path) -> Path:
    """Write ``report.md``; return its path."""
    return replace_text(directory / "report.md", markdown(study))


def markdown(study: Study) -> str:
    """The page's text: finding, figure, tables, how it was done, facts."""
    finding = f"{_escaped(study.finding)}\n\n" if study.finding else ""
    spread = " ± standard deviation over seeds" if study.max_seeds > 1 else ""
    test = f"; {TEST_ERROR}" if study.test_errors else ""
    split = f"; {HOLD}" if study.splits else ""
    metric = study.metric
    paper = f"; below it the paper's figure and ours minus the paper's, in {metric.points}"
    parts = study.protocol.split("; ") if study.protocol else []
    figure = first_figure(study)
    of_layers = figure == "flow"
    text = "Gradients and keys by layer" if of_layers else f"{metric.heading} against length"
    steps = "How it was done:\n\n" + "".join(f"- {part}\n" for part in parts) + "\n"
    return (
        f"# {study.title}\n\n"
        f"{finding}"
        f"![{text}](figures/{figure}.svg)\n\n"
        f"{_flow_table(study) if of_layers else ''}"
        f"{metric.in_unit}, {study.seed_text}: "
        f"mean{spread}{split}{test}{paper if study.has_paper else ''}.\n\n"
        f"{_table(study)}\n"
        f"{_baseline_section(study)}"
        f"{steps if parts else ''}"
        # No link: the repository keeps this page without report.html.
        "All figures are in `report.html` in the same folder, their data in `results.csv` and "
        "`data/`. Of a report that came without them, `make pages` draws them again.\n\n"
        f"{_facts(study)}"
    )


def _flow_table(study: Study) -> str:
    """Gradient and keys with weight by layer, after the first and the last step."""
    layers = sorted({row.layer for row in study.flows})
    steps = sorted({row.step for row in study.flows})
    table = [["method", "", *(f"layer {layer + 1}" for layer in layers)]]
    at = {(row.method, row.step, row.layer): row for row in study.flows}
    for method in study.methods:
        name = _escaped(study.labels[method])
        for step in (steps[0], steps[-1]):
            rows = [at.get((method, step, layer)) for layer in layers]
            after = f"after {step} step{'s' if step > 1 else ''}"
            gradients = ["–" if row is None else f"{row.gradient:.1e}" for row in rows]
            keys = ["–" if row is None else f"{row.keys:.1f}" for row in rows]
            table.append([name, f"gradient, {after}", *gradients])
            table.append(["", f"keys, {after}", *keys])
            name = ""
    return (
        "Norm of a token's gradient where a layer reads it, and keys that heads give weight: "
        f"validation samples at the longest length of training, {study.seed_text}. "
        f"{FLOW_NOTE}\n\n"
        f"{markdown_table(table)}\n"
    )


def _table(study: Study) -> str:
    table = [["method", "", *(f"n = {n}" for n in study.lengths)]]
    metric = study.metric
    for method in study.methods:
        rows = [study.row(method, n) for n in study.lengths]
        present = [row for row in rows if row is not None]
        table.append(
            [
                _escaped(study.labels[method]),
                "ours",
                *("–" if row is None else metric.spread(row) for row in rows),
            ]
        )
        if any(row.seeds > 1 for row in present):
            best = ["–" if row is None else metric.number(row.best) for row in rows]
            table.append(["", "best seed", *best])
        if any(row.split is not None for row in present):
            split = [None if row is None else row.split for row in rows]
            table.append(["", "runs that hold", *("–" if s is None else s.text for s in split)])
        if study.test_errors:
            errors = [None if row is None else row.test_error for row in rows]
            table.append(["", "test error", *("–" if e is None else f"{e:.1f}" for e in errors)])
        if any(row.paper is not None for row in present):
            papers = [None if row is None else row.paper for row in rows]
            differences = [None if row is None else row.difference for row in rows]
            table.append(["", "paper", *("–" if p is None else metric.number(p) for p in papers)])
            table.append(
                [
                    "",
                    "difference",
                    *("–" if d is None else metric.difference(d) for d in differences),
                ]
            )
    return markdown_table(table)


def _baseline_section(study: Study) -> str:
    """Every other method against the baseline; empty without one."""
    if study.baseline not in study.labels or len(study.methods) == 1:
        return ""
    table = [["method", "", *(f"n = {n}" for n in study.lengths)]]
    sure = study.sure
    for method in study.methods:
        if method == study.baseline:
            continue
        rows = [study.row(method, n) for n in study.lengths]
        all_ahead = [None if row is None else row.ahead for row in rows]
        cells = [
            "–"
            if ahead is None
            else _contrast(study, ahead) + (" \\*" if (method, n) in sure else "")
            for n, ahead in zip(study.lengths, all_ahead, strict=True)
        ]
        table.append([_escaped(study.labels[method]), "", *cells])
        values = [None if ahead is None else ahead.p for ahead in all_ahead]
        if any(p is not None for p in values):
            table.append(["", "p", *("–" if p is None else probability(p) for p in values)])
    baseline = _escaped(study.labels[study.baseline])
    test = ""
    if study.tests:
        test = "; p of the paired t-test, which also uses what runs of a seed share; "
        test += tests_text(study.tests, "\\*")
    return (
        f"{study.metric.heading} minus that of {baseline}, in {study.metric.points}, "
        f"± the standard error of the difference of independent runs{test}:"
        f"\n\n{markdown_table(table)}\n"
    )


def _contrast(study: Study, ahead: Contrast) -> str:
    """A difference with its standard error: ``+12.3 ± 0.4``."""
    error = "" if ahead.error is None else f" ± {study.metric.number(ahead.error)}"
    return study.metric.difference(ahead.difference) + error


def _facts(study: Study) -> str:
    facts = [
        ("study", study.study),
        ("scale", study.scale),
        ("paper's figures", study.source if study.has_paper else ""),
        ("command", f"`{study.command}`" if study.command else ""),
        ("commit", commit_text(study.commit, "`{}`".format) if study.commit else ""),
        ("reported on", study.processor),
        ("training time", study.training_time),
    ]
    return markdown_table([["", ""], *([name, _escaped(value)] for name, value in facts if value)])


def _escaped(text: str) -> str:
    """For a cell or a line: a bar would end the cell, a line break the row."""
    return text.replace("|", "\\|").replace("\n", " ")
