"""Many architectures of transformers, small and random: right, or refused by name.

What is right is said without our code: the library's eager attention, the softmax in it replaced by
sparsemax as its definition says.
"""

import contextlib
import json
import warnings
from unittest import mock

import pytest
import torch
from safetensors import safe_open

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMaskedLM

import tsallis
from tsallis.integrations import transformers as integration

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
ABSENT = object()  # what a config does not take
MOE = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1}
MOE |= {"moe_intermediate_size": 16, "experts_implementation": "eager"}
OLD = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "num_key_value_heads": 4}
# Latent attention: sizes of its parts.
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
LATENT |= {"v_head_dim": 8, "n_routed_experts": 2, "n_group": 1, "topk_group": 1}
LATENT |= {"first_k_dense_replace": 2, "num_key_value_heads": 4}

CAUSAL = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "mixtral": MOE,
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": MOE | {"head_dim": 8},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 8},
    "gemma3_text": {"head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 8},
    "phi": {"num_key_value_heads": 4},
    "phi3": {},
    "olmo": {"num_key_value_heads": 4},
    "olmo2": {},
    "olmo3": {"sliding_window": 5},
    "smollm3": {},
    "granite": {},
    "gpt2": OLD,
    "gpt_neox": {"num_key_value_heads": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "cohere": {},
    "cohere2": {"sliding_window": 5, "head_dim": 8},
    "gpt_oss": MOE | {"head_dim": 8, "sliding_window": 5},
    "nemotron": {},
    "starcoder2": {},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "exaone4": {"sliding_window": 5},
    "stablelm": {},
    "helium": {"head_dim": 8},
    "persimmon": {"num_key_value_heads": 4},
    "ministral": {"head_dim": 8, "sliding_window": 5},
    "seed_oss": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "arcee": {},
    "ernie4_5": {},
    "biogpt": {"num_key_value_heads": 4},
    "gpt_bigcode": OLD,
}
MASKED = {
    "bert": {},
    "roberta": {},
    "electra": {"embedding_size": 32},
    "albert": {"embedding_size": 16},
    "modernbert": {"local_attention": 6, "cls_token_id": 1, "sep_token_id": 2},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "camembert": {},
    "xlm-roberta": {},
    "ernie": {},
}
# Not served by transformers' own fast attention, or not through its interface.
REFUSED = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "codegen": OLD | {"rotary_dim": 4},
    "falcon": {"num_kv_heads": 4},
    "gptj": OLD | {"rotary_dim": 4},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]},
    "xlnet": {
        "d_model": 32,
        "n_layer": 2,
        "n_head": 4,
        "d_inner": 48,
        "max_position_embeddings": ABSENT,
    },
    "longformer": {"attention_window": 4},
    "deberta": {},
    "mpnet": {},
    "roformer": {},
    "big_bird": {},
    "splinter": {},
    "nllb-moe": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1},
    "pegasus_x": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1},
    "led": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "attention_window": 4},
    "imagegpt": OLD,
}
# Refused when they run: the keys that they choose come as an argument.
CHOOSES_KEYS = {
    "deepseek_v32": LATENT | MOE | {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 8}
}


def sparsemax(scores):
    """Martins and Astudillo 2016, algorithm 1."""
    ordered = scores.sort(-1, descending=True).values
    count = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    sums = ordered.cumsum(-1)
    size = (1 + count * ordered > sums).sum(-1, keepdim=True)
    tau = (sums.gather(-1, size - 1) - 1) / size
    return (scores - tau).clamp(min=0)


@contextlib.contextmanager
def eager(model):
    """The library's eager attention with the softmax in it replaced."""
    plain = torch.nn.functional.softmax

    def softmax(scores, dim=-1, dtype=None):
        if scores.dim() != 4:  # a router of experts
            return plain(scores, dim, dtype=dtype)
        hidden = scores < -1e30
        nothing = hidden.all(-1, keepdim=True)
        p = sparsemax(scores.masked_fill(hidden, -1e9).masked_fill(nothing, 0.0))
        return p.masked_fill(hidden | nothing, 0.0)

    model.set_attn_implementation("eager")
    with mock.patch("torch.nn.functional.softmax", softmax):
        yield
    model.set_attn_implementation("tsallis_sparsemax")


