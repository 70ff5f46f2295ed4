"""Tiny models of transformers: logits equal eager attention with its softmax replaced."""

import contextlib
import copy
import subprocess
import sys
import warnings
from unittest import mock

import entmax as peer
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        GptOssConfig,
        GptOssForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        ModernBertConfig,
        ModernBertForMaskedLM,
    )

import tsallis
from tsallis.integrations import transformers as integration

COMMON = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
COMMON |= {"num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def llama(**more):
    config = LlamaConfig(**COMMON, num_key_value_heads=2, initializer_range=0.3, **more)
    return LlamaForCausalLM(config)


def gemma2(**more):
    settings = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5, **more}
    return Gemma2ForCausalLM(Gemma2Config(**COMMON, **settings, initializer_range=0.3))


def gpt2(**more):
    sizes = {"vocab_size": 50, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    tokens = {"bos_token_id": 1, "eos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(**sizes, **tokens, initializer_range=0.2, **more))


def modernbert(**more):
    settings = {"local_attention": 6, "global_attn_every_n_layers": 2, **more}
    settings |= {"cls_token_id": 1, "sep_token_id": 2}
    return ModernBertForMaskedLM(ModernBertConfig(**COMMON, **settings, initializer_range=0.3))


def gpt_oss(**more):
    """Has attention sinks, and every other layer a window."""
    settings = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5, **more}
    settings |= {"num_local_experts": 2, "num_experts_per_tok": 1, "initializer_range": 0.3}
    # The other implementations of experts have no float64.
    config = GptOssConfig(**COMMON, **settings, experts_implementation="eager")
    return GptOssForCausalLM(config)


MODELS = {"llama": llama, "gemma2": gemma2, "gpt2": gpt2, "modernbert": modernbert}
MODELS["gpt_oss"] = gpt_oss
CAUSAL = ["llama", "gemma2", "gpt2", "gpt_oss"]
MAPS = {
    "tsallis_entmax15": lambda s: peer.entmax_bisect(s, 1.5, n_iter=60),
    "tsallis_sparsemax": lambda s: peer.sparsemax(s, -1),
    "tsallis_softmax": lambda s: torch.softmax(s, -1),
    "tsallis_adaptive_temperature": tsallis.adaptive_temperature_softmax,
    "tsallis_entmax": lambda s: peer.entmax_bisect(s, 1.3, n_iter=60),
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    assert integration.register() == tuple(integration.NAMES)
    assert set(integration.NAMES) == set(MAPS)


def build(name, **more):
    torch.manual_seed(5)
    return MODELS[name](**more).double().eval()


@contextlib.contextmanager
def eager(model, replacement):
    """The library's eager attention with the softmax in it replaced.

    It hides keys by adding the least number there is, of which the peer makes NaN in a row that
    sees nothing.
    """

    plain = torch.nn.functional.softmax

    def softmax(scores, dim=-1, dtype=None):
        if scores.dim() != 4:  # a router of experts
            return plain(scores, dim, dtype=dtype)
        hidden = scores < -1e30
        nothing = hidden.all(-1, keepdim=True)
        p = replacement(scores.masked_fill(hidden, -torch.inf).masked_fill(nothing, 0.0))
        return p.masked_fill(nothing, 0.0)

    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with mock.patch("torch.nn.functional.softmax", softmax):
        yield
    model.set_attn_implementation(implementation)


def tokens(batch=3, length=14):
    return torch.randint(3, 50, (batch, length), generator=torch.Generator().manual_seed(2))


def padding(side, batch=3, length=14):
    kept = torch.arange(length) < torch.tensor([length, 6, 11])[:batch, None]
    return (kept if side == "right" else kept.flip(1)).long()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("implementation", "side"),
    [(m, None) for m in MAPS] + [("tsallis_entmax15", side) for side in ("right", "left")],
)
def test_logits_are_those_of_eager(name, implementation, side):
    model = build(name)
    model.config.tsallis_alpha = 1.3
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    inputs = {"input_ids": tokens()}
    if side is not None:
        inputs["attention_mask"] = padding(side)
    if name == "gpt_oss" and implementation == "tsallis_adaptive_temperature":
        with pytest.raises(ValueError, match="s_aux: expected None for adaptive temperature"):
            model(**inputs)
        return
    with torch.no_grad():
        mine = model(**inputs).logits
        with eager(model, MAPS[implementation]):
            theirs = model(**inputs).logits
    kept = inputs.get("attention_mask", torch.ones(3, 14)).bool()
    torch.testing.assert_close(mine[kept], theirs[kept], atol=1e-6, rtol=1e-6)
    assert mine.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_can_be_made_with_it(name):
    config = build(name).config
    model = type(build(name))._from_config(config, attn_implementation="tsallis_sparsemax")
    assert model.config._attn_implementation == "tsallis_sparsemax"
    assert model(tokens()).logits.isfinite().all()


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_generation_with_a_cache(name, cache):
    """Greedy tokens, step by step over a cache, are those of whole forward passes."""
    model = build(name)
    model.set_attn_implementation("tsallis_entmax15")
    prompt = tokens(length=9)
    mask = (torch.arange(9) >= torch.tensor([0, 3, 5])[:, None]).long()
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    if cache is None:
        settings["use_cache"] = False
    else:
        settings["cache_implementation"] = cache
    if cache == "static":
        settings["disable_compile"] = True
    out = model.generate(prompt, attention_mask=mask, **settings)
    with eager(model, MAPS["tsallis_entmax15"]):
        expected = model.generate(prompt, attention_mask=mask, **(settings | {"use_cache": False}))
    assert out.shape == (3, 15)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("name", MODELS)
def test_training_with_gradient_checkpointing(name):
    inputs = {"input_ids": tokens(), "attention_mask": padding("right"), "labels": tokens()}
    gradients = []
    for implementation, checkpointing in (("tsallis_entmax15", False), ("tsallis_entmax15", True)):
        model = build(name).train()
        model.set_attn_implementation(implementation)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**inputs).loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    model = build(name).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.set_attn_implementation("tsallis_entmax15")
    with eager(model, MAPS["tsallis_entmax15"]):
        model(**inputs).loss.backward()
    gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() == gradients[2].keys()
    for parameter, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][parameter])
        torch.testing.assert_close(gradient, gradients[2][parameter], atol=1e-6, rtol=1e-5)


