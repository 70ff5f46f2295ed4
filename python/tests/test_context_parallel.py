"""Attention on sequences split over processes by torch's hook is attention on the whole ones."""

import warnings

import pytest
import torch
from gloo import on_processes, share_of_loss
from torch.distributed.device_mesh import init_device_mesh

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

import tsallis
from tsallis.integrations.context_parallel import ContextParallelAttention

pytestmark = pytest.mark.alone  # up to four processes at a time

TOKENS = 24  # of the whole sequence


def leaf(*shape, low=None):
    value = torch.randn(shape, dtype=torch.float64)
    return (value if low is None else low + value.sigmoid()).requires_grad_()


def by_heads():
    return leaf(4, low=1.01)


# What a call is given; tensors among it get gradients.
CASES = {
    "alpha 1.5": lambda: {"alpha": 1.5},
    "alpha 2": lambda: {"alpha": 2.0},
    "alphas by heads": lambda: {"alpha": by_heads()},
    "softmax": lambda: {"map": "softmax"},
    "slopes": lambda: {"alibi_slopes": leaf(4, low=0.0)},
    "window": lambda: {"window": (7, None), "sink": leaf(4)},
    "scales of rows": lambda: {"length_scale": leaf(2, 4, TOKENS, low=0.5)},
    "scale-invariant": lambda: {"scale_invariant": 8.0, "softcap": 5.0},
}


def problem(case):
    """q, k, v of two sequences, two query heads to a key head, the settings, and d out."""
    torch.manual_seed(list(CASES).index(case))
    q, k, v = leaf(2, 4, TOKENS, 8), leaf(2, 2, TOKENS, 8), leaf(2, 2, TOKENS, 6)
    return q, k, v, CASES[case](), torch.randn(2, 4, TOKENS, 6, dtype=torch.float64)


def piece(rank, world, head_tail):
    """The tokens of a process."""
    if not head_tail:
        return torch.arange(TOKENS).chunk(world)[rank]
    dealt = torch.arange(TOKENS).chunk(2 * world)
    return torch.cat((dealt[rank], dealt[2 * world - 1 - rank]))


def differentiated(attend, q, k, v, settings, d_out):
    """The output and all gradients."""
    out = attend(q, k, v, **settings)
    inputs = {"q": q, "k": k, "v": v}
    inputs |= {name: x for name, x in settings.items() if isinstance(x, torch.Tensor)}
    gradients = torch.autograd.grad(out, list(inputs.values()), d_out)
    return {"out": out.detach(), **dict(zip(inputs, gradients, strict=True))}


def pieces_of_all(rank, world):
    """Every case on this process's tokens, in both orders."""
    mesh = init_device_mesh("cpu", (world,))
    found = {}
    for head_tail in (False, True):
        attend = ContextParallelAttention(mesh, head_tail=head_tail)
        own = piece(rank, world, head_tail)
        for case in CASES:
            q, k, v, settings, d_out = problem(case)
            if "length_scale" in settings:
                settings["length_scale"] = settings["length_scale"][..., own]
            q, k, v, d_out = (x[:, :, own] for x in (q, k, v, d_out))
            found[case, head_tail] = differentiated(attend, q, k, v, settings, d_out)
        found["llama", head_tail] = llama(attend, own)
    return found


def tiny_llama(attend):
    """A model whose attention is attend(q, k, v, alpha, scale)."""

    def function(module, query, key, value, attention_mask, scaling=None, **rest):
        assert attention_mask is None
        out = attend(query, key, value, alpha=1.5, scale=scaling)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("split_entmax15", function)
    torch.manual_seed(3)
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    config = LlamaConfig(**sizes, attn_implementation="split_entmax15")
    return LlamaForCausalLM._from_config(config).double()


def llama(attend, own):
    """The share of its loss that these tokens have, and of the gradients of its weights."""
    model = tiny_llama(attend)
    loss = share_of_loss(model, own, TOKENS)
    loss.backward()
    return {"loss": loss.detach()} | {name: p.grad for name, p in model.named_parameters()}


def whole(q, k, v, **settings):
    return tsallis.attention(q, k, v, causal=True, **settings)


@pytest.fixture(scope="module", params=[2, 4], ids=lambda n: f"{n} processes")
def found(request, tmp_path_factory):
    return on_processes(pieces_of_all, request.param, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("head_tail", [False, True], ids=["in order", "head and tail"])
@pytest.mark.parametrize("case", CASES)
def test_pieces_are_those_of_the_whole(found, case, head_tail):
    wanted = differentiated(whole, *problem(case))
    own = [piece(rank, len(found), head_tail) for rank in range(len(found))]
    for name, right in wanted.items():
        parts = [each[case, head_tail][name] for each in found]
        if name in ("out", "q", "k", "v", "length_scale"):
            for tokens, part in zip(own, parts, strict=True):
                torch.testing.assert_close(part, right.index_select(2, tokens), msg=name)
        else:
            torch.testing.assert_close(sum(parts), right, msg=name)


@pytest.mark.parametrize("head_tail", [False, True], ids=["in order", "head and tail"])
def test_a_llama_has_the_loss_and_gradients_of_one_process(found, head_tail):
    for name, right in llama(whole, torch.arange(TOKENS)).items():
        total = sum(each["llama", head_tail][name] for each in found)
        torch.testing.assert_close(total, right, msg=name)


@pytest.fixture
def one_process():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


X = torch.randn(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("head_tail", "arguments", "settings", "message"),
    [
        (False, (X, X, X, max), {}, "score_mod: expected None, got builtin_function_or_method"),
        (False, (X, X, X, None, X), {}, r"block_mask: expected \(\) or None, got Tensor"),
        (False, (X, X, X), {"mask": X}, "mask: expected no such setting on split .* got Tensor"),
        (False, (X, X, X), {"causal": False}, "causal: expected no such setting .* got bool"),
        (False, (X[:, :, :2], X, X), {}, "key: expected 2 tokens on each of 1 processes.* got 3"),
        (True, (X, X, X), {}, "query: expected an even number of tokens with head_tail, got 3"),
        (False, (X, X, X), {"alhpa": 1.5}, "did you mean 'alpha'"),
    ],
)
def test_what_it_cannot_do_it_says(one_process, head_tail, arguments, settings, message):
    attend = ContextParallelAttention(init_device_mesh("cpu", (1,)), head_tail=head_tail)
    with pytest.raises((TypeError, ValueError), match=message):
        attend(*arguments, **settings)


def test_one_process_may_be_all(one_process):
    attend = ContextParallelAttention(init_device_mesh("cpu", (1,)))
    torch.testing.assert_close(attend(X, X, X), whole(X, X, X))
    with pytest.raises(ValueError, match="mesh: expected 1 dimension, got 2"):
        ContextParallelAttention(init_device_mesh("cpu", (1, 1)))