@pytest.fixture(autouse=True, scope="module")
def registered():
    integration.register()


def config_of(name, more):
    settings = {key: value for key, value in (SIZES | more).items() if value != ABSENT}
    return CONFIG_MAPPING[name](**settings)


def build(kind, name, more):
    torch.manual_seed(3)
    config = config_of(name, more)
    config._attn_implementation = "tsallis_sparsemax"
    return kind.from_config(config).double().eval()


def agrees(model, tokens, mask, seen):
    """Largest difference of the logits of seen tokens from the definition's."""
    with torch.no_grad():
        ours = model(input_ids=tokens, attention_mask=mask).logits
        with eager(model):
            right = model(input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(ours[seen], right[seen], rtol=1e-6, atol=1e-6)
    return ours


def batch(side):
    tokens = torch.randint(4, 40, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    if side == "left":
        mask[1, :3] = 0
    elif side == "right":
        mask[1, -3:] = 0
    return tokens, mask


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_models(name):
    model = build(AutoModelForCausalLM, name, CAUSAL[name])
    for side in ("none", "left", "right"):
        tokens, mask = batch(side)
        agrees(model, tokens, mask, mask.bool())
    tokens, mask = batch("none")
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] - 3) % 36 + 4
    with torch.no_grad():
        before, after = (model(input_ids=t, attention_mask=mask).logits for t in (tokens, changed))
        torch.testing.assert_close(before[:, :-1], after[:, :-1], rtol=1e-9, atol=1e-9)
        settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
        cached = model.generate(tokens, use_cache=True, **settings)
        plain = model.generate(tokens, use_cache=False, **settings)
    assert cached.tolist() == plain.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_models_that_see_both_sides(name):
    model = build(AutoModelForMaskedLM, name, MASKED[name])
    for side in ("none", "left", "right"):
        tokens, mask = batch(side)
        agrees(model, tokens, mask, mask.bool())


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_would_not_use_it_are_refused_by_name(name):
    config = config_of(name, REFUSED[name])
    kind = transformers.AutoModel
    model = kind.from_config(config)
    with pytest.raises(ValueError, match=f"attn_implementation: .*{type(model).__name__}"):
        model.set_attn_implementation("tsallis_entmax15")
    config = config_of(name, REFUSED[name])
    config._attn_implementation = "tsallis_entmax15"
    with pytest.raises(ValueError, match="attn_implementation: "):
        kind.from_config(config)


@pytest.mark.parametrize("name", CHOOSES_KEYS)
def test_models_that_choose_keys_are_refused_when_they_run(name):
    model = build(AutoModelForCausalLM, name, CHOOSES_KEYS[name])
    tokens, mask = batch("none")
    with pytest.raises(ValueError, match="indices: expected None"):
        model(input_ids=tokens, attention_mask=mask)


