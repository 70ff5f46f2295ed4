"""tsallis.compat.entmax against the installed entmax package, and what is right only in ours."""

import inspect
import math
import re
from pathlib import Path

import entmax as peer
import pytest
import torch
from torch.autograd import gradcheck

from tsallis.compat import entmax as ours

SORTS = ["sparsemax", "entmax15"]
BISECTS = ["sparsemax_bisect", "entmax_bisect", "normmax_bisect", "budget_bisect"]
ROW_LOSSES = ["sparsemax_loss", "entmax15_loss", "sparsemax_bisect_loss", "entmax_bisect_loss"]
ROW_LOSSES += ["normmax_bisect_loss"]
MODULES = ["Sparsemax", "Entmax15", "SparsemaxBisect", "EntmaxBisect", "NormmaxBisect"]
MODULES += ["BudgetBisect"]
LOSSES = ["SparsemaxLoss", "Entmax15Loss", "SparsemaxBisectLoss", "EntmaxBisectLoss"]
LOSSES += ["NormmaxBisectLoss"]


def scores(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 2


def same(call, other, *inputs, tolerance=1e-8):
    """Values and gradients of two functions of the same tensors."""
    answers = []
    for function in (call, other):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        y = function(*leaves)
        weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        (y * weight).sum().backward()
        answers.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for mine, theirs in zip(*answers, strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


def test_every_public_name_is_there():
    names = [name for name in vars(peer) if not name.startswith("_")]
    names = [name for name in names if not inspect.ismodule(getattr(peer, name))]
    assert sorted(names) == sorted(SORTS + BISECTS + ROW_LOSSES + MODULES + LOSSES)
    assert sorted(names) == sorted(ours.__all__)
    assert ours.__version__ == peer.__version__


def test_what_its_files_define_is_there_or_named_in_the_documentation():
    """Also what is private, in the file where it is defined."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "entmax.md").read_text()
    missing = []
    for file in ("activations", "root_finding", "losses"):
        theirs, mine = getattr(peer, file), getattr(ours, file)
        defined = [n for n, v in vars(theirs).items() if _comes_from(v, theirs)]
        assert defined
        missing += [name for name in defined if not hasattr(mine, name)]
    assert all(name.startswith("_") or name.endswith("Function") for name in missing)
    assert [name for name in missing if f"`{name}`" not in text] == []
    section = text.split("## What could not be matched")[1]
    named = set(re.findall(r"`(_\w+|\w+Function)`", section))
    assert named == set(missing)  # nothing is called missing that is there


def _comes_from(value, module):
    return getattr(value, "__module__", None) == module.__name__


@pytest.mark.parametrize("name", MODULES + LOSSES)
def test_modules_have_their_bases_methods_and_attributes(name):
    theirs, mine = getattr(peer, name), getattr(ours, name)
    bases = [base.__name__ for base in mine.__mro__]
    assert [base.__name__ for base in theirs.__mro__ if base.__name__ not in bases] == []
    shown = vars(mine())
    for attribute, value in vars(theirs()).items():
        assert attribute in shown
        if not attribute.startswith("_"):
            assert shown[attribute] == value, attribute
    for method in ("forward", "loss"):
        if hasattr(theirs, method):
            expected = list(inspect.signature(getattr(theirs, method)).parameters)
            assert list(inspect.signature(getattr(mine, method)).parameters) == expected
    assert mine().state_dict() == theirs().state_dict() == {}


@pytest.mark.parametrize("name", SORTS + BISECTS + ROW_LOSSES + MODULES + LOSSES)
def test_signatures_begin_like_theirs(name):
    theirs = list(inspect.signature(getattr(peer, name)).parameters.values())
    mine = list(inspect.signature(getattr(ours, name)).parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    expected = [(p.name, p.default, kind) for p in theirs]
    assert [(p.name, p.default, p.kind) for p in mine[: len(theirs)]] == expected
    added = [p.name for p in mine[len(theirs) :]]
    assert added in ([], ["return_support_size"])


@pytest.mark.parametrize("name", SORTS)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("k", [None, 2, 30])
def test_sorting_maps(name, dim, k):
    def apply(package):
        return lambda x: getattr(package, name)(x, dim, k)

    same(apply(ours), apply(peer), scores(3, 4, 5))
    module = name.capitalize()
    x = scores(3, 4, 5)
    answer = getattr(ours, module)(dim, k)(x)
    torch.testing.assert_close(answer, getattr(peer, module)(dim, k)(x))


@pytest.mark.parametrize("name", SORTS)
def test_support_size(name):
    x = scores(3, 4, 5)
    for dim in (0, 1, -1):
        p, support = getattr(ours, name)(x, dim, None, True)
        assert support.dtype == torch.int64
        assert torch.equal(support, (p > 0).sum(dim, keepdim=True))
        module = getattr(ours, name.capitalize())(dim, return_support_size=True)
        assert torch.equal(module(x)[1], support)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 0.75, 0.95, 1.2, 1.5, 2, 3.5])
def test_entmax_bisect(dim, alpha):
    same(
        lambda x: ours.entmax_bisect(x, alpha, dim),
        lambda x: peer.entmax_bisect(x, alpha, dim, n_iter=100),
        scores(3, 4, 5),
    )


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (1, 4, 1), (3, 4, 1), (4, 1)])
def test_alpha_as_a_tensor(shape):
    alpha = 1.1 + 2 * torch.rand(shape, dtype=torch.float64)
    same(
        lambda x, a: ours.entmax_bisect(x, a),
        lambda x, a: peer.entmax_bisect(x, a, n_iter=100),
        scores(3, 4, 5),
        alpha,
        tolerance=1e-6,
    )
    same(
        lambda x: ours.normmax_bisect(x, alpha),
        lambda x: peer.normmax_bisect(x, alpha, n_iter=100),
        scores(3, 4, 5),
        tolerance=1e-6,
    )


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_alphas_from_0_05_to_2_55(dim):
    """The package's own range, one for each row, on both sides of 1."""
    shape = [3, 4, 2, 5]
    x = scores(*shape)
    shape[dim] = 1
    alpha = torch.linspace(0.05, 2.55, math.prod(shape), dtype=torch.float64).reshape(shape)
    alpha = alpha[..., torch.randperm(shape[-1])]
    same(
        lambda x, a: ours.entmax_bisect(x, a, dim),
        lambda x, a: peer.entmax_bisect(x, a, dim, n_iter=100),
        x,
        alpha,
        tolerance=1e-6,
    )
    assert gradcheck(
        lambda x, a: ours.entmax_bisect(x, a, dim),
        (x.requires_grad_(), alpha.requires_grad_()),
        eps=1e-5,
        atol=1e-4,
    )


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.75, 0.95])
def test_losses_of_an_alpha_below_1(alpha):
    x = scores(4, 10)
    target = torch.tensor([0, 9, 3, 3])
    same(
        lambda x: ours.entmax_bisect_loss(x, target, alpha),
        lambda x: peer.entmax_bisect_loss(x, target, alpha, 100),
        x,
        tolerance=1e-6,
    )
    loss = ours.EntmaxBisectLoss(alpha, ignore_index=3, reduction="sum")
    assert gradcheck(lambda x: loss(x, target), x.requires_grad_(), eps=1e-5)


