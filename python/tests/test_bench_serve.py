"""``tsallis bench serve`` without vLLM: rows and ratios, the figure, mistakes. python/tests_vllm
runs it with vLLM."""

import json
import subprocess
import sys

import pytest

from tsallis.bench import serve, serve_figure
from tsallis.bench.__main__ import main


def rounds(*pairs):
    return [{"prompt_s": prompt, "step_s": step} for prompt, step in pairs]


def test_rows_are_medians_and_their_ratios_are_of_rounds():
    found = serve.rows_of(
        {"prompt": 100, "streams": 2},
        {
            "vllm": rounds((2.0, 0.1), (4.0, 0.2), (40.0, 0.2)),
            "screened": rounds((1.0, 0.1), (2.0, 0.1), (4.0, 0.1)),
        },
    )
    assert [row["series"] for row in found] == ["vllm", "screened"]
    assert found[0]["read_per_s"] == 50
    assert found[0]["written_per_s"] == 10
    assert found[1]["read_per_s"] == 100
    assert found[1]["written_per_s"] == 20
    assert found[1]["read_ratio"] == 2  # of 2, 2 and 10
    assert found[1]["written_ratio"] == 2  # of 1, 2 and 2
    alone = serve.rows_of({"prompt": 100, "streams": 2}, {"pages": rounds((2.0, 0.1))})
    assert alone[0]["read_ratio"] is None


def test_the_figure_has_a_line_for_each_series_and_number_of_streams(tmp_path):
    rows = []
    for prompt in (100, 2000):
        for streams in (1, 8):
            case = {"prompt": prompt, "streams": streams}
            rows += serve.rows_of(case, {name: rounds((1.0, 0.1)) for name in serve.SERIES})
    source = tmp_path / "serve.json"
    source.write_text(json.dumps({"rows": rows}))
    serve_figure.write(source, source)
    text = source.with_suffix(".svg").read_text()
    for label, _, _ in serve_figure.SERIES.values():
        assert f"{label}, 1 stream<" in text
        assert f"{label}, 8 streams<" in text
    assert "2 000" in text
    assert source.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "1,x"], "--prompts: expected positive integers, got 1,x"),
        (["--streams", "0"], "--streams: expected positive integers, got 0"),
        (["--tokens", "1"], "--tokens: expected 2 or more, got 1"),
        (["--repeat", "0"], "--repeat"),
        (
            ["--converted", "nowhere"],
            "--converted: expected a folder with config.json, got nowhere",
        ),
        ([], "--python: expected one that has vLLM, got"),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, capsys, arguments, message):
    (tmp_path / "config.json").write_text("{}")
    python = tmp_path / "python"  # one without vLLM, whatever the tests run in
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    assert subprocess.run([python, "-c", "import vllm"], capture_output=True).returncode != 0
    common = ["--model", str(tmp_path), "--python", str(python), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["tsallis bench", "serve", *common, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_engine_that_ends_is_named_with_the_end_of_its_log(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text(
        json.dumps({"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1})
    )
    python = tmp_path / "python"  # says that it has vLLM, and fails
    python.write_text('#!/bin/sh\ntest "$1" = -c && exit 0\necho "no memory" >&2\nexit 1\n')
    python.chmod(0o755)
    common = ["--model", str(tmp_path), "--python", str(python), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["tsallis bench", "serve", "--quick", *common])
    assert main() == 1
    error = capsys.readouterr().err
    assert "the engine ended" in error
    assert "no memory" in error
