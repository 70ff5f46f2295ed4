"""Attention as torch sees it: opcheck, torch.compile, autocast, threads, mistakes."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

import tsallis
from tsallis import _ops
from tsallis._call import call
from tsallis._ops import MAPS

OPS = torch.ops.tsallis


def draw(q_len=5, k_len=6, heads=4, kv_heads=2, batch=2, dim=4, value_dim=3, dtype=torch.float32):
    return [
        torch.randn(batch, heads, q_len, dim, dtype=dtype),
        torch.randn(batch, kv_heads, k_len, dim, dtype=dtype),
        torch.randn(batch, kv_heads, k_len, value_dim, dtype=dtype),
    ]


def settings_with_gradients():
    return {
        "alpha_heads": torch.tensor([1.2, 1.5, 1.8, 2.0], requires_grad=True),
        "length_scale": torch.rand(2, 1, 5).add(0.5).requires_grad_(),
        "alibi_slopes": torch.rand(4, requires_grad=True),
        "bias": torch.randn(4, 1, 6, requires_grad=True),
        "sink": torch.randn(4, requires_grad=True),
        "causal": True,
    }


def settings_without():
    return {
        "mask": torch.rand(2, 1, 5, 6) < 0.8,
        "block_mask": torch.rand(3, 2) < 0.8,
        "block_q": 2,
        "block_k": 3,
        "lengths": torch.tensor([6, 4]),
        "query_lengths": torch.tensor([5, 3]),
        "left": 3,
        "scale_invariant": 8.0,
        "scale_invariant_alpha": 2.0,
        "scale_invariant_beta": 3.0,
        "scale": 0.3,
        "softcap": 5.0,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("operator", [OPS.attention, OPS.attention_stats], ids=str)
def test_opcheck(operator, dtype):
    tensors = draw(dtype=dtype)
    opcheck(operator, tensors, settings_without())
    opcheck(operator, tensors, {"map": MAPS.index("softmax")})
    opcheck(operator, tensors, detached(settings_with_gradients()) | settings_without())
    packed = {"cu_seqlens_q": torch.tensor([0, 2, 5]), "cu_seqlens_k": torch.tensor([0, 4, 6])}
    opcheck(operator, [tensor[:1] for tensor in tensors], packed)
    rows_first = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in draw()]
    opcheck(operator, rows_first, {"saved_budget": 100})


@pytest.mark.parametrize(
    "settings",
    [
        {"map": "top_k_softmax", "top_k": 2, "top_k_fraction": 0.5},
        {"map": "sigmoid", "sigmoid_bias": 0.0},
        {"map": "softpick"},
        {"map": "stick_breaking", "causal": True},
    ],
    ids=lambda settings: settings["map"],
)
def test_opcheck_baselines(settings):
    opcheck(OPS.attention, draw(), settings | {"map": MAPS.index(settings["map"])})


def detached(settings):
    return {
        name: value.detach() if isinstance(value, torch.Tensor) else value
        for name, value in settings.items()
    }


def test_opcheck_parts():
    q, k, v = draw()
    options = detached(settings_with_gradients())
    # Beyond the lists `saved` holds arbitrary bytes, so two calls are not compared.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for operator in (OPS.attention_forward, OPS.attention_forward_stats):
        opcheck(operator, (q, k, v, 0), options)
        opcheck(operator, (q, k, v, 2), options, test_utils=tests)
        without_sink = {name: value for name, value in options.items() if name != "sink"}
        for budget in (1000, 1 << 28):
            reserved = without_sink | {"saved_budget": budget}
            opcheck(operator, (q, k, v, 2), reserved, test_utils=tests)
            assert operator(q, k, v, 2, **reserved)[2].numel() == min(budget, 2 * 4 * 5 * 512)
        # A header, and the output in float32, padded to 16 columns.
        softmax = {"map": _ops.SOFTMAX}
        opcheck(operator, (q, k, v, 2), softmax, test_utils=tests)
        padded = (v.shape[3] + 15) // 16 * 16
        assert operator(q, k, v, 2, **softmax)[2].numel() == 64 + 2 * 4 * 5 * padded * 4
    out, tau, saved = OPS.attention_forward(q, k, v, **options)
    assert saved.dtype == torch.uint8
    assert tau.dtype == torch.float64
    arguments = (torch.randn_like(out), q, k, v, tau, saved)
    for wanted in (0b11111111, 0b10101010):
        opcheck(OPS.attention_backward_terms, (*arguments, wanted), options, test_utils=tests)
        results = OPS.attention_backward_terms(*arguments, wanted, **options)
        for i, result in enumerate(results):
            assert (result.numel() > 0) == bool(wanted >> i & 1)
    for wanted in (0b111, 0b010):
        opcheck(OPS.attention_backward, (*arguments, wanted), options, test_utils=tests)
    opcheck(OPS.attention_weights, (q, k), options, test_utils=tests[:2])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    def f(q, k, v, alpha, bias, scale):
        out, extra = tsallis.attention(
            q * 2,
            k,
            v,
            alpha=alpha,
            bias=bias,
            length_scale=scale,
            causal=True,
            window=(4, None),
            returns=("tau", "entropy"),
        )
        plain = tsallis.attention(q, k, v, map="softmax", scale=0.5)
        return (out.square() + plain).sum() + extra.entropy.sum() + out.transpose(1, 2).sum()

    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    alpha = torch.tensor([1.3, 1.5, 2.0, 1.8])
    for q_len, k_len in ((5, 6), (7, 11)):
        inputs = [*draw(q_len, k_len), alpha, torch.randn(q_len, k_len), torch.rand(q_len) + 0.5]
        results = []
        for run in (f, compiled):
            leaves = [tensor.clone().requires_grad_() for tensor in inputs]
            loss = run(*leaves)
            results.append((loss.detach(), *torch.autograd.grad(loss, leaves)))
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected)


def test_compile_keeps_sizes_symbolic():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    f = torch.compile(tsallis.attention, fullgraph=True, backend=backend)
    for length in (5, 9, 17):
        tensors = draw(length, length, batch=length - 2)
        for tensor in tensors:
            torch._dynamo.mark_dynamic(tensor, 0)
            torch._dynamo.mark_dynamic(tensor, 2)
            tensor.requires_grad_()
        torch.testing.assert_close(
            f(*tensors, causal=True), tsallis.attention(*tensors, causal=True)
        )
    assert len(graphs) == 1


@pytest.mark.slow  # compiles C++
def test_compile_inductor():
    def f(x, lengths):
        q, k, v = x.view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)
        out = tsallis.attention(
            q, k, v, causal=True, lengths=lengths, query_lengths=lengths, saved_budget=1000
        )
        return out.transpose(1, 2).reshape(2, 5, 32).relu()

    x, lengths = torch.randn(2, 5, 96), torch.tensor([5, 3])
    results = []
    for run in (f, torch.compile(f, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        run(leaf, lengths).square().sum().backward()
        results.append(leaf.grad)
    torch.testing.assert_close(*results)


def test_weights_are_not_for_compile():
    @torch.compile(fullgraph=True, backend="eager")
    def f(q, k, v):
        return tsallis.attention(q, k, v, returns=("weights",))[1].weights.values().sum()

    with pytest.raises(Exception, match="weights of attention cannot be traced"):
        f(*draw())


def test_meta_tensors():
    q, k, v = (tensor.to("meta") for tensor in draw())
    out, extra = tsallis.attention(q, k, v, returns=("tau", "support_size"))
    assert out.shape == (2, 4, 5, 3)
    assert extra.tau.shape == extra.support_size.shape == (2, 4, 5)
    assert out.device.type == extra.tau.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    q, k, v = (tensor.requires_grad_() for tensor in draw())
    scale = torch.rand(2, 4, 5).add(0.5).bfloat16().requires_grad_()
    alpha = torch.full((4,), 1.4, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        out, extra = tsallis.attention(
            q, k, v.to(dtype), length_scale=scale, alpha=alpha, returns=("tau", "weights")
        )
        plain = tsallis.attention(q, k, v, length_scale=scale, alpha=alpha)
    assert out.dtype == plain.dtype == dtype
    assert extra.tau.dtype == torch.float32
    narrow = [tensor.detach().to(dtype) for tensor in (q, k, v)]
    expected = tsallis.attention(*narrow, length_scale=scale.float(), alpha=alpha)
    assert plain.equal(expected)
    torch.testing.assert_close(out, expected)
    plain.float().square().sum().backward()
    for tensor in (q, k, v, scale, alpha):
        assert tensor.grad.dtype == tensor.dtype
        assert tensor.grad.abs().max() > 0


def test_inference_no_grad_and_checkpoints():
    q, k, v = (tensor.requires_grad_() for tensor in draw())
    expected = tsallis.attention(q, k, v)
    with torch.no_grad():
        assert not tsallis.attention(q, k, v).requires_grad
    with torch.inference_mode():
        out, extra = tsallis.attention(*draw(), returns=("tau", "weights"))
        assert out.is_inference()
        assert extra.tau.shape == (2, 4, 5)
    again = checkpoint(lambda *x: tsallis.attention(*x), q, k, v, use_reentrant=False)
    for ours, other in zip(
        torch.autograd.grad(again.square().sum(), (q, k, v)),
        torch.autograd.grad(expected.square().sum(), (q, k, v)),
        strict=True,
    ):
        assert ours.equal(other)


def test_second_derivatives_are_refused():
    q, k, v = (tensor.requires_grad_() for tensor in draw())
    loss = tsallis.attention(q, k, v).square().sum()
    (gradient,) = torch.autograd.grad(loss, k, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        gradient.sum().backward()


def test_changed_inputs_are_noticed():
    q, k, v = (tensor.requires_grad_() for tensor in draw())
    mask = torch.ones(5, 6, dtype=torch.bool)
    out = tsallis.attention(q, k, v, mask=mask)
    mask[0] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_vmap_of_weights_is_refused():
    q, k, v = (torch.stack((tensor, tensor)) for tensor in draw())
    with pytest.raises(NotImplementedError, match=r"weights .* cannot be traced or mapped"):
        torch.vmap(lambda q, k, v: tsallis.attention(q, k, v, returns="weights"))(q, k, v)


def gradients_of(tensors, **settings):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = tsallis.attention(*leaves, **settings)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_same_bits_whatever_the_threads(dtype):
    tensors = draw(q_len=33, k_len=65, batch=3, dim=16, value_dim=8, dtype=dtype)
    settings = {"causal": True, "bias": torch.randn(33, 65, requires_grad=True)}
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(gradients_of(tensors, **settings))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for ours, expected in zip(other, results[0], strict=True):
            assert ours.equal(expected)


def test_calls_at_once():
    problems = [draw(q_len=20 + n, k_len=30, dim=8) for n in range(8)]
    expected = [gradients_of(problem, causal=True) for problem in problems]
    with ThreadPoolExecutor(max_workers=4) as pool:
        for _ in range(3):
            results = list(pool.map(lambda problem: gradients_of(problem, causal=True), problems))
            for ours, other in zip(results, expected, strict=True):
                assert all(a.equal(b) for a, b in zip(ours, other, strict=True))


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": ones(2, 4, 5)}, r"q: expected \[batch, heads, q_len, head_dim\].*\[2, 4, 5\]"),
        ({"q": ones(2, 4, 5, 4, dtype=torch.long)}, "q: expected dtype float32.*Long"),
        ({"q": ones(2, 3, 5, 4)}, "q: expected a multiple of kv_heads = 2 heads, got 3"),
        ({"q": ones(2, 4, 5, 600), "k": ones(2, 2, 6, 600)}, "head_dim: expected a size.*600"),
        ({"k": ones(2, 2, 6, 5)}, "k: expected head_dim = 4, got 5"),
        ({"k": ones(3, 2, 6, 4)}, "k: expected batch = 2, got 3"),
        ({"k": ones(2, 2, 6, 4, dtype=torch.float64)}, "k: expected the dtype of q, Float.*Double"),
        ({"v": ones(2, 2, 7, 3)}, "v: expected k_len = 6, got 7"),
        ({"v": ones(2, 4, 6, 3)}, "v: expected kv_heads = 2, got 4"),
        ({"v": ones(2, 2, 6, 600)}, "value_dim: expected a size.*600"),
        ({"v": torch.empty(2, 2, 6, 3, device="meta")}, "v: expected the device of q, cpu.*meta"),
        ({"map": "entmx"}, "map: expected one of softmax, entmax, [^b]*stick_breaking, got entmx"),
        ({"map": "normmax"}, "map: expected one of softmax, entmax, .*stick_breaking, got normmax"),
        ({"map": "stick_breaking"}, "causal: expected True for stick_breaking.*got False"),
        ({"map": "top_k_softmax"}, "^top_k: expected an integer >= 1 for top_k_softmax, got None"),
        (
            {"map": "top_k_softmax", "top_k": 0},
            "^top_k: expected an integer >= 1 for top_k_softmax, got 0",
        ),
        (
            {"map": "top_k_softmax", "top_k": 2, "top_k_fraction": 2.0},
            r"^top_k_fraction: expected a number in \[0, 1\], got 2",
        ),
        ({"top_k": 3}, "^top_k: expected None for entmax, got 3"),
        ({"sigmoid_bias": 1.0}, "^sigmoid_bias: expected None for entmax, got 1"),
        ({"coefficients": [9.0, 1.0]}, "^coefficients: expected None for entmax, got a list of 2"),
        ({"threshold": 0.1}, "^threshold: expected None for entmax, got 0.1"),
        ({"map": "sigmoid", "sigmoid_bias": math.inf}, "^sigmoid_bias: expected a finite number"),
        ({"sink": ones(3)}, r"^sink: expected a shape.*\[4\].*\[3\]"),
        ({"sink": ones(4, dtype=torch.int)}, "^sink: expected dtype.*Int"),
        ({"sink": ones(4), "map": "softpick"}, "^sink: expected None for softpick, got a tensor"),
        ({"map": "argmax"}, "map: expected one of.*argmax"),
        ({"alpha": -0.5}, "^alpha: expected a finite number > 0, got -0.5"),
        ({"alpha": math.nan}, "^alpha: expected.*nan"),
        ({"alpha": torch.tensor([1.5, 2, 0.5, 0.0])}, r"^alpha\[3\]: expected.*0.0"),
        ({"alpha": ones(3)}, r"^alpha: expected a shape.*\[4\].*\[3\]"),
        ({"alpha": ones(4, dtype=torch.int)}, "^alpha: expected dtype.*Int"),
        ({"alpha": ones(4).to_sparse()}, "^alpha: expected a dense tensor on the CPU, got Sparse"),
        ({"mask": ones(5, 6).bool().to_sparse()}, "^mask: expected a dense tensor on the CPU"),
        ({"alpha": ones(4), "map": "softmax"}, "^alpha: expected none for softmax"),
        ({"scale": 0.0}, "scale: expected a finite number > 0 or None, got 0"),
        ({"scale": math.inf}, "scale: expected.*inf"),
        ({"scale_invariant": -1.0}, "scale_invariant: expected.*-1"),
        ({"scale_invariant": 0.0}, "scale_invariant: expected a finite number > 0 or None, got 0"),
        (
            {"scale_invariant_alpha": 1.0},
            "scale_invariant_alpha: expected none without scale_invariant, got 1",
        ),
        (
            {"scale_invariant": 5.0, "scale_invariant_beta": 0.5},
            "scale_invariant_beta: expected a number from A ln A to 100 A",
        ),
        ({"softcap": 0.0}, "softcap: expected a finite number > 0 or None, got 0"),
        ({"softcap": 1e-9}, "softcap: expected a number from 1e-6 to 1e6"),
        ({"alignment": "middle"}, 'alignment: expected "end" or "start", got "middle"'),
        ({"window": 3}, "window: expected a pair, got 3"),
        ({"window": (-1, 2)}, "window: expected integers .*, or None for an open side, got -1"),
        ({"window": (None, -5)}, "window: expected.* got -5"),
        ({"window": (1, 2, 3)}, "window: expected a pair"),
        ({"window": (np.int64(-5), 0)}, "window: expected.* got -5"),
        ({"window": (0, torch.tensor(-3))}, "window: expected.* got -3"),
        ({"window": (2**70, 0)}, r"^window: expected integers from 0 to 2\^63 - 1"),
        ({"saved_budget": 2**70}, r"^saved_budget: expected an integer from .* to 2\^63 - 1"),
        ({"mask": ones(5, 6)}, "mask: expected dtype bool.*Float"),
        ({"mask": ones(6, 5, dtype=torch.bool)}, r"mask: expected.*\[2, 4, 5, 6\].*\[6, 5\]"),
        ({"block_mask": ones(2, 2, dtype=torch.bool)}, "^block_size: expected two.* got None"),
        (
            {"block_mask": ones(2, 2, dtype=torch.bool), "block_size": (0, 2)},
            "^block_size: expected two numbers > 0 beside block_mask, got 0 and 2",
        ),
        (
            {"block_mask": ones(2, 2, dtype=torch.bool), "block_size": (2, 3)},
            r"block_mask: expected.*\[2, 4, 3, 2\].*\[2, 2\]",
        ),
        ({"block_size": (2, 3)}, "block_size: expected None without block_mask"),
        ({"bias": ones(2, 5, 6)}, r"bias: expected.*\[2, 4, 5, 6\].*\[2, 5, 6\]"),
        ({"bias": ones(1, 2, 4, 5, 6)}, "bias: expected a shape"),
        ({"bias": ones(5, 6, dtype=torch.bool)}, "bias: expected dtype"),
        ({"length_scale": ones(2, 4, 6)}, r"length_scale: expected.*\[2, 4, 5\].*\[2, 4, 6\]"),
        ({"alibi_slopes": ones(2)}, r"alibi_slopes: expected.*\[2, 4\].*\[2\]"),
        ({"lengths": torch.tensor([3])}, "lengths: expected batch = 2, got 1"),
        ({"lengths": torch.tensor([3, 7])}, r"lengths\[1\]: expected.*\[0, 6\], got 7"),
        ({"lengths": torch.tensor([-1, 6])}, r"lengths\[0\]: expected.*\[0, 6\], got -1"),
        ({"lengths": torch.tensor([3.0, 4.0])}, "lengths: expected dtype int32 or int64.*Float"),
        ({"lengths": torch.tensor([[3, 4]])}, "lengths: expected one dimension"),
        ({"query_lengths": torch.tensor([3, 6])}, r"query_lengths\[1\]: expected.*\[0, 5\], got 6"),
        (
            {"lengths": torch.tensor([3, 3]), "padding": "top"},
            'padding: expected "right" or "left"',
        ),
        (
            {"q": ones(2, 4, 6, 4), "lengths": torch.tensor([3, 4]), "causal": True},
            "query_lengths: expected the lengths of the queries",
        ),
        ({"cu_seqlens_q": torch.tensor([0, 5])}, "q: expected batch = 1 for packed sequences.*2"),
        ({"cu_seqlens_k": torch.tensor([0, 5])}, "cu_seqlens_q: expected a tensor"),
        ({"saved_budget": -1}, "saved_budget: expected bytes >= 0, got -1"),
        ({"returns": ("tau", "rho")}, "returns: expected names out of tau.*'rho'"),
    ],
)
def test_mistakes(change, message):
    for requires_grad in (False, True):
        q, k, v = draw()
        arguments = {"q": q.requires_grad_(requires_grad), "k": k, "v": v} | change
        with pytest.raises(ValueError, match=message):
            tsallis.attention(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": [1.0]}, "^q: expected a tensor, got list"),
        ({"k": None}, "^k: expected a tensor, got None"),
        ({"lengths": [5, 6]}, "^lengths: expected a tensor or None, got list"),
        ({"alibi_slopes": 0.5}, "^alibi_slopes: expected a tensor or None, got float"),
        ({"alpha": "1.5"}, "^alpha: expected a number, got '1.5'"),
        ({"alpha": [1.5, 2.0]}, "^alpha: expected a number, got "),
        ({"scale": "large"}, "^scale: expected a number or None, got str"),
        ({"causal": "no"}, "^causal: expected True or False, got str"),
        ({"map": 2}, "^map: expected a name, got int"),
        ({"window": (1.5, 2)}, "^window: expected an integer or None, got float"),
        ({"top_k": 2.5, "map": "top_k_softmax"}, "^top_k: expected an integer, got float"),
        (
            {"block_mask": ones(1, 1, dtype=torch.bool), "block_size": (2.0, 3.0)},
            "^block_size: expected an integer, got float",
        ),
        ({"coefficients": ["a"], "map": "adaptive_temperature"}, "^coefficients: .* got 'a'"),
    ],
)
def test_values_of_another_type(change, message):
    for returns in ((), ("tau",), ("weights",)):
        q, k, v = draw()
        with pytest.raises(TypeError, match=message):
            tsallis.attention(**({"q": q, "k": k, "v": v} | change), returns=returns)


@pytest.mark.parametrize("device", ["cuda:0", "xpu:0"])
def test_a_device_without_kernels(device):
    """As far as a machine without one can tell: the dispatcher's own error, on such a tensor."""
    with torch._subclasses.FakeTensorMode():
        q, k, v = (x.to(device) for x in draw())

    def refuse(*_, **__):
        raise NotImplementedError(
            f"Could not run 'tsallis::attention' with arguments from the '{device[:-2].upper()}' "
            "backend. This could be because ..."
        )

    with pytest.raises(ValueError, match=f"^q: expected a dense tensor on the CPU.*{device}"):
        call(refuse, q=q, k=k, v=v)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_tensors_of_another_kind():
    q, k, v = draw()
    nested = torch.nested.nested_tensor([x.clone() for x in k])
    with pytest.raises(ValueError, match=r"^k: expected a dense tensor.*Nested"):
        tsallis.attention(q, nested, v)
    with pytest.raises(ValueError, match=r"^q: expected a dense tensor"):
        tsallis.attention(q[0, 0].to_mkldnn(), k, v)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens_q": torch.tensor([0, 6])}, r"cu_seqlens_q\[1\]: expected.*\[0, 5\].*got 6"),
        (
            {"cu_seqlens_q": torch.tensor([0, 3, 2])},
            r"cu_seqlens_q\[2\]: expected.*\[3, 5\].*got 2",
        ),
        ({"cu_seqlens_q": torch.tensor([], dtype=torch.long)}, "cu_seqlens_q: .*got none"),
        (
            {"cu_seqlens_q": torch.tensor([0, 5]), "cu_seqlens_k": torch.tensor([0, 7])},
            r"cu_seqlens_k\[1\]: expected.*\[0, 6\].*got 7",
        ),
        (
            {"cu_seqlens_q": torch.tensor([0, 5]), "cu_seqlens_k": torch.tensor([0, 3, 6])},
            "cu_seqlens_k: expected as many numbers as cu_seqlens_q = 2, got 3",
        ),
        (
            {"cu_seqlens_q": torch.tensor([0, 5]), "lengths": torch.tensor([3])},
            "lengths: expected None for packed sequences",
        ),
    ],
)
def test_mistakes_in_packing(change, message):
    with pytest.raises(ValueError, match=message):
        tsallis.attention(*draw(batch=1), **change)
