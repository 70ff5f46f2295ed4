"""Modules of maps, losses, alpha, length scaling and positions."""

import math

import attention_by_definition as definition
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import tsallis
from tsallis import nn


def test_maps_and_losses_are_their_functions():
    x = torch.randn(2, 3, 4, 5)
    for module, expected in (
        (nn.Softmax(1, temperature=2.0), tsallis.softmax(x, 1, temperature=2.0)),
        (nn.Sparsemax(2), tsallis.sparsemax(x, 2)),
        (nn.Entmax(1.3, temperature=0.5), tsallis.entmax(x, 1.3, temperature=0.5)),
        (nn.Normmax(3.0, 0), tsallis.normmax(x, 3.0, 0)),
        (nn.Budget(1.5), tsallis.budget(x, 1.5)),
        (
            nn.AdaptiveTemperatureSoftmax(threshold=0.1),
            tsallis.adaptive_temperature_softmax(x, threshold=0.1),
        ),
        (
            nn.TopKSoftmax(2, 1, top_k_fraction=0.9),
            tsallis.top_k_softmax(x, 2, 1, top_k_fraction=0.9),
        ),
        (nn.Sigmoid(2, sigmoid_bias=0.5), tsallis.sigmoid(x, 2, sigmoid_bias=0.5)),
        (nn.Softpick(0, temperature=2.0), tsallis.softpick(x, 0, temperature=2.0)),
        (nn.StickBreaking(1), tsallis.stick_breaking(x, 1)),
    ):
        assert torch.equal(module(x), expected)
        assert type(module).__name__ in repr(module)
    logits, target = torch.randn(6, 4), torch.tensor([0, 1, 2, -1, 3, 1])
    for module, expected in (
        (nn.SoftmaxLoss(-1), tsallis.softmax_loss(logits, target, -1)),
        (nn.SparsemaxLoss(-1, "sum"), tsallis.sparsemax_loss(logits, target, -1, "sum")),
        (nn.EntmaxLoss(1.2, -1), tsallis.entmax_loss(logits, target, 1.2, -1)),
        (nn.NormmaxLoss(2.5, -1), tsallis.normmax_loss(logits, target, 2.5, -1)),
    ):
        assert torch.equal(module(logits, target), expected)
    with pytest.raises(ValueError, match="reduction: expected"):
        nn.EntmaxLoss(reduction="average")


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 2.0), (1.2, 4.0), (1.0, None), (1.5, None), (0.1, 2.0)]
)
def test_learned_alpha_stays_inside(low, high):
    alpha = nn.LearnedAlpha(3, 1.75, low, high)
    torch.testing.assert_close(alpha(), torch.full((3,), 1.75))
    x = torch.randn(2, 3, 4, 5)
    optimizer = torch.optim.SGD(alpha.parameters(), lr=1e4)
    for sign in (1.0, -1.0):
        for _ in range(3):
            optimizer.zero_grad()
            p = nn.Entmax(alpha)(x)
            (sign * p.square().sum()).backward()
            assert alpha.raw.grad.isfinite().all()
            optimizer.step()
            assert (alpha() >= low).all()
            assert high is None or (alpha() <= high).all()
            assert p.isfinite().all()
    single = nn.LearnedAlpha()
    assert single().shape == ()

    class Number(torch.nn.Module):
        def forward(self):
            return 1.3

    assert torch.equal(nn.Entmax(Number())(x), tsallis.entmax(x, 1.3))
    torch.testing.assert_close(nn.Entmax(single)(x), tsallis.entmax(x, 1.5))


def test_alpha_of_heads_goes_to_their_dimension():
    alpha = nn.LearnedAlpha(3)
    with torch.no_grad():
        alpha.raw += torch.tensor([-1.0, 0.0, 1.0])
    x = torch.randn(2, 3, 4, 5)
    p = nn.Entmax(alpha)(x)
    for head, value in enumerate(alpha().tolist()):
        torch.testing.assert_close(p[:, head], tsallis.entmax(x[:, head], value))
    p = nn.Entmax(alpha, heads_dim=-1, dim=1)(x.movedim(1, -1).movedim(-2, 1))
    assert p.shape == (2, 5, 4, 3)
    p.sum().backward()
    assert alpha.raw.grad is not None


