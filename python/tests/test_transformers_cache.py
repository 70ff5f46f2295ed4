"""TsallisCache: generation on pages is generation with the library's caches."""

import copy
import warnings
from unittest import mock

import pytest
import torch
from test_transformers_battery import CAUSAL, config_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

import tsallis
from tsallis.integrations import transformers as integration
from tsallis.integrations.transformers_cache import PagedRows

MODELS = ["llama", "gemma2", "gpt2", "gpt_oss", "mistral"]  # windows, soft-capping, sinks


@pytest.fixture(autouse=True, scope="module")
def registered():
    integration.register()


def build(name, implementation="tsallis_entmax15", **more):
    torch.manual_seed(3)
    config = config_of(name, CAUSAL[name] | more)
    config._attn_implementation = implementation
    return AutoModelForCausalLM.from_config(config).eval()


def prompt(batch=2, length=9, padding=3):
    torch.manual_seed(5)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, :padding] = 0
    return torch.randint(4, 40, (batch, length)), mask


def write(model, cache, settings, **more):
    tokens, mask = prompt(**more)
    torch.manual_seed(7)
    with torch.no_grad():
        return model.generate(
            tokens, attention_mask=mask, past_key_values=cache, max_new_tokens=12, **settings
        ).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSAL)
def test_every_architecture_writes_the_same_text(name):
    model = build(name)
    cache = integration.TsallisCache(model.config)
    with mock.patch.object(integration, "decode", wraps=integration.decode) as decode:
        ours = write(model, cache, {"do_sample": False})
    assert ours == write(model, DynamicCache(config=model.config), {"do_sample": False})
    # A window of five is reached, and padding is there: pages served every layer all the same.
    assert decode.call_count == 11 * 2


