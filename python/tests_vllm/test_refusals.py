"""What is not served ends the start of the engine with its name; a model never falls back."""

import json

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

from tsallis.integrations import transformers as tsallis_transformers

SIZES = {"vocab_size": 300, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 512}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2}
NO_PLUGIN = "TsallisLlamaForCausalLM"  # vLLM knows no such architecture


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def entmax_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("entmax")
    tsallis_transformers.register()
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2))
    model.set_attn_implementation("tsallis_entmax15")
    tsallis_transformers.export(model, folder)
    return folder


def job(model, **engine):
    passes = [{"prompts": [[5, 6, 7]], "together": True}]
    engine = {"max_model_len": 256} | engine
    return {"model": str(model), "llm": engine, "tokens": 2, "passes": passes}


def refused(run, job, what, **environment):
    code, found, text = run(job, **environment)
    assert code != 0
    assert found is None
    assert what in text, text[-6000:]
    return text


def test_a_converted_model_needs_the_plug_in(run, entmax_model, tmp_path):
    # Left out by name.
    text = refused(run, job(entmax_model), NO_PLUGIN, VLLM_PLUGINS="other")
    assert "are not supported for now" in text
    # Absent: a package of that name without entry points comes first.
    absent = tmp_path / "absent" / "tsallis-0.dist-info"
    absent.mkdir(parents=True)
    (absent / "METADATA").write_text("Metadata-Version: 2.1\nName: tsallis\nVersion: 0\n")
    refused(run, job(entmax_model), NO_PLUGIN, PYTHONPATH=str(absent.parent))
    # Broken: vLLM logs that it cannot import it, and goes on.
    broken = tmp_path / "broken" / "tsallis_vllm"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text('raise ImportError("it is broken")\n')
    text = refused(run, job(entmax_model), NO_PLUGIN, PYTHONPATH=str(broken.parent))
    assert "Failed to load plugin tsallis" in text
    # Its library is broken: the entry point does not need it, the class does.
    library = str(tmp_path / "nowhere.so")
    what = "TSALLIS_LIBRARY: expected the path of"
    refused(run, job(entmax_model), what, TSALLIS_LIBRARY=library)


@pytest.mark.parametrize(
    ("what", "engine", "environment"),
    [
        ("a KV cache of fp8", {"kv_cache_dtype": "fp8"}, {}),
        ("a KV cache of bfloat16 beside a model of float32", {"kv_cache_dtype": "bfloat16"}, {}),
        ("VLLM_BATCH_INVARIANT is not served", {}, {"VLLM_BATCH_INVARIANT": "1"}),
        (
            "KV transfer (kv_transfer_config) is not served",
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            {},
        ),
        (
            "speculative decoding (speculative_config) is not served",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            {},
        ),
        (
            "tsallis: expected map, alpha or screen, got maps",
            {"additional_config": {"tsallis": {"maps": "entmax"}}},
            {},
        ),
        (
            "TSALLIS_ATTENTION: expected one of entmax, entmax15, sparsemax, softmax, got relu",
            {},
            {"TSALLIS_ATTENTION": "relu"},
        ),
    ],
)
def test_what_is_not_served(run, entmax_model, what, engine, environment):
    refused(run, job(entmax_model, **engine), what, **environment)


def test_latent_attention(run, tmp_path):
    sizes = {"q_lora_rank": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 32}
    sizes |= {"qk_rope_head_dim": 64, "v_head_dim": 32, "n_routed_experts": 2, "n_group": 1}
    sizes |= {"topk_group": 1, "first_k_dense_replace": 2, "num_experts_per_tok": 1}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**SIZES, **sizes, num_key_value_heads=4))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    what = "multi-head latent attention"
    asked = job(tmp_path, dtype="bfloat16")
    refused(run, asked, what, TSALLIS_ATTENTION="entmax15")


def test_models_that_do_not_say_what_they_are(run, plain_model):
    path = plain_model / "config.json"
    config = json.loads(path.read_text())
    for keys, what in (
        ({"tsallis_alpha": 1.5}, "tsallis_map: expected in the model's config"),
        (
            {"tsallis_map": "entmax", "tsallis_learned_alpha": {"heads": 4}},
            "tsallis_learned_alpha: expected a list tsallis_alpha",
        ),
    ):
        path.write_text(json.dumps(config | keys))
        refused(run, job(plain_model), what)
    path.write_text(json.dumps(config))
    code, found, text = run(job(plain_model))
    assert code == 0, text[-6000:]
    assert found is not None
