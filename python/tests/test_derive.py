"""From run folders to a study: rows, contrasts, quantities, findings, and the files they fill."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_runs import SEQUENCES, counted, decoder, describe, method, train, write_run

from tsallis_report import data, derive, finding
from tsallis_report.__main__ import main
from tsallis_report.data import Method, Metric, Row, Study, document, load, write
from tsallis_report.quantities import Flow
from tsallis_report.run_folder import StudyError


def sets(n: int, hits: int, **more: Any) -> dict[str, Any]:
    return {"n": n, "sets": 20, "hits": hits, "entropy": 1.0, "support": 4.0} | more


def two_seeds(folder: Path) -> Any:
    """Softmax and a method on its weights, entmax; two seeds, the second one of softmax resumed."""
    heat = [0.1, 0.2, 0.7, 0.0, 0.503, 0.497]
    runs = [
        write_run(
            folder,
            name,
            seed,
            {
                reader: [
                    sets(16, 18 + seed - right, entropy=float(seed), heat=heat),
                    sets(64, 10 - right),
                ]
                for reader, right in readers.items()
            },
            metrics=[
                {"step": 10, "loss": 0.5, "seconds": 3.0},
                {"step": 1, "observed": {"spread": 1.0 * seed, "bound": 9.0}, "seconds": 1.0},
                {"step": 2, "observed": {"spread": None}, "seconds": 1.5 * seed},
            ],
        )
        for seed in (1, 2)
        for name, readers in {"softmax": {"softmax": 0, "hard": 8}, "entmax": {"entmax": 2}}.items()
    ]
    paper = {"16": 90.0}
    methods = [method("softmax", paper=paper), method("hard"), method("entmax")]
    return describe(methods, runs)


def test_rows_are_over_seeds_and_stand_beside_the_paper(tmp_path):
    study = derive.derive(two_seeds(tmp_path))
    assert study.methods == ["softmax", "hard", "entmax"]
    first = study.row("softmax", 16)
    assert (first.mean, first.best, first.seeds, first.samples) == (97.5, 100.0, 2, 20)
    assert first.std == pytest.approx(math.sqrt(2 * 2.5**2))
    assert (first.paper, study.row("softmax", 64).paper, first.ahead) == (90.0, None, None)
    assert study.row("hard", 16).ahead.difference == -40.0
    assert study.train_seconds == 2 * (3.0 + 1.5) + 2 * (3.0 + 3.0)  # resumed runs count on
    assert study.finding.endswith(": Softmax 50.0 ± 0.0; Entmax 40.0 ± 0.0; Hard 10.0 ± 0.0.")
    assert [m.headline for m in study.about.values()] == [True, True, True]


def test_runs_on_both_sides_of_one_half_are_counted(tmp_path):
    described = two_seeds(tmp_path)
    study = derive.derive(described)
    assert all(one.split is None for one in study.rows if one.n == 16)
    assert study.row("softmax", 64).split is None  # 50 % holds
    run = next(run for run in described["runs"] if (run["method"], run["seed"]) == ("softmax", 2))
    scores = [sets(16, 20), sets(64, 9)]
    (Path(run["folder"]) / "eval-softmax.json").write_text(json.dumps(scores))
    split = derive.derive(described).row("softmax", 64).split
    assert split == data.Split(1, 2, 50.0)
    assert split.text == "1 of 2 (9 to 91 %): 50.0"
    # Brown, Cai and DasGupta 2001, equation 4: at 5 of 10 and 9 of 10.
    assert data.Split(5, 10, 0.0).interval == pytest.approx((23.66, 76.34), abs=0.01)
    assert data.Split(9, 10, 0.0).interval == pytest.approx((59.58, 98.21), abs=0.01)
    described["scoring"] = "loss"
    assert derive.derive(described).row("softmax", 64).split is None


def test_entropies_spreads_and_heat_come_from_the_runs(tmp_path):
    study = derive.derive(two_seeds(tmp_path))
    entropy = study.entropies_of("softmax")[0]
    assert (entropy.entropy_mean, entropy.support_mean) == (1.5, 4.0)
    assert entropy.entropy_std == pytest.approx(math.sqrt(0.5))
    assert entropy.normalised_entropy == pytest.approx(1.5 / math.log(16))
    # The second method has the weights of the first: training is not its own.
    assert [row.method for row in study.spreads] == ["softmax", "entmax"]
    spread = study.spreads[0]
    assert (spread.step, spread.mean, spread.least, spread.most) == (1, 1.5, 1.0, 2.0)
    assert (spread.bound_mean, spread.bound_least) == (9.0, 9.0)
    assert set(study.heat_maps) == {(name, 16) for name in study.methods}
    assert study.heat_maps["entmax", 16].tolist() == [[0.1, 0.2, 0.7], [0.0, 0.503, 0.497]]


def test_what_is_not_evaluated_yet_is_left_out(tmp_path):
    described = two_seeds(tmp_path)
    runs = described["runs"]
    del runs[2]["samples"]["hard"]
    described["runs"] = [run for run in runs if run["method"] == "softmax"]
    study = derive.derive(described)
    assert {(row.method, row.seeds) for row in study.rows} == {("softmax", 2), ("hard", 1)}
    assert ", 1 to 2 seeds" in study.protocol
    described["shown"] = ["hard"]
    assert derive.derive(described).methods == ["hard"]


def test_a_run_that_lacks_what_is_described_is_named(tmp_path):
    described = two_seeds(tmp_path)
    described["runs"][0]["samples"]["softmax"] = [20, 21]
    with pytest.raises(StudyError, match=r"eval-softmax\.json: no evaluation of .* \(64, 21\)"):
        derive.derive(described)


def test_a_damaged_file_of_a_run_is_named(tmp_path):
    described = two_seeds(tmp_path)
    run = Path(described["runs"][1]["folder"])  # of entmax
    scores = [sets(16, 18, heat=[0.5, 0.5, 0.5, 0.5]), sets(64, 10)]  # in rows of three
    (run / "eval-entmax.json").write_text(json.dumps(scores))
    with pytest.raises(StudyError, match=rf"{run}, .*: damaged: ValueError: cannot reshape"):
        derive.derive(described)
    (run / "eval-entmax.json").write_text("[")
    with pytest.raises(StudyError, match=r"eval-entmax\.json: not JSON"):
        derive.derive(described)


HEADS = {
    "lengths": [
        {
            "n": n,
            "samples": 32,
            "tables": [
                {"quantity": "entropy", "mean": [[0.5, 1.5]], "std": [[0.1, None]]},
                {"quantity": "normalised entropy", "mean": [[0.25, 0.75]], "std": [[0.0, 0.0]]},
                {"quantity": "beta", "mean": [[None, 1.5]], "std": [[None, 0.5]]},
            ],
        }
        for n in (8, 3)
    ],
    "maps": [
        {
            "n": n,
            "layer": 0,
            "head": 1,
            "tokens": 2 * cell,
            "cell": cell,
            "thousandths": [0, 1000, 2, 503, 1, 497],
        }
        for n, cell in ((3, 1), (8, 2))
    ],
}


def sequences(folder: Path, scores: list[Any], methods: list[Any], **changes: Any) -> Any:
    """Two seeds of the first method, whose heads are looked at."""
    flow = [
        {"step": step, "observed": {"gradient 0": 2.0 / step, "keys 0": 4.0, "gradient 1": 1.0}}
        for step in (10, 1)
    ]
    runs = [
        write_run(
            folder,
            methods[0]["name"],
            seed,
            {methods[0]["name"]: scores},
            heads=HEADS,
            metrics=flow,
            config={"model": {"compute": ("bfloat16", "float32")[seed - 1]}},
            map_lengths=[3, 8] if seed == 1 else [],
        )
        for seed in (1, 2)
    ]
    spelt = [{"n": n, "words": ["<bos>", "a"], "scored": [False, True]} for n in (3, 8)]
    return describe(methods, runs, **(SEQUENCES | {"samples": spelt} | changes))


def asked(n: int, hits: int, **more: Any) -> dict[str, Any]:
    return {"n": n, "samples": 20, "hits": hits, "asked": 20} | more


def test_heads_maps_and_samples_are_of_the_first_seed(tmp_path):
    scores = [asked(3, 20, by_group=[[8, 4], [0, 0]]), asked(8, 5, by_group=[[8, 2], [4, 4]])]
    methods = [decoder("entmax", "rope")]
    study = derive.derive(sequences(tmp_path, scores, methods, groups=["bfs", "sort"]))
    heads = [(h.n, h.layer, h.head, h.quantity, h.mean) for h in study.heads]
    assert heads[:3] == [
        (3, 0, 0, "entropy", 0.5),
        (3, 0, 0, "normalised entropy", 0.25),
        (3, 0, 1, "entropy", 1.5),
    ]
    assert len(heads) == 10
    entropy = study.entropies[0]
    assert (entropy.n, entropy.entropy_mean, entropy.normalised_entropy) == (3, 1.0, 0.5)
    assert entropy.support_mean == 0.0  # heads that have no such number
    assert [one.n for one in study.maps] == [3, 8]
    assert study.maps[0].weights.tolist() == [[1.0, 0.0], [0.503, 0.497]]
    assert study.samples.keys() == {3}  # the other is drawn in cells of two tokens
    assert [(g.n, g.group, g.mean) for g in study.groups] == [
        (3, "bfs", 50.0),
        (8, "bfs", 25.0),
        (8, "sort", 100.0),
    ]
    assert [(f.step, f.layer, f.gradient) for f in study.flows] == [(1, 0, 2.0), (10, 0, 0.2)]


def test_losses_have_positions_and_lower_is_better(tmp_path):
    metric = {"name": "loss", "unit": "nats a byte", "higher_is_better": False, "digits": 3}
    bins = [[20, 40.0], [20, 20.0], [20, None]]
    scores = [asked(3, 0, loss=50.0, by_position=bins), asked(8, 0, loss=30.0, by_position=[])]
    described = sequences(
        *(tmp_path, scores, [decoder("softmax", "rope")]),
        scoring="loss",
        metrics=[counted("loss (nats a byte)", "loss")],
        metric=metric | {"notable": 0.02},
    )
    study = derive.derive(described)
    assert [row.mean for row in study.rows] == [2.5, 1.5]
    assert study.rows[0].samples == 0
    assert [(p.n, p.begin, p.end, p.mean) for p in study.positions[:2]] == [
        (3, 0, 1, 2.0),
        (3, 1, 2, 1.0),
    ]
    assert math.isnan(study.positions[2].mean)
    assert "on some 60 test tokens at every length" in study.protocol


def test_translations_have_measures(tmp_path):
    one = {"bleu": 25.0, "chrf": 50.0, "loss": 30.0, "tokens": 60, "token_hits": 45}
    scores = [asked(3, 1, **one), asked(8, 0, **one)]
    metrics = [
        counted("BLEU", "bleu", ""),
        counted("chrF", "chrf", ""),
        counted("loss (nats a token)", "loss", "tokens"),
        counted("tokens right (%)", "token_hits", "tokens", 100.0),
    ]
    described = sequences(
        tmp_path, scores, [decoder("softmax", "rope")], scoring="written", metrics=metrics
    )
    study = derive.derive(described)
    assert study.rows[0].mean == 25.0
    assert [(m.measure, m.mean) for m in study.measures[:3]] == [
        ("chrF", 50.0),
        ("loss (nats a token)", 0.5),
        ("tokens right (%)", 75.0),
    ]
    assert "written by 5 beams, scored by sacrebleu" in study.protocol


def test_methods_that_attend_alike_are_told_apart_by_their_positions(tmp_path):
    methods = [
        decoder("entmax", "rope", layers=[0]),
        decoder("softmax", "rope"),
        decoder("softmax", "nope"),
        decoder("entmax", "nope", layers=[1]),
        decoder("entmax", "alibi", layers=[0]),
    ]
    scores = [asked(3, 20), asked(8, 5)]
    described = sequences(tmp_path, scores, methods)
    run = Path(described["runs"][0]["folder"])
    for one in methods:
        (run / f"eval-{one['name']}.json").write_text(json.dumps(scores))
        described["runs"][0]["samples"][one["name"]] = [20, 20]
    about = derive.derive(described).about
    assert [about[name].like for name in about] == [
        "entmax-rope",
        "softmax-rope",
        "softmax-rope",
        "entmax-nope",  # other layers
        "entmax-rope",
    ]
    assert [about[name].variant for name in about] == ["rope", "rope", "nope", "nope", "alibi"]


def test_a_norm_of_the_output_is_a_variant_of_methods_that_attend_alike(tmp_path):
    plain = method("softmax")
    settings = plain["settings"] | {"output_norm": "layer-norm"}
    normed = method("softmax-norm", variant="norm", settings=settings)
    methods = [method("entmax"), plain, normed]
    scores = [sets(16, 18), sets(64, 10)]
    runs = [write_run(tmp_path, one["name"], 1, {one["name"]: scores}) for one in methods]
    about = derive.derive(describe(methods, runs)).about
    assert [about[one["name"]].like for one in methods] == ["entmax", "softmax", "softmax"]
    assert [about[one["name"]].variant for one in methods] == ["", "", "norm"]


def test_the_protocol_says_how_it_was_done(tmp_path):
    described = two_seeds(tmp_path)
    assert derive.derive(described).protocol == (
        "100 training steps of 16 sets, adam, learning rate 0.001, L2 0.01, 2 seeds; the last "
        "weights are evaluated, on 20 to 20 sets a length"
    )
    described["train"] = train(lr_grid=[1e-9, 0.003], schedule="linear", cooldown=0.25)
    described["chosen"] = {"softmax": 0.003}
    described["grid"] = {"steps": 400, "seeds": 1, "spare": True, "widen": 2}
    described["methods"][2]["train"] = train(
        optimizer="adamw",
        weight_decay=0.1,
        schedule="cosine",
        warmup=5,
        validate_every=50,
        best_floor=98.0,
    )
    described["runs"][1]["steps"] = described["runs"][3]["steps"] = 200
    assert derive.derive(described).protocol == (
        "100 training steps of 16 sets, adam, learning rate of {1e-09, 0.003} chosen on 10 "
        "validation samples of length 4 for each method by runs of 400 steps, 1 seed that the "
        "mean does not count, up to 2 more beyond an end that wins (softmax 0.003), down "
        "to 0 along a line in the last 25 % of the steps, L2 0.01, 2 seeds; Entmax: 200 steps, "
        "adamw, learning rate 0.001, down to 0 along a cosine, weight decay 0.1, 5 steps of "
        "warm-up, of weights read every 50 steps with 98 % or more at 16 the best at length 4, on "
        "10 validation samples, are evaluated; the last weights are evaluated, on 20 to 20 sets a "
        "length"
    )


def test_the_protocol_of_sequences_names_model_and_precisions(tmp_path):
    scores = [asked(3, 20), asked(8, 5)]
    described = sequences(tmp_path, scores, [decoder("softmax", "rope")])
    described["task"] |= {"tokens": 100, "lost": 2}
    described["train"] = train(lr_grid=[0.003], optimizer="muon")
    assert derive.derive(described).protocol == (
        "2 layers of width 32, 2 heads, products in bfloat16 and float32; 100 training steps of 16 "
        "samples of length 1 to 3, muon, learning rate 0.003, no weight decay, 0 steps of warm-up, "
        "2 seeds; the last weights are evaluated, on 20 test samples a length (right if every token"
        " is), at most 100 tokens, at most 2 samples behind two lengths with nothing right"
    )
    described["model"]["name"] = "encoder-decoder"
    described["scoring"] = "tokens"
    protocol = derive.derive(described).protocol
    assert protocol.startswith("2 + 2 layers of width 32")
    assert "(token by token)" in protocol


# ---- files ---------------------------------------------------------------------------------------


def test_a_folder_is_written_whole_and_read_again(tmp_path):
    described = two_seeds(tmp_path / "runs")
    described["methods"][2]["label"] = "Entmax, α = 2"
    study, out = derive.derive(described), tmp_path / "out"
    write(study, out)
    write(study, out)  # over what is there
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    data_files = {f"data/{name}.csv" for name in ("entropy", "heatmap", "spread")}
    assert names == {"results.json", "results.csv"} | data_files
    assert 'entmax,"Entmax, α = 2",16,87.5,' in (out / "results.csv").read_text(encoding="utf-8")
    assert "softmax,16,0,1,0.7\n" in (out / "data/heatmap.csv").read_text()
    read = load(out)
    assert read.rows == [replace(row, by_seed={}) for row in study.rows]
    assert (read.about, read.spreads) == (study.about, study.spreads)
    assert read.heat_maps.keys() == study.heat_maps.keys()
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert (rows[0]["paper"], rows[1]["paper"], rows[0]["samples"]) == (90.0, None, 20)
    study.heat_maps.clear()
    write(study, out)
    assert not (out / "data" / "heatmap.csv").exists()


def test_heads_and_maps_come_back_as_they_were_written(tmp_path):
    scores = [asked(3, 20), asked(8, 5)]
    study = derive.derive(sequences(tmp_path / "runs", scores, [decoder("entmax", "rope")]))
    write(study, tmp_path / "out")
    read = load(tmp_path / "out")
    assert "entmax-rope,3,32,0,1,beta,1.5,0.5\n" in (tmp_path / "out/data/heads.csv").read_text()
    assert [(m.n, m.weights.tolist()) for m in read.maps] == [
        (m.n, m.weights.tolist()) for m in study.maps
    ]
    assert read.samples == study.samples
    assert read.flows == study.flows


def test_not_a_number_is_null(tmp_path):
    study = derive.derive(two_seeds(tmp_path / "runs"))
    study.rows[0] = replace(study.rows[0], mean=math.nan)
    study.entropies[0] = replace(study.entropies[0], entropy_mean=math.nan)
    write(study, tmp_path)
    assert '"n":16,"mean":null,' in (tmp_path / "results.json").read_text()
    assert "softmax,16,nan," in (tmp_path / "data" / "entropy.csv").read_text()


def test_a_failed_write_leaves_no_pieces(tmp_path):
    study = derive.derive(two_seeds(tmp_path / "runs"))
    out = tmp_path / "out"
    (out / "results.csv" / "inside").mkdir(parents=True)  # nothing can be renamed onto it
    with pytest.raises(OSError, match=r"results\.csv"):
        write(study, out)
    assert not (out / "results.json").exists()  # it comes last
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_the_command_line_makes_a_report_of_described_runs(tmp_path, capsys, monkeypatch):
    described = two_seeds(tmp_path / "runs")
    described["title"] = "\ufffd"  # of a foreign encoding
    (tmp_path / "described").write_text(json.dumps(described), encoding="utf-8")
    with (tmp_path / "described").open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main([str(tmp_path / "out"), "--runs", "--table"]) == 0
    assert "97.5 ±3.5" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()
    (tmp_path / "blocked").write_text("a file")
    with (tmp_path / "described").open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main([str(tmp_path / "blocked"), "--runs"]) == 1
    assert f"Not a directory: '{tmp_path / 'blocked'}" in capsys.readouterr().err


# ---- contrasts and findings ----------------------------------------------------------------------


def row(method: str, n: int, mean: float, std: float, seeds: int = 3) -> Row:
    return Row(method, n, mean, std, mean, seeds, None)


def study_of(rows: list[Row], methods: list[Method], baseline: str = "softmax") -> Study:
    about = {method.name: method for method in methods}
    study = Study(study="s", title="S", about=about, rows=rows, baseline=baseline)
    return replace(study, rows=[derive._against(study, one) for one in rows])


def test_methods_are_held_against_the_baseline():
    base, other = row("softmax", 16, 80.0, 0.25), row("a", 16, 92.5, 1.0)
    ahead = finding.contrast(other, base)
    assert ahead.difference == 12.5
    assert ahead.error == pytest.approx(math.sqrt(0.25**2 / 3 + 1 / 3))
    assert finding.contrast(replace(other, seeds=1), base).error is None
    study = study_of(
        [base, other, row("a", 17, 5.0, 0.0)], [Method("softmax", "S"), Method("a", "A")]
    )
    assert [one.ahead for one in study.rows] == [None, ahead, None]
    written = document(study)
    assert written["baseline"] == "softmax"
    assert written["rows"][1]["against_baseline"] == {"difference": 12.5, "error": ahead.error}


def test_the_test_pairs_the_seeds_that_both_have():
    base = replace(row("softmax", 16, 0, 1), by_seed={1: 70.0, 2: 75.0, 3: 80.0, 4: 60.0})
    other = replace(row("a", 16, 0, 1), by_seed={1: 71.0, 2: 77.5, 3: 80.5, 9: 12.0})
    # Differences 1, 2.5, 0.5: mean 4/3, deviation sqrt(13/12), two degrees of freedom.
    t = 4 / 3 / math.sqrt(13 / 12 / 3)
    p = finding.contrast(other, base).p
    assert p == pytest.approx(1.0 - t / math.sqrt(2.0 + t * t), abs=1e-12)
    ahead = data.Contrast(1.0, 1.0, p)
    assert data._row(replace(other, ahead=ahead))["against_baseline"]["p"] == float(f"{p:.4g}")
    assert finding.contrast(replace(other, by_seed={2: 77.5, 3: 80.5}), base).p is None
    same = replace(other, by_seed={1: 71.0, 2: 76.0, 3: 81.0})  # no spread, no test
    assert finding.contrast(same, base).p is None


def with_tests(p_values):
    """A study whose method ``a`` is 20 points ahead at lengths with these p, ``None``: no test."""
    rows = [row("softmax", n, 50.0, 1.0) for n, _ in enumerate(p_values, 1)]
    for n, p in enumerate(p_values, 1):
        rows.append(replace(row("a", n, 70.0 + n, 1.0), ahead=data.Contrast(20.0 + n, 1.0, p)))
    about = {"softmax": Method("softmax", "Softmax"), "a": Method("a", "A")}
    return Study(study="s", title="S", baseline="softmax", about=about, rows=rows)


def test_differences_are_marked_once_the_number_of_tests_is_allowed_for():
    study = with_tests([0.04, 0.013, None, 0.02, 0.9])
    # Limits 0.0125, 0.025, 0.0375, 0.05 for the p in order: 0.013 stands by way of 0.02.
    assert (study.tests, study.sure) == (4, {("a", 2), ("a", 4)})
    assert with_tests([0.03, 0.03]).sure == {("a", 1), ("a", 2)}
    assert with_tests([0.03, 0.3]).sure == set()
    assert with_tests([None]).sure == set()
    assert finding.finding(study, 1).sentence.startswith("At n = 4, ")  # not 5, where p = 0.9
    assert finding.finding(with_tests([0.03, 0.3]), 1).sentence == (
        "No difference of 5 points or more from Softmax stands once the number of tests is allowed "
        "for, up to n = 2."
    )


@pytest.mark.parametrize(
    ("freedom", "five", "one"),  # two-sided 5 % and 1 %
    [
        (1, 12.7062047, 63.6567412),
        (2, 4.30265273, 9.92484320),
        (3, 3.18244631, 5.84090931),
        (4, 2.77644511, 4.60409487),
        (9, 2.26215716, 3.24983554),
        (30, 2.04227246, 2.74999565),
    ],
)
def test_students_distribution_has_its_tabulated_quantiles(freedom, five, one):
    assert finding.two_sided_student(five, freedom) == pytest.approx(0.05, abs=1e-8)
    assert finding.two_sided_student(-one, freedom) == pytest.approx(0.01, abs=1e-8)
    assert finding.two_sided_student(0.0, freedom) == 1.0


LABELS = {"softmax": "Softmax", "a": "A", "b": "B", "c": "c", "d": "d"}
ROWS = [
    row("softmax", 32, 99.0, 0.5),
    row("softmax", 64, 90.0, 1.0),
    row("softmax", 128, 1.8, 3.0),
    row("softmax", 512, 0.0, 0.0),
    row("a", 32, 99.5, 0.3),
    row("a", 64, 97.0, 0.5),
    row("a", 128, 86.3, 5.2),
    row("a", 512, 6.8, 4.3),
    row("b", 128, 88.0, 60.0),  # more, but not surely
]
FAR = (
    "At n = 128, 4 times the longest length of training, right in % (± standard deviation over "
    "seeds): "
)
NEAR = "At n = 32, right in % (± standard deviation over seeds): "
NOTHING = "No method is 5 points or more from Softmax once two standard errors are allowed for, "


@pytest.mark.parametrize(
    ("methods", "rows", "at", "sentence"),
    [
        (5, ROWS, 0, f"{FAR}A 86.3 ± 5.2; Softmax 1.8 ± 3.0."),
        # Few enough to name all.
        (3, ROWS, 0, f"{FAR}B 88.0 ± 60.0; A 86.3 ± 5.2; Softmax 1.8 ± 3.0."),
        (3, ROWS, 256, f"{FAR}B 88.0 ± 60.0; A 86.3 ± 5.2; Softmax 1.8 ± 3.0."),  # not measured
        (
            *(3, ROWS, 64),
            f"{FAR.replace('128, 4', '64, 2')}A 97.0 ± 0.5; Softmax 90.0 ± 1.0.",
        ),
        (3, ROWS, 32, f"{NOTHING}at n = 32."),
        (3, [one for one in ROWS if one.n == 32], 0, f"{NOTHING}up to n = 32."),
        # One that is behind is a finding, too.
        (
            *(3, [ROWS[0], row("a", 32, 50.0, 0.3)], 0),
            f"{NEAR}Softmax 99.0 ± 0.5; A 50.0 ± 0.3.",
        ),
        # One run proves nothing beside others that were repeated.
        (
            *(3, [ROWS[0], row("a", 32, 50.0, 0.3), row("b", 32, 5.0, 0.0, seeds=1)], 0),
            f"{NEAR}Softmax 99.0 ± 0.5; A 50.0 ± 0.3; B 5.0.",
        ),
        (3, ROWS[:4], 0, ""),
    ],
)
def test_the_finding_names_the_surest_difference(methods, rows, at, sentence):
    about = [Method(name, label, like=name) for name, label in LABELS.items()][:methods]
    found = finding.finding(study_of(rows, about), 32, at)
    assert found.sentence == sentence
    if sentence.startswith(FAR):
        assert found.methods == (("a", "softmax") if methods == 5 else ("b", "a", "softmax"))
    assert finding.finding(study_of(rows, about, baseline=""), 32, at).sentence == ""


def test_lower_losses_are_ahead():
    about = [Method("softmax", "Softmax"), Method("a", "A")]
    study = study_of([row("softmax", 64, 1.5, 0.001), row("a", 64, 1.25, 0.002)], about)
    study.metric = Metric("loss", "nats a byte", False, 3, 0.02)
    assert finding.finding(study, 4).sentence == (
        "At n = 64, 16 times the longest length of training, loss in nats a byte (± standard "
        "deviation over seeds): A 1.250 ± 0.002; Softmax 1.500 ± 0.001."
    )


def test_the_finding_names_the_methods_between_two_that_differ_in_map_and_positions():
    right = {"nape": 99.0, "rope": 90.0, "nope": 10.0}  # the positions alone make the difference
    about = [
        Method(f"{map}-{place}", f"{map} {place}", like=f"{map}-nape", variant=place)
        for map in ("softmax", "entmax", "sigmoid")
        for place in ("nape", "nope", "rope")
    ]
    rows = [row(method.name, 64, right[method.variant], 1.0) for method in about]
    rows[4] = row("entmax-nope", 64, 9.0, 1.0)
    found = finding.finding(study_of(rows, about, baseline="softmax-nape"), 32)
    assert found.sentence == (
        f"{FAR.replace('128, 4', '64, 2')}softmax nape 99.0 ± 1.0; entmax nape 99.0 ± 1.0; softmax "
        "nope 10.0 ± 1.0; entmax nope 9.0 ± 1.0."
    )


def test_the_finding_names_the_layer_whose_gradient_differs_most():
    about = [Method("softmax", "Softmax"), Method("a", "A"), Method("b", "B")]
    about.append(Method("a-nape", "A, NAPE", variant="nape"))
    study = study_of([], about)

    def add(method: str, step: int, first: float, second: float) -> None:
        keys = 192.5 if method == "softmax" else 8.0
        study.flows.append(Flow(method, step, 0, first, 30.0))
        study.flows.append(Flow(method, step, 1, second, keys))

    assert finding.flow_finding(study) == finding.Found()
    add("softmax", 1, 1.0, 1.0)
    add("softmax", 10, 4.0, 2.0)
    assert finding.flow_finding(study) == finding.Found()
    add("a", 10, 100.0, 1.0)  # not the first step
    add("a", 1, 1.25, 0.25)
    add("b", 1, 1.0, 3.0)
    add("a-nape", 1, 400.0, 6.0)  # not the map alone makes the difference
    found = finding.flow_finding(study)
    assert found.sentence == (
        "After 1 step, when every method is still equally wrong, a token's gradient at layer 2 of 2"
        " is 0.25 times as large with A as with Softmax; a query gives weight to 8 keys there, with"
        " Softmax to 192."
    )
    assert found.methods == ("softmax", "a")
