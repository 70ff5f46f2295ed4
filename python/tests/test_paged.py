"""Decoding on pages of the caller's: against attention on the same keys in one tensor."""

import pytest
import torch
from torch.library import opcheck

import tsallis

OPERATOR = torch.ops.tsallis.attention_on_pages.default
STATISTICS = torch.ops.tsallis.attention_on_pages_stats.default
PAGE = 5
LENGTHS = (13, 0, 20, 1)


def draw(dtype=torch.float32, q_len=1, integers=torch.int32, heads_first=False):
    """q, pages with the keys of four sequences in a mixed order, table and lengths."""
    torch.manual_seed(3)
    q = torch.randn(4, 6, q_len, 16, dtype=dtype)
    pages = [torch.randn(20, PAGE, 2, columns, dtype=dtype) for columns in (16, 8)]
    if heads_first:
        pages = [page.transpose(1, 2).contiguous().transpose(1, 2) for page in pages]
    table = torch.randperm(20)[:16].reshape(4, 4).to(integers)
    table[2, :2] = table[0, :2]  # a prompt that two sequences share
    table[0, 3] = -1  # behind its last page
    return q, *pages, table, torch.tensor(LENGTHS, dtype=integers)


def gathered(pages, table, b, length):
    rows = pages[table[b].clamp(min=0).long()].flatten(0, 1)[:length]
    return rows.transpose(0, 1)[None]


def expected(arguments, **settings):
    q, k_pages, v_pages, table, lengths = arguments
    outs = []
    for b, length in enumerate(lengths.tolist()):
        k, v = gathered(k_pages, table, b, length), gathered(v_pages, table, b, length)
        one = dict(settings)
        for name in ("alibi_slopes", "length_scale"):
            if name in one and one[name].shape[0] == len(lengths):
                one[name] = one[name][b : b + 1]
        outs.append(tsallis.attention(q[b : b + 1], k, v, causal=True, **one))
    return torch.cat(outs)


SETTINGS = [
    {},
    {"map": "softmax"},
    {"alpha": 2.0, "window": 6},
    {"alpha": torch.tensor([1.0, 1.2, 1.5, 1.75, 2.0, 1.5])},
    {"alibi_slopes": torch.rand(6), "sink": torch.randn(6), "scale": 0.7},
    {"alibi_slopes": torch.rand(4, 6), "length_scale": 1 + torch.rand(4, 6, 1)},
    {"scale_invariant": 8.0, "softcap": 5.0},
    {"scale_invariant": 8.0, "scale_invariant_alpha": 2.0, "scale_invariant_beta": 2.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=[", ".join(s) or "plain" for s in SETTINGS])
@pytest.mark.parametrize("q_len", [1, 3])
def test_is_attention_on_the_same_keys(settings, q_len):
    arguments = draw(q_len=q_len)
    same = dict(settings)
    if "window" in same:
        same["window"] = (same["window"], None)
    out = tsallis.decode_paged(*arguments, **settings)
    torch.testing.assert_close(out, expected(arguments, **same), rtol=1e-5, atol=1e-6)
    assert (out[1] == 0).all()  # no key


def test_bits_do_not_depend_on_who_shares_the_call():
    torch.manual_seed(0)
    lengths = (130, 1100)  # which different kernels serve best
    q = torch.randn(2, 2, 9, 8)
    k_pages, v_pages = torch.randn(2, 80, 16, 1, 8)
    table = torch.arange(160).reshape(2, 80) % 80
    both = tsallis.decode_paged(q, k_pages, v_pages, table, torch.tensor(lengths))
    for b, length in enumerate(lengths):
        k, v = gathered(k_pages, table, b, length), gathered(v_pages, table, b, length)
        alone = tsallis.attention(q[b : b + 1], k, v, causal=True)
        assert torch.equal(both[b : b + 1], alone), length


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
@pytest.mark.parametrize("heads_first", [False, True])
def test_dtypes_and_layouts(dtype, integers, heads_first):
    arguments = draw(dtype, integers=integers, heads_first=heads_first)
    tolerance = {torch.float64: 1e-12}.get(dtype, 1e-2)
    out = tsallis.decode_paged(*arguments)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected(arguments), rtol=tolerance, atol=tolerance)


