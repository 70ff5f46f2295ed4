"""The examples run, say what they promise, and are short enough to be read."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments):
    # One thread: on a busy machine tiny tensors wait for the second longer than they compute.
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "python")}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, EXAMPLES / name, *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def numbers(pattern, text):
    return [float(number) for number in re.findall(pattern, text)]


def test_every_example_is_tested_and_short():
    files = {path.name: path for path in EXAMPLES.glob("*.py")}
    source = Path(__file__).read_text()
    assert len(files) == 7
    for name, path in files.items():
        assert f'"{name}"' in source
        assert len(path.read_text().splitlines()) <= 80


@pytest.mark.slow
def test_train_copy():
    text = run("train_copy.py", "--steps", "50")
    losses = numbers(r"loss ([\d.]+)", text)
    assert len(losses) == 4  # the first and the last step of softmax and of ASEntmax
    assert losses[1] < losses[0] - 0.2
    assert losses[3] < losses[2] - 0.2
    rows = re.findall(r"length +(\d+) +([\d.]+) +([\d.]+)", text)
    assert [int(row[0]) for row in rows] == [8, 16, 32, 64]
    assert all(0 <= float(share) <= 80 for row in rows for share in row[1:])


@pytest.mark.slow
def test_hugging_face():
    text = run("hugging_face.py")
    losses = numbers(r"loss ([\d.]+)", text)
    assert losses[-1] < losses[0] - 1
    shares = numbers(r"(\d+) % of the visible weights are exactly 0", text)
    assert len(shares) == 2
    assert max(shares) > 50  # sparsity is shown


@pytest.mark.slow
def test_translate():
    text = run("translate.py", "--steps", "200")
    assert "30712 -> two one seven zero three" in text
    alphas = re.findall(r"(\w+)\.layers\.\d\.\w+: alpha ([\d. ]+)", text)
    assert [stack for stack, _ in alphas] == ["encoder"] * 2 + ["decoder"] * 4
    assert len({alpha for _, row in alphas for alpha in row.split()}) > 1  # they have moved


def test_generate():
    text = run("generate.py", "--tokens", "4")
    assert "4 tokens behind 2000" in text
    (share,) = numbers(r"kept ([\d.]+) % of the keys", text)
    assert 0 < share < 100


def test_attention_map(tmp_path):
    picture = tmp_path / "map.png"
    text = run("attention_map.py", "--length", "600", "--out", str(picture))
    shares = numbers(r"([\d.]+) % of the visible", text)
    assert shares[0] > 99.9
    assert shares[0] > shares[1] > shares[2] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_learn_alpha():
    found = re.findall(r"alpha ([\d.]+) and ([\d.]+)", run("learn_alpha.py", "--steps", "60"))
    assert float(found[-1][0]) > 1.7
    assert float(found[-1][1]) < 1.3


def test_serve_names_what_it_needs():
    """python/tests_vllm runs it."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "python")}
    command = [sys.executable, EXAMPLES / "serve.py"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 2
    assert "needs vLLM and OpenAI's client (docs/guide/serving.md)" in answer.stderr
