"""What torch's transformations, processes and threads do to Tsallis, and what is refused."""

import multiprocessing
import os
import threading

import pytest
import torch

import tsallis
from tsallis import nn


@pytest.mark.parametrize("apply", [tsallis.entmax, tsallis.sparsemax, tsallis.normmax])
def test_vmap_of_maps(apply):
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(torch.vmap(apply)(x), apply(x))
    torch.testing.assert_close(torch.vmap(apply, 1, 1)(x), apply(x))
    along = torch.vmap(lambda x: apply(x, dim=0), 1)(x)
    torch.testing.assert_close(along, apply(x.movedim(1, 0), dim=1))
    p, stats = torch.vmap(lambda x: tsallis.row_stats(apply, x), 1)(x)
    expected = tsallis.row_stats(apply, x.movedim(1, 0))
    torch.testing.assert_close((p, *stats), (expected[0], *expected[1]))
    with pytest.raises(IndexError, match=r"dim: .*\[-2, 1\], got 2"):
        torch.vmap(lambda x: apply(x, dim=2))(x)


def test_vmap_over_alpha_and_losses(capfd):
    x = torch.randn(3, 4, 5, requires_grad=True)
    alpha = torch.tensor([1.2, 1.5, 2.0], requires_grad=True)
    heads = torch.tensor([1.1, 1.5, 1.7, 2.0])[:, None]
    for mapped, plain in (
        (torch.vmap(tsallis.entmax)(x, alpha), tsallis.entmax(x, alpha[:, None, None])),
        (
            torch.vmap(tsallis.entmax, (None, 0))(x[0], alpha),
            tsallis.entmax(x[0].expand(3, 4, 5), alpha[:, None, None]),
        ),
        (torch.vmap(tsallis.entmax, (0, None))(x, heads), tsallis.entmax(x, heads)),
    ):
        torch.testing.assert_close(mapped, plain)
        gradients = [
            torch.autograd.grad(p.square().sum(), (x, alpha), allow_unused=True)
            for p in (mapped, plain)
        ]
        for mine, other in zip(*gradients, strict=True):
            assert (mine is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(mine, other)
    target = torch.tensor([0, 1, -100, 3])
    losses = torch.vmap(lambda x: tsallis.entmax_loss(x, target))(x)
    torch.testing.assert_close(losses, torch.stack([tsallis.entmax_loss(y, target) for y in x]))
    assert "performance drop" not in capfd.readouterr().err  # torch's word for a loop over slices


def test_jacobians():
    x = torch.randn(6, dtype=torch.float64)
    p = tsallis.sparsemax(x)
    s = (p > 0).double()
    expected = torch.diag(s) - torch.outer(s, s) / s.sum()
    for vectorize in (False, True):
        jacobian = torch.autograd.functional.jacobian(tsallis.sparsemax, x, vectorize=vectorize)
        torch.testing.assert_close(jacobian, expected)


CALLS = {
    "map": tsallis.entmax,
    "alpha": lambda x: tsallis.entmax(torch.ones(4, 5), x[..., :1, :1].exp() + 1),
    "loss": lambda x: tsallis.entmax_loss(x, torch.tensor([0, 1, 2, 3])),
    "attention": lambda x: tsallis.attention(*[x[None, None]] * 3),
    "bias": lambda x: tsallis.attention(*[torch.ones(1, 1, 5, 4)] * 3, bias=x[0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_forward_mode_is_refused(name):
    """Not dropped in silence, as an operator that knows nothing of tangents would."""
    x = torch.randn(4, 5)
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(CALLS[name], (x,), (torch.ones_like(x),))
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="forward-mode"),
    ):
        CALLS[name](torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))


@pytest.mark.parametrize("name", CALLS)
def test_functional_gradients(name):
    """torch.func gives what torch.autograd gives."""
    f = CALLS[name]
    x = torch.randn(4, 5, dtype=torch.float64 if name != "alpha" else torch.float32)

    def loss(x):
        return f(x).square().sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    out, pull = torch.func.vjp(f, x)
    torch.testing.assert_close(pull(2 * out)[0], expected)
    jacobian = torch.func.jacrev(f)(x)
    wanted = torch.autograd.functional.jacobian(f, x)
    torch.testing.assert_close(jacobian, wanted)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_samples(name):
    samples = torch.randn(3, 4, 5)

    def loss(x):
        return CALLS[name](x).square().sum()

    each = torch.stack([torch.func.grad(loss)(x) for x in samples])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(samples), each)
    whole = torch.func.grad(lambda samples: torch.vmap(loss)(samples).sum())(samples)
    torch.testing.assert_close(whole, each)


