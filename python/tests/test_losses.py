"""Fenchel-Young losses: values, gradients, what is ignored, reductions."""

import math

import entmax as peer
import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import cross_entropy

import tsallis


def test_agree_with_the_entmax_package():
    logits = torch.randn(20, 7, dtype=torch.float64) * 2
    target = torch.randint(7, (20,))

    def check(ours, theirs, **close):
        torch.testing.assert_close(ours, theirs, **close)

    ours = tsallis.sparsemax_loss(logits, target, reduction="none")
    check(ours, peer.sparsemax_loss(logits, target))
    ours = tsallis.entmax_loss(logits, target, reduction="none")
    check(ours, peer.entmax15_loss(logits, target))
    for alpha in (1.25, 1.75, 3.0):
        ours = tsallis.entmax_loss(logits, target, alpha, reduction="none")
        check(ours, peer.entmax_bisect_loss(logits, target, alpha, n_iter=80))
    ours = tsallis.normmax_loss(logits, target, reduction="none")
    check(ours, peer.normmax_bisect_loss(logits, target, 2, n_iter=80), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [-100, -1, 0, 3])
def test_softmax_loss_is_cross_entropy(reduction, ignore_index):
    target = torch.randint(5, (16,))
    target[3] = ignore_index
    grads = []
    values = []
    for apply in (tsallis.softmax_loss, cross_entropy, None):
        logits = torch.randn(16, 5, generator=torch.Generator().manual_seed(1)).double()
        logits.requires_grad_()
        if apply is None:
            loss = tsallis.entmax_loss(logits, target, 1.0, ignore_index, reduction)
        else:
            loss = apply(logits, target, ignore_index=ignore_index, reduction=reduction)
        loss.sum().backward()
        values.append(loss.detach())
        grads.append(logits.grad)
    for other in (1, 2):
        torch.testing.assert_close(values[0], values[other])
        torch.testing.assert_close(grads[0], grads[other])


LOSSES = {
    "entmax-1.3": lambda x, y, **k: tsallis.entmax_loss(x, y, 1.3, **k),
    "entmax-1.5": tsallis.entmax_loss,
    "sparsemax": tsallis.sparsemax_loss,
    "softmax": tsallis.softmax_loss,
    "normmax": tsallis.normmax_loss,
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


@every_loss
def test_gradients(loss):
    target = torch.randint(6, (2, 4))
    target[0, 1] = -100
    logits = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    for reduction in ("mean", "sum", "none"):
        assert gradcheck(lambda x, r=reduction: loss(x, target, reduction=r), logits)


@every_loss
@pytest.mark.parametrize("ignore_index", [-100, -7, 0, 2, 1000])
def test_ignored_rows(loss, ignore_index):
    logits = torch.randn(8, 4, requires_grad=True)
    target = torch.tensor([0, 1, 2, 3, 3, 1, 1, 3])
    target[5] = ignore_index
    kept = target != ignore_index
    rows = loss(logits, target, ignore_index=ignore_index, reduction="none")
    assert (rows[~kept] == 0).all()
    assert (rows >= 0).all()
    mean = loss(logits, target, ignore_index=ignore_index)
    torch.testing.assert_close(mean, rows[kept].mean())
    mean.backward()
    assert (logits.grad[~kept] == 0).all()
    assert (logits.grad[kept] != 0).any()


def test_nothing_kept_is_nan_as_in_torch():
    logits = torch.randn(2, 3, requires_grad=True)
    target = torch.full((2,), -100)
    loss = tsallis.entmax_loss(logits, target)
    assert loss.isnan()
    loss.backward()
    assert (logits.grad == 0).all()
    assert tsallis.entmax_loss(logits, target, reduction="sum") == 0


def test_the_mean_counts_the_rows_of_narrow_targets_that_the_rows_count():
    logits = torch.zeros(2, 256)
    bytes_ = torch.tensor([156, 0], dtype=torch.uint8)  # 156 is -100 in eight bits
    assert tsallis.softmax_loss(logits, bytes_).item() == pytest.approx(math.log(256))
    few = torch.tensor([0, 1], dtype=torch.int8)
    loss = tsallis.softmax_loss(logits[:, :3], few, ignore_index=257)
    assert loss.item() == pytest.approx(math.log(3))


def test_zero_beyond_the_margin():
    logits = torch.tensor([[3.0, 0.5, 0.0]])
    assert tsallis.entmax_loss(logits, torch.tensor([0])).item() == pytest.approx(0, abs=1e-6)
    assert tsallis.sparsemax_loss(logits, torch.tensor([0])).item() == pytest.approx(0, abs=1e-6)


def test_dtypes_and_layouts():
    logits = torch.randn(5, 3, 9)
    target = torch.randint(9, (5, 3))
    expected = tsallis.entmax_loss(logits, target)
    for integer in (torch.int32, torch.uint8):
        torch.testing.assert_close(tsallis.entmax_loss(logits, target.to(integer)), expected)
    strided = logits.transpose(0, 2).contiguous().transpose(0, 2)
    flipped = target.t().contiguous().t()
    torch.testing.assert_close(tsallis.entmax_loss(strided, flipped), expected)
    half = logits.bfloat16().requires_grad_()
    loss = tsallis.entmax_loss(half, target)
    assert loss.dtype == torch.float32
    loss.backward()
    assert half.grad.dtype == torch.bfloat16
    single = tsallis.entmax_loss(logits[0, 0], target[0, 0], reduction="none")
    assert single.shape == ()


def test_mistakes():
    logits = torch.randn(4, 3)
    target = torch.tensor([0, 1, 2, 1])
    with pytest.raises(ValueError, match=r"target.*\[4\].*\[3\]"):
        tsallis.entmax_loss(logits, target[:3])
    with pytest.raises(ValueError, match=r"target.*integer"):
        tsallis.entmax_loss(logits, target.float())
    with pytest.raises(ValueError, match=r"target.*3"):
        tsallis.entmax_loss(logits, target + 1)
    with pytest.raises(ValueError, match=r"target.*-1"):
        tsallis.entmax_loss(logits, target - 1)
    with pytest.raises(ValueError, match=r"reduction.*average"):
        tsallis.entmax_loss(logits, target, reduction="average")
    with pytest.raises(ValueError, match="alpha"):
        tsallis.entmax_loss(logits, target, alpha=0.0)
    with pytest.raises(ValueError, match="alpha"):
        tsallis.normmax_loss(logits, target, alpha=1.0)
