"""Models on sequences split over processes by ringmaster's Ulysses are models on the whole ones."""

import importlib
import warnings

import pytest
import torch
from gloo import on_processes, share_of_loss

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM

from tsallis.integrations import transformers as tsallis_transformers

rm = pytest.importorskip("ringmaster", reason="axolotl-ringmaster is not installed")
integration = importlib.import_module("tsallis.integrations.ringmaster")
context_parallel_region = importlib.import_module("ringmaster.adapters.raw").context_parallel_region

pytestmark = pytest.mark.alone  # up to four processes at a time

TOKENS = 24  # of the whole sequence
SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}


def llama(**more):
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SIZES | more)).double()


def gpt_oss(**more):
    """Has sinks of its heads."""
    sizes = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
    sizes |= {"layer_types": ["full_attention"] * 2, "experts_implementation": "eager"}
    torch.manual_seed(3)
    config = transformers.GptOssConfig(**SIZES | sizes | more)
    model = transformers.GptOssForCausalLM(config).double()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def learned():
    model = llama()
    tsallis_transformers.learn_alpha(model, initial=1.3)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.tsallis_alpha.raw.normal_()
    return model


# model and implementation. Two key heads are fewer than four processes.
CASES = {
    "alpha 1.5": (llama, "tsallis_entmax15"),
    "alpha 2": (lambda: llama(num_key_value_heads=4), "tsallis_sparsemax"),
    "alphas by heads of a config": (
        lambda: llama(tsallis_alpha=[2.0, [1.1, 1.5, 1.7, 2.0]]),
        "tsallis_entmax",
    ),
    "learned alphas": (learned, "tsallis_entmax"),
    "softmax": (llama, "tsallis_softmax"),
    "sinks": (gpt_oss, "tsallis_entmax15"),
}


def step(model, own):
    """The share of its loss that these tokens have, and of the gradients of its weights."""
    loss = share_of_loss(model, own, TOKENS)
    loss.backward()
    return {"loss": loss.detach()} | {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }


def by_adapter(rank, world):
    """As docs/guide/long-sequences.md says: the loss of a sequence that the adapter splits."""
    model = llama()
    integration.setup(model, rm.RingmasterConfig(size=world, backend=rm.Backend.ULYSSES))
    torch.manual_seed(5)
    tokens = torch.randint(40, (2, TOKENS))
    with context_parallel_region({"input_ids": tokens, "labels": tokens}) as piece:
        targets = (piece["shift_labels"] != -100).sum()
        loss = model(**piece, use_cache=False).loss * targets / (2 * (TOKENS - 1))
    loss.backward()
    return {"loss": loss.detach(), "embeddings": model.model.embed_tokens.weight.grad}


def pieces_of_all(rank, world):
    """Every case on this process's tokens."""
    own = torch.arange(TOKENS).chunk(world)[rank]
    found = {}
    for case, (build, implementation) in CASES.items():
        config = rm.RingmasterConfig(size=world, backend=rm.Backend.ULYSSES)
        model = build()
        runtime = integration.setup(model, config, attn_implementation=implementation)
        assert model.config._attn_implementation == runtime.attn_implementation
        found[case] = step(model, own)
    return found | {"adapter": by_adapter(rank, world)}


@pytest.fixture(scope="module", params=[2, 4], ids=lambda n: f"{n} processes")
def found(request, tmp_path_factory):
    return on_processes(pieces_of_all, request.param, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_one_process(found, case):
    build, implementation = CASES[case]
    tsallis_transformers.register()
    model = build()
    model.set_attn_implementation(implementation)
    wanted = step(model, torch.arange(TOKENS))
    assert found[0][case].keys() == wanted.keys()
    if case == "learned alphas":
        assert any("tsallis_alpha" in name for name in wanted)
    for name, right in wanted.items():
        torch.testing.assert_close(sum(each[case][name] for each in found), right, msg=name)


def test_the_adapter_splits_a_batch(found):
    tsallis_transformers.register()
    model = llama()
    model.set_attn_implementation("tsallis_entmax15")
    torch.manual_seed(5)
    tokens = torch.randint(40, (2, TOKENS))
    loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    parts = [each["adapter"] for each in found]
    torch.testing.assert_close(sum(part["loss"] for part in parts), loss.detach())
    right = model.model.embed_tokens.weight.grad
    torch.testing.assert_close(sum(part["embeddings"] for part in parts), right)


ULYSSES = rm.Backend.ULYSSES


@pytest.mark.parametrize(
    ("build", "settings", "asked", "message"),
    [
        (llama, {"size": 4, "backend": rm.Backend.AUTO}, "tsallis_entmax15", "got .*AUTO, which"),
        (llama, {"size": 2, "backend": rm.Backend.RING}, "tsallis_entmax15", "for a ring merges"),
        (llama, {"size": 8, "backend": ULYSSES}, "tsallis_entmax15", "that divide 4 heads.*size=8"),
        (llama, {"size": 2, "backend": ULYSSES}, "sdpa", "attn_implementation: expected one of"),
    ],
)
def test_what_would_not_be_exact_is_refused(monkeypatch, build, settings, asked, message):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(ValueError, match=message):
        integration.setup(build(), rm.RingmasterConfig(**settings), attn_implementation=asked)


def test_models_that_transformers_does_not_let_us_serve_are_refused():
    model = transformers.BloomForCausalLM(transformers.BloomConfig(n_layer=1, n_head=2))
    with pytest.raises(ValueError, match=r"attn_implementation: .*BloomForCausalLM"):
        integration.setup(model, rm.RingmasterConfig(size=2, backend=ULYSSES))


def mistral():
    config = transformers.MistralConfig(**SIZES, sliding_window=5)
    return transformers.MistralForCausalLM(config).double()


def refusals(rank, world):
    """What is said of calls that two processes make alike."""
    tokens = torch.arange(12)[None]
    own = (torch.arange(12) + 12 * rank)[None]
    said = []
    for build, arguments in [
        (mistral, {"position_ids": own}),
        (llama, {"position_ids": torch.arange(12)[None] % 6}),
        (llama, {"position_ids": own, "attention_mask": (tokens > 2).long()}),
        (llama, {"position_ids": own, "attention_mask": torch.ones(1, 1, 12, 12).bool()}),
        (llama, {"position_ids": own, "output_attentions": True}),
        (llama, {"position_ids": own, "packed": True}),
    ]:
        model = build()
        config = rm.RingmasterConfig(size=world, backend=ULYSSES)
        runtime = integration.setup(model, config)
        if arguments.pop("packed", False):
            runtime.varlen = (torch.tensor([0, 6, 24]), 18)
        try:
            model(tokens, use_cache=False, **arguments)
        except ValueError as error:
            said.append(str(error))
    return said


def test_calls_that_it_does_not_serve_are_refused(tmp_path):
    for said in on_processes(refusals, 2, tmp_path):
        for message, begins in zip(
            said,
            [
                "sliding_window: expected none on split sequences, got one from MistralAttention",
                "position_ids: expected ",
                "attention_mask: expected None or all ones, got padding",
                "attention_mask: expected none on split sequences",
                "output_attentions: expected none on split sequences",
                "packed documents: expected none on split sequences",
            ],
            strict=True,
        ):
            assert message.startswith(begins), message


def test_one_process_has_the_implementation_itself():
    model = llama()
    runtime = integration.setup(model, rm.RingmasterConfig(size=1))
    assert model.config._attn_implementation == runtime.attn_implementation == "tsallis_entmax15"
