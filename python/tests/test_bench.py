"""The attention benchmark's plumbing: every kind of case, the JSON that it writes, the figure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import attention_cases
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
