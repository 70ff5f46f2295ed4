"""Continuous batching (``generate_batch``) writes what ``generate`` writes."""

import warnings
from unittest import mock

import pytest
import torch
from test_transformers_cache import build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tsallis.integrations import transformers as integration
from tsallis.integrations import transformers_batching as batching

MODELS = ["llama", "gemma2", "gpt_oss", "mistral", "qwen3"]  # windows, soft-capping, sinks
LENGTHS = (3, 29, 11, 1, 8)
NEW = 12


@pytest.fixture(autouse=True, scope="module")
def registered():
    integration.register()


def prompts():
    torch.manual_seed(5)
    return [torch.randint(4, 40, (length,)).tolist() for length in LENGTHS]


def batched(model, asked, num_return_sequences=1, **more):
    """What generate_batch writes behind each prompt."""
    # Pages of four tokens, and calls of ten: the longest prompt comes in three pieces.
    sizes = {"page_size": 4, "num_blocks": 64, "max_batch_tokens": 10, **more}
    results = model.generate_batch(
        asked,
        generation_config=GenerationConfig(
            max_new_tokens=NEW,
            do_sample=num_return_sequences > 1,
            top_k=1,  # sampling that is greedy
            eos_token_id=-1,
            num_return_sequences=num_return_sequences,
        ),
        continuous_batching_config=ContinuousBatchingConfig(**sizes),
    )
    return list(results.values())


def alone(model, asked):
    written = []
    for prompt in asked:
        with torch.no_grad():
            tokens = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)
        written.append(tokens[0, len(prompt) :].tolist())
    return written


@pytest.fixture
def calls():
    """How often attention was on pages, and on keys in one tensor, and what it got."""
    with (
        mock.patch.object(batching, "decode_paged", wraps=batching.decode_paged) as on_pages,
        mock.patch.object(batching, "attention", wraps=batching.attention) as in_one,
    ):
        yield on_pages, in_one


@pytest.mark.parametrize("name", MODELS)
def test_every_request_gets_its_own_text(name, calls):
    model = build(name)
    asked = prompts()
    found = batched(model, asked)
    assert [one.error for one in found] == [None] * len(asked)
    queries = [call.args[0] for calls_of_one in calls for call in calls_of_one.call_args_list]
    assert max(query.shape[2] for query in queries) == 10  # of 52 tokens, 29 in one prompt
    on_pages, in_one = calls
    windows = [call.kwargs["window"] for call in in_one.call_args_list]
    # Layers without a window read pages, but for the first call, whose keys are all new.
    layers = getattr(model.config, "layer_types", None) or ["full_attention"] * 2
    full = layers.count("full_attention") if name != "mistral" else 0
    assert windows.count(None) == full
    assert on_pages.call_count == full * (len(queries) // 2 - 1)
    assert [one.generated_tokens for one in found] == alone(model, asked)


@pytest.mark.parametrize(
    ("implementation", "alpha"),
    [
        ("tsallis_sparsemax", None),
        ("tsallis_softmax", None),
        ("tsallis_adaptive_temperature", None),
        ("tsallis_entmax", [1.3, [1.0, 1.1, 1.5, 2.0]]),
        ("paged|tsallis_entmax15", None),
    ],
)
def test_every_implementation(implementation, alpha):
    model = build("llama")
    model.config.tsallis_alpha = alpha
    model.set_attn_implementation(implementation)
    asked = prompts()
    found = [one.generated_tokens for one in batched(model, asked)]
    assert model.config._attn_implementation == implementation.removeprefix("paged|")
    assert found == alone(model, asked)


def test_prompts_that_begin_alike_share_pages(calls):
    model = build("llama")
    (long,) = (prompt for prompt in prompts() if len(prompt) == 29)
    asked = [long, [*long[:20], 7, 8], long]
    found = batched(model, asked, max_requests_per_batch=1)
    assert [one.generated_tokens for one in found] == alone(model, asked)
    tokens = sum(call.args[0].shape[2] for each in calls for call in each.call_args_list)
    assert tokens < 2 * (29 + 22 + 29 + 3 * NEW - 20)  # in two layers


def test_several_answers_have_copies_of_the_last_page():
    model = build("llama")
    asked = prompts()
    found = batched(model, asked, num_return_sequences=2)
    assert [one.generated_tokens for one in found] == [
        answer for answer in alone(model, asked) for _ in range(2)
    ]


def test_what_attention_looked_at():
    model = build("llama")
    seen = []
    with integration.observe(lambda module, support, entropy: seen.append((support, entropy))):
        batched(model, prompts()[:1])
    assert len(seen) == 2 * NEW
    assert all(support.shape == entropy.shape for support, entropy in seen)
    assert [tuple(support.shape) for support, _ in seen[-2:]] == [(1, 4, 1)] * 2
    assert 1 <= int(seen[-1][0].min()) <= int(seen[-1][0].max()) <= LENGTHS[0] + NEW


def test_what_is_refused_is_in_the_result():
    model = build("gpt_oss", "tsallis_adaptive_temperature")
    for found in batched(model, prompts()[:2]):
        assert "s_aux: expected None for adaptive temperature" in found.error
    model = build("llama", "tsallis_entmax")
    for found in batched(model, prompts()[:2]):
        assert "tsallis_alpha: expected in the config" in found.error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dropout", 0.1),
        ("position_bias", torch.zeros(1)),
        ("output_attentions", True),
        ("block_table", 1),
    ],
)
def test_arguments_that_have_no_meaning_here(name, value):
    function = ALL_ATTENTION_FUNCTIONS["tsallis_entmax15"]
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=f"{name}: expected "):
        function(torch.nn.Identity(), x, x, x, None, cache=object(), **{name: value})


def test_other_implementations_are_left_to_transformers():
    model = build("llama", "sdpa")
    asked = prompts()
    found = [one.generated_tokens for one in batched(model, asked)]
    assert found == alone(model, asked)
    with pytest.raises(ValueError, match="Implementation flex_attention is not supported"):
        batched(build("llama", "flex_attention"), asked)