def test_alpha_from_config_and_module():
    model = build("llama")
    model.set_attn_implementation("tsallis_entmax")
    with pytest.raises(ValueError, match="tsallis_alpha: expected in the config"):
        model(tokens())
    model.config.tsallis_alpha = [2.0, [1.1, 1.5, 1.7, 2.0]]
    with torch.no_grad():
        mine = model(tokens()).logits
    first = iter((torch.tensor([2.0] * 4), torch.tensor([1.1, 1.5, 1.7, 2.0])))
    with (
        torch.no_grad(),
        eager(
            model, lambda s: peer.entmax_bisect(s, next(first).double()[:, None, None], n_iter=60)
        ),
    ):
        theirs = model(tokens()).logits
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)
    model.config.tsallis_alpha = [1.5]
    with pytest.raises(ValueError, match="1 entries, for layer 0"):
        model(tokens())
    for layer in model.model.layers:
        layer.self_attn.tsallis_alpha = tsallis.nn.LearnedAlpha(4, dtype=torch.float64)
    model(tokens(), labels=tokens()).loss.backward()
    assert all(layer.self_attn.tsallis_alpha.raw.grad.any() for layer in model.model.layers)


def test_alphas_that_a_checkpoint_lacks_begin_at_their_start(tmp_path):
    model = build("llama")
    model.config.tsallis_learned_alpha = {
        "modules": ["LlamaAttention"],
        "heads": 4,
        "initial": 1.3,
        "low": 1.0,
        "high": 2.0,
    }
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="tsallis_entmax")
    for layer in loaded.model.layers:
        torch.testing.assert_close(layer.self_attn.tsallis_alpha().float(), torch.full((4,), 1.3))
        torch.nn.init.zeros_(layer.self_attn.tsallis_alpha.raw)
    loaded.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="tsallis_entmax")
    for layer in again.model.layers:
        torch.testing.assert_close(layer.self_attn.tsallis_alpha().float(), torch.full((4,), 1.5))


