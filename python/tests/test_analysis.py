"""Pages of studies without training, from ``study.json`` and ``data/``."""

import re
from pathlib import Path

import pytest
from fixtures.fake_analysis import write_fake_analysis

from tsallis_report import analysis, analysis_figures, analysis_page
from tsallis_report.__main__ import main, render
from tsallis_report.run_folder import StudyError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is not rendered."""
    write_fake_analysis(tmp_path / "fake")
    return tmp_path / "fake"


def test_every_figure_and_both_pages_are_written(folder: Path) -> None:
    written = {Path(path).relative_to(folder).as_posix() for path in render(folder)}
    figures = {f"figures/{name}.{kind}" for name in ("lines", "grid") for kind in ("svg", "png")}
    assert written == figures | {"report.html", "report.md"}
    text = (folder / "report.html").read_text()
    assert text.count("data:image/svg+xml;base64,") == 2
    assert "Softmax is twice as large." in text
    assert "Long-Context Generalization with Sparse Attention</a>, figure 2" in text
    text = re.sub(r'<a href="https://arxiv.org/abs/[\d.]+">', "", text)
    assert not re.search(r"https?://|<script|<link", text)
    assert r"value \| at 4" in (folder / "report.md").read_text()


def test_figures_are_the_same_bytes_again_and_old_ones_go(folder: Path) -> None:
    render(folder)
    first = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    (folder / "figures" / "old.png").write_bytes(b"")
    render(folder)
    assert first == {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}


def test_a_label_has_one_colour_and_softmax_is_black(folder: Path) -> None:
    study = analysis.load(folder)
    colors = analysis_figures._colors(study)
    assert list(colors) == ["softmax", "α = 2"]
    figure = analysis_figures.draw(study, study.figures[0], colors)
    lines = {line.get_color() for line in figure.axes[0].get_lines()}
    assert set(colors.values()) <= lines
    assert colors["softmax"] == "#222222"


def test_several_studies_have_one_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fake_analysis(folder.parent / "other", study="other", title="Another")
    folders = [str(folder), str(folder.parent / "other")]
    assert main([*folders, "--table", "--together", str(folder.parent)]) == 0
    text = (folder.parent / "report.html").read_text()
    assert text.count("data:image/svg+xml;base64,") == 4
    assert 'href="#other"' in text
    assert "other/figures/lines.svg" in (folder.parent / "report.md").read_text()
    shown = capsys.readouterr().out
    assert "A fake study" in shown
    assert "Another" in shown


def test_numbers_stand_beside_what_is_expected(folder: Path) -> None:
    study = analysis.load(folder)
    text = analysis_page.terminal_text(study, 80, 1)
    assert re.search(r"value \| at 4 +4 +4  arithmetic", text)
    assert "1 more" in text


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "study.json").write_text("{"), "not JSON"),
        (lambda f: (f / "study.json").write_text("{}"), "KeyError"),
        (lambda f: (f / "data" / "grid.csv").unlink(), "grid.csv"),
        (lambda f: (f / "data" / "grid.csv").write_text("x,y,z\n1,2\n"), "expected 6 rows"),
    ],
)
def test_a_damaged_folder_is_named(folder: Path, damage, said: str) -> None:
    damage(folder)
    with pytest.raises(StudyError, match=said):
        analysis.load(folder)
