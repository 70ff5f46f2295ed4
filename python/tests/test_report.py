"""The report package: figures and the page from a results folder."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixtures.fake_study import (
    HEADLINE,
    METHODS,
    QUICK,
    about,
    write_fake_sequences,
    write_fake_study,
)
from matplotlib.colors import to_rgb

from tsallis_report import (
    data,
    figures,
    heads,
    kinds,
    markdown,
    page,
    quantities,
    run_folder,
    style,
    table,
)
from tsallis_report.__main__ import main, render

HEADS = {name for name, _, _ in heads.FIGURES}
LOSSES = {"positions"}
DEEP = {"flow"}
KINDS = {"groups"}
BY_PLACE = {name for name, _, _ in kinds.FIGURES}  # of an encoder-decoder
SETS = {name for name, _, _ in figures.FIGURES} - HEADS - LOSSES - DEEP - KINDS - BY_PLACE


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered folder with every method and three seeds."""
    directory = tmp_path_factory.mktemp("full")
    write_fake_study(directory)
    render(directory)
    return directory


@pytest.fixture(scope="module")
def rendered_quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered folder with three methods and one seed."""
    directory = tmp_path_factory.mktemp("quick")
    write_fake_study(directory, quick=True)
    render(directory)
    return directory


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """A folder with three methods and one seed, not rendered."""
    write_fake_study(tmp_path, quick=True)
    return tmp_path


def test_every_figure_is_written_and_has_content(full: Path) -> None:
    assert {path.stem for path in (full / "figures").iterdir()} == SETS
    for name in SETS:
        svg = (full / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert svg.rstrip().endswith("</svg>")
        assert len(svg) > 3_000
        png = (full / "figures" / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 10_000


def test_page_holds_everything_and_loads_nothing(full: Path) -> None:
    text = (full / "report.html").read_text(encoding="utf-8")
    for label, _ in METHODS.values():
        assert f">{label}<" in text
    study = data.load(full)
    for fact in (
        study.title,
        study.commit,
        study.processor,
        *study.protocol.split("; "),
        study.command,
        "Long-Context Generalization with Sparse Attention</a>, table 5",
    ):
        assert fact in text
    assert text.count("data:image/svg+xml;base64,") == len(SETS)
    for address in re.findall(r"""(?:src|action)\s*=\s*["']?([^"'\s>]+)""", text):
        assert address.startswith("data:")
    text = re.sub(r'<a href="https://arxiv.org/abs/[\d.]+">', "", text)  # what is cited
    assert not re.search(r"https?://|@import|url\(|<script|<link|//cdn", text)
    assert study.row("softmax", 16384) is not None
    assert "12.4" in text  # the paper's figure at the longest length


def test_page_holds_methods_against_the_baseline(
    full: Path, rendered_quick: Path, tmp_path: Path
) -> None:
    text = (full / "report.html").read_text(encoding="utf-8")
    study = data.load(full)
    against = text.split(f"<h2>Against {study.labels['softmax']}</h2>")[1].split("</table>")[0]
    assert against.count("<tr>") == len(METHODS)  # the baseline has no row, the head has one
    ahead = next(row.ahead for row in study.rows if row.ahead is not None)
    assert (
        f"{figures.signed(study.metric, ahead.difference)}</span> <small>± 1.2</small>" in against
    )
    # One seed has no error; without a baseline there is no table.
    quick = (rendered_quick / "report.html").read_text(encoding="utf-8")
    assert "in points. Blue" in quick
    assert "<small>±" not in quick
    write_fake_sequences(tmp_path)
    assert "Against" not in page.page(data.load(tmp_path), tmp_path / "figures")


def test_svg_is_deterministic_and_undated(rendered_quick: Path, quick: Path) -> None:
    render(quick)
    first = {p.name: p.read_bytes() for p in (rendered_quick / "figures").iterdir()}
    assert first == {p.name: p.read_bytes() for p in (quick / "figures").iterdir()}
    assert (rendered_quick / "report.html").read_bytes() == (quick / "report.html").read_bytes()
    assert b"dc:date" not in first["accuracy.svg"]


def test_one_seed_and_few_methods(rendered_quick: Path) -> None:
    names = {path.stem for path in (rendered_quick / "figures").iterdir()}
    assert names == SETS - {"accuracy-families"}  # one figure has them all
    text = (rendered_quick / "report.html").read_text(encoding="utf-8")
    assert "±" not in text[text.index("<table>") : text.index("</table>")]
    for method in QUICK:
        assert METHODS[method][0] in text


def test_results_alone_are_enough_and_stale_figures_go(quick: Path) -> None:
    stale = quick / "figures" / "heatmap.svg"
    stale.parent.mkdir()
    stale.write_text("old")
    for name in ("entropy.csv", "heatmap.csv", "spread.csv"):
        (quick / "data" / name).unlink()
    raw = json.loads((quick / "results.json").read_text(encoding="utf-8"))
    rows = [{**row, "paper": None} for row in raw["rows"]]
    rows[3]["mean"] = None  # no number
    bare = {"study": "s", "scale": "quick", "commit": "c", "processor": "p", "rows": rows}
    (quick / "results.json").write_text(json.dumps(bare), encoding="utf-8")
    render(quick)
    assert {path.stem for path in (quick / "figures").iterdir()} == {"accuracy"}
    assert "asentmax-3" in (quick / "report.html").read_text(encoding="utf-8")


def test_text_from_results_cannot_become_markup(quick: Path) -> None:
    raw = json.loads((quick / "results.json").read_text(encoding="utf-8"))
    raw["processor"] = "<script>alert(1)</script>"
    (quick / "results.json").write_text(json.dumps(raw), encoding="utf-8")
    text = page.page(data.load(quick), quick / "figures")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "results.json" in capsys.readouterr().err
    (tmp_path / "results.json").write_text("{")
    assert main([str(tmp_path)]) == 1
    assert "not JSON" in capsys.readouterr().err
    (tmp_path / "results.json").write_text('{"study": "s", "rows": [{"method": "m"}]}')
    assert main([str(tmp_path)]) == 1
    assert "KeyError: 'n'" in capsys.readouterr().err


def test_a_full_disk_behind_standard_output_is_an_error(quick: Path) -> None:
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "tsallis_report", str(quick), "--table"],
            cwd=Path(data.__file__).parent.parent,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert answer.returncode == 1
    assert "tsallis_report: [Errno 28] No space left on device" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_heat_map_columns_ascend_and_gaps_are_refused(quick: Path) -> None:
    weights = data.load(quick).heat_maps[("softmax", 16)]
    assert weights.shape == (32, 16)
    assert weights[:, -1].mean() > weights[:, 0].mean()
    path = quick / "data" / "heatmap.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(run_folder.StudyError, match="weights for"):
        data.load(quick)