def by_hand(model, tokens, unrotated=()):
    """Logits of a Llama whose queries have factors 2 (1 + ln(1 + i) / 2), from its parts."""
    body = model.model
    hidden = body.embed_tokens(tokens)
    positions = torch.arange(tokens.shape[1])[None]
    cos, sin = body.rotary_emb(hidden, positions)
    factors = (2 * (1 + 0.5 * (1 + positions).double().log()))[0, :, None]
    for layer in body.layers:
        attention, x = layer.self_attn, layer.input_layernorm(hidden)
        q, k, v = (
            part(x).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if layer.self_attn.layer_idx not in unrotated:
            q, k = transformers.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        out = tsallis.attention(factors * q, k, v, map="entmax", alpha=1.5, causal=True)
        hidden = hidden + attention.o_proj(out.transpose(1, 2).flatten(2))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return model.lm_head(body.norm(hidden))


@pytest.mark.parametrize("kind", ["log", "sharpen"])
def test_factors_of_queries_and_layers_without_rotation(kind, tmp_path):
    plain, model = build("llama"), build("llama")
    for one in (plain, model):
        one.set_attn_implementation("tsallis_entmax15")
    integration.scale_queries(model, kind)
    torch.testing.assert_close(model(tokens()).logits, plain(tokens()).logits)
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.tsallis_query_scale.c, 2.0)
        torch.nn.init.constant_(layer.self_attn.tsallis_query_scale.b, 0.5)
    torch.testing.assert_close(model(tokens()).logits, by_hand(plain, tokens()))
    integration.unrotate(model, [1])
    wanted = by_hand(plain, tokens(), (1,))
    torch.testing.assert_close(model(tokens()).logits, wanted)
    # With a cache a query keeps its position, whichever attention reads it.
    single = copy.deepcopy(model).float()
    for read, cache, precision in (
        (model, transformers.DynamicCache(), {}),
        (single, integration.TsallisCache(model.config), {"rtol": 1e-3, "atol": 1e-3}),
    ):
        with torch.no_grad():
            read(tokens()[:, :9], past_key_values=cache)
            last = read(tokens()[:, 9:], past_key_values=cache).logits
        torch.testing.assert_close(last.double(), wanted[:, 9:], **precision)
    logits = [
        (model.set_attn_implementation(name), model(tokens()).logits)[1]
        for name in ("tsallis_softmax", "sdpa", "eager")
    ]
    torch.testing.assert_close(logits[1], logits[0])
    # The eager attention of transformers rounds its weights to float32.
    torch.testing.assert_close(logits[2], logits[0], rtol=1e-2, atol=1e-4)
    # Gradients reach the factors; a copy, and what was saved, has them.
    model.set_attn_implementation("tsallis_entmax15")
    model(tokens(), labels=tokens()).loss.backward()
    scale = model.model.layers[1].self_attn.tsallis_query_scale
    assert scale.c.grad.any()
    assert scale.b.grad.any()
    torch.testing.assert_close(copy.deepcopy(model)(tokens()).logits, wanted)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert loaded.config._attn_implementation == "tsallis_entmax15"
    torch.testing.assert_close(loaded(tokens()).logits, wanted)
    with torch.no_grad():
        scale.c.copy_(torch.tensor([0.5, 1.0, 2.0, -1.0]))
    scale.project()
    assert scale.c.tolist() == (
        [1.0, 1.0, 2.0, 1.0] if kind == "sharpen" else [0.5, 1.0, 2.0, -1.0]
    )


def test_asentmax_reads_factors_off_the_input():
    plain, model = build("llama"), build("llama")
    integration.scale_queries(model, "asentmax")
    apart = (model(tokens()).logits - plain(tokens()).logits).abs().max()
    assert 0 < apart < 0.1
    scale = model.model.layers[0].self_attn.tsallis_query_scale
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    factors = scale(x, torch.arange(6)[None])
    beta = torch.nn.functional.softplus(scale.beta(x))
    gamma = 2 * scale.gamma(x).tanh()
    wanted = 1 + beta * torch.arange(2.0, 8.0).log()[:, None] ** gamma
    torch.testing.assert_close(factors, wanted.float(), rtol=1e-5, atol=1e-5, check_dtype=False)


