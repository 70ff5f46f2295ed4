"""``tsallis convert``: a softmax model becomes an entmax model, and a page says at which price."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_llama import write_llama
from transformers import LlamaConfig, LlamaForCausalLM

from tsallis.bench.cases import trained_cases
from tsallis_convert import report
from tsallis_convert.tokens import Corpus, TokensError, corpus_of
from tsallis_convert.train import Plan, Run, TrainError, soften, softening

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [f"{i} times {j} is {i * j}.\n" * 12 for i in range(30) for j in range(9)]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A small Llama with its tokenizer in model/, and a corpus in its tokens in corpus/."""
    folder = tmp_path_factory.mktemp("convert")
    write_llama(folder / "model", TEXTS)
    (folder / "texts").mkdir()
    for i, text in enumerate(TEXTS):
        (folder / "texts" / f"{i}.txt").write_text(text)
    prepare = ["data", "prepare", "sums", "--from", "texts", "--folder", "corpus", "--quiet"]
    with_tokenizer = ["--tokenizer", "model/tokenizer.json"]
    subprocess.run(
        [ROOT / "build" / "bin" / "tsallis", *prepare, *with_tokenizer], cwd=folder, check=True
    )
    return folder


def convert(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tsallis_convert", "model", "--corpus", "corpus"]
    options = ["--length", "32", "--prompt", "100", "--out", "out", "--threads", "1", "--quiet"]
    return subprocess.run(
        [*command, *options, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_every_method_and_its_page(made):
    methods = ("--methods", "entmax,softmax,learned,annealed", "--tokens", "640", "--rate", "1e-3")
    done = convert(made, *methods, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads((made / "out" / "results.json").read_text())
    assert json.loads(done.stdout) == results
    assert set(results["runs"]) == {"entmax", "softmax", "learned", "annealed"}
    for name, run in results["runs"].items():
        assert len(run["losses"]) == 20
        assert sum(run["losses"][-5:]) < sum(run["losses"][:5])
        assert len(run["heads"]["share"]) == 2
        assert all(0.0 < share <= 1.0 for share in run["heads"]["share"])
        assert name != "softmax" or run["heads"]["share"] == [1.0, 1.0]
    page = (made / "out" / "report.md").read_text()
    for name in ("softmax", "learned"):
        loss = sum(results["runs"][name]["loss"]) / 16
        assert f"**{loss:.3f}**" in page
    assert (made / "out" / "convert.png").stat().st_size > 10_000
    # The inputs of attention are kept, with the numbers that it takes to read them: here attention
    # again.
    for name, map_name in (("softmax", "softmax"), ("learned", "entmax")):
        (first, second) = trained_cases(made / "out" / name / "inputs.safetensors")
        assert (first.map, first.n, first.heads, first.grouped) == (map_name, 100, 3, True)
        assert (second.alpha is None) == (name == "softmax")
        assert not torch.equal(first.inputs[0], second.inputs[0])
    # The model names its map, and alphas by layers and heads; entmax also in its architecture.
    for name in results["runs"]:
        config = json.loads((made / "out" / name / "model" / "config.json").read_text())
        sparse = name != "softmax"
        assert config["tsallis_map"] == ("entmax" if sparse else "softmax")
        assert config["architectures"] == ["Tsallis" * sparse + "LlamaForCausalLM"]
        assert "tsallis_learned_alpha" not in config
        alpha = config.get("tsallis_alpha")
        if name == "learned":
            assert [len(layer) for layer in alpha] == [3, 3]
            assert len({number for layer in alpha for number in layer}) > 1
        else:
            assert alpha == (1.5 if sparse else None)
    # Once more: nothing is trained again.
    stamp = (made / "out" / "entmax" / "model" / "config.json").stat().st_mtime_ns
    assert convert(made, *methods).returncode == 0
    assert (made / "out" / "entmax" / "model" / "config.json").stat().st_mtime_ns == stamp
    other = convert(made, "--methods", "entmax", "--tokens", "96")
    assert other.returncode == 2
    assert "expected a run with tokens = 96, got one with 640" in other.stderr


def test_the_committed_page_is_that_of_its_data():
    folder = ROOT / "results" / "convert" / "smollm2"
    assert (
        report.markdown(json.loads((folder / "results.json").read_text()))
        == (folder / "report.md").read_text()
    )


def test_an_interrupted_run_goes_on_to_the_same_bits(made):
    corpus = corpus_of(str(made / "corpus"), made / "model", made)
    plan = Plan("learned", "corpus", 6 * 32, length=32, rate=1e-3)
    weights = []
    for name, stops in (("whole", ()), ("parts", (2, 4))):
        run = Run(made / name, made / "model", plan, 1)
        run.begin()
        for stop in (*stops, None):
            steps = 0

            def say(_: str, stop: int | None = stop) -> None:
                nonlocal steps
                steps += 1
                if stop is not None and steps == 2:
                    raise KeyboardInterrupt

            if stop is None:
                run.train(corpus, say)
            else:
                with pytest.raises(KeyboardInterrupt):
                    run.train(corpus, say)
        assert run.finished
        weights.append((made / name / "model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_an_interruption_in_the_middle_of_a_step_waits_for_its_end(made, monkeypatch):
    corpus = corpus_of(str(made / "corpus"), made / "model", made)
    plan = Plan("entmax", "corpus", 4 * 32, length=32, rate=1e-3)
    whole = Run(made / "undisturbed", made / "model", plan, 1)
    whole.begin()
    whole.train(corpus, lambda _: None)
    plain, steps = torch.optim.AdamW.step, []

    def step(self, closure=None):
        found = plain(self, closure)
        steps.append(1)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return found

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    run = Run(made / "disturbed", made / "model", plan, 1)
    run.begin()
    with pytest.raises(KeyboardInterrupt):
        run.train(corpus, lambda _: None)
    run.train(corpus, lambda _: None)
    assert len(steps) == 4
    first, second = (r.model / "model.safetensors" for r in (whole, run))
    assert first.read_bytes() == second.read_bytes()


def test_softened_queries_bring_entmax_near_softmax():
    assert softening(1.5) == pytest.approx(0.5)
    assert softening(1.0) == 1.0
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    before = model.model.layers[0].self_attn.q_proj.weight.clone()
    soften(model, 0.5)
    assert torch.equal(model.model.layers[0].self_attn.q_proj.weight, before / 2)
    with pytest.raises(TrainError, match="expected attention modules, got none"):
        soften(torch.nn.Linear(2, 2), 0.5)


def test_mistakes_are_named(made):
    short = corpus_of(str(made / "corpus"), made / "model", made)
    with pytest.raises(TokensError, match="tokens to train on, got"):
        short.batch(10**9, 1, 1, 0)
    with pytest.raises(TokensError, match="tokens to validate with, got"):
        Corpus("x", short.train, short.validation[:10], short.test).held_out(8, 2)
    unknown = convert(made, "--corpus", "no-such-corpus")
    assert unknown.returncode == 2
    assert '--corpus: tsallis: unknown corpus "no-such-corpus"' in unknown.stderr
