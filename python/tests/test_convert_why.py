"""Measures of why a model holds when its context grows."""

import json
import math

import numpy as np
import pytest
import torch
from small_llama import write_llama
from transformers import AutoTokenizer

from tsallis.integrations import transformers as tsallis_transformers
from tsallis_convert import measure, why

TEXTS = [f"{i} times {j} is {i * j}. What is the pass key?\n" for i in range(30) for j in range(9)]
READINGS = ("softmax", "entmax", "learned")
LENGTHS = (120, 200)


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # Wider weights than a model starts with, for scores that tell keys apart.
    return write_llama(tmp_path_factory.mktemp("why"), TEXTS, initializer_range=0.4)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def document(tokenizer):
    return torch.tensor(tokenizer("".join(TEXTS[:60]))["input_ids"])


@pytest.fixture(scope="module")
def models(folder):
    made = {}
    for name in READINGS:
        map_name = "tsallis_softmax" if name == "softmax" else "tsallis_entmax"
        made[name] = measure.load(folder, map_name, 1.5)
    made["entmax"].config.tsallis_alpha = [[1.5, 1.2, 2.0], [1.0, 1.3, 1.7]]
    tsallis_transformers.learn_alpha(made["learned"])
    with torch.no_grad():
        for i, layer in enumerate(made["learned"].model.layers):
            layer.self_attn.tsallis_alpha.raw.add_(torch.tensor([-1.0, 0.0, 0.5 + i]))
    return made


@torch.no_grad()
def dense(model, tokens: torch.Tensor) -> torch.Tensor:
    """The weights of every head: [layers, heads, length, length]."""
    found = model(input_ids=tokens[None], output_attentions=True, use_cache=False)
    return torch.cat(found.attentions).double()


def near(expected):
    return pytest.approx(np.asarray(expected).tolist(), rel=6e-3, abs=1e-4)


@pytest.mark.parametrize("name", READINGS)
def test_entropies_are_those_of_dense_weights(models, tokenizer, name):
    model, sizes = models[name], (2, 5, 9)
    found = why.entropies(model, tokenizer, silent, sizes, prompts=2, seed=3)
    readings = {model.config._attn_implementation: found}
    if name == "softmax":
        readings["tsallis_adaptive_temperature"] = found["adaptive"]
        assert found["adaptive"]["mean"] != found["mean"]
    for attention, reading in readings.items():
        before = model.config._attn_implementation
        model.set_attn_implementation(attention)
        for i, size in enumerate(sizes):
            entropy, share, keys, nats = [], [], [], []
            for draw in range(2):
                items = np.random.default_rng((3, draw)).integers(0, 1000, 9).tolist()[:size]
                tokens = tokenizer(why.prompt(items))["input_ids"]
                entropy.append(
                    torch.special.entr(dense(model, torch.tensor(tokens))[:, :, -1]).sum(-1)
                )
                keys.append(len(tokens))
                share.append(entropy[-1] / math.log(len(tokens)))
                answer = tokenizer(f" {max(items)}")["input_ids"]
                labels = torch.tensor([[-100] * len(tokens) + answer])
                with torch.no_grad():
                    out = model(input_ids=torch.tensor([tokens + answer]), labels=labels)
                nats.append(out.loss.item())
            every = torch.stack(entropy).mean(0)
            assert reading["first_block"][i] == near(every[0])
            assert reading["mean"][i] == near(every.mean())
            assert reading["low"][i] == near(np.quantile(every, 0.25))
            assert reading["share_high"][i] == near(np.quantile(torch.stack(share).mean(0), 0.75))
            assert reading["keys"][i] == near(np.mean(keys))
            assert reading["answer"][i] == near(np.mean(nats))
        model.set_attn_implementation(before)


@pytest.mark.parametrize("name", READINGS)
def test_heads_are_those_of_dense_weights_of_each_length(models, document, name):
    model = models[name]
    found = why.heads_by_length(model, document, LENGTHS, silent, rows=7)
    for i, length in enumerate(LENGTHS):
        p = dense(model, document[:length])[:, :, -7:]
        # Softmax, and entmax with alpha 1 in a head, give every key a weight.
        least = torch.full((2, 3, 1, 1), 0.01 if name == "softmax" else 0.0)
        least[1, 0] = 0.0 if name == "learned" else 0.01
        kept = (p > least).sum(-1)
        back = torch.arange(length - 7, length)[:, None] - torch.arange(length)
        expected = {
            "kept": kept,
            "strong": (p > 0.01).sum(-1),
            "entropy": torch.special.entr(p).sum(-1),
            "first": p[..., 0],
            "first_four": p[..., :4].sum(-1),
            "distance": (p * back).sum(-1),
        }
        for key, values in expected.items():
            assert found[key][i] == near(values.double().mean((1, 2))), key
    # A key with a weight never lies beyond the gap.
    assert (np.array(found["near"]) >= np.array(found["kept"])).all()