def test_alpha_of_a_module_is_its_parameter():
    alpha = torch.nn.Parameter(torch.tensor(1.3))
    module = ours.EntmaxBisect(alpha)
    assert list(module.parameters()) == [alpha]
    with pytest.raises(AttributeError):
        peer.EntmaxBisect(alpha)
    module(torch.randn(2, 5)).square().sum().backward()
    assert alpha.grad != 0
    x = scores(2, 3)
    assert torch.equal(ours.entmax_bisect(x, torch.tensor(2)), ours.entmax_bisect(x, 2))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_other_bisected_maps(dim):
    x = scores(3, 4, 5)
    same(
        lambda x: ours.sparsemax_bisect(x, dim),
        lambda x: peer.sparsemax_bisect(x, dim),
        x,
    )
    for alpha in (1.3, 2, 10):
        same(
            lambda x, a=alpha: ours.normmax_bisect(x, a, dim),
            lambda x, a=alpha: peer.normmax_bisect(x, a, dim, n_iter=100),
            x,
            tolerance=1e-6,
        )
    size = x.shape[dim]
    for budget in (0, 0.5, 1, 2, size - 1):
        same(
            lambda x, b=budget: ours.budget_bisect(x, b, dim),
            lambda x, b=budget: peer.budget_bisect(x, b, dim, n_iter=100),
            x,
        )
    shape = [3, 4, 5]
    shape[dim] = 1
    budgets = torch.randint(1, size, shape)
    same(
        lambda x: ours.BudgetBisect(budgets, dim)(x),
        lambda x: peer.BudgetBisect(budgets, dim, 100)(x),
        x,
    )
    torch.testing.assert_close(ours.SparsemaxBisect(dim)(x), peer.SparsemaxBisect(dim)(x))
    torch.testing.assert_close(
        ours.NormmaxBisect(3, dim)(x), peer.NormmaxBisect(3, dim, 100)(x), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("name", ROW_LOSSES)
def test_row_losses(name):
    target = torch.randint(6, (8,))
    more = {} if name in ("sparsemax_loss", "entmax15_loss") else {"n_iter": 100}
    same(
        lambda x: getattr(ours, name)(x, target),
        lambda x: getattr(peer, name)(x, target, **more),
        scores(8, 6),
        tolerance=1e-6,
    )


def test_losses_with_an_alpha_for_each_row():
    target = torch.randint(6, (5,))
    x = scores(5, 6)
    alpha = torch.tensor([1.2, 3.0, 1.2, 2.0, 1.5])
    for name in ("entmax_bisect_loss", "normmax_bisect_loss"):
        mine, theirs = getattr(ours, name), getattr(peer, name)
        rows = [theirs(x[i : i + 1], target[i : i + 1], alpha[i].item(), 100) for i in range(5)]
        for shape in (alpha, alpha[:, None]):
            torch.testing.assert_close(mine(x, target, shape), torch.cat(rows), atol=1e-6, rtol=0)
    support = ours.entmax15_loss(x, target, return_support_size=True)[1]
    assert torch.equal(support, (ours.entmax15(x) > 0).sum(1, keepdim=True))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [False, True])
