"""``tsallis convert``: a softmax model becomes an entmax model, and a page says at which price."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_llama import write_llama
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tsallis.bench.cases import trained_cases
from tsallis.integrations.transformers import TsallisCache
from tsallis_convert import ConvertError, lengths, measure, report
from tsallis_convert.methods import rope, with_rope
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


HELD = 256  # tokens that the models of the tests below hold


def read_with(made: Path, map_name: str) -> tuple[LlamaForCausalLM, Any]:
    """The small model and its tokenizer."""
    model = measure.load(measure.Reading("small", made / "model", map_name), 1.5)
    model.config.max_position_embeddings = HELD
    return model, AutoTokenizer.from_pretrained(made / "model")


def held_out(made: Path, longest: int) -> torch.Tensor:
    tokens = corpus_of(str(made / "corpus"), made / "model", made).train
    return torch.from_numpy(tokens[: 2 * longest].astype("int64")).view(2, longest)


def test_losses_are_of_the_same_tokens_whatever_stands_before_them(made):
    (model, _), documents = read_with(made, measure.ENTMAX), held_out(made, 600)
    found = lengths.losses(model, documents, [128, HELD, 600], targets=32)
    assert {kind: list(by) for kind, by in found.items()} == {
        "rope": [128, HELD, 600], "ntk": [600], "yarn": [600],
    }  # fmt: skip
    for kind, by in found.items():
        for length, values in by.items():
            with torch.no_grad(), with_rope(model, rope(model.config, kind, length)):
                logits = model(documents[:, -length:]).logits[:, -33:-1]
            chances = logits.log_softmax(-1).gather(-1, documents[:, -32:, None])
            torch.testing.assert_close(torch.tensor(values), -chances.mean((1, 2)))
    assert found["ntk"][600] != found["rope"][600] != found["yarn"][600]
    for wrong in (32, 601):
        with pytest.raises(ValueError, match=f"from 33 to 600 tokens, got {wrong}"):
            lengths.losses(model, documents, [wrong], targets=32)


def test_keys_stand_at_even_depths_of_a_context_of_the_asked_length(made):
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    document = held_out(made, 900)[0]
    for length, keys in ((700, 10), (900, 3)):
        drawn = [
            lengths.key_context(tokenizer, document, length, keys, np.random.default_rng(seed))
            for seed in (1, 1, 2)
        ]
        assert torch.equal(drawn[0].tokens, drawn[1].tokens)
        context = drawn[2]
        assert not torch.equal(drawn[0].tokens, context.tokens)
        asked = [len(question) + len(answer) for question, answer in context.questions]
        assert len(context.tokens) + max(asked) == length
        sentences = [tokenizer.decode(torch.cat(pair)) + ".\n" for pair in context.questions]
        assert len(set(sentences)) == keys
        sizes = [len(tokenizer(sentence).input_ids) for sentence in sentences]
        for start, size, sentence in zip(context.starts, sizes, sentences, strict=True):
            assert tokenizer.decode(context.tokens[start : start + size]) == sentence
        # The text before key i is (i + 1/2) / keys of all text.
        text = len(context.tokens) - sum(sizes)
        for i, start in enumerate(context.starts):
            assert abs(start - sum(sizes[:i]) - text * (i + 0.5) / keys) <= 0.5
    with pytest.raises(ValueError, match="length: expected room for 10 keys"):
        lengths.key_context(tokenizer, document, 300, 10, np.random.default_rng(1))


@pytest.mark.parametrize("map_name", [measure.SOFTMAX, measure.ENTMAX])
def test_a_question_behind_a_fork_is_that_of_one_pass(made, map_name):
    model, tokenizer = read_with(made, map_name)
    context = lengths.key_context(
        tokenizer, held_out(made, 700)[0], 700, 10, np.random.default_rng(1)
    )
    read = TsallisCache(model.config)
    with torch.no_grad(), with_rope(model, rope(model.config, "ntk", 700)):
        model(context.tokens[None], past_key_values=read)
        for question, answer in context.questions:
            ids = torch.cat((context.tokens, question, answer))
            whole = model(ids[None], use_cache=False).logits[0, -len(answer) - 1 : -1]
            found = lengths.answer_logits(model, read, question, answer)
            torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    assert read.get_seq_length() == len(context.tokens)


def test_keys_are_found_where_the_answer_is_the_most_likely(made, monkeypatch):
    model, tokenizer = read_with(made, measure.SOFTMAX)
    documents = held_out(made, 700)
    found = lengths.pass_keys(model, tokenizer, documents, [500, 700], 20, keys=5, kinds=("rope",))
    assert found["rope"][500] == {"found": 0, "asked": 20, "depths": [0] * 5}
    asked = []

    def knows_every_second_key(model, read, question, answer):
        asked.append((read.get_seq_length(), answer))
        logits = torch.nn.functional.one_hot(answer, 300).float()
        return logits if len(asked) % 5 in (1, 3) else logits.roll(1, -1)

    monkeypatch.setattr(lengths, "answer_logits", knows_every_second_key)
    found = lengths.pass_keys(model, tokenizer, documents, [500, 700], 20, keys=5)
    assert found["rope"][700] == {"found": 8, "asked": 20, "depths": [4, 0, 4, 0, 0]}
    assert {kind: list(by) for kind, by in found.items()} == {
        "rope": [500, 700], "ntk": [500, 700], "yarn": [500, 700],
    }  # fmt: skip
    # The same keys at every length and with every kind of positions.
    for first, again in zip(asked[:20], asked[-20:], strict=True):
        assert torch.equal(first[1], again[1])
        assert 0 < again[0] - first[0] == 200
    with pytest.raises(ValueError, match="count: expected a multiple of 10, got 15"):
        lengths.pass_keys(model, tokenizer, documents, [500], 15)


def test_tables_and_the_figure_of_lengths(tmp_path):
    keys = {"found": 5, "asked": 10, "depths": [1] * 5 + [0] * 5}
    ruler = {"ruler_vt": [1.0, 0.5], "ruler_cwe": [0.25, 0.25]}
    results = {
        "softmax": {
            "losses": {"rope": {1024: [2.0, 3.0], 2048: [8.0, 9.0]}, "ntk": {2048: [2.5, 3.5]}},
            "keys": {"rope": {1024: keys}},
            "ruler": {"rope": {1024: ruler}},
        },
        "entmax": {"losses": {"rope": {1024: [2.25, 3.25]}}},
    }
    lines = lengths.tables(results, report.LOOKS)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    assert ["method", "positions", "1024", "2048"] in cells
    assert ["softmax", "its own", "2.500", "8.500"] in cells
    assert ["softmax", "NTK", "", "3.000"] in cells
    assert ["entmax, α = 1.5, softened", "its own", "2.750", ""] in cells
    # Wilson's interval of 5 in 10, as tables have it.
    assert ["softmax", "its own", "50 (24 to 76)"] in cells
    assert ["softmax", "its own", "ruler_vt", "75"] in cells
    assert ["softmax", "its own", "mean", "50"] in cells
    lengths.draw(results, report.LOOKS, tmp_path / "lengths")
    pictures = [(tmp_path / f"lengths.{kind}").read_bytes() for kind in ("svg", "png")]
    # The same out of the file that results are kept in.
    kept = json.loads(json.dumps(results))
    assert lengths.tables(kept, report.LOOKS) == lines
    lengths.draw(kept, report.LOOKS, tmp_path / "lengths")
    assert pictures == [(tmp_path / f"lengths.{kind}").read_bytes() for kind in ("svg", "png")]
    assert lengths.tables({"entmax": {}}, report.LOOKS) == []
    with pytest.raises(ValueError, match="results: expected losses or keys"):
        lengths.draw({"entmax": {}}, report.LOOKS, tmp_path / "lengths")


@pytest.mark.slow
def test_ruler_is_that_of_lm_eval(made):
    pytest.importorskip("lm_eval", reason="RULER takes lm-eval, which `make` does not install")
    model, tokenizer = read_with(made, measure.ENTMAX)
    folder = str(made / "model")
    tasks = ("niah_single_1", "ruler_cwe")
    found = lengths.ruler(model, tokenizer, [2048], 2, tasks, kinds=("rope",))
    assert found == {"rope": {2048: {task: [0.0, 0.0] for task in tasks}}}
    for task in tasks:
        samples = lengths.ruler_samples(folder, task, 2048, 2)
        again = lengths.ruler_samples.__wrapped__(folder, task, 2048, 2)
        assert [s.prompt for s in samples] == [s.prompt for s in again]
        for sample in samples:
            size = len(tokenizer(sample.prompt).input_ids)
            assert 1024 < size + sample.most <= 2048
    sample = lengths.ruler_samples(folder, "niah_single_1", 2048, 2)[0]
    (number,) = re.findall(r" is: (\d{7})\.", sample.prompt)
    assert sample.score(f" {number}.") == 1.0
    assert sample.score(f" {int(number) + 1}.") == 0.0
    with pytest.raises(ValueError, match="lengths: expected from 1024 to"):
        lengths.ruler(model, tokenizer, [512], 2)


def test_the_lack_of_lm_eval_is_named(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ConvertError, match=r"RULER: needs .* pip install 'lm-eval\[ruler\]"):
        lengths.ruler_samples(str(made / "model"), "ruler_vt", 1024, 1)
