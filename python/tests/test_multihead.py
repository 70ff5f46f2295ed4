"""MultiheadAttention against torch's own (map="softmax") and against the definition."""

import copy
import inspect
import io

import entmax as peer
import pytest
import torch

from tsallis import nn

SETTINGS = [
    {},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
    {"kdim": 6, "vdim": 10},
    {"kdim": 6, "vdim": 10, "add_bias_kv": True},
]


def pair(**settings):
    theirs = torch.nn.MultiheadAttention(16, 4, dtype=torch.float64, **settings)
    mine = nn.MultiheadAttention(16, 4, dtype=torch.float64, map="softmax", **settings)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


def inputs(settings, q_len=5, k_len=7, batch=3):
    shape = (batch, q_len), (batch, k_len)
    if not settings.get("batch_first"):
        shape = tuple(tuple(reversed(s)) for s in shape)
    widths = (16, settings.get("kdim", 16), settings.get("vdim", 16))
    leads = (shape[0], shape[1], shape[1])
    return [torch.randn(*s, w, dtype=torch.float64) for s, w in zip(leads, widths, strict=True)]


def check(mine, theirs, tensors, **call):
    answers = []
    for module in (mine, theirs):
        module.zero_grad()
        leaves = [x.clone().requires_grad_() for x in tensors]
        out, weights = module(*leaves, **call)
        loss = (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum()
        if weights is not None:
            loss = loss + weights.square().sum()
        loss.backward()
        gradients = [x.grad for x in leaves] + [p.grad for p in module.parameters()]
        answers.append([out.detach(), weights, *gradients])
    assert (answers[0][1] is None) == (answers[1][1] is None)
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b)


def test_constructor_and_state():
    theirs = inspect.signature(torch.nn.MultiheadAttention).parameters
    mine = inspect.signature(nn.MultiheadAttention).parameters
    assert list(mine)[: len(theirs)] == list(theirs)
    assert all(mine[name].default == theirs[name].default for name in theirs)
    call, expected = (
        inspect.signature(c.forward).parameters
        for c in (nn.MultiheadAttention, torch.nn.MultiheadAttention)
    )
    assert [(p.name, p.default) for p in call.values()] == [
        (p.name, p.default) for p in expected.values()
    ]
    for settings in SETTINGS:
        torch.manual_seed(3)
        first = torch.nn.MultiheadAttention(16, 4, **settings).state_dict()
        torch.manual_seed(3)
        second = nn.MultiheadAttention(16, 4, **settings).state_dict()
        assert list(first) == list(second)
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_softmax_is_torchs(settings, batch_first, need_weights):
    settings = settings | {"batch_first": batch_first}
    mine, theirs = pair(**settings)
    tensors = inputs(settings)
    check(mine, theirs, tensors, need_weights=need_weights)
    check(mine, theirs, tensors, need_weights=True, average_attn_weights=False)
    single = [x[0] if batch_first else x[:, 0] for x in tensors]
    check(mine, theirs, single, need_weights=need_weights)


@pytest.mark.parametrize("settings", SETTINGS[::2])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("which", ["padding", "attention", "heads", "both"])
def test_masks(settings, need_weights, kind, which):
    mine, theirs = pair(**settings)
    padding = torch.arange(7) >= torch.tensor([7, 4, 6])[:, None]
    shape = (12, 5, 7) if which == "heads" else (5, 7)
    mask = torch.rand(shape) < 0.3
    mask[..., 0] = False
    if kind == "float":
        mask = torch.randn(shape, dtype=torch.float64)
        padding = torch.zeros(3, 7).double().masked_fill(padding, -torch.inf)
    call = {}
    if which in ("padding", "both"):
        call["key_padding_mask"] = padding
    if which != "padding":
        call["attn_mask"] = mask
    check(mine, theirs, inputs(settings), need_weights=need_weights, **call)
    if which != "heads" and kind == "bool":
        single = {name: m[1] if name == "key_padding_mask" else m for name, m in call.items()}
        tensors = [x[:, 1] for x in inputs(settings)]
        check(mine, theirs, tensors, need_weights=need_weights, **single)


@pytest.mark.parametrize("settings", [{}, {"add_bias_kv": True}])
@pytest.mark.parametrize("need_weights", [False, True])
def test_causal(settings, need_weights):
    mine, theirs = pair(**settings)
    mask = torch.ones(5, 7, dtype=torch.bool).triu(1)
    tensors = inputs(settings)
    if not settings:  # with the hint torch hides the appended key
        check(mine, theirs, tensors, need_weights=need_weights, attn_mask=mask, is_causal=True)
    expected = theirs(*tensors, need_weights=need_weights, attn_mask=mask)[0]
    for given in (mask, None):
        out, _ = mine(*tensors, need_weights=need_weights, attn_mask=given, is_causal=True)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_sparse_weights(alpha):
    mine, theirs = pair()
    mine.map, mine.alpha = "entmax", alpha
    tensors = inputs({})
    out, weights = mine(*tensors, average_attn_weights=False)
    q, k, v = (
        torch.nn.functional.linear(x, w, b).unflatten(-1, (4, 4)).permute(1, 2, 0, 3)
        for x, w, b in zip(
            tensors, theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        )
    )
    p = peer.entmax_bisect(q @ k.mT / 2, alpha, n_iter=100)
    torch.testing.assert_close(weights, p)
    expected = theirs.out_proj((p @ v).permute(2, 0, 1, 3).flatten(-2))
    torch.testing.assert_close(out, expected)
    fused, none = mine(*tensors, need_weights=False)
    assert none is None
    torch.testing.assert_close(fused, expected)


