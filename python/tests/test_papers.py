"""docs/papers.md: made from recipes and results, and nothing that they name is left out of it."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tsallis_report import drawn, papers
from tsallis_report.data import load

ROOT = Path(__file__).resolve().parents[2]
ITEMS = {(paper, item.name) for paper, items in papers.CONTENTS.items() for item in items}


def test_the_page_is_what_recipes_and_results_say():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert page == papers.markdown(ROOT), "run `make papers`"


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("asentmax, table 7", ["table 7"]),
        ("asentmax, tables 1 and 7, figure 13", ["table 1", "table 7", "figure 13"]),
        ("asentmax, figures 3 (left) and 6", ["figure 3", "figure 6"]),
        ("asentmax, figures 1, 2 and 6", ["figure 1", "figure 2", "figure 6"]),
        ("asentmax, figure 8 and appendix E", ["figure 8"]),
        ("asentmax, proposition 3.2 and appendix D", []),
        ("adasplash, steps of the solver", ["steps of the solver"]),
        ("somebody else, table 1", []),
    ],
)
def test_sources_are_read(source, items):
    assert [item for _, item in papers.named(source)] == items


def test_every_source_names_items_that_the_papers_have():
    sources = []
    for path in ROOT.glob("experiments/*.toml"):
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
        sources.append(recipe["study"]["source"])
        for scale in recipe["scale"].values():
            sources.append(scale.get("set", {}).get("study", {}).get("source", ""))
    sources += re.findall(
        r'\n +"((?:asentmax|softmax-is-not-enough|scale-invariant-attention|adasplash)[^"]*)"',
        (ROOT / "src/lab/studies/analyses/catalogue.cc").read_text(encoding="utf-8"),
    )
    named = [item for source in sources for item in papers.named(source)]
    assert len(named) > 40
    assert set(named) <= ITEMS


def test_every_study_without_training_has_its_numbers_in_results():
    catalogue = (ROOT / "src/lab/studies/analyses/catalogue.cc").read_text(encoding="utf-8")
    studies = re.findall(r'\n      \{"([a-z-]+)",', catalogue)
    assert len(studies) > 10
    kept = {path.parent.name for path in ROOT.glob("results/studies/*/study.json")}
    assert kept == set(studies)


def test_status_follows_from_the_figures(tmp_path):
    study = load(ROOT / "results" / "max-retrieval")
    _, status = papers._of_study(study)
    assert status.startswith("differs: ")
    study.rows = [replace(row, mean=row.paper or row.mean, std=0.0) for row in study.rows]
    assert papers._of_study(study)[1] == "reproduced"
    off = next(row for row in study.rows if row.method == "ssmax" and row.n == 64)
    study.rows[study.rows.index(off)] = replace(off, mean=off.mean - 3.5)
    assert papers._of_study(study)[1].startswith("differs: 1 of ")
    assert papers._of_study(study)[1].endswith("most SSMax at n = 64 by -3.5")
    study.rows = [replace(row, paper=None) for row in study.rows]
    assert papers._of_study(study)[1] == "smaller scale"


def test_a_tables_status_is_not_that_of_a_figure():
    covered = papers.gather(ROOT)
    table = covered["asentmax", "table 5"].lines
    figure = covered["asentmax", "figure 5"].lines
    assert len(table) == len(figure) > 1
    assert any(status.startswith("differs") for _, _, status in table)
    assert {status for _, _, status in figure} == {"drawn", "trained otherwise"}
    assert covered["asentmax", "figure 13"].lines[0][2] == "smaller scale"


def test_a_figures_sentence_is_about_what_it_shows():
    covered = papers.gather(ROOT)
    told = {}
    for (paper, item), there in covered.items():
        for where, sentence, _ in there.lines:
            if item.startswith("figure") and "results/" in where:
                told.setdefault((paper, item), []).append(sentence)
    assert drawn.SENTENCES.keys() | drawn.BY_COMMAND.keys() <= told.keys()
    # The rest shows accuracies or losses against length, as the reports' own sentences do.
    rest = told.keys() - drawn.SENTENCES.keys() - drawn.BY_COMMAND.keys()
    assert rest == {
        ("softmax-is-not-enough", "figure 8"),
        ("asentmax", "figure 1"),
        ("asentmax", "figure 3"),  # gradients and paths: of delayed copy's report
        ("asentmax", "figure 5"),
        ("asentmax", "figure 7"),
        ("scale-invariant-attention", "figure 5"),
        ("scale-invariant-attention", "figure 8"),
    }
    gradients = told["asentmax", "figure 7"]
    assert all("gradient" in sentence and "keys" in sentence for sentence in gradients)
    copy = next(s for s in told["asentmax", "figure 13"] if "16 scaled heads" in s)
    assert "γ is negative in 12 of 16 scaled heads, from -1.98 to 1.97 (the paper: in all)" in copy
    alike, spread = told["adaptively-sparse-transformers", "figure 11"]  # by where alphas start
    assert "encoder 1.29 to 1.44" in alike
    assert "random start; first seed): encoder 1.07 to 1.64" in spread
    (spread,) = told["softmax-is-not-enough", "figure 9"]
    assert "spread over 116, and the bound is 246" in spread


def test_times_on_gpus_are_those_that_were_measured():
    ((where, figures, status),) = papers.gather(ROOT)["adasplash", "time on GPUs"].lines
    measured = json.loads((ROOT / "docs/figures/cuda-h200.json").read_text(encoding="utf-8"))
    row = {r["name"]: r for r in measured["rows"] if r["n"] == 65536 and r["d"] == 128}
    ratio = row["FlashAttention"]["both_ms"] / row["entmax 1.5"]["both_ms"]
    assert where == f"[{measured['device']}](figures/cuda-h200.svg)"
    assert figures.endswith("entmax 2.0 3.1 times")
    assert f"as fast as FlashAttention: entmax 1.5 {ratio:.1f} times, " in figures
    assert status == "drawn"


def test_a_scale_trains_as_the_one_that_it_is_like():
    lines = papers.gather(ROOT)["asentmax", "table 5"].lines
    status = {where.split("]")[0]: said for where, _, said in lines}
    assert status["[max-retrieval, weight-decay"] == "trained otherwise"
    assert status["[max-retrieval, baselines"] == "trained otherwise"  # like weight-decay


def test_a_recipe_without_a_report_says_so(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.toml").write_text(
        '[study]\nsource = "asentmax, table 3"\n[scale.a]\nset = { study.source = "asentmax, '
        'table 4" }\n'
    )
    page = papers.markdown(tmp_path)
    row = next(line for line in page.splitlines() if line.startswith("| table 3 "))
    assert "`tsallis reproduce mine`" in row
    assert "no report yet" in row
    row = next(line for line in page.splitlines() if line.startswith("| table 4 "))
    assert "`tsallis reproduce mine --scale a`" in row
    folder = tmp_path / "results" / "studies" / "one"
    folder.mkdir(parents=True)
    about = {
        "study": "one",
        "title": "",
        "source": "asentmax, figure 2",
        "scale": "full",
        "seed": 1,
        "checkpoint": "",
        "finding": "It vanishes.",
        "setup": [],
        "commit": "",
        "processor": "",
        "command": "",
        "seconds": 1.0,
        "facts": [{"quantity": "t", "value": 1.0, "expected": 1.2, "source": "closed form"}],
        "figures": [],
        "tables": [],
    }
    (folder / "study.json").write_text(json.dumps(about))
    row = next(line for line in papers.markdown(tmp_path).splitlines() if "It vanishes" in line)
    assert "differs: 1 of 1 numbers, most the t: 1 instead of 1.2" in row
    for value, expected, status in ((1.19, 1.2, "checked against theory"), (1.0, None, "drawn")):
        about["facts"] = [{"quantity": "t", "value": value, "expected": expected, "source": ""}]
        (folder / "study.json").write_text(json.dumps(about))
        page = papers.markdown(tmp_path)
        row = next(line for line in page.splitlines() if "It vanishes" in line)
        assert row.endswith(f"| {status} |") or f"| {status} " in row