@pytest.mark.parametrize("name", CALLS)
def test_second_functional_derivatives_are_refused(name):
    def loss(x):
        return CALLS[name](x).square().sum()

    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())(torch.randn(4, 5))
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.hessian(loss)(torch.randn(4, 5))


# Every tensor of a call of attention: its shape for one slice of three.
SLICES = {
    "q": (2, 4, 5, 8),
    "k": (2, 2, 6, 8),
    "v": (2, 2, 6, 3),
    "alpha": (4,),
    "length_scale": (2, 1, 5),
    "alibi_slopes": (4,),
    "bias": (4, 1, 6),
    "sink": (1,),
    "mask": (5, 6),
    "block_mask": (3, 2),
}


def slices(names, mapped):
    tensors = {}
    for name in names:
        shape = (3, *SLICES[name]) if name in mapped else SLICES[name]
        tensors[name] = torch.rand(shape, dtype=torch.float64) + 0.2
        if "mask" in name:
            tensors[name] = tensors[name] > 0.4
        elif name == "alpha":
            tensors[name] = tensors[name] + 1
    return tensors


@pytest.mark.parametrize(
    "mapped",
    [tuple(SLICES), ("q",), ("k", "v"), ("alpha", "sink"), ("bias", "mask"), ("length_scale",)],
    ids=" ".join,
)
def test_vmap_of_attention(mapped, capfd):
    tensors = slices(SLICES, mapped)
    names = [name for name in tensors if "mask" not in name]

    def call(**tensors):
        out, extras = tsallis.attention(
            **tensors, block_size=(2, 3), causal=True, returns=("tau", "support_size")
        )
        return out, extras.tau, extras.support_size

    def gradients(tensors):
        plain = {name: tensors[name] for name in names}
        rest = {name: x for name, x in tensors.items() if name not in plain}
        return torch.func.grad(lambda plain: call(**plain, **rest)[0].square().sum())(plain)

    dims = {name: 0 if name in mapped else None for name in tensors}
    for f in (lambda tensors: call(**tensors), gradients):
        together = torch.vmap(f, in_dims=(dims,))(tensors)
        for i in range(3):
            one = {name: x[i] if name in mapped else x for name, x in tensors.items()}
            expected = f(one)
            if isinstance(expected, dict):
                for name in names:
                    torch.testing.assert_close(together[name][i], expected[name])
            else:
                for ours, other in zip(together, expected, strict=True):
                    torch.testing.assert_close(ours[i], other)
    assert "performance drop" not in capfd.readouterr().err