def test_statistics_are_those_that_were_asked_for():
    arguments = draw()
    out, extras = tsallis.decode_paged(*arguments, returns=("tau", "support_size"))
    assert torch.equal(out, tsallis.decode_paged(*arguments))
    assert extras.entropy is None
    assert extras.maximum is None
    assert extras.tau.shape == (4, 6, 1)
    assert extras.tau.dtype == torch.float64
    assert (extras.support_size[1] == 0).all()
    assert (extras.support_size[3] == 1).all()


def test_as_torch_sees_it():
    arguments = draw(q_len=2)
    settings = {"causal": True, "lengths": arguments[-1]}
    for operator in (OPERATOR, STATISTICS):
        opcheck(operator, arguments[:4], settings)
    compiled = torch.compile(tsallis.decode_paged, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*arguments), tsallis.decode_paged(*arguments))
    arguments[0].requires_grad_()
    assert not tsallis.decode_paged(*arguments).requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.randn(4, 5, 1, 16)}, "q: expected a multiple of kv_heads = 2 heads, got 5"),
        ({"q": torch.randn(6, 1, 16)}, r"q: expected \[batch, heads, q_len, head_dim\]"),
        ({"k_pages": torch.randn(20, 5, 2, 8)}, "k_pages: expected head_dim = 16"),
        ({"v_pages": torch.randn(19, 5, 2, 8)}, "v_pages: expected .* first three sizes"),
        ({"v_pages": torch.randn(20, 5, 2, 8).double()}, "v_pages: expected the dtype of q"),
        ({"block_table": torch.zeros(4, 4)}, "block_table: expected dtype int32 or int64"),
        ({"block_table": torch.zeros(3, 4).int()}, "block_table: .* with batch = 4"),
        ({"block_table": torch.full((4, 4), 20)}, r"block_table\[0, 0\]: expected one of 20 pages"),
        ({"lengths": torch.tensor([1, 2, 3, 21])}, r"lengths\[3\]: expected 0 to 20, .* got 21"),
        ({"lengths": torch.tensor([1, -2, 3, 1])}, r"lengths\[1\]: expected 0 to 20, .* got -2"),
        ({"lengths": torch.ones(3).int()}, r"lengths: expected \[batch\] with batch = 4"),
        ({"lengths": torch.ones(4).int().to_sparse()}, "lengths: expected a dense tensor"),
        ({"alpha": torch.ones(6).to_sparse()}, "alpha: expected a dense tensor on the CPU"),
        ({"alpha": -1.0}, "alpha: expected"),
        ({"sink": torch.zeros(4)}, r"sink: expected a shape that broadcasts to \[heads\]"),
        ({"map": "softpick"}, "map: expected 'entmax' or 'softmax', got 'softpick'"),
        ({"window": -1}, "window: expected 0 or more, got -1"),
        ({"returns": "weights"}, "returns: expected names out of tau, .* got 'weights'"),
    ],
)
def test_mistakes_are_named(change, message):
    names = ("q", "k_pages", "v_pages", "block_table", "lengths")
    arguments = dict(zip(names, draw(), strict=True))
    arguments["block_table"] = arguments["block_table"].clamp(min=0)
    with pytest.raises(ValueError, match=message):
        tsallis.decode_paged(**(arguments | change))


def test_types_are_named():
    q, *rest = draw()
    with pytest.raises(TypeError, match="q: expected a tensor"):
        tsallis.decode_paged(3, *rest)
    with pytest.raises(TypeError, match=r"window: expected an integer or None, got 1\.5"):
        tsallis.decode_paged(q, *rest, window=1.5)
    # torch 2.15 makes a RuntimeError of every error of an operator.
    with pytest.raises((ValueError, RuntimeError), match="mask: expected None for keys in pages"):
        OPERATOR(q, *rest[:3], lengths=rest[3], mask=torch.ones(1, dtype=torch.bool))
