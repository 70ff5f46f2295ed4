"""The example and the benchmark, on a small model with random weights."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tsallis.integrations import transformers as tsallis_transformers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A softmax and an entmax model of SmolLM2's tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = AutoTokenizer.from_pretrained(os.environ["TSALLIS_TEST_MODEL"])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    tsallis_transformers.register()
    for name in ("softmax", "entmax15"):
        model.set_attn_implementation(f"tsallis_{name}")
        tsallis_transformers.export(model, folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def run(*command, cwd):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, *map(str, command)]
    answer = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1800
    )
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return answer.stdout


def test_the_example(models, tmp_path):
    sizes = ("--tokens", 1000, "--answer", 8, "--port", 18765)
    text = run(ROOT / "examples" / "serve.py", "--model", models / "entmax15", *sizes, cwd=tmp_path)
    assert re.search(r"\d+ tokens a second read, [\d.]+ written", text)
    (kept,) = re.findall(r"a head kept ([\d.]+) of 1000 keys", text)
    assert 1 < float(kept) < 1000
    assert "tsallis: attention is entmax, alpha 1.5" in (tmp_path / "serve.log").read_text()


def test_the_benchmark(models, tmp_path):
    folders = ("--model", models / "softmax", "--converted", models / "entmax15")
    run("-m", "tsallis.bench", "serve", "--quick", *folders, "--out", tmp_path, cwd=tmp_path)
    found = json.loads((tmp_path / "serve.json").read_text())
    series = ("vllm", "screened", "pages", "softmax")
    assert [(row["series"], row["streams"]) for row in found["rows"]] == [
        (name, streams) for streams in (1, 2) for name in series
    ]
    for row in found["rows"]:
        assert row["read_per_s"] > 0
        assert row["written_per_s"] > 0
        assert row["series"] != "vllm" or row["written_ratio"] == 1
    logs = {name: (tmp_path / f"serve-{name}.log").read_text() for name in series}
    assert "tsallis: " not in logs["vllm"]
    for name, shown in (
        ("screened", "entmax, alpha 1.5, screened by bytes"),
        ("pages", "entmax, alpha 1.5, unscreened"),
        ("softmax", "softmax"),
    ):
        assert f"tsallis: attention is {shown}" in logs[name]