@pytest.mark.parametrize("name", ["gemma3n_text", "gemma4_text"])
def test_layers_that_share_keys_keep_their_mask(name):
    sizes = {"head_dim": 8, "global_head_dim": 8, "sliding_window": 5, "num_kv_shared_layers": 1}
    sizes |= {"vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 8, "laurel_rank": 4}
    sizes |= {"layer_types": ["full_attention"] * 3, "num_hidden_layers": 3, "altup_num_inputs": 2}
    sizes |= {"activation_sparsity_pattern": [0.0] * 3, "intermediate_size": [48] * 3}
    if name == "gemma4_text":
        sizes["intermediate_size"] = 48
    model = build(AutoModelForCausalLM, name, sizes)
    tokens, mask = batch("none")
    with torch.no_grad():
        full = model(input_ids=tokens, attention_mask=mask).logits
        last = model(input_ids=tokens, attention_mask=mask, logits_to_keep=4).logits
    torch.testing.assert_close(last, full[:, -4:], rtol=1e-9, atol=1e-9)
    agrees(model, tokens, mask, mask.bool())


def test_learned_alphas_are_saved_with_the_model(tmp_path):
    model = build(AutoModelForCausalLM, "llama", {})
    integration.learn_alpha(model, initial=1.3)
    alphas = [part.self_attn.tsallis_alpha for part in model.model.layers]
    assert alphas[0].raw.dtype == torch.float64
    with torch.no_grad():
        for k, alpha in enumerate(alphas):
            alpha.raw.copy_(torch.tensor([0.1, -0.2, 0.3, 0.4]) * (k + 1))
    tokens, mask = batch("left")
    before = model(input_ids=tokens, attention_mask=mask).logits
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="tsallis_entmax", dtype=torch.float64
    )
    for alpha, layer in zip(alphas, again.model.layers, strict=True):
        torch.testing.assert_close(layer.self_attn.tsallis_alpha.raw, alpha.raw, rtol=0, atol=0)
    after = again(input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    before.sum().backward()
    assert all(alpha.raw.grad.abs().sum() > 0 for alpha in alphas)


@pytest.mark.parametrize(
    ("name", "map", "alpha"),
    [
        ("tsallis_softmax", "softmax", None),
        ("tsallis_entmax15", "entmax", 1.5),
        ("tsallis_entmax", "entmax", [1.2, [1.1, 1.5, 1.9, 2.0]]),
    ],
)
def test_an_exported_model_names_its_attention(tmp_path, name, map, alpha):
    model = build(AutoModelForCausalLM, "llama", {}).float()
    model.config.tsallis_alpha = alpha or 1.3  # of softmax it says nothing
    model.set_attn_implementation(name)
    integration.export(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tsallis_map"] == map
    assert config.get("tsallis_alpha") == alpha
    prefix = "" if map == "softmax" else "Tsallis"
    assert config["architectures"] == [f"{prefix}LlamaForCausalLM"]
    tokens, mask = batch("left")
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        attn_implementation="tsallis_softmax" if map == "softmax" else "tsallis_entmax",
        dtype=torch.float32,
    )
    with torch.no_grad():
        before = model(input_ids=tokens, attention_mask=mask).logits
        after = again(input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(before, after, rtol=0, atol=0)


def test_exported_alphas_are_numbers_in_the_config(tmp_path):
    model = build(AutoModelForCausalLM, "llama", {}).float()
    integration.learn_alpha(model, initial=1.3)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.tsallis_alpha.raw += torch.tensor([0.1, -0.2, 0.3, 0.4])
    tokens, mask = batch("left")
    before = model(input_ids=tokens, attention_mask=mask).logits
    integration.export(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        assert not [key for key in weights.keys() if "tsallis" in key]  # noqa: SIM118
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="tsallis_entmax")
    assert not hasattr(again.model.layers[0].self_attn, "tsallis_alpha")
    after = again(input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    # What was exported trains on as it is.
    before.sum().backward()
    assert all(layer.self_attn.tsallis_alpha.raw.grad is not None for layer in model.model.layers)


def test_what_cannot_be_exported_is_named(tmp_path):
    model = build(AutoModelForCausalLM, "llama", {})
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="expected entmax or softmax of tsallis, got 'sdpa'"):
        integration.export(model, tmp_path)
    model.set_attn_implementation("tsallis_entmax")
    with pytest.raises(ValueError, match="tsallis_alpha: expected in the model's config, got None"):
        integration.export(model, tmp_path)
    model.model.layers[1].self_attn.tsallis_alpha = 1.5
    with pytest.raises(ValueError, match=r"in each of 2 layers, got layers \[1\]"):
        integration.export(model, tmp_path)


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        ([1.5], r"tsallis_alpha: expected a number or one entry for each of 2 layers, got 1"),
        ([1.5, 1.5, 1.5], r"for each of 2 layers, got 3 entries"),
        ([1.5, None], r"tsallis_alpha\[1\]: expected finite numbers > 0, got None"),
        ({"a": 1}, r"tsallis_alpha: expected finite numbers > 0, got \{'a': 1\}"),
        (
            [[1.5, 1.5], 1.5],
            r"tsallis_alpha\[0\]: expected a number or one for each of 4 heads, got 2",
        ),
        ("1.5", r"tsallis_alpha: expected finite numbers > 0, got '1.5'"),
        (-1.0, r"tsallis_alpha: expected finite numbers > 0, got -1.0"),
        (float("inf"), r"tsallis_alpha: expected finite numbers > 0, got inf"),
    ],
)
def test_wrong_alphas_name_their_key(alpha, message):
    model = build(AutoModelForCausalLM, "llama", {})
    model.set_attn_implementation("tsallis_entmax")
    model.config.tsallis_alpha = alpha
    tokens, mask = batch("none")
    with pytest.raises(ValueError, match=message):
        model(input_ids=tokens, attention_mask=mask)


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "stablelm"])
def test_weights_that_are_asked_for_come(name):
    model = build(AutoModelForCausalLM, name, CAUSAL[name])
    tokens, mask = batch("none")
    with torch.no_grad():
        weights = model(input_ids=tokens, attention_mask=mask, output_attentions=True).attentions
    assert len(weights) == 2
    assert weights[0].shape == (2, 4, 9, 9)
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 4, 9).double())


