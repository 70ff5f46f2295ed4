"""Small random models: what layers may ask of attention, as transformers computes it."""

import pytest
import torch
from greedy import generated, same
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from tsallis.integrations import transformers as tsallis_transformers

SIZES = {"vocab_size": 300, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
SIZES |= {"max_position_embeddings": 1024, "initializer_range": 0.1}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
WINDOW = 48
TOKENS = 12
BY_HEADS = [1.3, [1.1, 1.5, 1.8, 2.0]]


def gpt_oss():
    """Attention sinks, and a window in every other layer."""
    more = {"sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = GptOssForCausalLM(GptOssConfig(**SIZES, **more))
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


MODELS = {
    "alphas of layers and heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)),
    "window and soft cap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, sliding_window=WINDOW, attn_logit_softcapping=4.0)
    ),
    "window and sinks": gpt_oss,
}


def prompts():
    generator = torch.Generator().manual_seed(3)
    sizes = (10, 47, 48, 49, 130, 300)
    return [torch.randint(3, 300, (n,), generator=generator).tolist() for n in sizes]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_as_transformers_computes_it(served, tmp_path, name):
    torch.manual_seed(1)
    tsallis_transformers.register()
    model = MODELS[name]().eval()
    model.config.tsallis_alpha = BY_HEADS
    model.set_attn_implementation("tsallis_entmax")
    tsallis_transformers.export(model, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="tsallis_entmax", dtype=torch.float32
    )
    expected = [generated(again, prompt, TOKENS) for prompt in prompts()]
    passes = [{"prompts": prompts(), "together": together} for together in (False, True)]
    engine = {"max_model_len": 512, "max_num_batched_tokens": 512}
    found, text = served(
        {"model": str(tmp_path), "llm": engine, "tokens": TOKENS, "passes": passes}
    )
    assert text.count("tsallis: attention is entmax, alpha by layers, screened by bytes") == 1
    for answers in found["passes"]:
        same(answers, expected)


def test_alibi_as_vllm_computes_it(served, tmp_path):
    """transformers' BLOOM has no attention interface: softmax, beside vLLM's own."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 300, "hidden_size": 128, "n_layer": 2, "n_head": 4}
    config = BloomConfig(**sizes, initializer_range=0.1, bos_token_id=1, eos_token_id=2)
    BloomForCausalLM(config).save_pretrained(tmp_path)
    job = {"model": str(tmp_path), "llm": {"max_model_len": 512}, "tokens": TOKENS}
    job["passes"] = [{"prompts": prompts(), "together": True}]
    own, _ = served(job, VLLM_PLUGINS="")
    ours, _ = served(job, TSALLIS_ATTENTION="softmax")
    same(ours["passes"][0], [(a["tokens"], a["logprobs"]) for a in own["passes"][0]])
    sparse, _ = served(job, TSALLIS_ATTENTION="entmax15")
    assert sparse["passes"] != own["passes"]
