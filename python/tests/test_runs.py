"""Archives of runs: what they keep, and that neither packing nor unpacking loses a run."""

import json
import lzma
import shutil
from pathlib import Path

import pytest

from tsallis_report import runs
from tsallis_report.runs import ArchiveError, pack, read, unpack

HEADS = {
    "lengths": [
        {
            "n": 16,
            "samples": 8,
            "tables": [{"quantity": "β", "mean": [[0.1234567, None]], "std": [[2.5e-7, None]]}],
        }
    ],
    "maps": [
        {
            "n": 4,
            "layer": 0,
            "head": 0,
            "tokens": 2,
            "cell": 1,
            "thousandths": [0, 1000, 2, 503, 1, 497],
        }
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two seeds of a method, with files that an archive leaves out."""
    for seed in (1, 2):
        run = tmp_path / "copy" / "small" / "entmax" / "lr-0.001" / f"seed-{seed}"
        run.mkdir(parents=True)
        (run / "config.json").write_text('{\n  "lr": 0.001,\n  "steps": 20\n}\n')
        (run / "eval-entmax.json").write_text(
            '[{"n":16,"hits":15,"entropy":0.12345678901234567}]\n'
        )
        (run / "heads-entmax.json").write_text(json.dumps(HEADS))
        (run / "metrics.jsonl").write_text(
            '{"step": 10, "loss": 0.987654321, "seconds": 1.5}\n'
            '{"step": 10, "validation": {"64": 49.4321}, "seconds": 1.6}\n'
            '{"step": 20, "observed": {"spread": 109.8261}, "seconds": 2.5}\n'
        )
        (run / "model.safetensors").write_bytes(b"weights")
        (run / "lock").write_text("")
        (run / "step-20").mkdir()
        (run / "step-20" / "state.safetensors").write_bytes(b"state")
    return tmp_path / "copy" / "small"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != runs._STAMP
    }


def test_settings_and_scores_are_kept_to_the_byte(folder):
    before = contents(folder)
    kept = read(pack(folder))
    assert len(kept) == 8
    for name, text in kept.items():
        if name.endswith(("config.json", "eval-entmax.json")):
            assert text.encode() == before[name]


def test_the_rest_is_kept_as_exactly_as_pages_show_it(folder):
    kept = read(pack(folder))
    heads = json.loads(kept["entmax/lr-0.001/seed-1/heads-entmax.json"])
    assert heads["lengths"][0]["tables"][0]["mean"] == [[0.123, None]]
    assert heads["lengths"][0]["tables"][0]["std"] == [[2.5e-7, None]]
    entries = heads["maps"][0]["thousandths"]
    assert entries[::2] == [0, 2, 1]
    assert entries[1::2] == pytest.approx([1000, 503, 497], abs=43)  # a step of the colours
    lines = [json.loads(line) for line in kept["entmax/lr-0.001/seed-2/metrics.jsonl"].splitlines()]
    assert lines[0] == {"step": 10, "loss": 0.9877}
    assert lines[1] == {"step": 10, "validation": {"64": 49.4321}}  # by which rates were chosen
    assert lines[2] == {"step": 20, "observed": {"spread": 109.8261}, "seconds": 2.5}


def test_the_same_runs_make_the_same_bytes(folder, tmp_path):
    archive = pack(folder)
    first = archive.read_bytes()
    other = tmp_path / "elsewhere" / archive.name
    other.parent.mkdir()
    shutil.copy(archive, other)
    assert pack(unpack(other)).read_bytes() == first
    assert pack(folder).read_bytes() == first


def test_unpacking_lays_out_what_is_missing_and_nothing_twice(folder, tmp_path):
    archive = pack(folder)
    other = tmp_path / "elsewhere" / archive.name
    other.parent.mkdir()
    shutil.copy(archive, other)
    laid = unpack(other)
    assert {name: text.encode() for name, text in read(archive).items()} == contents(laid)
    own = laid / "entmax" / "lr-0.001" / "seed-3" / "config.json"
    own.parent.mkdir()
    own.write_text("{}")
    scores = laid / "entmax" / "lr-0.001" / "seed-1" / "eval-entmax.json"
    stamp = scores.stat().st_mtime_ns
    unpack(other)  # agrees already
    assert own.exists()
    assert scores.stat().st_mtime_ns == stamp
    pack(laid)
    assert "entmax/lr-0.001/seed-3/config.json" in read(other)


def test_a_newer_archive_replaces_what_an_older_one_laid_out(folder, tmp_path):
    archive = pack(folder)
    other = tmp_path / "elsewhere" / archive.name
    other.parent.mkdir()
    shutil.copy(archive, other)
    laid = unpack(other)
    (folder / "entmax" / "lr-0.001" / "seed-1" / "eval-entmax.json").write_text("[]\n")
    shutil.copy(pack(folder), other)
    unpack(other)
    assert (laid / "entmax" / "lr-0.001" / "seed-1" / "eval-entmax.json").read_text() == "[]\n"


def test_runs_of_ones_own_are_not_overwritten(folder):
    archive = pack(folder)
    (folder / runs._STAMP).unlink()
    (folder / "entmax" / "lr-0.001" / "seed-1" / "eval-entmax.json").write_text("[]\n")
    with pytest.raises(ArchiveError, match=r"eval-entmax\.json: differs from the one in"):
        unpack(archive)


def test_packing_less_than_there_was_is_refused(folder):
    archive = pack(folder)
    before = archive.read_bytes()
    shutil.rmtree(folder / "entmax" / "lr-0.001" / "seed-2")
    with pytest.raises(ArchiveError, match=r"lacks entmax/lr-0\.001/seed-2/"):
        pack(folder)
    assert archive.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no archive", lzma.compress(b"no tar")])
def test_a_damaged_archive_is_named(tmp_path, content, capsys):
    archive = tmp_path / "small.tar.xz"
    archive.write_bytes(content)
    assert runs.main(["unpack", str(tmp_path)]) == 1
    assert f"{archive}: not an archive of runs, or damaged" in capsys.readouterr().err


def test_what_is_not_there_is_named(tmp_path, capsys):
    assert runs.main(["unpack", str(tmp_path / "none")]) == 1
    assert f"{tmp_path / 'none'}: not there" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert runs.main(["pack", str(tmp_path / "empty")]) == 1
    assert "expected folders of runs with a config.json each" in capsys.readouterr().err