def test_loss_modules(name, reduction, ignored):
    target = torch.randint(6, (8,))
    index = target[0] if ignored else -100
    same(
        lambda x: getattr(ours, name)(ignore_index=index, reduction=reduction)(x, target),
        lambda x: getattr(peer, name)(ignore_index=index, reduction=reduction)(x, target),
        scores(8, 6),
        tolerance=1e-6,
    )


# ---- where the original is wrong ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_right(dtype):
    x = (torch.randn(6, 300) * 3).to(dtype)
    exact = peer.entmax_bisect(x.double(), 1.25, n_iter=100)
    p = ours.entmax_bisect(x, 1.25)
    assert p.dtype == dtype
    assert not (p.double() - exact).abs().max() > torch.finfo(dtype).eps
    target = torch.randint(300, (6,))
    loss = ours.entmax15_loss(x, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss.double(), peer.entmax15_loss(x.double(), target), rtol=1e-5, atol=1e-5
    )


def test_alpha_of_one_is_softmax():
    x = scores(2, 7).requires_grad_()
    torch.testing.assert_close(ours.entmax_bisect(x, 1.0), x.softmax(-1))
    assert peer.entmax_bisect(x, 1.0).isnan().any() or not torch.allclose(
        peer.entmax_bisect(x, 1.0), x.softmax(-1)
    )
    target = torch.tensor([3, 1])
    torch.testing.assert_close(
        ours.entmax_bisect_loss(x, target, 1.0),
        torch.nn.functional.cross_entropy(x, target, reduction="none"),
    )
    alpha = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    ours.entmax_bisect(x, alpha)[0, 0].backward()
    assert alpha.grad.isfinite()


