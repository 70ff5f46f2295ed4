"""Values of the row maps: against definitions, and the entmax package where it is right."""

import math
from functools import partial

import entmax as peer
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tsallis

MAPS = {
    "softmax": tsallis.softmax,
    "sparsemax": tsallis.sparsemax,
    "entmax-1": partial(tsallis.entmax, alpha=1.0),
    "entmax-1.25": partial(tsallis.entmax, alpha=1.25),
    "entmax-1.5": tsallis.entmax,
    "entmax-4": partial(tsallis.entmax, alpha=4.0),
    "normmax": tsallis.normmax,
    "budget": tsallis.budget,
    "adaptive": tsallis.adaptive_temperature_softmax,
    "top-k": partial(tsallis.top_k_softmax, top_k=3, top_k_fraction=0.25),
    "sigmoid": tsallis.sigmoid,
    "softpick": tsallis.softpick,
    "stick-breaking": tsallis.stick_breaking,
}


def with_stats(apply, x):
    """`tsallis.row_stats` of an entry of MAPS."""
    if isinstance(apply, partial):
        return tsallis.row_stats(apply.func, x, **apply.keywords)
    return tsallis.row_stats(apply, x)


every_map = pytest.mark.parametrize("apply", MAPS.values(), ids=MAPS.keys())


def test_values_of_the_entmax_readme():
    x = torch.tensor([-2.0, 0.0, 0.5])
    close = {"atol": 1e-4, "rtol": 0}
    torch.testing.assert_close(tsallis.sparsemax(x), torch.tensor([0, 0.25, 0.75]), **close)
    torch.testing.assert_close(tsallis.entmax(x), torch.tensor([0, 0.3260, 0.6740]), **close)
    torch.testing.assert_close(tsallis.normmax(x), torch.tensor([0, 0.3110, 0.6890]), **close)
    torch.testing.assert_close(tsallis.budget(x), torch.tensor([0.0, 1.0, 1.0]), **close)
    y = torch.tensor([-1.0, 0.0, 0.5])
    expected = torch.tensor([0.0460, 0.3276, 0.6264])
    torch.testing.assert_close(tsallis.entmax(y, alpha=1.33), expected, **close)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 1000])
def test_agrees_with_the_entmax_package(length, scale):
    x = torch.randn(9, length, dtype=torch.float64) * scale
    close = {"atol": 1e-9, "rtol": 1e-7}
    torch.testing.assert_close(tsallis.sparsemax(x), peer.sparsemax(x), **close)
    torch.testing.assert_close(tsallis.entmax(x), peer.entmax15(x), **close)
    torch.testing.assert_close(tsallis.softmax(x), x.softmax(-1), **close)
    torch.testing.assert_close(tsallis.entmax(x, 1.0), x.softmax(-1), **close)
    for alpha in (1.25, 1.75, 3.0):
        expected = peer.entmax_bisect(x, alpha, n_iter=100)
        torch.testing.assert_close(tsallis.entmax(x, alpha), expected, **close)
    for alpha in (1.5, 2.0):
        expected = peer.normmax_bisect(x, alpha, n_iter=100)
        torch.testing.assert_close(tsallis.normmax(x, alpha), expected, atol=1e-7, rtol=1e-6)
    if length >= 3:
        expected = peer.budget_bisect(x, 2, n_iter=100)
        torch.testing.assert_close(tsallis.budget(x, 2), expected, atol=1e-7, rtol=1e-6)


def adaptive_by_definition(x, coefficients=(-1.791, 4.917, -2.3, 0.481, -0.037), threshold=0.5):
    p = x.softmax(-1)
    entropy = torch.special.entr(p).sum(-1, keepdim=True)
    beta = sum(c * entropy**i for i, c in enumerate(coefficients)).clamp(min=1.0)
    return (torch.where(entropy > threshold, beta, torch.ones_like(beta)) * x).softmax(-1)


def test_adaptive_temperature_follows_its_definition():
    x = torch.randn(50, 12, dtype=torch.float64) * torch.linspace(0.1, 8, 50)[:, None].double()
    torch.testing.assert_close(tsallis.adaptive_temperature_softmax(x), adaptive_by_definition(x))
    ours = tsallis.adaptive_temperature_softmax(x, coefficients=[1.0, 0.7], threshold=1.0)
    torch.testing.assert_close(ours, adaptive_by_definition(x, (1.0, 0.7), 1.0))


