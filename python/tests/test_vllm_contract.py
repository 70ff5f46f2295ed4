"""The plug-in of vLLM as vLLM calls it, without vLLM: `fake_vllm` says what vLLM's names do."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_vllm import Engine, FullAttentionSpec, OwnImpl, Server, config, replaced

import tsallis
import tsallis_vllm


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.delenv("TSALLIS_ATTENTION", raising=False)
    return Engine(monkeypatch)


def serve(server, heads, kv_heads, size, dtype, expected, seed=0):
    """Sequences in pieces, single tokens and pieces mixed, preempted, new ones on old blocks; every
    answer is that of ``expected(q, k, v)`` on one tensor, [heads, tokens, size] each."""
    generator = torch.Generator().manual_seed(seed)
    totals = {0: 300, 1: 150, 2: 70, 3: 5}
    rows = {}
    for sequence, total in totals.items():
        shape = (total, heads + 2 * kv_heads, size)
        rows[sequence] = torch.randn(shape, generator=generator).to(dtype)
    wanted = {
        sequence: expected(*(x.transpose(0, 1) for x in split(qkv, heads, kv_heads))).transpose(
            0, 1
        )
        for sequence, qkv in rows.items()
    }
    at = dict.fromkeys(totals, 0)
    preempted, mixed = False, False
    for number in range(400):
        asked = []
        for sequence, total in totals.items():
            left = total - at[sequence]
            if left and number >= 2 * sequence:
                piece = 1 if (number + sequence) % 3 or left < 9 else min(left, 90)
                asked.append((sequence, piece))
        if not asked:
            break
        counts = {count for _, count in asked}
        mixed |= 1 in counts and len(counts) > 1
        parts = [rows[s][at[s] : at[s] + count] for s, count in asked]
        out = server.step(asked, *split(torch.cat(parts), heads, kv_heads))
        begin = 0
        for sequence, count in asked:
            part = out[begin : begin + count]
            want = wanted[sequence][at[sequence] : at[sequence] + count]
            torch.testing.assert_close(part, want, **TOLERANCE[dtype])
            at[sequence] += count
            begin += count
        if at[1] > 100 and not preempted:  # its blocks go to others, and it begins again
            server.drop(1)
            at[1], preempted = 0, True
    assert at == totals
    assert preempted
    assert mixed


def split(qkv, heads, kv_heads):
    """q, k and v as rows of one tensor, as models have them: [tokens, heads, size]."""
    return qkv.split([heads, kv_heads, kv_heads], 1)


TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


def attention(**settings):
    def expected(q, k, v):
        return tsallis.attention(q[None], k[None], v[None], causal=True, **settings)[0]

    return expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("own", "settings"),
    [
        ({"map": "entmax", "alpha": 1.5}, {"alpha": 1.5}),
        ({"map": "entmax", "alpha": 1.5, "screen": False}, {"alpha": 1.5}),
        ({"map": "softmax"}, {"map": "softmax"}),
    ],
)
def test_steps_of_many_sequences(engine, dtype, own, settings):
    engine.config = config(heads=4, own=own)
    engine.config.model_config.dtype = dtype
    server = Server(engine, 4, 2, 32)
    serve(server, 4, 2, 32, dtype, attention(**settings))


SINK = [0.5, -1.0, 2.0, 0.0]


@pytest.mark.parametrize("own", [{"map": "entmax", "alpha": 1.5}, {"map": "softmax"}])
@pytest.mark.parametrize(
    ("layer", "settings"),
    [
        ({"sliding_window": 40}, {"window": (39, 0)}),
        ({"logits_soft_cap": 3.0}, {"softcap": 3.0}),
        (
            {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
            {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
        ),
        ({"sinks": torch.nn.Parameter(torch.tensor(SINK).bfloat16())}, {"sink": SINK}),
    ],
)
def test_terms_of_the_scores(engine, own, layer, settings):
    engine.config = config(heads=4, own=own)
    server = Server(engine, 4, 2, 40, **layer)
    settings = {
        name: torch.tensor(value) if isinstance(value, list) else value
        for name, value in settings.items()
    }
    settings |= {"map": own["map"]}
    serve(server, 4, 2, 40, torch.float32, attention(**settings))


def test_heads_have_their_alphas_on_every_rank(engine):
    alphas = [1.2, 1.5, 1.9, 2.0]
    for rank in (0, 1):  # two processes with two heads each
        engine.rank = rank
        engine.config = config(heads=4, tsallis_map="entmax", tsallis_alpha=[alphas])
        server = Server(engine, 2, 1, 32)
        own = torch.tensor(alphas[2 * rank : 2 * rank + 2])
        serve(server, 2, 1, 32, torch.float32, attention(alpha=own), seed=rank)


@pytest.mark.parametrize(
    ("model", "own", "variable", "expected"),
    [
        ({"tsallis_map": "entmax", "tsallis_alpha": 1.3}, None, None, ("entmax", 1.3)),
        ({"tsallis_map": "entmax", "tsallis_alpha": 1.3}, None, "sparsemax", ("entmax", 2.0)),
        ({"tsallis_map": "entmax", "tsallis_alpha": 1.3}, None, "entmax", ("entmax", 1.3)),
        ({"tsallis_map": "entmax", "tsallis_alpha": 1.3}, {"map": "softmax"}, "entmax15", None),
        ({"tsallis_map": "entmax", "tsallis_alpha": 1.3}, {"alpha": 1.7}, None, ("entmax", 1.7)),
        ({}, {"map": "entmax", "alpha": 2}, None, ("entmax", 2)),
        ({}, None, "entmax15", ("entmax", 1.5)),
        ({}, None, "softmax", None),
        ({"tsallis_map": "softmax"}, None, None, None),
    ],
)
def test_the_nearest_setting_counts(engine, monkeypatch, model, own, variable, expected):
    if variable is not None:
        monkeypatch.setenv("TSALLIS_ATTENTION", variable)
    engine.config = config(own=own, **model)
    impl = engine.backend().get_impl_cls()(4, 32, 1.0, 4)
    impl.set_layer(0)
    map, alpha = ("softmax", None) if expected is None else expected
    assert impl.options["map"] == map
    assert impl.options.get("alpha") == alpha
    assert len(engine.infos) == 1
    assert engine.infos[0].startswith(f"tsallis: attention is {map}")


def test_a_model_without_settings_has_the_attention_of_vllm(engine):
    for name in ("CPU_ATTN", "CPU_MLA", "AMX_MLA"):
        found = engine.backend(name)
        assert found.get_impl_cls() is OwnImpl
        assert f"vLLM's own {name} runs" in engine.infos[-1]
        # vLLM keeps the class for the next model of that shape.
        engine.config = config(tsallis_map="entmax", tsallis_alpha=1.5)
        with pytest.raises(NotImplementedError, match="second model with another map"):
            found.get_impl_cls()
        engine.config = config()


def test_a_kept_class_refuses_a_model_that_it_was_not_chosen_for(engine):
    engine.config = config(tsallis_map="entmax", tsallis_alpha=1.5)
    found = engine.backend()
    for other in (config(), config(tsallis_map="softmax")):
        engine.config = other
        with pytest.raises(NotImplementedError, match="second model with another map"):
            found.get_impl_cls()


@pytest.mark.parametrize(
    ("model", "own", "variable", "message"),
    [
        ({}, {"maps": 1}, None, "tsallis: expected map, alpha or screen, got maps"),
        (
            {},
            {"map": "sigmoid"},
            None,
            "tsallis_map: expected 'entmax' or 'softmax', got 'sigmoid'",
        ),
        ({}, None, "relu", "TSALLIS_ATTENTION: expected one of entmax, .*, got relu"),
        (
            {},
            {"alpha": 1.5},
            None,
            "tsallis_map: expected in the model's config, .*got none, but {'alpha'",
        ),
        (
            {"tsallis_alpha": 1.5},
            None,
            None,
            "tsallis_map: expected in the model's config",
        ),
        ({"tsallis_map": "entmax"}, None, None, "tsallis_alpha: expected a number, got None"),
        (
            {"tsallis_map": "entmax", "tsallis_learned_alpha": {"heads": 4}},
            None,
            None,
            "tsallis_learned_alpha: expected a list tsallis_alpha, as .*export writes it",
        ),
        (
            {"tsallis_map": "softmax", "tsallis_query_scale": "log"},
            None,
            None,
            "tsallis_query_scale: expected none, which transformers alone serves, got 'log'",
        ),
        (
            {"tsallis_map": "softmax", "tsallis_unrotated_layers": [3]},
            None,
            None,
            r"tsallis_unrotated_layers: expected none, .*got \[3\]",
        ),
        (
            {"tsallis_map": "entmax", "tsallis_alpha": [1.5, 1.5]},
            None,
            None,
            "tsallis_alpha: expected a number or one entry for each of 1 layers, got 2",
        ),
        (
            {"tsallis_map": "entmax", "tsallis_alpha": [[1.5, 1.5]]},
            None,
            None,
            r"tsallis_alpha\[0\]: expected a number or one for each of 4 heads, got 2",
        ),
        (
            {"tsallis_map": "entmax", "tsallis_alpha": [[1.5, 1.5, 0.0, 1.5]]},
            None,
            None,
            "tsallis_alpha: expected finite numbers > 0, got 0.0",
        ),
    ],
)
def test_wrong_settings_are_named(engine, monkeypatch, model, own, variable, message):
    if variable is not None:
        monkeypatch.setenv("TSALLIS_ATTENTION", variable)
    engine.config = config(own=own, **model)
    with pytest.raises(ValueError, match=message):
        engine.backend()


def test_what_is_not_served_is_named_before_the_first_token(engine):
    def made(**layer):
        return engine.backend().get_impl_cls()(4, layer.pop("head_size", 32), 1.0, 4, **layer)

    def refused(what, **layer):
        with pytest.raises(NotImplementedError, match=what):
            made(**layer)

    engine.config = config(tsallis_map="entmax", tsallis_alpha=1.5)
    made()
    made(kv_cache_dtype="float32")
    refused("attention of the kind encoder_only", attn_type="encoder_only")
    refused("attention of the kind encoder_decoder", attn_type="encoder_decoder")
    refused("a KV cache of fp8 beside a model of float32", kv_cache_dtype="fp8")
    refused("a KV cache of bfloat16 beside a model of float32", kv_cache_dtype="bfloat16")
    refused(r"a head of more than 512 columns \(576\)", head_size=576)
    refused("a layer that reads the keys of another", kv_sharing_target_layer_name="a.0")
    refused("attention with chunk_lookback", chunk_lookback=3)
    for part, name, value, what in (
        (engine.envs, "VLLM_BATCH_INVARIANT", True, "VLLM_BATCH_INVARIANT"),
        (engine.config, "kv_transfer_config", object(), "KV transfer"),
        (engine.config, "speculative_config", object(), "speculative decoding"),
        (engine.config.model_config, "is_mm_prefix_lm", True, "a multimodal prefix"),
        (engine.config.model_config, "rswa_window", 8, "R-SWA"),
        (engine.config.parallel_config, "decode_context_parallel_size", 2, "context parallelism"),
        (engine.config.parallel_config, "prefill_context_parallel_size", 2, "context parallelism"),
    ):
        before = getattr(part, name)
        setattr(part, name, value)
        refused(what)
        setattr(part, name, before)
    made()
    for name in ("CPU_MLA", "AMX_MLA"):
        with pytest.raises(NotImplementedError, match=rf"latent attention \({name}\)"):
            engine.backend(name)


def test_what_is_not_served_is_named_where_layers_are_grouped(engine):
    engine.config = config(tsallis_map="entmax", tsallis_alpha=1.5)
    backend = engine.backend()
    builder = backend.get_builder_cls()
    spec = FullAttentionSpec(128, 4, 32, torch.float32, 32)
    builder(spec, [], engine.config, "cpu")
    for other, what in (
        (replaced(spec, page_size_padded=2**20), "padded blocks"),
        (replaced(spec, head_size_v=16), "a value of another size"),
        (
            SimpleNamespace(page_size_padded=None, head_size=32, head_size_v=32),
            "a KV cache of SimpleNamespace",
        ),
    ):
        with pytest.raises(NotImplementedError, match=what):
            builder(other, [], engine.config, "cpu")
    with pytest.raises(NotImplementedError, match="attention through Chunked"):
        type("Chunked", (builder,), {})(spec, [], engine.config, "cpu")
    with pytest.raises(NotImplementedError, match="a screen in blocks of several sizes"):
        backend.customize_spec(replaced(spec, page_size_padded=2**20))


def test_a_layer_without_its_alpha_computes_nothing(engine):
    engine.config = config(tsallis_map="entmax", tsallis_alpha=1.7)
    server = Server(engine, 4, 2, 32)
    made = engine.backend().get_impl_cls()(4, 32, 1.0, 2)
    server.impl.options["alpha"] = made.options["alpha"]  # of a layer that no builder knows
    with pytest.raises(TypeError, match="alpha: expected a number, got None"):
        server.step([(0, 2)], torch.randn(2, 4, 32), *torch.randn(2, 2, 2, 32))


def test_what_is_not_served_is_named_in_a_step(engine):
    engine.config = config(tsallis_map="entmax", tsallis_alpha=1.5)
    server = Server(engine, 4, 2, 32)
    q, k = torch.randn(2, 4, 32), torch.randn(2, 2, 32)
    server.step([(0, 2)], q, k, k)
    for name, value, what in (
        ("causal", torch.tensor([True]), "not causal"),
        ("causal", False, "not causal"),
        ("mm_req_doc_ranges", {0: [(0, 1)]}, "multimodal prefix"),
        ("rswa_prefix_lens", torch.tensor([1]), "R-SWA"),
    ):
        metadata = server.metadata([(0, 1)], [1])
        setattr(metadata, name, value)
        with pytest.raises(NotImplementedError, match=what):
            server.builder.build(0, metadata)
    output = torch.zeros_like(q)
    arguments = (server.layer, q, k, k, server.cache, None, output)
    assert server.impl.forward(*arguments) is output  # vLLM's profiling run has no metadata
    with pytest.raises(NotImplementedError, match="quantised output"):
        server.impl.forward(*arguments, output_scale=torch.ones(1))


def test_the_entry_point_puts_our_classes_in_place_of_vllm_s(engine):
    tsallis_vllm.register()
    tsallis_vllm.register()  # vLLM calls it in every process, and may call it again
    assert engine.overrides == {
        name: f"tsallis.integrations.vllm.{name}" for name in ("CPU_ATTN", "CPU_MLA", "AMX_MLA")
    }


def parsed(engine, **content):
    return engine.parsers["hf"]().parse(content)[1]


def test_the_entry_point_reads_the_architecture_of_converted_models(engine):
    tsallis_vllm.register()
    found = parsed(engine, architectures=["TsallisLlamaForCausalLM"], tsallis_map="entmax")
    assert found.architectures == ["LlamaForCausalLM"]
    assert parsed(engine, architectures=["LlamaForCausalLM"]).architectures == ["LlamaForCausalLM"]
    assert parsed(engine, architectures=None).architectures == []
    with pytest.raises(ValueError, match="tsallis_map: expected in the config of a model with the"):
        parsed(engine, architectures=["TsallisLlamaForCausalLM"])


def test_other_devices_are_refused_by_name(engine, monkeypatch):
    engine.cpu = False
    tsallis_vllm.register()
    assert engine.overrides == {}
    assert parsed(engine, architectures=["LlamaForCausalLM"]).architectures == ["LlamaForCausalLM"]
    for name in ("LlamaForCausalLM", "TsallisLlamaForCausalLM"):
        with pytest.raises(NotImplementedError, match="vLLM for CPUs alone, got cuda"):
            parsed(engine, architectures=[name], tsallis_map="entmax")
    monkeypatch.setenv("TSALLIS_ATTENTION", "entmax15")
    with pytest.raises(NotImplementedError, match="TSALLIS_ATTENTION: tsallis serves in vLLM for"):
        tsallis_vllm.register()


def test_the_entry_point_loads_nothing():
    code = "import json, sys, tsallis_vllm; print(json.dumps(sorted(sys.modules)))"
    folder = Path(tsallis_vllm.__file__).parents[1]
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert not {"tsallis", "torch", "vllm"} & set(json.loads(answer.stdout))