def test_length_scales():
    """The factors, and that the first heads keep 1."""
    n = torch.arange(6.0) + 2
    ssmax = nn.SSMaxScale(4, unscaled=1)
    c = ssmax(6)
    assert c.shape == (4, 6)
    assert (c[0] == 1).all()
    torch.testing.assert_close(c[1:], ssmax.b[:, None] * n.log())
    assert (ssmax.b - 1).abs().max() < 0.1
    scalar = nn.ScalarScale(4, delta=0.5)
    torch.testing.assert_close(scalar(6), 0.5 + scalar.b[:, None] * n.log() ** scalar.g[:, None])
    width = 7
    adaptive = nn.ASEntmaxScale(width, 4, unscaled=2)
    torch.nn.init.normal_(adaptive.gamma.weight)
    x = torch.randn(2, 6, width)
    c = adaptive(x)
    assert c.shape == (2, 4, 6)
    assert (c[:, :2] == 1).all()
    beta = torch.nn.functional.softplus(adaptive.beta(x))
    gamma = 2 * adaptive.gamma(x).tanh()
    expected = 1 + beta * n.log()[:, None] ** gamma
    torch.testing.assert_close(c[:, 2:], expected.mT)
    # one query at a later position, as in decoding
    late = adaptive(x[:, 4:5], torch.tensor([4]))
    torch.testing.assert_close(late, c[:, :, 4:5])
    ragged = adaptive(x, torch.stack((torch.arange(6), torch.arange(6) + 3)))
    torch.testing.assert_close(ragged[0], c[0])
    assert not torch.allclose(ragged[1, 2:], c[1, 2:])
    q = torch.randn(2, 4, 6, 8)
    out = tsallis.attention(q, q, q, length_scale=adaptive(x), causal=True)
    expected = definition.attention(q, q, q, length_scale=adaptive(x), causal=True)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    out.sum().backward()
    assert adaptive.beta.weight.grad.any()
    assert adaptive.gamma.bias.grad.any()


def test_a_learned_delta_begins_at_its_number():
    x = torch.randn(2, 6, 7)
    for plain, learned, arguments in (
        (nn.ScalarScale(4, delta=0.5), nn.ScalarScale(4, delta=0.5, learn_delta=True), (6,)),
        (
            nn.ASEntmaxScale(7, 4, unscaled=1, delta=0.5),
            nn.ASEntmaxScale(7, 4, unscaled=1, delta=0.5, learn_delta=True),
            (x,),
        ),
    ):
        assert not [name for name in plain.state_dict() if "delta" in name]
        learned.load_state_dict(plain.state_dict(), strict=False)
        torch.testing.assert_close(learned(*arguments), plain(*arguments))
        c = learned(*arguments)
        scaled = c[..., -learned.delta.learned.numel() :, :]
        scaled.sum().backward()
        gradient = learned.delta.learned.grad
        torch.testing.assert_close(
            gradient, torch.full_like(gradient, scaled.numel() / len(gradient))
        )
        torch.nn.init.constant_(learned.delta.learned, 2.0)
        learned.reset_parameters()
        assert (learned.delta.learned == 0.5).all()


def test_slopes():
    torch.testing.assert_close(nn.ALiBi(8)(), 2.0 ** -torch.arange(1.0, 9))
    torch.testing.assert_close(nn.ALiBi(4, "slow")(), 2.0 ** (-torch.arange(1.0, 5) / 4))
    torch.testing.assert_close(nn.ALiBi(3, "harmonic")(), 1 / torch.arange(1.0, 4))
    assert nn.ALiBi(2, [0.25, 0.0])().tolist() == [0.25, 0.0]
    assert not nn.ALiBi(4).state_dict()
    nape = nn.NAPE(6)
    torch.testing.assert_close(nape(), torch.tensor([1, 1 / 2, 1 / 3, 0, 0, 0]))
    assert nn.NAPE(6, 0.3)().count_nonzero() == 1
    learned = nn.NAPE(6, learned=True)
    assert list(learned.state_dict()) == ["slopes"]
    q = torch.randn(1, 6, 5, 4)
    tsallis.attention(q, q, q, alibi_slopes=learned()).square().sum().backward()
    assert learned.slopes.grad.shape == (3,)
    assert learned.slopes.grad.any()