def test_sequences_show_what_their_heads_do(tmp_path: Path) -> None:
    write_fake_sequences(tmp_path)
    render(tmp_path)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == HEADS | {"accuracy"}
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("data:image/svg+xml;base64,") == len(HEADS) + 1
    study = data.load(tmp_path)
    assert study.keys(16) == 24.0
    assert study.samples[8].words[9] == "<sep>"
    assert sum(study.samples[8].scored) == 9
    maps = {(m.method, m.n, m.layer, m.head): m for m in study.maps}
    assert len(maps) == 2 * 2 * 3 * 2
    drawn = maps["asentmax", 32, 2, 2]
    assert drawn.weights.shape == (40, 40)
    assert drawn.weights.sum(axis=1) == pytest.approx(1.0, abs=0.01)


def test_histograms_count_every_head(tmp_path: Path) -> None:
    write_fake_sequences(tmp_path)
    study = data.load(tmp_path)
    figure = heads.plot_histograms(study)
    assert figure is not None
    assert len(figure.axes) == 2  # a row for each method, no learned α
    study.heads += [
        quantities.HeadNumber("asentmax", n, 32, layer, head, "alpha", 1.2 + 0.1 * head, 0.0)
        for n in study.lengths
        for layer in range(3)
        for head in range(4)
    ]
    figure = heads.plot_histograms(study)
    assert figure is not None
    assert len(figure.axes) == 4
    for axes in figure.axes[:3:2]:  # both lengths of the density of each method
        assert len(axes.patches) == 2
    alphas = figure.axes[3].containers[0]
    assert sum(bar.get_height() for bar in alphas) == 12


