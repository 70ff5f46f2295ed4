"""What is kept of the committed studies: enough to draw everything again, and no more."""

import re
import subprocess
from pathlib import Path

import pytest

from tsallis_report.data import load
from tsallis_report.markdown import markdown

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
    # Some 0.1 MB for the runs of a method, 257 methods over all studies.
    assert sum(sizes.values()) <= 28.5 * MEGABYTE
    assert {path: size for path, size in sizes.items() if size > 0.4 * MEGABYTE} == {}


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