@pytest.mark.parametrize(("q_len", "k_len"), [(6, 6), (2, 6), (1, 9)])
def test_scale_invariance_is_attentions(q_len, k_len):
    q, k = torch.randn(2, 3, q_len, 8).double(), torch.randn(2, 3, k_len, 8).double()
    module = nn.ScaleInvariant(3.0)
    p = tsallis.entmax(module(q @ k.mT / math.sqrt(8)))
    out = tsallis.attention(q, k, k, scale_invariant=module.length)
    torch.testing.assert_close(out, p @ k)
    module = nn.ScaleInvariant(3.0, alpha=0.5, beta=0.8)
    p = tsallis.entmax(module(q @ k.mT / math.sqrt(8)))
    shape = {"scale_invariant_alpha": module.alpha, "scale_invariant_beta": module.beta}
    out = tsallis.attention(q, k, k, scale_invariant=module.length, **shape)
    torch.testing.assert_close(out, p @ k)


# transformers names the same things its own way.
SCALED = [
    ({}, {}, "default"),
    ({"scaling": "linear", "factor": 4.0}, {"factor": 4.0}, "linear"),
    ({"scaling": "yarn", "factor": 8.0, "trained_length": 64}, {"factor": 8.0}, "yarn"),
    (
        {"scaling": "yarn", "factor": 4.0, "trained_length": 64, "slow": 2.0, "fast": 16.0},
        {"factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0},
        "yarn",
    ),
    (
        {"scaling": "llama3", "factor": 16.0, "trained_length": 64},
        {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "llama3",
    ),
    ({"scaling": "ntk", "trained_length": 64}, {"factor": 1.0}, "dynamic"),
]


@pytest.mark.parametrize(("mine", "theirs", "kind"), SCALED)
@pytest.mark.parametrize("length", [40, 200])
def test_rotary_frequencies_are_transformers(mine, theirs, kind, length):
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=64)
    config.rope_parameters = {
        "rope_type": kind,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
        **theirs,
    }
    if kind == "default":
        inverse, factor = 10000.0 ** (-torch.arange(0, 32, 2) / 32), 1.0
    else:
        inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    angles = torch.arange(length)[:, None] * inverse
    angles = torch.cat((angles, angles), -1)
    x = torch.randn(2, 3, length, 32)
    rotated = torch.cat((-x[..., 16:], x[..., :16]), -1)
    expected = (x * angles.cos() + rotated * angles.sin()) * factor
    torch.testing.assert_close(nn.Rotary(32, **mine)(x), expected, atol=2e-4, rtol=1e-4)


def test_rotary_positions_and_fraction():
    rotary = nn.Rotary(8, 1024.0, fraction=0.5)
    x = torch.randn(2, 3, 5, 8)
    y = rotary(x)
    # two of four pairs turn
    assert torch.equal(y[..., [2, 3, 6, 7]], x[..., [2, 3, 6, 7]])
    assert not torch.allclose(y[..., 1:, [0, 1]], x[..., 1:, [0, 1]])
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotary(x[:, :, 3:], torch.tensor([3, 4])), y[:, :, 3:])
    each = torch.stack((torch.arange(5), torch.arange(5) + 7))
    torch.testing.assert_close(rotary(x, each)[0], y[0])
    # scores depend on distances alone
    scores = [r @ r.mT for r in (rotary(x, torch.arange(5) + shift) for shift in (0, 100))]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=1e-4)
    # cast to 16 bits, the angles stay those of float32
    ones = torch.ones(1, 1, 2, 64)
    places = torch.tensor([100000, 100001])
    for dtype in (torch.bfloat16, torch.float16):
        low = nn.Rotary(64).to(dtype)
        assert torch.equal(low(ones, places), nn.Rotary(64)(ones, places))
        assert low(ones.to(dtype), places).dtype == dtype