def test_rows_that_see_nothing_are_zero():
    x = scores(2, 4)
    x[1] = -math.inf
    for name in (*SORTS, *BISECTS):
        assert not getattr(ours, name)(x)[1].any(), name
    assert peer.entmax_bisect(x)[1].isnan().any()
    with pytest.raises(RuntimeError):
        peer.entmax15(x)


@pytest.mark.parametrize("index", [-1, -100, -7])
@pytest.mark.parametrize("name", LOSSES)
def test_any_target_can_be_ignored(name, index):
    x = scores(6, 4).requires_grad_()
    target = torch.tensor([0, index, 2, 3, index, 1])
    kept = target != index
    loss = getattr(ours, name)(ignore_index=index)
    expected = getattr(peer, name)()(x[kept], target[kept])
    torch.testing.assert_close(loss(x, target), expected, rtol=1e-6, atol=1e-6)
    assert gradcheck(lambda x: loss(x, target), x)


@pytest.mark.parametrize("name", SORTS)
def test_a_dimension_from_the_end_with_k(name):
    x = scores(4, 6, 5)
    expected = getattr(peer, name)(x, 1)
    torch.testing.assert_close(getattr(ours, name)(x, -2, k=2), expected)


def test_large_alpha():
    x = torch.randn(4, 1000)
    p = ours.entmax_bisect(x, 50.0)
    torch.testing.assert_close(p.sum(-1), torch.ones(4))
    exact = ours.entmax_bisect(x.double(), 50.0)
    torch.testing.assert_close(p.double(), exact, atol=1e-4, rtol=0)


def test_no_rows_with_a_number_for_each():
    assert ours.budget_bisect(torch.randn(0, 4), torch.tensor(2.0)).shape == (0, 4)
    none = torch.zeros(0, dtype=torch.int64)
    assert ours.entmax_bisect_loss(torch.randn(0, 4), none, torch.ones(0) * 1.5).shape == (0,)


@pytest.mark.parametrize("loss", [ours.Entmax15Loss, ours.SparsemaxLoss])
def test_a_batch_of_ignored_targets_spoils_no_weights(loss):
    x = scores(4, 3).requires_grad_()
    mean = loss(ignore_index=2)(x, torch.full((4,), 2))
    assert mean.isnan()
    mean.backward()
    assert (x.grad == 0).all()


def test_mistakes():
    x = scores(4, 3)
    target = torch.tensor([0, 1, 2, 1])
    with pytest.raises(IndexError, match="dim: expected an integer in"):
        ours.budget_bisect(x, torch.tensor(2.0), dim=5)
    for call, words in (
        (lambda: ours.sparsemax(x, k=0), "k: expected an integer >= 1 or None, got 0"),
        (lambda: ours.entmax_bisect(x, n_iter=0), "n_iter: expected an integer >= 1, got 0"),
        (lambda: ours.entmax_bisect(x, 0.0), "alpha"),
        (lambda: ours.budget_bisect(x, torch.ones(3, 1)), r"budget: .*\[4, 1\], got \[3, 1\]"),
        (lambda: ours.entmax15_loss(x[0], target[0]), r"X: expected shape \[rows, classes\]"),
        (lambda: ours.entmax_bisect_loss(x, target, torch.ones(3)), r"alpha: .*\[4\].*\[3\]"),
        (lambda: ours.Entmax15Loss(reduction="mean"), "reduction: .* got 'mean'"),
        (lambda: ours.budget_bisect(x, torch.tensor([[1.0], [math.nan]] * 2)), "budget: .*nan"),
        (
            lambda: ours.entmax_bisect_loss(x, target, torch.tensor([1.5, math.nan] * 2)),
            "alpha: .* got nan",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
