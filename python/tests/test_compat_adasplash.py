"""tsallis.compat.adasplash against attention written out; the original runs on NVIDIA only."""

import inspect

import entmax as peer
import pytest
import torch
from attention_by_definition import grouped

from tsallis.compat import adasplash as ours

# Copied down from adasplash 0.2.0, whose own tests hold it to them.
SIGNATURES = {
    "adasplash": "q k v alpha=1.5 is_causal=True varlen=None niter=None",
    "adasplash_v1": "q k v alpha=1.5 is_causal=False varlen=None niter=10",
    "adasplash_v2": "q k v niter=1 varlen=None",
    "adasplash2": "q k v niter=1 varlen=None",
    "adasplash_no_block_mask": "q k v alpha=1.5 is_causal=False varlen=None niter=10",
    "triton_entmax": "x alpha=1.5 n_iter=2 use_histogram=True fast_math=False",
    "triton_entmax_v1": "x alpha=1.5 n_iter=10 fast_math=True",
    "triton_entmax_v2": "x alpha=1.5 n_iter=2 use_histogram=True fast_math=False",
    "triton_sparsemax": "x n_iter=2 use_histogram=True fast_math=False",
    "triton_entmax15": "x n_iter=2 use_histogram=True fast_math=False",
    "entmax_attention": "q k v alpha=1.5 varlen=None is_causal=False padding='right' niter=2"
    " alibi_slopes=None",
}


def problem(q_len=13, k_len=None, heads=4, kv_heads=4, dim=10, value_dim=10, batch=3):
    shapes = ((heads, q_len, dim), (kv_heads, k_len or q_len, dim))
    shapes += ((kv_heads, k_len or q_len, value_dim),)
    return [torch.randn(batch, *shape, dtype=torch.float64) for shape in shapes]


def by_definition(q, k, v, alpha, is_causal, varlen=None, padding="right", slopes=None):
    """The last query stands at the last key; rows that see nothing, or are padding, are 0."""
    q_len, k_len = q.shape[2], k.shape[2]
    k, v = grouped(k, q.shape[1]), grouped(v, q.shape[1])
    s = q @ k.mT * q.shape[3] ** -0.5
    i, j = torch.arange(q_len)[:, None] + k_len - q_len, torch.arange(k_len)
    if slopes is not None:
        s = s + slopes[:, None, None] * (j - i)
    visible = torch.ones_like(s, dtype=torch.bool)
    if is_causal:
        visible &= j <= i
    if varlen is not None:
        low = 0 * varlen if padding == "right" else k_len - varlen
        kept = (j >= low[:, None]) & (j < (low + varlen)[:, None])  # [batch, k_len]
        visible &= kept[:, None, None, :]
        if q_len == k_len:
            visible &= kept[:, None, :, None]
    some = visible.any(-1, keepdim=True)
    s = s.masked_fill(~visible & some, -torch.inf)
    return (peer.entmax_bisect(s, alpha, n_iter=100) * some) @ v


def check(call, expected, *inputs):
    answers = []
    for function in (call, expected):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = function(*leaves)
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        answers.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for mine, theirs in zip(*answers, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(ours, name)).parameters.values()
    empty = inspect.Parameter.empty
    found = [p.name if p.default is empty else f"{p.name}={p.default!r}" for p in parameters]
    assert " ".join(found) == SIGNATURES[name]
    assert set(ours.__all__) == {*SIGNATURES, "__version__"}


@pytest.mark.parametrize("alpha", [1.0, 1.333, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_attention(alpha, is_causal, ragged):
    varlen = torch.tensor([13, 1, 6]) if ragged else None
    inputs = problem()
    exact = 1.0 + 1e-7 if alpha == 1 else alpha
    for function in (ours.adasplash, ours.adasplash_v1, ours.adasplash_no_block_mask):
        out = function(*inputs, alpha=alpha, is_causal=is_causal, varlen=varlen)
        expected = by_definition(*inputs, exact, is_causal, varlen)
        torch.testing.assert_close(out, expected, atol=1e-6 if alpha == 1 else 1e-8, rtol=0)
    if alpha == 1.5:
        check(
            lambda *x: ours.adasplash(*x, is_causal=is_causal, varlen=varlen),
            lambda *x: by_definition(*x, 1.5, is_causal, varlen),
            *inputs,
        )
    if ragged:
        assert not out[1, :, 1:].any()
        assert not out[2, :, 6:].any()


def test_second_version_with_grouped_heads_and_unequal_sizes():
    inputs = problem(q_len=21, heads=6, kv_heads=2, dim=12, value_dim=5)
    for function in (ours.adasplash_v2, ours.adasplash2, ours.adasplash):
        check(function, lambda *x: by_definition(*x, 1.5, True), *inputs)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("q_len", [13, 5, 1])
@pytest.mark.parametrize("with_slopes", [False, True])
def test_entmax_attention(is_causal, padding, q_len, with_slopes):
    inputs = problem(q_len, 13)
    varlen = torch.tensor([13, 2, 6])
    slopes = torch.tensor([1.0, 0.5, 0.1, 0.0], dtype=torch.float64) if with_slopes else None
    extra = (slopes,) if with_slopes else ()
    check(
        lambda q, k, v, *m: ours.entmax_attention(
            q, k, v, 1.5, varlen, is_causal, padding, alibi_slopes=m[0] if m else None
        ),
        lambda q, k, v, *m: by_definition(
            q, k, v, 1.5, is_causal, varlen, padding, m[0] if m else None
        ),
        *inputs,
        *extra,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_slopes_of_16_bits_round_no_positions(dtype):
    q, k, v = (torch.randn(1, 2, 2048, 8) for _ in range(3))
    slopes = torch.tensor([64.0, 0.0625])
    varlen = torch.tensor([700])
    wide = ours.entmax_attention(q, k, v, varlen=varlen, alibi_slopes=slopes)
    narrow = ours.entmax_attention(q, k, v, varlen=varlen, alibi_slopes=slopes.to(dtype))
    assert torch.equal(narrow, wide)


def test_row_maps():
    x = torch.randn(3, 4, 50, dtype=torch.float64)
    for function in (ours.triton_entmax, ours.triton_entmax_v1, ours.triton_entmax_v2):
        torch.testing.assert_close(function(x), peer.entmax15(x))
        torch.testing.assert_close(function(x, 1.25), peer.entmax_bisect(x, 1.25, n_iter=100))
    torch.testing.assert_close(ours.triton_sparsemax(x), peer.sparsemax(x))
    torch.testing.assert_close(ours.triton_entmax15(x, n_iter=3), peer.entmax15(x))


def test_mistakes():
    q, k, v = problem()
    for call, words in (
        (lambda: ours.adasplash(q, k, v, niter=-1), "niter: expected an integer >= 0, got -1"),
        (lambda: ours.adasplash(q, k, v, alpha=0.0), "alpha"),
        (lambda: ours.adasplash(q, k, v, varlen=torch.tensor([1, 2])), "lengths"),
        (lambda: ours.entmax_attention(q, k, v, padding="both"), "padding: .* got 'both'"),
        (
            lambda: ours.entmax_attention(q[:, :, :3], k, v, varlen=torch.tensor([1, 2])),
            r"varlen: expected shape \[batch\] = \[3\], got \[2\]",
        ),
        (
            lambda: ours.entmax_attention(q, k, v, alibi_slopes=torch.ones(3)),
            r"alibi_slopes: expected shape \[heads\] = \[4\], got \[3\]",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