def test_temperature_divides_the_scores():
    x = torch.randn(5, 33, dtype=torch.float64)
    for apply in MAPS.values():
        torch.testing.assert_close(apply(x, temperature=2.5), apply(x / 2.5))


@every_map
def test_any_dimension(apply):
    x = torch.randn(3, 5, 7, 4, dtype=torch.float64)
    for dim in range(-4, 4):
        expected = apply(x.movedim(dim, -1).contiguous()).movedim(-1, dim)
        p = apply(x, dim=dim)
        assert p.is_contiguous()
        torch.testing.assert_close(p, expected, atol=0, rtol=0)


@every_map
def test_any_strides(apply):
    base = torch.randn(12, 10, 14, dtype=torch.float32)
    views = [
        base.transpose(1, 2),
        base[:, ::2, 1:],
        base[:, :1, :].expand(12, 10, 14),
        base.permute(2, 0, 1),
        base[3:4],
        base.flip(0)[..., :1],
        base.as_strided((4, 5, 6), (1, 1, 1)),
    ]
    for view in views:
        x = view.detach().requires_grad_()
        y = view.contiguous().requires_grad_()
        weight = torch.randn(view.shape)
        for dim in range(3):
            p, q = apply(x, dim=dim), apply(y, dim=dim)
            torch.testing.assert_close(p, q, atol=0, rtol=0)
            (gx,) = torch.autograd.grad((p * weight).sum(), x)
            (gy,) = torch.autograd.grad((q * weight).sum(), y)
            torch.testing.assert_close(gx, gy, atol=0, rtol=0)


@every_map
def test_one_dimension_and_nothing(apply):
    assert apply(torch.randn(4)).shape == (4,)
    for shape in [(0,), (0, 5), (5, 0), (2, 0, 3)]:
        x = torch.zeros(shape, requires_grad=True)
        p = apply(x)
        assert p.shape == shape
        p.sum().backward()
        assert x.grad.shape == shape


@every_map
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(apply, dtype):
    x = torch.randn(20, 50).to(dtype)
    p = apply(x)
    assert p.dtype == dtype
    torch.testing.assert_close(p, apply(x.float()).to(dtype), atol=0, rtol=0)
    y = x.clone().requires_grad_()
    weight = torch.randn(20, 50).to(dtype)
    (apply(y) * weight).sum().backward()
    assert y.grad.dtype == dtype
    assert y.grad.isfinite().all()
    z = x.float().requires_grad_()
    (apply(z) * weight.float()).sum().backward()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.grad.float(), z.grad, atol=8 * eps, rtol=16 * eps)


@every_map
def test_minus_infinity_is_an_absent_entry(apply):
    x = torch.randn(6, 9, dtype=torch.float64)
    masked = x.clone()
    masked[:, 2::3] = -math.inf
    keep = masked[0].isfinite()
    p = apply(masked)
    assert (p[:, ~keep] == 0).all()
    torch.testing.assert_close(p[:, keep], apply(x[:, keep]))


@every_map
def test_all_masked_rows_give_zero_without_nan(apply):
    x = torch.randn(4, 6)
    x[1] = -math.inf
    x.requires_grad_()
    p, stats = with_stats(apply, x)
    assert (p[1] == 0).all()
    assert p.isfinite().all()
    assert stats.tau[1] == -math.inf
    assert stats.support_size[1] == 0
    assert stats.entropy[1] == 0
    (p * torch.randn(4, 6)).sum().backward()
    assert (x.grad[1] == 0).all()
    assert x.grad.isfinite().all()


@every_map
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_stays_in_its_row(apply, bad):
    x = torch.randn(4, 6)
    good = apply(x)
    x[2, 3] = bad
    p, stats = with_stats(apply, x)
    assert p[2].isnan().all()
    assert stats.support_size[2] == -1
    torch.testing.assert_close(p[[0, 1, 3]], good[[0, 1, 3]], atol=0, rtol=0)


