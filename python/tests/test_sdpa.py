"""sdpa_like against torch's own attention (map="softmax") and against the definition."""

import inspect
import math

import attention_by_definition as definition
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as theirs

import tsallis


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def check(arguments, mask=None, **settings):
    """Values and gradients equal SDPA's, also that of a floating mask."""
    leaves = [*arguments] + ([mask] if mask is not None and mask.dtype != torch.bool else [])
    answers = []
    for function, more in ((tsallis.sdpa_like, {"map": "softmax"}), (theirs, {})):
        inputs = [x.detach().clone().requires_grad_() for x in leaves]
        given = inputs[3] if len(inputs) > 3 else mask
        out = function(*inputs[:3], given, **settings, **more)
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        answers.append([out.detach(), *(x.grad for x in inputs)])
    for mine, other in zip(*answers, strict=True):
        assert mine.shape == other.shape
        torch.testing.assert_close(mine, other)


def test_signature():
    # SDPA is a builtin without a signature of its own; this is the one of its documentation.
    given = "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None"
    given += " enable_gqa=False"
    parameters = list(inspect.signature(tsallis.sdpa_like).parameters.values())
    empty = inspect.Parameter.empty
    found = [p.name if p.default is empty else f"{p.name}={p.default}" for p in parameters[:8]]
    assert " ".join(found) == given
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[8:])
    assert [line for line in theirs.__doc__.split("\n") if "is_causal=False" in line]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("k_len", [4, 7, 9])
def test_leading_dimensions(lead, causal, k_len):
    inputs = (normal(*lead, 7, 5), normal(*lead, k_len, 5), normal(*lead, k_len, 6))
    check(inputs, is_causal=causal)
    check(inputs, is_causal=causal, scale=0.3)


@pytest.mark.parametrize(
    "shape",
    [(7, 9), (1, 9), (7, 1), (3, 7, 9), (1, 7, 9), (2, 3, 7, 9), (2, 1, 7, 9), (2, 1, 1, 9)],
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(shape, kind):
    inputs = (normal(2, 3, 7, 5), normal(2, 3, 9, 5), normal(2, 3, 9, 5))
    if kind == "bool":
        mask = torch.rand(shape) < 0.7
        mask[..., 0] = True
    else:
        mask = normal(*shape)
        mask = mask.masked_fill(torch.rand(shape) < 0.2, -math.inf) if shape[-1] > 1 else mask
    check(inputs, mask)


@pytest.mark.parametrize("shape", [(2, 4, 3, 7, 9), (1, 4, 3, 7, 9), (4, 1, 7, 9), (7, 9)])
def test_masks_of_five_dimensions(shape):
    inputs = (normal(2, 4, 3, 7, 5), normal(2, 4, 3, 9, 5), normal(2, 4, 3, 9, 5))
    check(inputs, torch.rand(shape) < 0.8)


def test_masks_of_three_dimensions():
    inputs = (normal(3, 7, 5), normal(3, 9, 5), normal(3, 9, 5))
    for shape in ((3, 7, 9), (3, 1, 9), (7, 9)):
        check(inputs, normal(*shape))


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads(causal):
    inputs = (normal(2, 6, 7, 5), normal(2, 2, 7, 5), normal(2, 2, 7, 5))
    check(inputs, enable_gqa=True, is_causal=causal)


@pytest.mark.parametrize(("q_shape", "k_len"), [((2, 3, 2, 0, 4), 5), ((2, 3, 2, 5, 4), 0)])
def test_empty_axes_of_five_dimensions(q_shape, k_len):
    q, k = torch.randn(q_shape), torch.randn(*q_shape[:3], k_len, 4)
    for mask in (None, torch.ones(2, 1, 1, q_shape[3], k_len, dtype=torch.bool)[0]):
        out = tsallis.sdpa_like(q, k, k, mask)
        assert out.shape == q_shape
        assert not out.any()


def test_rows_that_see_nothing():
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    q = normal(1, 2, 4, 8)
    assert not tsallis.sdpa_like(q, q, q, mask)[:, :, 2].any()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_sparse_weights(alpha):
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 8, 4), normal(2, 3, 8, 4)
    out = tsallis.sdpa_like(q, k, v, is_causal=True, alpha=alpha)
    expected = definition.attention(q, k, v, causal=True, alignment="start", alpha=alpha)
    torch.testing.assert_close(out, expected)
    heads = torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64)
    out = tsallis.sdpa_like(q, k, v, alpha=heads)
    torch.testing.assert_close(out, definition.attention(q, k, v, alpha=heads))


