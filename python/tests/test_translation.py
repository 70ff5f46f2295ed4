"""Translation from plain files to lines in another language, through the program."""

import json
import random
from pathlib import Path

import pytest
from test_cli import ROOT, run

WORDS = {
    "open": "öffne", "close": "schließe", "file": "Datei", "line": "Zeile", "first": "erste",
    "last": "letzte", "and": "und", "or": "oder",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plain files, a corpus, a recipe and its report."""
    folder = tmp_path_factory.mktemp("translation")
    (folder / "text").mkdir()
    rng = random.Random(1)
    for name, count in (("train", 400), ("valid", 20), ("test", 20)):
        lines = [rng.choices(list(WORDS), k=rng.randint(2, 4)) for _ in range(count)]
        for side, words in (("en", str), ("de", WORDS.get)):
            text = "".join(" ".join(words(w) for w in line) + "\n" for line in lines)
            (folder / "text" / f"{name}.{side}").write_text(text, encoding="utf-8")
    prepare = ("data", "prepare", "words", "--from", "text", "--pairs", "en,de")
    made = run(*prepare, "--tokenizer", "bpe:300", "--folder", "corpus", cwd=folder)
    assert made.returncode == 0, made.stderr
    recipe = (ROOT / "experiments" / "translation.toml").read_text(encoding="utf-8")
    for before, after in (
        ('"german"', '"./corpus"'),
        ("vocabulary   = 4096", "vocabulary   = 300"),
        ("layers       = 3", "layers       = 1"),
        ("width        = 128", "width        = 32"),
        ("steps   = 5000", "steps   = 10"),
        ("warmup           = 400", "warmup           = 20"),
        ("eval_lengths = [16, 64]", "eval_lengths = [5, 32]"),
        ("lr               = 2e-3", "lr               = 1e-2"),
        ("steps = 500\n", "steps = 250\n"),
    ):
        assert before in recipe
        recipe = recipe.replace(before, after)
    (folder / "r.toml").write_text(recipe, encoding="utf-8")
    study = run("reproduce", "r.toml", "--quiet", "--methods", "softmax,learned", cwd=folder)
    assert study.returncode == 0, study.stderr
    return folder


def report(folder: Path) -> Path:
    return folder / "runs" / "translation" / "quick" / "report"


def model(folder: Path, method: str = "learned") -> str:
    return str(folder / "runs" / "translation" / "quick" / method / "seed-1")


def test_the_report_has_bleu_and_heads_by_kind(trained: Path) -> None:
    results = json.loads((report(trained) / "results.json").read_text())
    assert results["metric"]["name"] == "BLEU"
    bleu = {(row["method"], row["n"]): row["mean"] for row in results["rows"]}
    assert set(bleu) == {(m, n) for m in ("softmax", "learned") for n in (5, 32)}
    assert bleu["learned", 32] > 5.0  # of words by chance there is none
    measures = {row["measure"] for row in results["measures"]}
    assert measures == {"chrF", "loss (nats a token)", "tokens right (%)"}
    text = (report(trained) / "report.html").read_text(encoding="utf-8")
    assert "Beside BLEU" in text
    assert "sacrebleu" in text
    assert {path.stem for path in (report(trained) / "figures").iterdir()} == {
        "accuracy",
        "kinds",
        "kinds-layers",
    }
    heads = (report(trained) / "data" / "heads.csv").read_text().splitlines()
    quantities = {line.split(",")[5] for line in heads[1:]}
    assert quantities == {
        f"{kind} {quantity}"
        for kind in ("encoder", "decoder", "context")
        for quantity in ("alpha", "density", "divergence")
    }


def test_lines_are_translated_scored_and_drawn(trained: Path, tmp_path: Path) -> None:
    text = trained / "text"
    answer = run(
        *("translate", model(trained), "--input", text / "test.en"),
        *("--reference", text / "test.de", "--show", tmp_path / "look", "--heads", "1.2,1.4"),
        cwd=trained,
    )
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) == 20
    assert "BLEU" in answer.stderr
    assert "Pictures of 20 sentences" in answer.stderr
    assert (tmp_path / "look" / "alignment-20.png").exists()
    drawn = json.loads((tmp_path / "look" / "alignment.json").read_text())["sentences"][0]
    assert [(head["layer"], head["head"]) for head in drawn["heads"]] == [(0, 1), (0, 3)]
    assert "".join(drawn["target"]) == lines[0] + "<eos>"
    for row in drawn["heads"][0]["weights"]:
        assert sum(row) == pytest.approx(1.0, abs=2e-3)
        assert len(row) == len(drawn["source"])
    document = json.loads(
        run("translate", model(trained), "--input", text / "test.en", "--json", cwd=trained).stdout
    )
    assert [one["translation"] for one in document["sentences"]] == lines
    test = ("--input", text / "test.en")
    greedy = run("translate", model(trained), *test, "--beams", "1", cwd=trained)
    assert len(greedy.stdout.splitlines()) == 20


def test_eval_reads_bleu(trained: Path) -> None:
    answer = run("eval", model(trained), "--lengths", "32", "--json", cwd=trained)
    assert answer.returncode == 0, answer.stderr
    (row,) = json.loads(answer.stdout)["rows"]
    results = json.loads((report(trained) / "results.json").read_text())
    (mean,) = (r["mean"] for r in results["rows"] if (r["method"], r["n"]) == ("learned", 32))
    assert row["BLEU"] == pytest.approx(mean)
    assert row["asked"] == 20


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (b"open the file\n\n", [], "lines, line 2: expected a sentence, got an empty line"),
        (b"open \xff\n", [], "lines, line 1"),
        (b"the " * 80 + b"\n", [], "line 1: expected a sentence of at most 64 tokens"),
        (b"", [], "lines: expected lines to translate, got none"),
        (b"open\n", ["--heads", "1.1"], "--heads needs --show"),
        (b"open\n", ["--show", "s", "--heads", "2.1"], "--heads: expected LAYER.HEAD from 1.1 to"),
        (b"open\n", ["--reference", "nowhere"], "--reference: nowhere cannot be read"),
        (b"open\nclose\n", ["--reference", "one"], "--reference: expected 2 lines"),
        (b"open\n", ["--beams", "0"], "--beams: expected an integer from 1 to 64, got 0"),
    ],
)
def test_bad_lines_are_named(
    text: bytes, options: list[str], said: str, trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(text)
    (trained / "one").write_text("eins\n")
    input_ = ("--input", tmp_path / "lines")
    answer = run("translate", model(trained), *input_, *options, cwd=trained)
    assert answer.returncode == 2
    assert said in answer.stderr


def test_a_model_of_another_task_does_not_translate(tmp_path: Path) -> None:
    run("train", "copy", "train.steps=1", "--folder", "run", "--quiet", cwd=tmp_path)
    (tmp_path / "lines").write_text("open\n")
    answer = run("translate", "run", "--input", "lines", cwd=tmp_path)
    assert answer.returncode == 2
    assert "expected a model of translation, it was trained on copy" in answer.stderr


def test_heads_of_an_encoder_decoder_are_no_decoders(trained: Path) -> None:
    answer = run("eval", model(trained), "--lengths", "32", "--heads", "h", cwd=trained)
    assert answer.returncode == 2
    assert "--heads: expected a decoder" in answer.stderr
