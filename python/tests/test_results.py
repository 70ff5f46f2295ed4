"""What is kept of the committed studies: enough to draw everything again, and no more."""

import json
import re
import subprocess
import zlib
from pathlib import Path

import pytest

from tsallis_report.data import load
from tsallis_report.markdown import markdown
from tsallis_report.runs import SUFFIX, read

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1_000_000


def tracked(folder):
    command = ["git", "-C", ROOT, "ls-files", "-z", folder]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in answer.stdout.split("\0") if name]


def test_committed_results_are_small():
    sizes = {path: path.stat().st_size for path in tracked("results")}
    assert sizes
    archives = {path: size for path, size in sizes.items() if path.name.endswith(SUFFIX)}
    assert sum(archives.values()) <= 2.6 * MEGABYTE
    assert {path: size for path, size in sizes.items() if size > 0.3 * MEGABYTE} == {}


def test_a_clone_is_small():
    """What `git clone --depth 1` fetches, as git compresses it, and how many files it writes."""
    names = [path for path in tracked(".") if path.is_file() and not path.is_symlink()]
    assert len(names) <= 1100
    compressed = sum(len(zlib.compress(path.read_bytes())) for path in names)
    assert compressed <= 6.1 * MEGABYTE


def test_archives_hold_the_runs_of_every_report():
    for study in STUDIES:
        results = json.loads((ROOT / "results" / study / "results.json").read_text("utf-8"))
        archive = ROOT / "results" / "runs" / results["study"] / (results["scale"] + SUFFIX)
        scored = {name.rsplit("/", 1)[1] for name in read(archive) if "/eval-" in name}
        methods = {f"eval-{method['name']}.json" for method in results["methods"]}
        assert methods <= scored, study


def test_committed_pictures_are_shown_and_shown_pictures_are_committed():
    pictures = {path for path in tracked("results") if path.suffix in (".png", ".svg")}
    pages = [ROOT / "README.md", *tracked("docs"), *tracked("results")]
    shown = {
        (page.parent / target).resolve()
        for page in pages
        if page.suffix == ".md"
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert {path for path in shown if ROOT / "results" in path.parents} == pictures


STUDIES = sorted(path.parent.name for path in ROOT.glob("results/*/results.json"))


@pytest.mark.parametrize("study", STUDIES)
def test_committed_pages_are_those_of_their_data(study):
    folder = ROOT / "results" / study
    assert (folder / "report.md").read_text(encoding="utf-8") == markdown(load(folder))