def test_heads_of_an_encoder_decoder_are_counted_by_kind(tmp_path: Path) -> None:
    write_fake_sequences(tmp_path)
    study = data.load(tmp_path)
    assert kinds.plot_kinds(study) is None
    assert kinds.plot_kinds_by_layer(study) is None
    study.heads = [
        quantities.HeadNumber(
            method,
            32,
            32,
            layer,
            head,
            f"{kind} {quantity}",
            value + 0.01 * layer + 0.1 * head,
            0.0,
        )
        for method in study.methods
        for kind in ("encoder", "decoder", "context")
        for quantity, value in (("alpha", 1.2), ("density", 0.3), ("divergence", 0.5))
        for layer in range(3)
        for head in range(4)
    ]
    assert heads.plot_histograms(study) is None
    figure = kinds.plot_kinds(study)
    assert figure is not None
    assert len(figure.axes) == 2 * len(study.methods)
    for axes in figure.axes:
        bars = [bar for container in axes.containers for bar in container]
        assert sum(bar.get_height() for bar in bars) == 36
    figure = kinds.plot_kinds_by_layer(study)
    assert figure is not None
    first = figure.axes[0].lines[0]
    assert list(first.get_xdata()) == [1, 2, 3]
    assert list(first.get_ydata()) == pytest.approx([0.65, 0.66, 0.67])
    study.heads = [h for h in study.heads if not h.quantity.endswith("alpha")]
    figure = kinds.plot_kinds(study)
    assert figure is not None
    assert len(figure.axes) == len(study.methods)