def test_keys_of_a_row_made_by_hand():
    row = torch.tensor([[[-0.5, 0.0, -1.9, -2.0, -2.5, -math.inf]]])
    two = row.expand(2, 1, 6)
    found = why._row_means(two, {"map": "entmax", "alpha": torch.tensor([1.5, 2.0])}, 4)
    # Two keys have a weight in both heads; with alpha 2 these are 1/4 and 3/4, on the first and the
    # second. Within 2 of the largest there are four, within 1 two.
    assert (found["kept"], found["near"]) == (2, 3)
    sparse = why._row_means(row, {"map": "entmax", "alpha": 2.0}, 4)
    assert (sparse["first"], sparse["near"]) == (pytest.approx(0.25), 2)
    assert sparse["distance"] == pytest.approx(0.25 * 4 + 0.75 * 3)
    dense_row = torch.tensor([[[0.0, -4.6, -4.7, -9.0]]])
    soft = why._row_means(dense_row, {"map": "softmax", "alpha": 1.0}, 3)
    p = torch.softmax(dense_row[0, 0].double(), 0)
    assert (soft["near"], soft["kept"]) == (2, 1)
    assert soft["first"] == pytest.approx(p[0].item(), rel=1e-5)
    assert soft["first_four"] == pytest.approx(1)


@pytest.mark.parametrize("name", READINGS)
def test_the_weight_on_a_pass_key(models, tokenizer, document, name, monkeypatch):
    model, plain, texts = models[name], why._read, []

    def read(model, tokens, look, keep):
        texts.append(tokens)
        return plain(model, tokens, look, keep)

    monkeypatch.setattr(why, "_read", read)
    found = why.needle(model, tokenizer, document, LENGTHS, silent, keys=2)
    assert [len(tokens) for tokens in texts] == [120, 120, 200, 200]
    for i in range(2):
        weights, nats = [], []
        for tokens in texts[2 * i : 2 * i + 2]:
            ends = [len(tokenizer.decode(tokens[: j + 1])) for j in range(len(tokens))]
            text = tokenizer.decode(tokens)
            key = text[-5:]
            begin = text.index(key)
            assert text.index("pass key is") > len(text) / 5
            assert text.endswith(f"What is the pass key? The pass key is {key}")
            assert begin < text.rindex(key)
            columns = [
                j for j, end in enumerate(ends) if begin < end and ([0, *ends])[j] < begin + 5
            ]
            answers = [j for j, end in enumerate(ends) if end > len(text) - 5]
            weights.append(dense(model, tokens)[:, :, answers[0] - 1, columns].sum(-1))
            labels = torch.full_like(tokens, -100)
            labels[answers] = tokens[answers]
            with torch.no_grad():
                nats.append(model(input_ids=tokens[None], labels=labels[None]).loss.item())
        mean = torch.stack(weights).mean(0)
        assert found["best"][i] == near(mean.amax(1))
        assert found["five"][i] == near(mean.flatten().topk(5).values.sum())
        layer, head, weight = found["top"][i][0]
        assert weight == near(mean[layer, head]) == near(mean.max())
        assert found["nats"][i] == near(np.mean(nats))
        assert found["found"][i] == 0  # by chance in 300^-2 cases


def made_by_hand(monkeypatch, model, scores_of_keys, factors, name="softmax"):
    """Scores of head h are factors[h] times those of keys, in a model's one pass."""
    n = len(scores_of_keys)
    q = torch.zeros(len(factors), n, 4)
    q[:, :, 0] = torch.tensor(factors)[:, None]
    k = torch.zeros(1, n, 4)
    k[0, :, 0] = scores_of_keys
    plain = {"scale": 1.0, "softcap": None, "bias": None, "sink": None, "mask": None}
    settings = plain | {"causal": True, "map": name, "alpha": 1.5}
    monkeypatch.setattr(why, "_read", lambda model, tokens, look: look(q, k, settings))
    return why.logits(model, torch.zeros(n, dtype=torch.long), silent, few=50, drawn=1)


def test_the_spread_of_rows_made_by_hand(models, monkeypatch):
    rising = torch.arange(300.0)
    found = made_by_hand(monkeypatch, models["softmax"], rising, [1.0, -0.5])
    assert found["spread"] == [near([149.5, 74.75])]
    assert found["largest"] == [299]
    exact = [2 + d / math.log(10) for d in (149.5, 224.25, 299)]
    assert found["bound"] == near(exact)
    assert found["bounded"] == 0
    # With equal scores every weight is 1 / n, below 1 % from the 101st row on.
    equal = made_by_hand(monkeypatch, models["softmax"], torch.full((300,), 2.0), [1.0])
    assert (equal["largest"], equal["bound"]) == ([0], [2, 2, 2])
    assert equal["bounded"] == near(200 / 300)
    sparse = made_by_hand(monkeypatch, models["softmax"], rising, [1.0], "entmax")
    assert (sparse["bound"], sparse["bounded"]) == (None, None)