@pytest.mark.parametrize(
    "there",
    [1.2, tsallis.nn.LearnedAlpha(), tsallis.nn.LearnedAlpha(4, initial=3.0, high=None)],
)
def test_alphas_that_would_not_come_back_as_they_are_are_refused(there):
    model = build(AutoModelForCausalLM, "llama", {})
    model.model.layers[1].self_attn.tsallis_alpha = there
    with pytest.raises(ValueError, match="model: expected no tsallis_alpha yet, or learned ones"):
        integration.learn_alpha(model)
    assert not hasattr(model.config, "tsallis_learned_alpha")
    assert model.config._attn_implementation == "tsallis_sparsemax"


def test_learn_alpha_again_needs_the_same_bounds():
    model = build(AutoModelForCausalLM, "llama", {})
    integration.learn_alpha(model)
    before = model.model.layers[0].self_attn.tsallis_alpha
    integration.learn_alpha(model, initial=1.2)
    assert model.model.layers[0].self_attn.tsallis_alpha is before
    with pytest.raises(ValueError, match=r"heads in \(1.0, 4.0\)"):
        integration.learn_alpha(model, high=4.0)


def test_learn_alpha_names_heads_that_it_cannot_record():
    sizes = {"vocab_size": 40, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
    model = transformers.BartModel(transformers.BartConfig(**sizes))
    with pytest.raises(ValueError, match=r"expected 4 heads in every .* got 2 in a BartAttention"):
        integration.learn_alpha(model)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    parts = {"text_config": sizes, "vision_config": sizes | {"image_size": 16, "patch_size": 8}}
    model = transformers.CLIPModel(transformers.CLIPConfig(**parts))
    with pytest.raises(ValueError, match="model: expected num_attention_heads in its config"):
        integration.learn_alpha(model)


@pytest.mark.parametrize(
    ("alpha", "error", "message"),
    [
        (torch.full((3,), 1.5), ValueError, r"LlamaAttention.tsallis_alpha: .*\[4\], got \[3\]"),
        (-1.0, ValueError, "LlamaAttention.tsallis_alpha: expected"),
        ({}, TypeError, "LlamaAttention.tsallis_alpha: expected"),
    ],
)
def test_wrong_alphas_of_a_module_name_their_attribute(alpha, error, message):
    model = build(AutoModelForCausalLM, "llama", {})
    model.set_attn_implementation("tsallis_entmax")
    model.model.layers[0].self_attn.tsallis_alpha = alpha
    with pytest.raises(error, match=message):
        model(input_ids=batch("none")[0])


def test_a_decoder_with_more_layers_than_the_list_names_its_key():
    sizes = {"vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    model = transformers.BartModel(transformers.BartConfig(**sizes))
    model.set_attn_implementation("tsallis_entmax")
    model.config.tsallis_alpha = [1.5, 1.5]
    with pytest.raises(ValueError, match=r"tsallis_alpha: .* got 2 entries, for layer 2"):
        model(input_ids=batch("none")[0])


def test_attention_classes_chosen_by_name_are_refused():
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"image_size": 32, "patch_size": 8, "output_channels": 16}
    model = transformers.SamVisionModel(transformers.SamVisionConfig(**vision))
    with pytest.raises(ValueError, match=r"attn_implementation: .*SamVision.*picks attention"):
        model.set_attn_implementation("tsallis_sparsemax")
    config = transformers.SamVisionConfig(**vision, attn_implementation="tsallis_sparsemax")
    with pytest.raises(ValueError, match=r"attn_implementation: .*picks attention"):
        transformers.SamVisionModel(config)
