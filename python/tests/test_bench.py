"""The benchmarks' plumbing: every kind of case, the JSON that they write, the figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import attention_cases
import step_operators
import training_figure
import training_sequences
import tsallis

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {"ours_s", "peer_s", "speedup", "roofline", "spread"}
COUNTS = {"batch", "heads", "n", "d"}
TEXTS = {"case", "map", "dtype", "pass", "peer"}


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    # Until the package has the fused kernels, its row maps stand in.
    ours = "fused" if hasattr(tsallis, "attention") else "rows"
    out, figure = folder / "attention.json", folder / "figures" / "attention"
    command = [sys.executable, ROOT / "bench" / "attention.py", "--quick", "--threads", "1"]
    command += ["--ours", ours, "--out", out, "--figure", figure]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for suffix in (".svg", ".png", ".csv"):
        assert figure.with_suffix(suffix).stat().st_size > 100
    return json.loads(out.read_text())


def test_schema(document):
    assert set(document) == {"commit", "processor", "isa", "threads", "rows"}
    assert document["threads"] == 1
    for row in document["rows"]:
        assert set(row) == TEXTS | NUMBERS | COUNTS | {"alpha", "causal"}
        assert all(isinstance(row[key], str) for key in TEXTS)
        assert all(isinstance(row[key], int) and row[key] > 0 for key in COUNTS)
        assert all(isinstance(row[key], float) and row[key] >= 0 for key in NUMBERS)
        assert row["speedup"] == pytest.approx(row["peer_s"] / row["ours_s"])


def test_every_kind_has_both_passes_and_peers(document):
    seen = {(row["case"], row["pass"], row["peer"]) for row in document["rows"]}
    cases = {case for case, _, _ in seen}
    assert len(cases) >= 15
    for case in cases:
        assert {(case, "fwd", "sdpa"), (case, "fwd+bwd", "sdpa")} <= seen
    assert any(peer == "entmax" for _, _, peer in seen)


def test_cases_are_found_by_parts_of_names_and_patterns():
    everything = attention_cases.all_cases()
    names = [case.name for case in everything]
    assert len(set(names)) == len(names)
    assert "entmax-1.5-bfloat16-n65536-d64" in names
    assert attention_cases.matching(everything, []) == everything
    assert attention_cases.matching(everything, ["no-such-case"]) == []
    chosen = attention_cases.matching(everything, ["alibi", "flat-*-d64"])
    assert {case.kind for case in chosen} == {"alibi", "flat"}


TRAINING_ROWS = [
    {"case": "T6 softmax float32", "peer": "torch", "ours_s": 1.0, "speedup": 1.2},
    {"case": "T6 asentmax float32", "peer": "torch + entmax15", "ours_s": 1.1, "speedup": 4.0},
    {"case": "T6 asentmax float32", "peer": "torch + entmax_bisect", "ours_s": 1.1, "speedup": 12},
]


def test_training_is_held_against_its_goals():
    found = training_sequences.goals(TRAINING_ROWS)
    assert [(goal["case"].split()[1], goal["value"], goal["reached"]) for goal in found] == [
        ("softmax", 1.2, False),
        ("asentmax", 4.0, False),
        ("asentmax", pytest.approx(1.1), True),  # of softmax's time, once
        ("asentmax", 12, True),
    ]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("[unknown] ([JIT] tid 25536)", "matrix products"),
        (
            "tsallis::N_AVX3::TransposeImpl (build/bin/decoder_steps)",
            "transposing gradients",
        ),
        ("tsallis::TileProducts (build/lib/libtsallis_torch.so)", "attention"),
        ("tsallis::lab::N_AVX3::AdamStepImpl (build/bin/decoder_steps)", "Adam"),
        ("clear_page_erms ([kernel.kallsyms])", "memory, from the system"),
        ("main (build/bin/decoder_steps)", step_operators.REST),
    ],
)
def test_samples_have_operators(place, name):
    assert step_operators.operator(place) == name


def test_training_figure(tmp_path):
    rows = [{**row, "tokens_per_s": 1000.0} for row in TRAINING_ROWS]
    shares = [{"case": "T6 softmax float32", "operator": "attention", "percent": 40.0}]
    for figure, operators in (("with", shares), ("without", [])):
        training_figure.draw(rows, operators, tmp_path / figure)
        assert (tmp_path / f"{figure}.svg").stat().st_size > 5000
        assert (tmp_path / f"{figure}.png").stat().st_size > 5000