def test_quantiles_leave_the_first_key_out(models, monkeypatch):
    keys = torch.randn(300)
    keys[0] = 1e4
    found = made_by_hand(monkeypatch, models["softmax"], keys, [1.0, 3.0])
    one = [keys[j].item() for i in range(1, 50) for j in range(1, i + 1)]
    every = np.array(one + [3 * score for score in one])
    z = (every - every.mean()) / every.std()
    assert found["moments"] == [near([every.mean(), every.std(), (z**3).mean(), (z**4).mean() - 3])]
    assert found["head_moments"][0][1] == near(
        (((one - np.mean(one)) / np.std(one)) ** 4).mean() - 3
    )
    assert found["quantiles"][0][12] == near(np.quantile(z, 0.5))  # at 0 standard deviations
    assert found["quantiles"][0][16] == near(np.quantile(z, 0.841345))  # at 1
    assert len(found["quantiles"][0]) == len(found["normal"]) == 25


@pytest.mark.parametrize("name", READINGS)
def test_scores_of_a_model_give_its_weights(models, document, name):
    """A head's spread is that of the logarithms of softmax weights."""
    model = models[name]
    found = why.logits(model, document[:90], silent, few=60)
    assert found["layers"] == [0, 1]
    assert len(found["spread"]) == len(found["moments"]) == 2
    if name == "softmax":
        logs = dense(model, document[:90]).log()
        spread = logs.amax(-1) - logs.masked_fill(logs == -math.inf, 0).amin(-1)
        assert found["spread"] == [near(layer) for layer in spread.mean(-1)]
        assert found["bound"][2] == near(2 + spread.max() / math.log(10))


def test_tables_and_figures(models, tokenizer, document, tmp_path):
    results, labels = {}, {name: (f"the {name} model", "#0072B2") for name in READINGS}
    for name, model in models.items():
        results[name] = {
            "entropies": why.entropies(model, tokenizer, silent, (2, 4, 8), prompts=1),
            "heads": why.heads_by_length(model, document, LENGTHS, silent),
            "needle": why.needle(model, tokenizer, document, LENGTHS, silent, keys=1),
            "logits": why.logits(model, document[:200], silent, few=100),
        }
    results = json.loads(json.dumps(results))
    entropy, heads, needle, scores = why.tables(results, labels)
    assert "the softmax model, adaptive temperature |" in entropy
    assert f"| {results['entmax']['entropies']['mean'][0]:.2f} (" in entropy
    learned = np.mean(results["learned"]["heads"]["first"][1])
    assert f"| {learned:.3f} |" in heads
    assert needle.count("\n| the ") == 6
    assert "| - | - |" in scores
    for table in (entropy, heads, needle, scores):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
    written = why.draw(results, labels, tmp_path / "why")
    assert sorted(path.name for path in written) == [
        f"why-{name}.{kind}" for name in ("length", "scores") for kind in ("png", "svg")
    ]
    assert all(path.stat().st_size < 60_000 for path in written if path.suffix == ".svg")


def test_mistakes_are_named(models, tokenizer, document):
    model = models["softmax"]
    long = (100, len(document) + 1)
    for call in (
        lambda: why.heads_by_length(model, document, long, silent),
        lambda: why.needle(model, tokenizer, document, long, silent),
    ):
        with pytest.raises(why.WhyError, match=f"document: expected {long[1]} tokens or more"):
            call()
    with pytest.raises(why.WhyError, match=r"lengths: expected rising numbers.*\[200, 100\]"):
        why.heads_by_length(model, document, (200, 100), silent)
    with pytest.raises(why.WhyError, match=r"lengths: expected rising numbers from \d+ on"):
        why.needle(model, tokenizer, document, (20,), silent)
    with pytest.raises(why.WhyError, match="few: expected from 3 to the 40 tokens"):
        why.logits(model, document[:40], silent)
    with pytest.raises(why.WhyError, match="sizes, prompts: expected rising"):
        why.entropies(model, tokenizer, silent, (4, 2))
    settings = {"map": "adaptive_temperature", "alpha": 1.0}
    with pytest.raises(why.WhyError, match="expected softmax or entmax, got adaptive"):
        why._weights(torch.zeros(1, 1, 2), settings)
    q = torch.zeros(1, 2, 4)
    base = {"scale": None, "softcap": None, "bias": None, "sink": None, "mask": None}
    with pytest.raises(why.WhyError, match="expected attention without a sink"):
        why._scores(q, q, base | {"sink": torch.zeros(1)}, 0, 2)
    with pytest.raises(why.WhyError, match="queries that see later keys"):
        why._scores(q, q, base | {"causal": False}, 0, 2)
    model.set_attn_implementation("sdpa")
    try:
        with pytest.raises(why.WhyError, match="expected an attention of tsallis, got 'sdpa'"):
            why.logits(model, document[:600], silent)
    finally:
        model.set_attn_implementation("tsallis_softmax")
