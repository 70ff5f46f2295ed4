"""First derivatives against finite differences in double precision; second ones are refused."""

import math

import pytest
import torch
from torch.autograd import gradcheck

import tsallis


def scores(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.25, 1.5, 2.0, 4.0])
def test_entmax_in_scores(alpha):
    assert gradcheck(lambda x: tsallis.entmax(x, alpha), scores(3, 7))
    assert gradcheck(lambda x: tsallis.entmax(x, alpha, dim=1, temperature=0.7), scores(2, 6, 3))


@pytest.mark.parametrize(
    "apply",
    [
        tsallis.softmax,
        tsallis.sparsemax,
        tsallis.normmax,
        lambda x: tsallis.normmax(x, 1.5),
        lambda x: tsallis.budget(x, 2.5),
        lambda x: tsallis.adaptive_temperature_softmax(x),
        lambda x: tsallis.adaptive_temperature_softmax(x, coefficients=[1.0, 0.5], threshold=0.1),
        lambda x: tsallis.top_k_softmax(x, 3),
        lambda x: tsallis.top_k_softmax(x, 1, 0, top_k_fraction=0.5),
        tsallis.sigmoid,
        lambda x: tsallis.sigmoid(x, 0, sigmoid_bias=-0.5, temperature=2.0),
        tsallis.softpick,
        lambda x: tsallis.softpick(x, 0, temperature=0.5),
        tsallis.stick_breaking,
        lambda x: tsallis.stick_breaking(x, 0, temperature=0.5),
    ],
)
def test_other_maps(apply):
    assert gradcheck(apply, scores(4, 8))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.95, 0.9999, 1.0, 1.0001, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("dim", [-1, 0])
def test_entmax_in_alpha(alpha, dim):
    x = torch.randn(4, 6, dtype=torch.float64)
    shape = (4, 1) if dim == -1 else (1, 6)
    a = torch.full(shape, alpha, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((tsallis.entmax(x, a, dim=dim) * weight).sum(), a)
    assert gradient.shape == shape

    def along(step):
        with torch.no_grad():
            return (tsallis.entmax(x, a + step, dim=dim) * weight).sum(dim, keepdim=True)

    h = 1e-6
    expected = (along(h) - along(-h)) / (2 * h)
    torch.testing.assert_close(gradient, expected, atol=2e-5, rtol=2e-5)


def test_entmax_in_both():
    a = torch.tensor([1.3, 1.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, b: tsallis.entmax(x, b[:, None, None]), (scores(2, 3, 2, 5), a))
    assert gradcheck(lambda x, b: tsallis.entmax(x, b, dim=0), (scores(5, 3), a))


def test_alpha_keeps_its_dtype_and_shape():
    x = torch.randn(2, 3, 4, 5)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        a = torch.full((3, 1, 1), 1.5, dtype=dtype, requires_grad=True)
        (tsallis.entmax(x, a) ** 2).sum().backward()
        assert a.grad.dtype == dtype
        assert a.grad.shape == (3, 1, 1)
    a = torch.tensor(1.5, requires_grad=True)
    (tsallis.entmax(x, a) ** 2).sum().backward()
    assert a.grad.shape == ()


def test_documented_alpha_gradient():
    # README of the entmax package: d p_0 / d alpha at alpha = 1.33
    a = torch.tensor(1.33, dtype=torch.float64, requires_grad=True)
    p = tsallis.entmax(torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64), a)
    (gradient,) = torch.autograd.grad(p[0], a)
    assert gradient.item() == pytest.approx(-0.2562, abs=1e-4)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_masked_entries_get_no_gradient(alpha):
    x = torch.randn(3, 8, dtype=torch.float64)
    x[:, 5:] = -math.inf
    x[2] = -math.inf
    x.requires_grad_()
    a = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
    (tsallis.entmax(x, a) * torch.randn(3, 8)).sum().backward()
    assert (x.grad[:, 5:] == 0).all()
    assert (x.grad[2] == 0).all()
    assert x.grad.isfinite().all()
    assert a.grad.isfinite().all()
    assert a.grad[2] == 0


def test_statistics_leave_gradients_alone():
    x = scores(4, 9)
    weight = torch.randn(4, 9, dtype=torch.float64)
    p, _ = tsallis.row_stats(tsallis.entmax, x)
    (with_stats,) = torch.autograd.grad((p * weight).sum(), x)
    (without,) = torch.autograd.grad((tsallis.entmax(x) * weight).sum(), x)
    assert with_stats.equal(without)


def test_gradients_are_deterministic():
    x = torch.randn(64, 200, requires_grad=True)
    a = torch.full((1,), 1.4, requires_grad=True)
    weight = torch.randn(64, 200)
    runs = [torch.autograd.grad((tsallis.entmax(x, a) * weight).sum(), (x, a)) for _ in range(3)]
    for gx, ga in runs[1:]:
        assert gx.equal(runs[0][0])
        assert ga.equal(runs[0][1])


def test_second_derivatives_are_refused():
    x = scores(3, 5)
    (gradient,) = torch.autograd.grad((tsallis.entmax(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        gradient.sum().backward()
    logits = scores(3, 5)
    loss = tsallis.entmax_loss(logits, torch.tensor([0, 1, 2]))
    with pytest.raises(NotImplementedError, match="create_graph"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_inference_and_no_grad():
    x = torch.randn(3, 5, requires_grad=True)
    with torch.no_grad():
        assert not tsallis.entmax(x).requires_grad
    with torch.inference_mode():
        y = torch.randn(3, 5)
        assert tsallis.entmax(y).is_inference()
        assert tsallis.row_stats(tsallis.entmax, y)[1].tau.shape == (3,)
        assert tsallis.entmax_loss(y, torch.tensor([0, 1, 2])).isfinite()


@pytest.mark.parametrize("queries", range(1, 9))
@pytest.mark.parametrize("scale", [3, 30, 100])
@pytest.mark.parametrize("settings", [{"alpha": 2.0}, {"alpha": 1.5}, {"map": "softmax"}])
def test_weights_of_few_queries_keep_their_digits(queries, scale, settings):
    """Both passes round a score alike: the weights of a query, as dv has them, sum to 1."""
    torch.manual_seed(queries)
    q = torch.randn(1, 6, queries, 80) * scale
    k = torch.randn(1, 6, 300, 80) * scale
    v = torch.randn(1, 6, 300, 80, requires_grad=True)
    out = tsallis.attention(q, k.requires_grad_(), v, **settings)
    out.sum().backward()
    sums = v.grad.sum(2)
    torch.testing.assert_close(sums, torch.full_like(sums, queries), rtol=3e-6, atol=0)