def test_vmap_of_attention_over_lengths():
    q, k, v = (torch.randn(3, *SLICES[name]) for name in "qkv")
    lengths = torch.tensor([[6, 4], [1, 5], [3, 3]])
    bias = torch.randn(4, 1, 6)

    def call(q, k, v, lengths):
        return tsallis.attention(q, k, v, lengths=lengths, bias=bias)

    together = torch.vmap(call)(q, k, v, lengths)
    for i in range(3):
        torch.testing.assert_close(together[i], call(q[i], k[i], v[i], lengths[i]))
    with pytest.raises(NotImplementedError, match=r"alpha: torch\.vmap over it beside lengths"):
        torch.vmap(
            lambda q, lengths, alpha: tsallis.attention(q, k[0], v[0], lengths=lengths, alpha=alpha)
        )(q, lengths, torch.full((3, 4), 1.5))
    with pytest.raises(NotImplementedError, match=r"cu_seqlens_q: torch\.vmap over it is not"):
        torch.vmap(lambda cu: tsallis.attention(q[0, :1], k[0, :1], v[0, :1], cu_seqlens_q=cu))(
            torch.tensor([[0, 2, 5], [0, 1, 5]])
        )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_modules(dynamic):
    """One graph, without breaks, at any batch and length."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(
                16, 4, batch_first=True, alpha=nn.LearnedAlpha(4)
            )
            self.rotary = nn.Rotary(16)
            self.scale = nn.ASEntmaxScale(16, 4, unscaled=2)
            self.slopes = nn.NAPE(4, learned=True)

        def forward(self, x):
            x = x + self.attention(x, x, x, need_weights=False, is_causal=True)[0]
            q = self.rotary(x)[:, None].expand(-1, 4, -1, -1)
            y = tsallis.attention(
                q, q, q, causal=True, length_scale=self.scale(x), alibi_slopes=self.slopes()
            )
            return x + tsallis.sdpa_like(y, y, y, is_causal=True, alpha=1.2).mean(1)

    block = Block()
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in ((2, 7, 16), (3, 12, 16)):
        results = []
        for run in (block, compiled):
            block.zero_grad()
            x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
            out = run(x)
            out.square().sum().backward()
            gradients = [parameter.grad.clone() for parameter in block.parameters()]
            results.append([out.detach(), x.grad, *gradients])
        for eager, graph in zip(*results, strict=True):
            torch.testing.assert_close(eager, graph, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_of_modules(dtype):
    module = nn.MultiheadAttention(32, 4, batch_first=True, alpha=nn.LearnedAlpha(4))
    x = torch.randn(2, 9, 32)
    exact = module(x, x, x)[0]
    for need_weights in (False, True):
        module.zero_grad()
        with torch.autocast("cpu", dtype):
            out, _ = module(x, x, x, need_weights=need_weights)
            near = tsallis.sdpa_like(x[None], x[None], x[None])
        assert out.dtype == dtype
        assert near.dtype == dtype
        torch.testing.assert_close(out.float(), exact, atol=0.05, rtol=0.05)
        out.float().square().sum().backward()
        assert module.alpha.raw.grad.dtype == torch.float32
        assert module.alpha.raw.grad.any()


def attend(seed=0):
    q = torch.randn(1, 2, 300, 16, generator=torch.Generator().manual_seed(seed))
    return tsallis.attention(q, q, q, causal=True)


class RowDataset(torch.utils.data.Dataset):
    """Maps and attention inside the workers of a loader."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return os.getpid(), attend(index), tsallis.entmax(torch.arange(50.0) / 10 + index)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader(method):
    """Also after a fork from a process whose pool of threads has been used."""
    attend()
    context = multiprocessing.get_context(method)
    loader = torch.utils.data.DataLoader(
        RowDataset(), batch_size=None, num_workers=2, multiprocessing_context=context, timeout=120
    )
    seen = set()
    for index, (process, out, p) in enumerate(loader):
        seen.add(process)
        assert torch.equal(out, attend(index))
        assert torch.equal(p, tsallis.entmax(torch.arange(50.0) / 10 + index))
    assert os.getpid() not in seen


def test_threads_at_once():
    """Autograd from several threads, each with its own graph."""
    results = [None] * 4

    def work(index):
        q = torch.randn(1, 2, 100, 16, generator=torch.Generator().manual_seed(index))
        q.requires_grad_()
        for _ in range(5):
            q.grad = None
            tsallis.attention(q, q, q, alpha=1.3, causal=True).square().sum().backward()
        results[index] = q.grad

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = list(results)
    for index in range(4):
        work(index)
        assert torch.equal(results[index], together[index])


def test_deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        q = torch.randn(1, 2, 50, 16, requires_grad=True)
        bias = torch.randn(1, 1, 50, 50, requires_grad=True)
        tsallis.attention(q, q, q, bias=bias).sum().backward()
        tsallis.entmax_loss(torch.randn(5, 4, requires_grad=True), torch.arange(5) % 4).backward()
    finally:
        torch.use_deterministic_algorithms(False)