def test_modules_made_on_meta_get_their_values_back():
    with torch.device("meta"):
        made = [nn.Rotary(8), nn.ALiBi(4), nn.NAPE(4), nn.LearnedAlpha(3, 1.3)]
    rotary, alibi, nape, alpha = (module.to_empty(device="cpu") for module in made)
    assert torch.equal(rotary.inverse, nn.Rotary(8).inverse)
    assert torch.equal(alibi(), nn.ALiBi(4)())
    assert torch.equal(nape(), nn.NAPE(4)())
    alpha.reset_parameters()
    torch.testing.assert_close(alpha(), torch.full((3,), 1.3))
    # A buffer that was written to keeps what was written.
    alibi.slopes.fill_(0.25)
    assert (alibi.double()() == 0.25).all()
    far = nn.LearnedAlpha(initial=900.0, high=None)
    assert far().item() == 900.0


def test_stretching_starts_beyond_the_trained_length():
    plain, stretched = nn.Rotary(16), nn.Rotary(16, scaling="ntk", trained_length=32)
    x = torch.randn(1, 1, 32, 16)
    assert torch.equal(stretched(x), plain(x))
    assert not torch.allclose(stretched(x, length=64), plain(x))


def test_mistakes():
    for call, words in (
        (lambda: nn.LearnedAlpha(low=0.0), "low: .* got 0.0"),
        (lambda: nn.LearnedAlpha(high=1.0), "high: .* got 1.0"),
        (lambda: nn.LearnedAlpha(initial=2.0), r"initial: .*\(1.0, 2.0\), got 2.0"),
        (lambda: nn.LearnedAlpha(0), "heads: .* got 0"),
        (lambda: nn.SSMaxScale(4, unscaled=4), r"unscaled: .*\[0, 4\), got 4"),
        (lambda: nn.ASEntmaxScale(0, 4), "width: .* got 0"),
        (lambda: nn.ALiBi(3, "steep"), "slopes: .* got 'steep'"),
        (lambda: nn.ALiBi(3, [1.0]), r"slopes: expected 3 numbers, got shape \[1\]"),
        (lambda: nn.NAPE(4, 0.0), r"share: .* got 0.0"),
        (lambda: nn.ScaleInvariant(0.0), "length: .* got 0.0"),
        (lambda: nn.ScaleInvariant(alpha=0.0), "alpha: .* got 0.0"),
        (lambda: nn.ScaleInvariant(alpha=3.0), "beta: .*= 3.29584 to 100 alpha, got 1.64"),
        (lambda: nn.Rotary(7), "dim: .* got 7"),
        (lambda: nn.Rotary(8, scaling="cubic"), "scaling: .* got 'cubic'"),
        (lambda: nn.Rotary(8, scaling="yarn"), "trained_length: .*yarn.* got None"),
        (lambda: nn.Rotary(8)(torch.ones(3, 6)), "x: expected size 8 .* got 6"),
        (
            lambda: nn.Rotary(8)(torch.ones(2, 3, 8), torch.zeros(2, 3)),
            r"positions: expected shape \[q_len\], or .* got \[2, 3\] for x \[2, 3, 8\]",
        ),
        (lambda: nn.Entmax(torch.tensor([1.5, 2.0]))(torch.ones(2, 3)), "x: expected a dimension"),
    ):
        with pytest.raises(ValueError, match=words):
            call()

    class Two(torch.nn.Module):
        def forward(self):
            return 1.0, 2.0

    with pytest.raises(TypeError, match="alpha: expected a module that returns a number or"):
        nn.Entmax(Two())(torch.ones(2, 2, 2))