@pytest.mark.parametrize("map", ["softmax", "entmax", "adaptive_temperature"])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout(map, causal):
    """With values of one-hot rows the output is the weights, each kept or dropped as a whole."""
    n = 40
    q, k = normal(2, 4, n, 8), normal(2, 2, n, 8)
    v = torch.eye(n, dtype=torch.float64).expand(2, 2, n, n)
    settings = {"is_causal": causal, "enable_gqa": True, "map": map}
    whole = tsallis.sdpa_like(q, k, v, **settings)
    dropped = tsallis.sdpa_like(q, k, v, dropout_p=0.25, **settings)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)
    support = whole > 0
    share = kept[support].double().mean().item()
    assert abs(share - 0.75) < 5 * (0.75 * 0.25 / support.sum().item()) ** 0.5
    bias = normal(n, n).requires_grad_()
    tsallis.sdpa_like(q, k, v, bias, 0.5, enable_gqa=True).square().sum().backward()
    assert bias.grad.any()


def test_mistakes():
    q, k = normal(2, 4, 5, 8), normal(2, 2, 5, 8)
    full = torch.ones(5, 5, dtype=torch.bool)
    for call, words in (
        (lambda: tsallis.sdpa_like(q, k, k), r"key: expected 4 heads .* got 2"),
        (lambda: tsallis.sdpa_like(q, k[0], k), r"key: expected shape .* got \[2, 5, 8\]"),
        (lambda: tsallis.sdpa_like(q, q, q, dropout_p=1.0), r"dropout_p: .*\[0, 1\), got 1.0"),
        (lambda: tsallis.sdpa_like(q, q, q, full, is_causal=True), "is_causal: expected False"),
        (lambda: tsallis.sdpa_like(q, q, q, full.int()), "attn_mask: .* got torch.int32"),
        (lambda: tsallis.sdpa_like(q, q, q, full[None, None, None]), "attn_mask: expected at most"),
        (lambda: tsallis.sdpa_like(q, q, q, full[:3]), r"^attn_mask: .*broadcasts"),
        (lambda: tsallis.sdpa_like(q, q[..., :4], q), r"^key: expected"),
        (lambda: tsallis.sdpa_like(q, q, q.int()), r"^value: expected"),
        (lambda: tsallis.sdpa_like(q, q, q, dropout_p=0.5, scale=-1.0), "^scale: expected"),
        (lambda: tsallis.sdpa_like(q, q, q, map="sigmoid"), '^map: expected "entmax", "softmax"'),
        (lambda: tsallis.sdpa_like(q, q, q, map="normmax"), "map: .*normmax"),
        (lambda: tsallis.sdpa_like(q, q, q, dropout_p=0.5, map="top"), "map: .* got 'top'"),
        (lambda: tsallis.sdpa_like(q, q, q, dropout_p=0.5, alpha=torch.ones(3)), "alpha: .*4.*3"),
        (
            lambda: tsallis.sdpa_like(q, normal(3, 4, 5, 8), q),
            "key: expected leading dimensions that broadcast",
        ),
        (
            lambda: tsallis.sdpa_like(
                normal(2, 3, 4), normal(2, 3, 4), normal(2, 3, 4), None, 0.0, False, None, True
            ),
            "enable_gqa",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match=r"^key: expected a tensor, got NoneType"):
        tsallis.sdpa_like(q, None, q)
    with pytest.raises(TypeError, match=r"^attn_mask: expected a tensor or None, got list"):
        tsallis.sdpa_like(q, q, q, [[True]])
    with pytest.raises(TypeError, match=r"^dropout_p: expected a number, got 'a'"):
        tsallis.sdpa_like(q, q, q, dropout_p="a")
    with pytest.raises(TypeError, match=r"^alpha: expected a number, got '2'"):
        tsallis.sdpa_like(q, q, q, alpha="2")
