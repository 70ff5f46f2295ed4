"""Fixed patterns against their definitions, pair by pair, and through attention."""

import pytest
import torch

import tsallis
from tsallis.patterns import Pattern, bigbird, fixed, longformer, strided


def shows(pattern, i, j):
    """The definition, but for the random part. i: [q_len, 1], j: [k_len]."""
    apart = (i - j).abs()
    seen = torch.zeros_like(apart, dtype=torch.bool)
    if pattern.window:
        inside = i - j < pattern.window if pattern.causal else 2 * apart <= pattern.window
        seen |= inside
    seen |= (i < pattern.global_tokens) | (j < pattern.global_tokens)
    if pattern.stride:
        seen |= apart % pattern.stride == 0
    if pattern.segment:
        last = j % pattern.segment >= pattern.segment - pattern.summary
        seen |= (i // pattern.segment == j // pattern.segment) | last
    return seen & (j <= i) if pattern.causal else seen


def elements(masks, q_len, k_len):
    """The two masks as one: [q_len, k_len]."""
    rows, columns = masks["block_size"]
    blocks = masks["block_mask"].repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    blocks = blocks[:q_len, :k_len]
    return blocks if masks["mask"] is None else blocks & masks["mask"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda causal: Pattern(causal, window=5),
        lambda causal: Pattern(causal, global_tokens=3),
        lambda causal: longformer(4, 2, causal=causal),
        lambda causal: strided(6, causal=causal),
        lambda causal: fixed(8, 2, causal=causal),
    ],
    ids=["window", "global", "longformer", "strided", "fixed"],
)
@pytest.mark.parametrize(
    ("q_len", "k_len", "alignment"), [(33, 33, "end"), (5, 33, "end"), (40, 33, "start")]
)
def test_masks_are_the_definition(make, causal, q_len, k_len, alignment):
    pattern = make(causal)
    masks = pattern.masks(q_len, k_len, block_size=(4, 8), alignment=alignment)
    i = torch.arange(q_len)[:, None] + (k_len - q_len if alignment == "end" else 0)
    expected = shows(pattern, i, torch.arange(k_len))
    assert torch.equal(elements(masks, q_len, k_len), expected)
    some = torch.nn.functional.pad(expected, (0, -k_len % 8, 0, -q_len % 4))
    some = some.unflatten(0, (-1, 4)).unflatten(2, (-1, 8)).any(3).any(1)
    assert torch.equal(masks["block_mask"], some)


def test_a_pattern_of_whole_blocks_needs_no_elements():
    masks = fixed(8, 0).masks(32, block_size=(8, 8))
    assert masks["mask"] is None
    assert torch.equal(masks["block_mask"], torch.eye(4, dtype=torch.bool))


def test_random_blocks_are_new_ones_and_follow_the_seed():
    pattern = bigbird(6, 2, random=2, random_block=4, seed=3)
    rest = longformer(6, 2)
    seen = elements(pattern.masks(64, block_size=(4, 4)), 64, 64)
    i, j = torch.arange(64)[:, None], torch.arange(64)
    drawn = (seen & ~shows(rest, i, j)).unflatten(0, (-1, 4)).unflatten(2, (-1, 4))
    count = drawn.all(3).all(1).sum(1)
    assert torch.equal(drawn.any(3).any(1).sum(1), count)  # whole ones
    assert (count[1:] == 2).all()
    assert count[0] == 0  # the first queries see all keys
    again = elements(pattern.masks(64, block_size=(4, 4)), 64, 64)
    assert torch.equal(seen, again)
    other = bigbird(6, 2, random=2, random_block=4, seed=4)
    assert not torch.equal(seen, elements(other.masks(64, block_size=(4, 4)), 64, 64))


@pytest.mark.parametrize(
    "pattern",
    [
        longformer(8, 2, causal=True),
        bigbird(6, 1, random=1, random_block=8, causal=True),
        strided(5),
    ],
    ids=["longformer", "bigbird", "strided"],
)
@pytest.mark.parametrize("map", ["softmax", "entmax", "sigmoid"])
def test_attention_of_a_pattern_is_attention_of_its_pairs(pattern, map):
    q, k, v = (torch.randn(2, 3, 40, 8, requires_grad=True) for _ in range(3))
    masks = pattern.masks(40, block_size=(8, 8))
    seen = elements(masks, 40, 40)
    settings = {"map": map, "causal": pattern.causal}
    out = tsallis.attention(q, k, v, **settings, **masks)
    expected = tsallis.attention(q, k, v, **settings, mask=seen)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    weight = torch.randn_like(out)
    ours = torch.autograd.grad((out * weight).sum(), (q, k, v))
    plain = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_random_blocks_much_longer_than_the_sequence():
    for pattern in (
        Pattern(random=1, random_block=2**40, stride=2, causal=True),
        Pattern(random=1, random_block=2**40, causal=True),
    ):
        masks = pattern.masks(4, block_size=(1, 1))
        seen = masks["block_mask"]
        assert seen.any(1).all()
        assert not seen.triu(1).any()


def test_a_pattern_inside_a_compiled_function():
    pattern = longformer(4, 1)

    @torch.compile(backend="aot_eager")
    def run(q):
        return tsallis.attention(q, q, q, **pattern.masks(q.shape[2]))

    q = torch.randn(1, 2, 9, 4)
    torch.testing.assert_close(run(q), tsallis.attention(q, q, q, **pattern.masks(9)))


def test_mistakes_name_the_argument():
    for pattern, words in (
        (Pattern(window=-1), "window: expected an integer from 0 .* got -1"),
        (fixed(4, 5), "summary: expected an integer from 0 to 4, got 5"),
        (Pattern(random=1, random_block=0), "random_block: expected an integer from 1 .* got 0"),
        (Pattern(seed=-1), "seed: expected an integer >= 0, got -1"),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            pattern.masks(8)
    pattern = longformer(4, 1)
    with pytest.raises(ValueError, match=r"^q_len: expected at most k_len = 8 .* got 9"):
        pattern.masks(9, 8)
    with pytest.raises(ValueError, match=r"^q_len: expected at most 256 beside k_len = 4294967296"):
        pattern.masks(2**32, 2**32)
    with pytest.raises(ValueError, match=r"^block_size: expected a pair, got 3"):
        pattern.masks(8, block_size=3)
    with pytest.raises(ValueError, match=r"^alignment: expected \"end\" or \"start\""):
        pattern.masks(8, alignment="middle")
    with pytest.raises(ValueError, match=r"^block_size: expected an integer from 1 .* got 0"):
        pattern.masks(8, block_size=(0, 4))
    with pytest.raises(TypeError, match="window: expected an integer, got"):
        Pattern(window=2.5).masks(8)