def test_measures_beside_the_metric_have_a_table(tmp_path: Path) -> None:
    write_fake_sequences(tmp_path)
    (tmp_path / "data" / "measures.csv").write_text(
        "method,n,measure,mean,std\nasentmax,8,chrF,51.25,0.5\nasentmax,32,chrF,4.125,0\n"
    )
    render(tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Beside accuracy" in text
    assert "<td>51.2 <small>± 0.5</small></td>" in text
    assert "<td>4.125</td>" in text


def test_learned_numbers_stand_in_their_cells(tmp_path: Path) -> None:
    write_fake_sequences(tmp_path)
    study = data.load(tmp_path)
    figure = heads.plot_learned(study)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["β", "γ", "c"]
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    beta = next(h for h in study.heads if (h.quantity, h.n, h.layer, h.head) == ("beta", 8, 1, 3))
    assert texts[0, 1] == "–"  # a head with ALiBi
    assert f"{beta.mean:.2f}" in [text for (head, _), text in texts.items() if head == 3]


def test_long_samples_are_numbered_and_short_ones_spelt(tmp_path: Path) -> None:
    write_fake_sequences(tmp_path)
    study = data.load(tmp_path)
    short, long = heads.plot_attention(study), heads.plot_attention_long(study)
    assert short is not None
    assert long is not None
    words = [tick.get_text() for tick in short.axes[0].get_yticklabels()]
    assert words == study.samples[8].words
    numbers = [tick.get_text() for tick in long.axes[0].get_xticklabels()]
    assert numbers == ["0", "20", "40", "60"]
    assert list(long.axes[0].get_xticks()) == [0, 10, 20, 30]  # in cells of two tokens


def test_a_map_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_fake_sequences(tmp_path)
    with (tmp_path / "data" / "attention.csv").open("a") as file:
        file.write("softmax,8,0,0,18,1,18,0,1\n")
    with pytest.raises(run_folder.StudyError, match=r"attention\.csv: IndexError"):
        data.load(tmp_path)


def test_needs_neither_torch_nor_the_library() -> None:
    code = """
import sys, tsallis_report.__main__
sys.exit('torch' in sys.modules or 'tsallis' in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(data.__file__).parent.parent)


def test_colors_and_markers_tell_methods_apart() -> None:
    methods = [data._method(about(name)) for name in METHODS]
    assert len(set(style.colors(methods).values())) == len(methods)
    for members in style.families(methods).values():
        assert len({style.markers(methods)[m] for m in members}) == len(members)
    assert sum(map(len, style.families(methods).values())) == len(methods)


POSITIONS = ("nape", "rope", "alibi", "nope")
BASES = {
    "softmax": ("softmax", "none"),
    "ssmax": ("softmax", "ssmax"),
    "assmax": ("softmax", "adaptive"),
    "entmax": ("entmax", "none"),
    "asentmax": ("entmax", "adaptive"),
}


def of_positions() -> list[data.Method]:
    """Every base at every position; names are of no consequence."""
    return [
        data.Method(f"m{position}{base}", base, *kind, base, position)
        for position in POSITIONS
        for base, kind in BASES.items()
    ]


def test_variants_share_the_color_of_their_map_and_have_their_own_line() -> None:
    methods = of_positions()
    colors, every = style.colors(methods), style.variants(methods)
    assert every == list(POSITIONS)
    assert len({str(style.line(position, every)) for position in every}) == 4
    softmax = data._method(about("softmax"))
    assert colors["mnapesoftmax"] == style.colors([softmax])["softmax"]
    assert len({colors[m.name] for m in methods if m.variant == "nape"}) == len(BASES)
    for base in BASES:
        full, tinted = (np.array(to_rgb(colors[f"m{place}{base}"])) for place in ("nape", "rope"))
        np.testing.assert_allclose(tinted, full + 0.35 * (1.0 - full), atol=0.01)
    assert style.families(methods)[style.ASENTMAX] == [f"m{place}asentmax" for place in POSITIONS]


def test_colors_of_methods_do_not_depend_on_names() -> None:
    methods = [data._method(about(name)) for name in METHODS]
    renamed = [replace(m, name=str(i), like=str(i)) for i, m in enumerate(methods)]
    assert list(style.colors(methods).values()) == list(style.colors(renamed).values())


def test_lengths_where_nothing_is_right_have_no_best(tmp_path: Path) -> None:
    write_fake_study(tmp_path)
    path = tmp_path / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    lengths = sorted({row["n"] for row in results["rows"]})
    for row in results["rows"]:
        if row["n"] == lengths[-1]:
            row["mean"] = row["std"] = row["best"] = 0.0
    path.write_text(json.dumps(results), encoding="utf-8")
    text = page.page(data.load(tmp_path), tmp_path / "figures")
    assert text.count('<span class="best">') >= len(lengths) - 1
    assert '<span class="best">0.0' not in text


def test_the_page_begins_with_what_was_found_and_explains_its_words(tmp_path: Path) -> None:
    write_fake_study(tmp_path)
    path = tmp_path / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    results["finding"] = "At n = 4096, right in %: <b> 98.2; Softmax 22.1."
    path.write_text(json.dumps(results), encoding="utf-8")
    text = page.page(data.load(tmp_path), tmp_path / "figures")
    body = text.split("</h1>")[1].strip()
    said = "At n = 4096, right in %: &lt;b&gt; 98.2; Softmax 22.1."
    assert body.startswith(f'<p class="finding">{said}</p>')
    words = text.split("Words on this page</h2>")[1].split("</dl>")[0]
    assert "<dt>θ</dt>" in words
    assert "<dt>ASEntmax</dt>" in words
    assert "<dt>RoPE</dt>" not in words  # no method has it


def test_what_is_not_sure_is_pale() -> None:
    def tint(difference: float, error: float | None) -> float:
        sure = page._is_sure(data.Contrast(difference, error))
        return float(page._tinted(data.Metric(), difference, sure).split("), ")[1].split(")")[0])

    assert tint(36.1, 25.9) == tint(80.0, None) < 0.1
    assert 0.1 < tint(5.0, 1.0) < tint(-30.0, 1.0) < tint(60.0, 1.0) == tint(90.0, 1.0)


def test_the_headline_is_the_recipes_and_otherwise_the_first_methods(full: Path) -> None:
    study = data.load(full)
    assert figures.headline_methods(study) == HEADLINE
    study.about = {name: replace(m, headline=False) for name, m in study.about.items()}
    assert figures.headline_methods(study) == study.methods[:6]


def test_labels_are_spread_apart_no_further_than_needed() -> None:
    assert figures._spread_apart([0.1, 0.5], 0.1) == pytest.approx([0.1, 0.5])
    assert figures._spread_apart([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    spread = figures._spread_apart([0.0, 0.01, 0.3, 0.31, 0.32], 0.05)
    assert np.diff(spread).min() >= 0.05 - 1e-12
    assert figures._spread_apart([], 0.1) == []


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0"), (-0.04, "0.0"), (-1.26, "−1.3"), (2.0, "+2.0")]
)
def test_signed(value: float, text: str) -> None:
    assert figures.signed(data.Metric(), value) == text


# ---- tables in plain text ------------------------------------------------------------------------


def test_width_counts_columns() -> None:
    widths = {"": 0, "entmax": 6, "γ = 3 ±": 7, "e\u0301": 1, "熱": 2}
    assert {text: table.width(text) for text in widths} == widths
    assert table.ellipsized("θ = √d, long", 6) == "θ = √…"
    assert table.ellipsized("γ", 1) == "γ"
    assert (table.pad_left("γ", 3), table.pad_right("γ", 3)) == ("  γ", "γ  ")
    assert [data.Metric().difference(d) for d in (0.04, -0.04, -1.26, 12.0)] == [
        "0.0",
        "0.0",
        "-1.3",
        "+12.0",
    ]


def test_terminal_rows_stand_under_their_header(full: Path) -> None:
    study = data.load(full)
    head, rule, ours, paper, *_ = table.terminal_table(study, 400, color=False).splitlines()
    assert str(study.lengths[-1]) in head
    assert table.width(head) == table.width(rule) == table.width(ours)
    first = study.row(study.methods[0], study.lengths[0])
    assert first is not None
    assert first.paper is not None
    assert f"{first.mean:.1f} ±{first.std:.1f}" in ours
    assert f"{first.paper:.1f} ({study.metric.difference(first.mean - first.paper)})" in paper


@pytest.mark.parametrize("columns", [40, 60, 80, 132])
def test_a_narrow_terminal_splits_the_table(full: Path, columns: int) -> None:
    study = data.load(full)
    shown = table.terminal_table(study, columns, color=False)
    for line in shown.splitlines()[:-2]:  # above the legend
        assert table.width(line) <= columns, line
    assert all(re.search(rf"\b{n}\b", shown) for n in study.lengths)
    assert table.terminal_table(study, 1, color=False)


def test_terminal_colours_only_when_asked(full: Path) -> None:
    study = data.load(full)
    plain = table.terminal_table(study, 100, color=False)
    colored = table.terminal_table(study, 100, color=True)
    assert "\033" not in plain
    assert "\033[1m" in colored
    assert re.sub("\033\\[[0-9]*m", "", colored) == plain


def test_a_table_of_one_seed_without_papers_takes_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"study": "s", "rows": [{"method": "m", "n": 16, "mean": 50}]}')
    shown = table.terminal_table(data.load(tmp_path), 80, color=False)
    assert "50.0" in shown
    assert "±" not in shown
    assert "paper" not in shown
    path.write_text('{"study": "s", "rows": []}')
    assert table.terminal_table(data.load(tmp_path), 80, color=False) == "No results yet.\n"


def test_a_study_of_losses_says_so_and_lower_is_better(tmp_path: Path) -> None:
    write_fake_study(tmp_path)
    path = tmp_path / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    results["metric"] = {
        "name": "loss",
        "unit": "nats a byte",
        "higher_is_better": False,
        "digits": 3,
    }
    for row in results["rows"]:
        row |= {"mean": row["mean"] / 50.0, "std": row["std"] / 50.0, "paper": None}
    path.write_text(json.dumps(results), encoding="utf-8")
    lines = ["method,n,begin,end,mean,std"]
    lines += [f"{m},16384,{b},{2 * b},{1 / b},0.01" for m in METHODS for b in (1, 2, 4, 8)]
    (tmp_path / "data" / "positions.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    study = data.load(tmp_path)
    n = study.lengths[-1]
    least = min((row for row in study.rows if row.n == n), key=lambda row: row.mean)
    best = study.metric.best(row.mean for row in study.rows if row.n == n)
    assert study.metric.is_best(least.mean, best)
    text = page.page(study, tmp_path / "figures")
    assert "<h2>Loss (nats a byte)</h2>" in text
    assert f'<span class="best">{least.mean:.3f}</span>' in text
    assert "Loss in nats a byte" in table.terminal_table(study, 120, color=False)
    assert "Loss minus that of Softmax, in nats a byte" in markdown.markdown(study)
    # A value below the baseline is blue.
    assert "--up" in page._tinted(study.metric, -0.5, 0.1)
    figure = figures.plot_positions(study)
    assert figure is not None
    assert figure.axes[0].get_ylabel() == "Loss (nats)"
    assert figures.plot_accuracy(study).axes[0].get_ylabel() == "Loss (nats a byte)"


def test_markdown_holds_every_part_and_is_aligned(full: Path) -> None:
    study = data.load(full)
    first = study.methods[0]
    study.about[first] = replace(study.about[first], label="Softmax | θ")
    study.protocol = "one; two"
    text = markdown.markdown(study)
    for part in [
        f"# {study.title}",
        "Softmax \\| θ",
        "best seed",
        "- one\n- two\n",
        study.processor,
        f"`{study.commit}`",
    ]:
        assert part in text, part
    rows = text.split("\n\n")
    grid = next(part for part in rows if part.startswith("| method")).splitlines()
    assert len({table.width(line) for line in grid}) == 1
    assert text.count("| difference |") == 0 or study.has_paper


def test_markdown_holds_methods_against_the_baseline(full: Path) -> None:
    study = data.load(full)
    study.baseline = "nothing"
    assert "Accuracy minus that of" not in markdown.markdown(study)
    study.baseline = study.methods[0]
    n = study.lengths[0]
    other = study.row(study.methods[1], n)
    assert other is not None
    study.rows[study.rows.index(other)] = replace(other, ahead=data.Contrast(12.5, 0.595))
    text = markdown.markdown(study)
    assert f"Accuracy minus that of {study.labels[study.baseline]}, in points" in text
    assert "| +12.5 ± 0.6 |" in text
    assert "t-test" not in text
    tested = replace(other, ahead=data.Contrast(12.5, 0.595, 4.2e-6))
    study.rows[study.rows.index(study.row(study.methods[1], n))] = tested
    text = markdown.markdown(study)
    assert "p of the paired t-test, which also uses" in text
    p = next(line for line in text.splitlines() if line.startswith("| ") and "| p " in line)
    assert [cell.strip() for cell in p.split("|")[3:5]] == ["4e-06", "–"]
    assert "| +12.5 ± 0.6 \\* |" in text
    assert "; \\*: of 1 such tests" in text
    html = page.page(study, full / "figures")
    assert "<small>p = 4e-06</small>" in html
    assert "Not pale: of 1 such tests" in html


def test_runs_that_hold_stand_beside_their_mean(full: Path) -> None:
    study = data.load(full)
    assert "runs that hold" not in markdown.markdown(study)
    first = study.rows[0]
    study.rows[0] = replace(first, split=data.Split(2, 3, 73.9))
    text = markdown.markdown(study)
    held = next(line for line in text.splitlines() if "| runs that hold |" in line)
    assert [cell.strip() for cell in held.split("|")[3:5]] == ["2 of 3 (21 to 94 %): 73.9", "–"]
    assert "<small>2 of 3 (21 to 94 %): 73.9</small>" in page.page(study, full / "figures")
    assert data.document(study)["rows"][0]["split"] == {"held": 2, "runs": 3, "mean": 73.9}


def test_kinds_of_samples_have_a_panel_each(full: Path) -> None:
    study = data.load(full)
    study.groups = [
        quantities.Group(method, n, group, 90.0 - n, 2.0)
        for method in study.methods
        for group in ("minimum", "bfs", "bubble_sort")
        for n in (4, 8, 16)
        if (group, n) != ("bubble_sort", 16)  # not asked at this size
    ]
    figure = figures.plot_groups(study)
    assert figure is not None
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["minimum", "bfs", "bubble_sort"]
    assert {len(line.get_xdata()) for line in shown[2].get_lines()} == {2}


def test_layers_show_gradients_and_keys(full: Path) -> None:
    study = data.load(full)
    study.flows = [
        quantities.Flow(method, step, layer, 0.1 / (layer + 1), 30.0 - layer)
        for method in study.methods
        for step in (1, 10, 100)
        for layer in range(8)
    ]
    figure = figures.plot_flow(study)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == [
        "after 1 step",
        "after 100 steps",
        "after 100 steps",
    ]
    study.figure = "flow"  # a study of gradients begins with them
    text = markdown.markdown(study)
    assert text.index("](figures/flow.svg)") < text.index("gradient, after 1 step") < len(text)
    assert figures.FLOW_NOTE in text
    assert "keys, after 100 steps" in text
    assert "figures/accuracy.svg" not in text
    study.flows = [row for row in study.flows if row.layer < 2]  # two layers show nothing
    assert figures.plot_flow(study) is None
    assert "figures/accuracy.svg" in markdown.markdown(study)


def test_a_page_begins_with_a_figure_that_there_is(full: Path, tmp_path: Path) -> None:
    results = json.loads((full / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps(results | {"figure": "flaw"}))
    with pytest.raises(
        run_folder.StudyError, match="figure: expected one of accuracy, flow, got 'flaw'"
    ):
        data.load(tmp_path)


def test_spread_is_drawn_for_each_training_with_its_bound(full: Path) -> None:
    study = data.load(full)
    figure = figures.plot_spread(study)
    assert figure is not None
    assert len(figure.axes[0].get_lines()) == 2 * len(QUICK)
    assert len(figure.axes[0].collections) == len(QUICK)
    study.spreads = []
    assert figures.plot_spread(study) is None


def test_the_command_line_shows_the_table(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(full), "--table", "--width", "90"]) == 0
    assert capsys.readouterr().out == table.terminal_table(data.load(full), 90, color=False)


def test_a_map_of_vast_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"study": "s", "rows": []}')
    (tmp_path / "data").mkdir()
    columns = "method,n,layer,head,tokens,cell,row,column,weight\n"
    (tmp_path / "data" / "attention.csv").write_text(columns + "m,16,0,0,1000000000,1,0,0,1\n")
    with pytest.raises(run_folder.StudyError, match="a map of 1000000000 tokens in cells of 1"):
        data.load(tmp_path)
