"""Pictures of where translations look in their sources."""

import json
from pathlib import Path

import pytest

from tsallis_report import alignment


def sentence(heads: int = 2) -> dict[str, object]:
    return {
        "source": ["<bos>", "open", " file"],
        "target": ["Datei", " öffnen", "<eos>"],
        "heads": [
            {
                "layer": 0,
                "head": h,
                "alpha": 1.5 if h else None,
                "weights": [[0.0, 0.25, 0.75], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]],
            }
            for h in range(heads)
        ],
    }


def test_every_sentence_has_a_picture(tmp_path: Path) -> None:
    document = {"sentences": [sentence(), sentence(4)]}
    (tmp_path / "alignment.json").write_text(json.dumps(document))
    assert alignment.main([str(tmp_path)]) == 0
    for number in (1, 2):
        assert (tmp_path / f"alignment-{number}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (tmp_path / f"alignment-{number}.svg").read_text()


def test_heads_are_named_and_weights_are_as_given() -> None:
    figure = alignment.plot_alignment(sentence())
    first, second = figure.axes[:2]
    assert first.get_title() == "Layer 1, head 1"
    assert second.get_title() == "Layer 1, head 2, α = 1.50"
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["Datei", " öffnen", "<eos>"]
    assert first.images[0].get_array()[0, 2] == 0.75


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not JSON"), ("{}", "KeyError"), ('{"sentences": [{"heads": []}]}', "KeyError")],
)
def test_what_is_no_alignment_is_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "alignment.json").write_text(text)
    assert alignment.main([str(tmp_path)]) == 1
    assert said in capsys.readouterr().err