def test_learned_alpha_is_part_of_the_module():
    mine = nn.MultiheadAttention(16, 4, alpha=nn.LearnedAlpha(4))
    assert "alpha.raw" in mine.state_dict()
    gradients = []
    for need_weights in (False, True):
        mine.zero_grad()
        x = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(1))
        mine(x, x, x, need_weights=need_weights)[0].square().sum().backward()
        assert mine.alpha.raw.grad.shape == (4,)
        gradients.append(mine.alpha.raw.grad)
    assert gradients[0].any()
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def test_queries_that_see_nothing():
    mine, _ = pair()
    tensors = inputs({})
    hidden = torch.ones(3, 7, dtype=torch.bool)
    for need_weights in (False, True):
        out, weights = mine(*tensors, key_padding_mask=hidden, need_weights=need_weights)
        torch.testing.assert_close(out, mine.out_proj.bias.expand_as(out))
        assert weights is None or not weights.any()


def test_dropout():
    mine = nn.MultiheadAttention(16, 4, 0.5, map="softmax")
    x = torch.randn(50, 4, 16)
    _, weights = mine(x, x, x, average_attn_weights=False)
    share = (weights == 0).float().mean().item()
    assert 0.45 < share < 0.55
    assert not torch.equal(*(mine(x, x, x, need_weights=False)[0] for _ in range(2)))
    mine.eval()
    assert torch.equal(*(mine(x, x, x, need_weights=False)[0] for _ in range(2)))
    assert (mine(x, x, x)[1] > 0).all()


def test_encoder_layers_call_it():
    """torch's own layers know a way around the attention module, which would be softmax."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    layer.self_attn = nn.MultiheadAttention(16, 4, batch_first=True, alpha=2.0)
    x = torch.randn(2, 6, 16)
    trained = layer(x)
    layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(layer(x), trained.detach())
        stack = torch.nn.TransformerEncoder(layer, 2).eval()
        torch.testing.assert_close(stack(x), stack.layers[1](stack.layers[0](x)))


def test_copies():
    mine = nn.MultiheadAttention(16, 4, alpha=1.7)
    x = torch.randn(5, 3, 16)
    file = io.BytesIO()
    torch.save(mine, file)
    file.seek(0)
    for other in (copy.deepcopy(mine), torch.load(file, weights_only=False)):
        assert torch.equal(other(x, x, x)[0], mine(x, x, x)[0])
        assert not other._qkv_same_embed_dim


def test_mistakes():
    mine = nn.MultiheadAttention(16, 4)
    x = torch.randn(5, 3, 16)
    for call, words in (
        (lambda: nn.MultiheadAttention(16, 3), "num_heads: .* 16, got 3"),
        (lambda: nn.MultiheadAttention(16, 4, map="entmx"), 'map: .*"entmax".* got .entmx.'),
        (lambda: nn.MultiheadAttention(16, 4, map="normmax"), "map: .* got 'normmax'"),
        (lambda: nn.MultiheadAttention(16, 4, alpha=0.0), "alpha: .*> 0, got 0.0"),
        (lambda: nn.MultiheadAttention(16, 4, alpha=torch.ones(3)), r"alpha: .*\[4\], got \[3\]"),
        (lambda: nn.MultiheadAttention(16, 4, alpha=-torch.ones(4)), "alpha: .*> 0, got"),
        (lambda: mine(x, x[..., :8], x), r"key: expected shape .*16.* got \[5, 3, 8\]"),
        (lambda: mine(x, x, x[:4]), r"value: .*\[5, 3\], got \[4, 3\]"),
        (lambda: mine(x, x[0], x), "key: expected shape"),
        (lambda: mine(x, x, x, attn_mask=torch.ones(5, 4)), r"attn_mask: .*\[5, 5\].* \[5, 4\]"),
        (lambda: mine(x, x, x, torch.ones(5, 3)), r"key_padding_mask: .*\[3, 5\].* \[5, 3\]"),
        (lambda: mine(x, x, x, attn_mask=torch.ones(5, 5).int()), "attn_mask: .*torch.int32"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    for alpha in ("1.5", None, torch.ones(4, dtype=torch.int64)):
        with pytest.raises(TypeError, match=r"^alpha: expected a .*"):
            nn.MultiheadAttention(16, 4, alpha=alpha)
