"""``tsallis bench serve`` without vLLM: rows and ratios, the figure, mistakes, peers.
python/tests_vllm runs it with vLLM."""

import argparse
import json
import subprocess
import sys

import pytest
import torch
from small_llama import write_llama, write_tokenizer

from tsallis.bench import llama, serve, serve_engine, serve_figure
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
        (["--series", "vllm"], "--python: expected one that has vllm, got"),
        (["--python", "/nowhere"], "--python: expected a Python, got /nowhere: No such file"),
        (["--prompts", "200", "--most", "100"], "--most: expected at least 200, got 100"),
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
    write_tokenizer(tmp_path, ["text"])
    common = ["--model", str(tmp_path), "--python", str(python), "--out", str(tmp_path / "out")]
    arguments = ["tsallis bench", "serve", "--quick", "--series", "vllm", *common]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 1
    error = capsys.readouterr().err
    assert "missing: vllm: the engine ended" in error
    assert "no memory" in error


def test_peers_beside_one_that_is_missing(tmp_path, monkeypatch, capsys):
    pytest.importorskip("xllamacpp")
    model = write_llama(tmp_path / "model", ["def forward(self, input):"] * 3, head_dim=32)
    monkeypatch.setattr(serve, "SERIES", serve.SERIES | {"none": serve.Series("no_such_package")})
    arguments = ["--series", "none", "llama-f16", "llama-q8", "--streams", "1,2", "--tokens", "4"]
    arguments += ["--prompts", "64,100", "--most", "150", "--repeat", "1", "--threads", "1"]
    arguments += ["--dtype", "float32", "--model", str(model), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["tsallis bench", "serve", *arguments])
    assert main() == 0
    told = capsys.readouterr()
    assert "missing: none: no Python has no_such_package" in told.err
    assert "left out: all, 100 × 2: more than --most 150 tokens" in told.err
    found = json.loads((tmp_path / "serve.json").read_text())
    assert found["missing"].keys() == {"none"}
    (left_out,) = found["left_out"]
    assert (left_out["series"], left_out["prompt"], left_out["streams"]) == ("all", 100, 2)
    assert found["engines"]["llama-q8"] == {
        "package": "xllamacpp",
        "version": pytest.importorskip("xllamacpp").__version__,
        "weights": "float32",
        "keys": "Q8_0",
        "threads": 1,
    }
    cases = [(row["prompt"], row["streams"], row["series"]) for row in found["rows"]]
    assert cases == [
        (prompt, streams, name)
        for prompt, streams in ((64, 1), (64, 2), (100, 1))
        for name in ("llama-f16", "llama-q8")
    ]
    assert all(row["read_per_s"] > 0 and row["written_per_s"] > 0 for row in found["rows"])


def test_mistral_rs(tmp_path, monkeypatch):
    pytest.importorskip("mistralrs")
    # Without head_dim, which mistral.rs does not read of a Llama.
    model = write_llama(tmp_path / "model", ["def forward(self, input):"] * 3)
    arguments = ["--series", "mistral", "--streams", "1,2", "--tokens", "8", "--prompts", "64"]
    arguments += ["--repeat", "1", "--threads", "1", "--dtype", "float32"]
    arguments += ["--model", str(model), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["tsallis bench", "serve", *arguments])
    assert main() == 0
    found = json.loads((tmp_path / "serve.json").read_text())
    assert [row["streams"] for row in found["rows"]] == [1, 2]
    assert all(row["read_per_s"] > 0 and row["written_per_s"] > 0 for row in found["rows"])


def test_the_file_of_llama_cpp_is_the_model(tmp_path):
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")
    from transformers import AutoModelForCausalLM

    # Large weights: the largest logits stand apart, and positions matter.
    folder = write_llama(tmp_path, ["text"], initializer_range=0.3, head_dim=32)
    llama.write_folder(folder, tmp_path / "model.gguf", "F32")
    server = serve_engine.llama_server(str(tmp_path / "model.gguf"), "F32", 1, 256, 1)
    prompt = [290, 5, 270, 33, 280, 281, 7, 264]
    answer = server.handle_completions(
        {"prompt": prompt, "n_predict": 6, "temperature": 0.0, "ignore_eos": True}
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        tokens = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
    # The file's words: 3 of control, 256 bytes, and a name for each other token.
    words = [bytes([i - 3]) if i < 259 else f"t{i - 259}".encode() for i in tokens[0, 8:].tolist()]
    assert answer["choices"][0]["text"] == b"".join(words).decode(errors="replace")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"expected a Llama in model\.safetensors"):
        llama.write_folder(folder, tmp_path / "model.gguf", "F32")


def test_a_series_that_would_take_too_long_is_left_out():
    engines = serve.Engines(argparse.Namespace(budget=60.0))
    engines.last = {"mistral": (2000, 2000, 5.0), "llama-q8": (2000, 2000, 10.0)}
    assert engines.slow(2000, 1) == []
    assert engines.slow(2000, 8) == ["llama-q8"]  # 80 s
    assert engines.slow(6000, 1) == ["llama-q8"]  # three times the tokens, and each three times
    assert engines.slow(8000, 1) == ["mistral", "llama-q8"]


def test_steps_are_those_in_which_every_stream_writes():
    # The second stream begins at 3, the first ends at 6.
    assert serve_engine.step([[0, 1, 2, 4, 6], [3, 5, 7, 7.5, 8]]) == 2
    with pytest.raises(RuntimeError, match="a stream ended before the last began"):
        serve_engine.step([[0, 1, 2], [3, 4]])