def test_statistics():
    x = torch.randn(3, 4, 25, dtype=torch.float64) * 3
    for alpha in (1.25, 1.5, 2.0, 3.0):
        p, stats = tsallis.row_stats(tsallis.entmax, x, alpha)
        assert stats.tau.shape == stats.support_size.shape == stats.entropy.shape == (3, 4)
        z = (alpha - 1) * x - stats.tau[..., None]
        torch.testing.assert_close(p, z.clamp(min=0) ** (1 / (alpha - 1)))
        assert (stats.support_size == (p > 0).sum(-1)).all()
        torch.testing.assert_close(stats.entropy, torch.special.entr(p).sum(-1))
    for apply in (tsallis.softmax, MAPS["entmax-1"]):
        _, stats = with_stats(apply, x)
        torch.testing.assert_close(stats.tau, x.logsumexp(-1))
    _, stats = tsallis.row_stats(tsallis.entmax, x.float(), dim=0)
    assert stats.tau.shape == (4, 25)
    assert stats.tau.dtype == stats.entropy.dtype == torch.float32
    assert stats.support_size.dtype == torch.int64
    y = x.clone().requires_grad_()
    p, stats = tsallis.row_stats(tsallis.entmax, y)
    assert p.requires_grad
    assert not stats.tau.requires_grad
    assert not stats.entropy.requires_grad


@every_map
def test_statistics_leave_probabilities_alone(apply):
    x = torch.randn(7, 19)
    p, _ = with_stats(apply, x)
    assert p.equal(apply(x))


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((tsallis.entmax,), {"top_k": 3}, "'top_k'"),
        ((tsallis.top_k_softmax,), {}, "'top_k'"),
        ((tsallis.entmax,), {"alpha": "1.5"}, "alpha: expected a number, got '1.5'"),
        ((tsallis.softmax,), {"dim": None}, "dim: expected an integer, got None"),
        (("entmax",), {}, r"map: expected a row map, such as tsallis\.entmax, got 'entmax'"),
        ((torch.softmax, -1), {}, "map: expected a row map"),
        ((tsallis.entmax_loss,), {}, "map: expected a row map"),
        ((None,), {}, "map: expected a row map.*got None"),
    ],
)
def test_statistics_refuse_what_the_map_does_not_have(arguments, settings, message):
    map, *rest = arguments
    with pytest.raises(TypeError, match=message):
        tsallis.row_stats(map, torch.randn(3, 4), *rest, **settings)
    with pytest.raises(TypeError, match="x: expected a tensor, got str"):
        tsallis.row_stats(tsallis.entmax, "x")


def test_alpha_as_a_tensor_per_head():
    x = torch.randn(2, 3, 5, 11, dtype=torch.float64)
    alphas = torch.tensor([1.0, 1.5, 2.7], dtype=torch.float64)
    p = tsallis.entmax(x, alphas[:, None, None])
    for head, alpha in enumerate(alphas.tolist()):
        torch.testing.assert_close(p[:, head], tsallis.entmax(x[:, head], alpha))
    p = tsallis.entmax(x, alphas[None, :, None, None].float(), dim=2)
    for head, alpha in enumerate(alphas.tolist()):
        expected = tsallis.entmax(x[:, head], float(torch.tensor(alpha).float()), dim=1)
        torch.testing.assert_close(p[:, head], expected)
    torch.testing.assert_close(tsallis.entmax(x, torch.tensor(1.5)), tsallis.entmax(x))
    q = tsallis.normmax(x, torch.tensor([1.5, 2.0, 3.0])[:, None, None])
    torch.testing.assert_close(q[:, 0], tsallis.normmax(x[:, 0], 1.5))


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40),
    alpha=st.one_of(st.just(1.0), st.just(1.5), st.just(2.0), st.floats(1.01, 8.0)),
)
def test_rows_are_distributions_in_order(scores, alpha):
    x = torch.tensor(scores)
    p = tsallis.entmax(x, alpha)
    assert (p >= 0).all()
    assert abs(p.double().sum().item() - 1) <= (1e-6 if alpha <= 2 else 1e-5)
    order = x.argsort()
    assert (p[order].diff() >= 0).all()


@every_map
def test_same_bits_whatever_the_threads(apply):
    x = torch.randn(300, 70)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(apply(x))
    finally:
        torch.set_num_threads(threads)
    assert results[0].equal(results[1])
    assert results[0].equal(results[2])