MODES = {
    "sampling": {"do_sample": True, "temperature": 1.5},
    "several answers": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"do_sample": False, "num_beams": 3},
    "answers of beams": {"do_sample": False, "num_beams": 4, "num_return_sequences": 2},
    "chunks": {"do_sample": False, "prefill_chunk_size": 4},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_every_way_to_generate(name, mode):
    model = build(name)
    ours = write(model, integration.TsallisCache(model.config), MODES[mode])
    assert ours == write(model, DynamicCache(config=model.config), MODES[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", [0, 3])
def test_pages_of_a_device_write_the_same(mode, padding, pages_of_a_device):
    """Without padding they are read where they lie."""
    model = build("gpt_oss")
    with mock.patch.object(integration, "decode", wraps=integration.decode) as decode:
        ours = write(model, integration.TsallisCache(model.config), MODES[mode], padding=padding)
    assert bool(decode.call_count) == (padding == 0)
    assert ours == write(model, DynamicCache(config=model.config), MODES[mode], padding=padding)


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_assisted_decoding_takes_guesses_back(name):
    model = build(name)
    assisted = {"do_sample": False, "prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1}
    cache = integration.TsallisCache(model.config)
    with mock.patch.object(cache, "crop", wraps=cache.crop) as crop:
        ours = write(model, cache, assisted, batch=1, padding=0)
    assert crop.called
    assert ours == write(model, None, {"do_sample": False}, batch=1, padding=0)


@pytest.mark.parametrize(
    "implementation",
    ["tsallis_softmax", "tsallis_sparsemax", "tsallis_adaptive_temperature", "sdpa", "eager"],
)
def test_other_implementations_read_it_too(implementation):
    model = build("llama", implementation)
    ours = write(model, integration.TsallisCache(model.config), {"do_sample": False})
    assert ours == write(model, None, {"do_sample": False})


def test_alphas_of_heads_and_any_other():
    model = build("llama", "tsallis_entmax")
    for alpha in [[1.0, 1.1, 1.5, 2.0], 1.3], 1.05, 5.0:
        model.config.tsallis_alpha = alpha
        with mock.patch.object(integration, "decode", wraps=integration.decode) as decode:
            ours = write(model, integration.TsallisCache(model.config), {"do_sample": False})
        assert decode.called
        assert ours == write(model, None, {"do_sample": False})


def test_an_alpha_of_a_module_may_be_an_integer():
    model = build("llama", "tsallis_entmax")
    for layer in model.model.layers:
        layer.self_attn.tsallis_alpha = 2
    ours = write(model, integration.TsallisCache(model.config), {"do_sample": False})
    assert ours == write(model, None, {"do_sample": False})


def test_a_mask_that_was_written_to_is_read_again():
    model = build("llama")
    tokens, _ = prompt(batch=1, length=20, padding=0)
    mask = torch.ones(1, 1, 1, 20, dtype=torch.bool)

    def last(mask, cache):
        with torch.no_grad():
            return model(
                input_ids=tokens[:, -1:], attention_mask=mask, past_key_values=cache
            ).logits

    cache = integration.TsallisCache(model.config)
    with torch.no_grad():
        model(input_ids=tokens[:, :-1], past_key_values=cache)
    last(mask, cache)
    cache.crop(-1)
    mask[..., :5] = False
    stale = last(mask, cache)
    cache.crop(-1)
    assert torch.equal(stale, last(mask.clone(), cache))


def test_a_prompt_is_kept_once():
    model = build("llama")
    tokens, _ = prompt(batch=1, length=130, padding=0)
    cache = integration.TsallisCache(model.config)
    with torch.no_grad():
        model(input_ids=tokens[:, :-1], past_key_values=cache)
        answers = []
        for _ in range(2):
            own = copy.deepcopy(cache)
            settings = {"max_new_tokens": 5, "do_sample": False}
            answers.append(model.generate(tokens, past_key_values=own, **settings).tolist())
        plain = model.generate(tokens, **settings).tolist()
    assert answers == [plain, plain]
    assert cache.get_seq_length() == 129
    assert own.get_seq_length() == 134
    assert cache.pages.use().shared_pages == 2
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([1]))
    assert len(cache.sequences) == 1
    cache.reset()
    assert cache.get_seq_length() == 0
    with torch.no_grad():
        logits = model(input_ids=tokens, past_key_values=cache).logits
        assert torch.equal(logits, model(input_ids=tokens).logits)


def test_rows_in_pages_are_tensors():
    model = build("llama")
    cache, right = integration.TsallisCache(model.config), DynamicCache()
    tokens, _ = prompt(padding=0)
    found = []

    def keep(update):
        def kept(*arguments, **more):
            found.append(update(*arguments, **more))
            return found[-1]

        return kept

    for each in (cache, right):
        each.update = keep(each.update)
        with torch.no_grad():
            model(input_ids=tokens[:, :6], past_key_values=each)
            model(input_ids=tokens[:, 6:], past_key_values=each)
    keys, values = found[2]
    assert isinstance(keys, PagedRows)
    assert keys.shape == (2, 2, 9, 8)
    torch.testing.assert_close(keys + 0, found[6][0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(values.sum(), found[6][1].sum())


def test_masks_of_any_kind():
    model = build("llama")
    tokens, _ = prompt(padding=0)
    torch.manual_seed(2)
    mask = torch.ones(2, 1, 3, 9, dtype=torch.bool).tril(6) & (torch.rand(2, 1, 3, 9) > 0.3)
    logits = []
    for cache in (integration.TsallisCache(model.config), DynamicCache()):
        with torch.no_grad():
            model(input_ids=tokens[:, :6], past_key_values=cache)
            out = model(input_ids=tokens[:, 6:], attention_mask=mask, past_key_values=cache)
        logits.append(out.logits)
    torch.testing.assert_close(*logits)


def test_what_attention_looked_at():
    model = build("llama", "tsallis_sparsemax")
    tokens, mask = prompt()
    seen = []

    def look(module, support, entropy):
        seen.append((module.layer_idx, support, entropy))

    cache = integration.TsallisCache(model.config)
    with torch.no_grad(), integration.observe(look):
        out = model(input_ids=tokens, attention_mask=mask, output_attentions=True)
        assert not seen  # weights are stored, and say more
        model(input_ids=tokens[:, :-1], attention_mask=mask[:, :-1], past_key_values=cache)
        model(input_ids=tokens[:, -1:], attention_mask=mask, past_key_values=cache)
    with torch.no_grad():
        model(input_ids=tokens)
    assert [layer for layer, _, _ in seen] == [0, 1, 0, 1]
    for layer in (0, 1):
        weights = out.attentions[layer]
        support = torch.cat([seen[layer][1], seen[2 + layer][1]], 2)
        entropy = torch.cat([seen[layer][2], seen[2 + layer][2]], 2)
        visible = mask.bool()[:, None].expand(support.shape)
        assert torch.equal(support[visible], (weights > 0).sum(-1)[visible])
        expected = torch.special.entr(weights.double()).sum(-1)
        torch.testing.assert_close(entropy[visible], expected[visible], rtol=1e-4, atol=1e-5)


def test_what_it_cannot_hold_it_says():
    model = build("llama")
    tokens, _ = prompt()
    bart = CONFIG_MAPPING["bart"]()
    hybrid = CONFIG_MAPPING["lfm2"](num_hidden_layers=2, layer_types=["conv", "full_attention"])
    cache = integration.TsallisCache(model.config)
    for call, error, why in [
        (lambda: integration.TsallisCache(bart), ValueError, "config: expected that of a decoder"),
        (lambda: integration.TsallisCache(hybrid), ValueError, "config: expected layers of .*conv"),
        (
            lambda: integration.TsallisCache(model.config, screen="all"),
            ValueError,
            "screen: expected one of",
        ),
        (lambda: model(tokens, past_key_values=cache), ValueError, r"expected torch.no_grad\(\)"),
        (lambda: cache.crop(2), ValueError, "tokens_to_remove: expected 0 or less"),
        (
            lambda: model.double()(tokens, past_key_values=integration.TsallisCache(model.config)),
            ValueError,
            "expected keys of bfloat16, float16, float32 on a CPU or a CUDA device, got torch.fl",
        ),
    ]:
        with pytest.raises(error, match=why):
            call()


def test_a_full_cache_stays_as_it_was():
    model = build("llama")
    tokens, _ = prompt(batch=1, length=65, padding=0)
    page = tsallis.KVCache(2, 2, 8, dtype=torch.float32).use().page_bytes
    cache = integration.TsallisCache(model.config, max_bytes=page)
    with torch.no_grad():
        model(input_ids=tokens[:, :64], past_key_values=cache)
        with pytest.raises(tsallis.CacheFull):
            model(input_ids=tokens[:, 64:], past_key_values=cache)
    assert cache.get_seq_length() == 64
    assert len(cache.sequences[0]) == 64


def test_another_batch_is_refused():
    model = build("llama")
    tokens, _ = prompt()
    cache = integration.TsallisCache(model.config)
    with torch.no_grad():
        model(input_ids=tokens, past_key_values=cache)
        with pytest.raises(ValueError, match=r"expected keys of .* got \[1, 2, 8, 8\]"):
            model(input_ids=tokens[:1], past_key_values=cache)


@pytest.mark.parametrize("indices", [[-1, 0], [0, 2], [5, 0]])
def test_beams_that_are_not_there_are_refused(indices):
    model = build("llama")
    cache = integration.TsallisCache(model.config)
    tokens, mask = prompt()
    with torch.no_grad():
        model(tokens, attention_mask=mask, past_key_values=cache)
    with pytest.raises(ValueError, match=r"^beam_idx: expected indices from 0 to 1, got -?\d"):
        cache.reorder_cache(torch.tensor(indices))
    cache.reorder_cache(torch.tensor([1, 1]))
    assert len(cache.sequences) == 2
