"""Attention against its definition: values, gradients, masks, ragged batches, statistics."""

import math

import attention_by_definition as definition
import pytest
import torch
from torch.autograd import gradcheck

import tsallis


def draw(q_len=7, k_len=9, heads=4, kv_heads=2, batch=2, dim=5, value_dim=3, dtype=torch.float64):
    return (
        torch.randn(batch, heads, q_len, dim, dtype=dtype).mul_(1.5),
        torch.randn(batch, kv_heads, k_len, dim, dtype=dtype),
        torch.randn(batch, kv_heads, k_len, value_dim, dtype=dtype),
    )


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def spread_bias(*shape):
    bias = double(*shape)
    bias[torch.rand(*shape) < 0.2] = -math.inf
    return bias


# Functions, so that tensors are drawn after the seed.
CASES = {
    "plain": dict,
    "softmax": lambda: {"map": "softmax"},
    "adaptive": lambda: {"map": "adaptive_temperature"},
    "alpha-1": lambda: {"alpha": 1.0},
    "alpha-1.25": lambda: {"alpha": 1.25, "scale": 0.7},
    "alpha-2": lambda: {"alpha": 2.0, "causal": True},
    "alpha-4": lambda: {"alpha": 4.0},
    "alpha-per-head": lambda: {"alpha": torch.tensor([1.2, 1.5, 1.75, 2.0]).double()},
    "top-k": lambda: {"map": "top_k_softmax", "top_k": 3},
    "top-half": lambda: {"map": "top_k_softmax", "top_k": 2, "top_k_fraction": 0.5, "causal": True},
    "sigmoid": lambda: {"map": "sigmoid", "mask": torch.rand(7, 9) < 0.7},
    "sigmoid-bias": lambda: {"map": "sigmoid", "sigmoid_bias": -1.0, "causal": True},
    "softpick": lambda: {"map": "softpick", "causal": True},
    "stick-breaking": lambda: {"map": "stick_breaking", "causal": True},
    "sink": lambda: {"sink": double(4)},
    "sink-of-softmax": lambda: {"sink": double(1), "map": "softmax", "causal": True},
    "sink-alpha-per-head": lambda: {
        "sink": double(4),
        "alpha": torch.tensor([1.2, 1.5, 1.75, 2.0]).double(),
        "mask": torch.rand(2, 4, 7, 9) < 0.4,
    },
    "stick-breaking-everything": lambda: {
        "map": "stick_breaking",
        "causal": True,
        "alignment": "start",
        "window": (5, None),
        "mask": torch.rand(2, 1, 7, 9) < 0.9,
        "bias": spread_bias(7, 9),
        "length_scale": double(2, 1, 7).abs() + 0.5,
        "alibi_slopes": double(4).abs(),
        "scale_invariant": 4.0,
    },
    "causal": lambda: {"causal": True},
    "causal-start": lambda: {"causal": True, "alignment": "start"},
    "window": lambda: {"window": (2, 1)},
    "window-left": lambda: {"window": (3, None), "causal": True},
    "mask": lambda: {"mask": torch.rand(2, 4, 7, 9) < 0.6},
    "mask-of-keys": lambda: {"mask": torch.rand(2, 1, 1, 9) < 0.6},
    "mask-2d": lambda: {"mask": torch.rand(7, 9) < 0.4},
    "blocks": lambda: {"block_mask": torch.rand(4, 3, 3) < 0.6, "block_size": (3, 4)},
    "bias": lambda: {"bias": spread_bias(2, 4, 7, 9)},
    "bias-of-heads": lambda: {"bias": spread_bias(4, 1, 9), "causal": True},
    "bias-of-queries": lambda: {"bias": double(2, 1, 7, 1), "map": "softmax"},
    "length-scale": lambda: {"length_scale": double(2, 4, 7).abs() + 0.5},
    "length-scale-of-heads": lambda: {"length_scale": double(4, 1).abs() + 0.5},
    "slopes": lambda: {"alibi_slopes": double(4).abs(), "causal": True},
    "slopes-of-batch": lambda: {"alibi_slopes": double(2, 4)},
    "scale-invariant": lambda: {"scale_invariant": 10.0, "causal": True},
    "scale-invariant-alpha": lambda: {
        "scale_invariant": 10.0,
        "scale_invariant_alpha": 0.5,
        "causal": True,
    },
    "scale-invariant-shape": lambda: {
        "scale_invariant": 3.0,
        "scale_invariant_alpha": 2.0,
        "scale_invariant_beta": 1.5,
        "map": "softmax",
    },
    "softcap": lambda: {"softcap": 1.5},
    "softcap-of-softmax": lambda: {"softcap": 0.7, "map": "softmax", "causal": True},
    "softcap-terms": lambda: {
        "softcap": 2.0,
        "causal": True,
        "length_scale": double(2, 4, 7).abs() + 0.5,
        "alibi_slopes": double(4).abs(),
        "scale_invariant": 4.0,
    },
    "everything": lambda: {
        "alpha": torch.tensor([1.3, 1.5, 2.0, 1.7]).double(),
        "causal": True,
        "window": (5, None),
        "mask": torch.rand(2, 1, 7, 9) < 0.9,
        "block_mask": torch.rand(2, 3) < 0.9,
        "block_size": (4, 3),
        "bias": spread_bias(7, 9),
        "length_scale": double(2, 1, 7).abs() + 0.5,
        "alibi_slopes": double(4).abs(),
        "scale_invariant": 4.0,
        "scale": 0.4,
        "softcap": 3.0,
    },
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
DIFFERENTIABLE = ("alpha", "bias", "length_scale", "alibi_slopes", "sink")


def run(apply, tensors, settings, weight):
    """The output of `apply`, and the gradients in everything that has one."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    settings = dict(settings)
    for name in DIFFERENTIABLE:
        if isinstance(settings.get(name), torch.Tensor):
            settings[name] = settings[name].detach().clone().requires_grad_()
            inputs.append(settings[name])
    out = apply(*inputs[:3], **settings)
    return out.detach(), torch.autograd.grad((out * weight).sum(), inputs)


@every_case
def test_values_and_gradients_follow_the_definition(case):
    tensors, settings = draw(), case()
    weight = double(2, 4, 7, 3)
    ours, gradients = run(tsallis.attention, tensors, settings, weight)
    expected, expected_gradients = run(definition.attention, tensors, settings, weight)
    torch.testing.assert_close(ours, expected, atol=1e-9, rtol=1e-7)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-7, rtol=1e-6)


def check_narrow(tensors, settings, weight, dtype, with_gradients=True):
    """Against double precision on the same rounded inputs, within twice the error of plain float32
    arithmetic and a few roundings to `dtype`."""

    def everything(apply, precision):
        inputs = [tensor.to(dtype).to(precision) for tensor in tensors]
        own = {
            name: value.to(dtype).to(precision)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in settings.items()
        }
        out, gradients = run(apply, inputs, own, weight.to(dtype).to(precision))
        return [out, *(gradients if with_gradients else ())]

    ours = everything(tsallis.attention, dtype)
    assert ours[0].dtype == dtype
    exact = everything(definition.attention, torch.float64)
    plain = everything(definition.attention, torch.float32)
    eps = torch.finfo(dtype).eps
    for mine, expected, other in zip(ours, exact, plain, strict=True):
        if expected.numel() == 0:
            continue
        largest = expected.abs().max()
        allowed = 2 * (other.double() - expected).abs().max() + 8 * eps * largest
        if largest < 1e-12:  # of terms that cancel, as those of a bias that is alike for all keys
            scale = max(x.abs().max() for x in exact if x.numel() > 0)
            allowed = allowed + 2 * torch.finfo(torch.float32).eps * scale
        assert (mine.double() - expected).abs().max() <= allowed


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_dtypes(case, dtype):
    settings = case()
    # Above alpha = 2 weights rise infinitely steeply where they begin: no digit of a gradient is
    # certain in float32.
    steep = case is CASES["alpha-4"]
    check_narrow(draw(), settings, double(2, 4, 7, 3), dtype, with_gradients=not steep)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("length", [64, 150])
def test_longer_sequences(dtype, alpha, length):
    tensors = draw(q_len=length, k_len=length, dim=32, value_dim=32)
    settings = {"alpha": alpha, "causal": True}
    check_narrow(tensors, settings, double(2, 4, length, 32), dtype)
    if alpha == 1.5:
        settings |= {"alibi_slopes": double(4).abs() * 0.1, "length_scale": double(4, 1).abs() + 1}
        check_narrow(tensors, settings, double(2, 4, length, 32), dtype)


def test_gradcheck():
    tensors = [tensor.requires_grad_() for tensor in draw(q_len=4, k_len=5, batch=1)]
    bias = double(4, 1, 5).requires_grad_()
    length_scale = (double(1, 4).abs() + 0.5).requires_grad_()
    slopes = double(4).abs().requires_grad_()
    alpha = torch.tensor([1.3, 1.5, 2.0, 1.8]).double().requires_grad_()

    def f(q, k, v, alpha, length_scale, slopes, bias):
        return tsallis.attention(
            q,
            k,
            v,
            alpha=alpha,
            length_scale=length_scale,
            alibi_slopes=slopes,
            bias=bias,
            causal=True,
            scale_invariant=3.0,
            scale_invariant_alpha=0.6,
            scale_invariant_beta=1.5,
        )

    assert gradcheck(f, (*tensors, alpha, length_scale, slopes, bias))
    assert gradcheck(lambda *x: tsallis.attention(*x, map="adaptive_temperature"), tensors)
    for settings in (
        {"map": "top_k_softmax", "top_k": 2},
        {"map": "sigmoid"},
        {"map": "softpick"},
        {"map": "stick_breaking", "causal": True},
    ):
        assert gradcheck(lambda *x, s=settings: tsallis.attention(*x, **s), tensors)
    sink = double(4).requires_grad_()
    for map in ("softmax", "entmax"):
        assert gradcheck(
            lambda *x, m=map: tsallis.attention(*x[:3], sink=x[3], map=m), (*tensors, sink)
        )


# ---- ragged batches ---------------------------------------------------------------------------


both_precisions = pytest.mark.parametrize(
    ("dtype", "close"),
    [
        (torch.float64, {"atol": 1e-7, "rtol": 1e-6}),
        (torch.float32, {"atol": 1e-4, "rtol": 1e-4}),
    ],
    ids=["float64", "float32"],
)


@both_precisions
@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("apply_to_queries", [True, False])
def test_padding(padding, apply_to_queries, dtype, close):
    q, k, v = draw(q_len=6 if apply_to_queries else 2, k_len=6, batch=3, dtype=dtype)
    lengths = torch.tensor([6, 3, 4])
    k, v = k.clone(), v.clone()
    rows = [slice(0, n) if padding == "right" else slice(6 - n, 6) for n in lengths.tolist()]
    for b, row in enumerate(rows):  # what is padding may hold anything
        keep = torch.zeros(6, dtype=torch.bool)
        keep[row] = True
        k[b, :, ~keep] = math.nan
        v[b, :, ~keep] = math.nan
    settings = {"causal": True, "alibi_slopes": torch.rand(4), "scale_invariant": 5.0}
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    out, extra = tsallis.attention(
        *leaves,
        lengths=lengths.int(),
        query_lengths=lengths if apply_to_queries else None,
        padding=padding,
        returns=("tau", "support_size"),
        **settings,
    )
    gradients = torch.autograd.grad(out.square().sum(), leaves)
    for b, row in enumerate(rows):
        q_row = row if apply_to_queries else slice(None)
        alone = [
            tensor[b : b + 1, :, part].detach().clone().requires_grad_()
            for tensor, part in zip(leaves, (q_row, row, row), strict=True)
        ]
        expected = definition.attention(*(x.double() for x in alone), **settings)
        mine = out[b : b + 1, :, q_row]
        torch.testing.assert_close(mine.double(), expected, **close)
        expected_gradients = torch.autograd.grad(expected.square().sum(), alone)
        for gradient, other, part in zip(
            gradients, expected_gradients, (q_row, row, row), strict=True
        ):
            mine = gradient[b : b + 1, :, part]
            torch.testing.assert_close(mine, other, **close)
            outside = torch.ones(gradient.shape[2], dtype=torch.bool)
            outside[part] = False
            assert (gradient[b, :, outside] == 0).all()
        outside = torch.ones(q.shape[2], dtype=torch.bool)
        outside[q_row] = False
        assert (out[b, :, outside] == 0).all()
        assert (extra.tau[b, :, outside] == -math.inf).all()
        assert (extra.support_size[b, :, outside] == 0).all()


@both_precisions
@pytest.mark.parametrize("cross", [False, True])
def test_packed(cross, dtype, close):
    # Rows before the first and behind the last sequence belong to none; one sequence is empty.
    cu_q = torch.tensor([1, 4, 4, 9], dtype=torch.int32)
    cu_k = torch.tensor([0, 5, 6, 13], dtype=torch.int32) if cross else cu_q
    q, k, v = draw(q_len=11, k_len=14 if cross else 11, batch=1, dtype=dtype)
    settings = {
        "causal": True,
        "alibi_slopes": double(4).abs(),
        "length_scale": double(1, 4, 11).abs() + 0.5,
        "bias": double(1, 1, 11, k.shape[2]),
    }
    weight = double(1, 4, 11, 3).to(dtype)

    def packed(*tensors, **others):
        return tsallis.attention(
            *tensors, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k if cross else None, **others
        )

    def apart(q, k, v, *, length_scale, bias, **others):
        out = torch.zeros(1, 4, 11, 3, dtype=torch.float64)
        for n in range(3):
            rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
            out[:, :, rows] = definition.attention(
                q[:, :, rows],
                k[:, :, keys],
                v[:, :, keys],
                length_scale=length_scale[:, :, rows],
                bias=bias[:, :, rows, keys],
                **others,
            )
        return out

    ours, gradients = run(packed, (q, k, v), settings, weight)
    wide = [tensor.double() for tensor in (q, k, v)]
    expected, expected_gradients = run(apart, wide, settings, weight.double())
    torch.testing.assert_close(ours.double(), expected, **close)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), other, **close)
    _, extra = packed(q, k, v, returns=("tau", "support_size", "maximum", "weights"))
    for row in (0, 9, 10):
        assert (extra.tau[:, :, row] == -math.inf).all()
        assert (extra.maximum[:, :, row] == -math.inf).all()
        assert (extra.support_size[:, :, row] == 0).all()
    if dtype == torch.float64:
        assert extra.weights.crow_indices()[-1] == extra.support_size.sum()


# ---- edges --------------------------------------------------------------------------------------


def test_queries_that_see_nothing():
    q, k, v = draw(q_len=9, k_len=5)
    k[:, :, 0] = math.nan  # not visible to the first query that sees anything
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    out, extra = tsallis.attention(
        *leaves,
        causal=True,
        window=(0, None),
        returns=("tau", "support_size", "entropy", "maximum"),
    )
    nothing = slice(0, 4)  # queries stand at -4 ... 4
    assert (out[:, :, nothing] == 0).all()
    assert (extra.tau[:, :, nothing] == -math.inf).all()
    assert (extra.maximum[:, :, nothing] == -math.inf).all()
    assert (extra.support_size[:, :, nothing] == 0).all()
    assert (extra.entropy[:, :, nothing] == 0).all()
    assert out[:, :, 4].isnan().all()
    assert (extra.support_size[:, :, 4] == -1).all()
    for i in range(5, 9):  # each sees the key at its own place
        torch.testing.assert_close(out[:, :2, i], v[:, :1, i - 4].expand(-1, 2, -1))
    gradients = torch.autograd.grad(out[:, :, 5:].sum(), leaves)
    assert all(gradient[:, :, 1:].isfinite().all() for gradient in gradients[1:])
    assert (gradients[0][:, :, nothing] == 0).all()
    none = tsallis.attention(q, k, v, mask=torch.zeros(1, 1, dtype=torch.bool))
    assert (none == 0).all()


@pytest.mark.parametrize(
    "sizes",
    [{"q_len": 0}, {"k_len": 0}, {"batch": 0}, {"heads": 0, "kv_heads": 0}, {"q_len": 1}],
    ids=str,
)
def test_empty_and_single(sizes):
    q, k, v = (tensor.requires_grad_() for tensor in draw(**sizes))
    bias = double(1, 1, 1, k.shape[2]).requires_grad_()
    slopes = double(q.shape[1]).requires_grad_()
    out = tsallis.attention(q, k, v, causal=True, bias=bias, alibi_slopes=slopes)
    assert out.shape == (*q.shape[:3], 3)
    out.sum().backward()
    for tensor in (q, k, v, bias, slopes):
        assert tensor.grad.shape == tensor.shape
        assert tensor.grad.isfinite().all()
    torch.testing.assert_close(
        out, definition.attention(q, k, v, causal=True, bias=bias, alibi_slopes=slopes)
    )


def test_any_strides():
    q, k, v = draw(dim=6, value_dim=6)
    weight = double(2, 4, 7, 6)
    expected, gradients = run(tsallis.attention, (q, k, v), {"causal": True}, weight)

    def rows_first(x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def columns_apart(x):
        return torch.stack((x, x), -1)[..., 0]

    for view in (rows_first, columns_apart, lambda x: x.flip(2).flip(2)):
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        out = tsallis.attention(*(view(leaf) for leaf in leaves), causal=True)
        torch.testing.assert_close(out.detach(), expected, atol=0, rtol=0)
        for ours, other in zip(
            torch.autograd.grad((out * weight).sum(), leaves), gradients, strict=True
        ):
            torch.testing.assert_close(ours, other, atol=0, rtol=0)
    # Heads of a projection are merged again without a copy.
    out = tsallis.attention(rows_first(q), rows_first(k), rows_first(v))
    assert out.transpose(1, 2).is_contiguous()
    assert tsallis.attention(q, k, v).is_contiguous()


def test_expanded_tensors_are_grouped_heads():
    q, k, v = draw(kv_heads=1)
    shared = tsallis.attention(q, k, v)
    expanded = tsallis.attention(q, k.expand(-1, 4, -1, -1), v.expand(-1, 4, -1, -1))
    torch.testing.assert_close(shared, expanded, atol=0, rtol=0)


def test_gradients_keep_shape_and_dtype():
    q, k, v = draw(dtype=torch.float32)
    shapes = {
        "bias": [(2, 4, 7, 9), (4, 1, 1), (9,), (1, 1, 7, 1), ()],
        "length_scale": [(2, 4, 7), (4, 1), (1,), ()],
        "alibi_slopes": [(2, 4), (4,), (1, 4), ()],
        "alpha": [(4,), (1,), ()],
    }
    for name, several in shapes.items():
        for shape in several:
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                tensor = torch.full(shape, 1.5, dtype=dtype, requires_grad=True)
                tsallis.attention(q, k, v, **{name: tensor}).square().sum().backward()
                assert tensor.grad.shape == shape
                assert tensor.grad.dtype == dtype
                assert tensor.grad.abs().max() > 0


def test_only_what_is_asked_for():
    q, k, v = draw()
    for name in ("q", "k", "v", "bias"):
        tensors = {"q": q, "k": k, "v": v, "bias": double(9)}
        _, all_gradients = run(tsallis.attention, (q, k, v), {"bias": tensors["bias"]}, 1.0)
        index = list(tensors).index(name)
        tensors[name] = tensors[name].detach().requires_grad_()
        out = tsallis.attention(tensors["q"], tensors["k"], tensors["v"], bias=tensors["bias"])
        (gradient,) = torch.autograd.grad(out.sum(), tensors[name])
        torch.testing.assert_close(gradient, all_gradients[index], atol=0, rtol=0)


def test_budget_changes_nothing():
    tensors = [tensor.float() for tensor in draw(q_len=40, k_len=50)]
    weight = torch.randn(2, 4, 40, 3)
    results = [
        run(tsallis.attention, tensors, {"saved_budget": budget, "causal": True}, weight)
        for budget in (2**28, 1000, 0)
    ]
    for out, gradients in results[1:]:
        torch.testing.assert_close(out, results[0][0], atol=1e-6, rtol=1e-6)
        for ours, other in zip(gradients, results[0][1], strict=True):
            torch.testing.assert_close(ours, other, atol=1e-5, rtol=1e-5)


# ---- what comes beside the output ---------------------------------------------------------------


def test_statistics():
    q, k, v = draw()
    settings = {"causal": True, "bias": spread_bias(7, 9)}
    s, visible = definition.scores(q, k, **settings)
    p = definition.weights(q, k, **settings)
    out, extra = tsallis.attention(
        q, k, v, returns=("tau", "support_size", "entropy", "maximum"), **settings
    )
    torch.testing.assert_close(out, tsallis.attention(q, k, v, **settings), atol=0, rtol=0)
    assert extra.weights is None
    assert (extra.support_size == (p > 0).sum(-1)).all()
    torch.testing.assert_close(extra.entropy, torch.special.entr(p).sum(-1))
    torch.testing.assert_close(extra.maximum, s.masked_fill(~visible, -math.inf).amax(-1))
    z = (0.5 * s - extra.tau[..., None]).clamp(min=0).masked_fill(~visible, 0)
    torch.testing.assert_close(z**2, p)
    _, extra = tsallis.attention(q, k, v, map="softmax", returns="tau", **settings)
    torch.testing.assert_close(extra.tau, s.masked_fill(~visible, -math.inf).logsumexp(-1))
    assert extra.entropy is None
    narrow = [tensor.float().requires_grad_() for tensor in (q, k, v)]
    out, extra = tsallis.attention(*narrow, returns=("tau", "support_size", "entropy", "maximum"))
    assert out.requires_grad
    for tensor in (extra.tau, extra.entropy, extra.maximum):
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad
    assert extra.support_size.dtype == torch.int64
    with_stats = torch.autograd.grad(out.square().sum(), narrow)
    without = torch.autograd.grad(tsallis.attention(*narrow).square().sum(), narrow)
    torch.testing.assert_close(with_stats, without, atol=1e-5, rtol=1e-5)


@every_case
def test_weights(case):
    q, k, v = draw()
    settings = case()
    out, extra = tsallis.attention(q, k, v, returns=["weights", "support_size"], **settings)
    assert extra.weights.shape == (2 * 4 * 7, 9)
    assert extra.weights.layout == torch.sparse_csr
    p = extra.weights.to_dense().view(2, 4, 7, 9)
    expected = definition.weights(q, k, **settings)
    torch.testing.assert_close(p, expected.float(), atol=1e-6, rtol=1e-6)
    counts = extra.weights.crow_indices().diff().view(2, 4, 7)
    assert (counts == extra.support_size).all()
    torch.testing.assert_close(out, p.double() @ v.repeat_interleave(2, 1), atol=1e-5, rtol=1e-5)


def test_weights_of_other_dtypes_and_of_nan():
    q, k, v = draw(dtype=torch.bfloat16)
    _, extra = tsallis.attention(q.requires_grad_(), k, v, returns=("weights",))
    assert not extra.weights.requires_grad
    expected = definition.weights(q.detach().double(), k.double()).float()
    torch.testing.assert_close(extra.weights.to_dense().view(2, 4, 7, 9), expected)
    k[1, 0, 3] = math.nan
    _, extra = tsallis.attention(q, k, v, returns=("weights", "support_size"))
    assert (extra.support_size[1, :2] == -1).all()
    assert (extra.weights.to_dense().view(2, 4, 7, 9)[1, :2] == 0).all()