def test_a_saved_model_names_its_attention(tmp_path):
    model = build("llama")
    for name, came in (("tsallis_sparsemax", "tsallis_sparsemax"), ("sdpa", "sdpa")):
        model.set_attn_implementation(name)
        model.save_pretrained(tmp_path)
        assert type(model).from_pretrained(tmp_path).config._attn_implementation == came
    model.set_attn_implementation("tsallis_entmax15")
    model.save_pretrained(tmp_path)
    # Another attention, asked for by name, goes before what was saved.
    other = type(model).from_pretrained(tmp_path, attn_implementation="eager")
    assert other.config._attn_implementation == "eager"
    code = f"""import transformers
transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})"""
    alone = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert alone.returncode != 0
    assert 'Specified `attn_implementation="tsallis_entmax15"` is not supported' in alone.stderr


def test_models_whose_queries_cannot_have_factors():
    gpt = build("gpt2")
    with pytest.raises(ValueError, match="expected q_proj without a norm behind it, got GPT2Att"):
        integration.scale_queries(gpt, "log")
    assert not hasattr(gpt.config, "tsallis_query_scale")
    model = build("llama")
    with pytest.raises(ValueError, match="kind: expected one of log, sharpen, asentmax, got 'ln'"):
        integration.scale_queries(model, "ln")
    integration.scale_queries(model, "log")
    with pytest.raises(ValueError, match="kind: expected 'log', which the model has already"):
        integration.scale_queries(model, "sharpen")
    with pytest.raises(ValueError, match=r"layers: expected numbers in \[0, 2\), got 2"):
        integration.unrotate(model, [0, 2])
    attention = model.model.layers[0].self_attn
    with pytest.raises(ValueError, match="position_ids: expected in the call of LlamaAttention"):
        attention(torch.randn(1, 3, 32).double())
    integration.unrotate(model, [1])
    integration.unrotate(model, [0])
    assert model.config.tsallis_unrotated_layers == [0, 1]
    with pytest.raises(ValueError, match="position_embeddings: expected in the call of LlamaAtt"):
        attention(torch.randn(1, 3, 32).double(), position_ids=torch.arange(3)[None])


def test_what_has_to_store_weights():
    model = build("llama", attention_dropout=0.5).train()
    model.set_attn_implementation("tsallis_entmax15")
    assert not torch.equal(model(tokens()).logits, model(tokens()).logits)
    model.eval()
    assert torch.equal(model(tokens()).logits, model(tokens()).logits)
    out = model(tokens(), output_attentions=True)
    plain = model(tokens())
    torch.testing.assert_close(out.logits, plain.logits)
    assert [p.shape for p in out.attentions] == [(3, 4, 14, 14)] * 2
    sums = out.attentions[0].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert (out.attentions[0] == 0).any()
    assert not out.attentions[0].triu(1).any()
    model = build("gpt_oss")  # where a sink takes part of the sum
    model.set_attn_implementation("tsallis_entmax15")
    out = model(tokens(), output_attentions=True)
    torch.testing.assert_close(out.logits, model(tokens()).logits)
    assert (out.attentions[0].sum(-1) < 0.999).any()


def test_a_mask_of_four_dimensions():
    model = build("llama")
    model.set_attn_implementation("tsallis_entmax15")
    visible = torch.ones(14, 14, dtype=torch.bool).tril().expand(3, 1, 14, 14)
    plain = model(tokens()).logits
    torch.testing.assert_close(model(tokens(), attention_mask=visible).logits, plain)
    added = torch.zeros(3, 1, 14, 14).double().masked_fill(~visible, torch.finfo(torch.float64).min)
    torch.testing.assert_close(model(tokens(), attention_mask=added).logits, plain)


def test_what_it_cannot_do_it_says():
    function = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["tsallis_adaptive_temperature"]
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="s_aux: expected None"):
        function(torch.nn.Identity(), x, x, x, None, s_aux=torch.ones(2))
