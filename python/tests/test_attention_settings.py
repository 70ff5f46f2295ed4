"""One list of settings: the signature, the docstring and the operators say the same."""

import inspect
import re

import pytest
import torch

import tsallis
from tsallis import _autograd

# Settings of `attention` that an operator has by other names.
SPELLED = {
    "alpha": {"alpha", "alpha_heads"},
    "window": {"left", "right"},
    "block_size": {"block_q", "block_k"},
}
TENSORS = ("q", "k", "v")


def parameters():
    return inspect.signature(tsallis.attention).parameters


def test_the_operators_have_the_settings_of_the_signature():
    expected = set()
    for name in parameters():
        expected |= SPELLED.get(name, {name})
    schema = torch.ops.tsallis.attention.default._schema
    assert {argument.name for argument in schema.arguments} == expected - {"returns"}


def test_every_operator_ends_with_the_same_settings():
    def settings(name):
        schema = getattr(torch.ops.tsallis, name).default._schema
        return [(a.name, str(a.type), a.default_value) for a in schema.arguments if a.kwarg_only]

    first = settings("attention")
    for name in ("stats", "forward", "forward_stats", "backward", "backward_terms", "weights"):
        assert settings(f"attention_{name}") == first
    for name in ("attention_on_pages", "attention_on_pages_stats", "decode", "decode_stats"):
        assert settings(name) == first


def test_autograd_knows_the_tensors_of_the_settings():
    schema = torch.ops.tsallis.attention.default._schema
    tensors = [a.name for a in schema.arguments if a.kwarg_only and "Tensor" in str(a.type)]
    assert tuple(tensors) == _autograd.TENSOR_SETTINGS
    results = torch.ops.tsallis.attention_backward_terms.default._schema.returns
    assert [result.name for result in results[3:]] == [f"d_{name}" for name in tensors[:5]]


def test_the_docstring_explains_every_setting():
    text = inspect.getdoc(tsallis.attention)
    explained = text[text.index("Args:") : text.index("Returns:")]
    names = re.findall(r"^    (\w+): ", explained, re.MULTILINE)
    assert sorted(names) == sorted(parameters())


def test_defaults_are_those_of_the_operators():
    values = {name: parameters()[name].default for name in parameters() if name not in TENSORS}
    assert values["alpha"] == 1.5
    assert values["map"] == "entmax"
    assert values["padding"] == "right"
    assert values["saved_budget"] == 2**28
    assert values["bias"] is None
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    given = tsallis.attention(q, k, v, **values)
    assert torch.equal(given, tsallis.attention(q, k, v))


def test_an_unknown_setting_is_named():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'causl'; did you mean 'cau"):
        tsallis.attention(q, q, q, causl=True)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'xyzzy'$"):
        tsallis.attention(q, q, q, xyzzy=1)


def test_none_is_refused_where_it_means_nothing():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(TypeError, match="map: expected a name, got NoneType"):
        tsallis.attention(q, q, q, map=None)
