"""Every argument with values at the edge of what its type holds: a clear error, or an answer."""

import inspect
import re
from functools import partial

import numpy as np
import pytest
import torch

import tsallis

VALUES = (-1, 0, 1, 2**31, 2**63 - 1, 2**63, float("nan"), None, "?", torch.empty(0), np.int64(2))


def q_k_v():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 4, 6, 8, generator=generator)


def attempt(function, arguments, name, value):
    """An answer, or an error of our kind that begins with the name of an argument."""
    blamed = None
    try:
        function(**(arguments | {name: value}))
    except (ValueError, TypeError, IndexError) as error:
        blamed = re.split(r"[:\[.]", str(error))[0]
    except (NotImplementedError, OSError):
        pass
    # Another argument may be to blame, as a mask is without its block size.
    assert blamed is None or blamed in KNOWN


KNOWN = set(inspect.signature(tsallis.attention).parameters)
KNOWN |= {"scores", "x", "target", "targets", "dim", "temperature", "budget", "top_k", "theta_max"}
KNOWN |= {"theta_step", "degree", "layers", "kv_heads", "head_dim", "value_dim", "max_bytes"}
KNOWN |= {"ranges", "moments", "screen", "dtype", "layer", "sequences", "begin", "mode", "cache"}
KNOWN |= {
    "device",
    "path",
    "sequence",
    "length",
    "q_len",
    "k_len",
    "block_table",
    "k_pages",
    "v_pages",
}
KNOWN |= {"logits", "ignore_index", "reduction", "attn_mask", "causal", "stride", "segment"}
KNOWN |= {"summary", "random", "random_block", "seed", "window", "global_tokens"}


@pytest.mark.parametrize("name", list(inspect.signature(tsallis.attention).parameters))
def test_attention(name):
    q, k, v = q_k_v()
    arguments = {"q": q, "k": k, "v": v}
    if name == "block_size":
        arguments["block_mask"] = torch.ones(1, 1, dtype=torch.bool)
    for value in VALUES:
        for given in (value, (value, value)) if name in ("window", "block_size") else (value,):
            attempt(tsallis.attention, arguments, name, given)


def test_a_block_of_any_size():
    """The largest integers too: the mask is neither ignored nor refused."""
    q, k, v = q_k_v()
    hidden = torch.zeros(1, 1, dtype=torch.bool)
    for size in (6, 7, 2**31, 2**40 + 1, 2**63 - 1):
        out = tsallis.attention(q, k, v, block_mask=hidden, block_size=(size, size))
        assert not out.any()
    halves = torch.tensor([[True], [False]])
    expected = tsallis.attention(q, k, v)
    expected[:, :, 3:] = 0
    out = tsallis.attention(q, k, v, block_mask=halves, block_size=(3, 2**63 - 1))
    torch.testing.assert_close(out, expected)


MAPS = {
    tsallis.softmax: {},
    tsallis.entmax: {},
    tsallis.sparsemax: {},
    tsallis.normmax: {},
    tsallis.budget: {},
    tsallis.adaptive_temperature_softmax: {},
    tsallis.top_k_softmax: {"top_k": 2},
    tsallis.sigmoid: {},
    tsallis.softpick: {},
    tsallis.stick_breaking: {},
}


@pytest.mark.parametrize("function", MAPS, ids=lambda f: f.__name__)
def test_maps(function):
    arguments = {"x": torch.randn(3, 5)} | MAPS[function]
    for name in inspect.signature(function).parameters:
        for value in VALUES:
            attempt(function, arguments, name, value)
            attempt(partial(tsallis.row_stats, function), arguments, name, value)


def test_statistics_of_what_is_no_map():
    for value in VALUES:
        attempt(tsallis.row_stats, {"x": torch.randn(3, 5)}, "map", value)


@pytest.mark.parametrize(
    "function", [tsallis.entmax_loss, tsallis.sparsemax_loss, tsallis.normmax_loss]
)
def test_losses(function):
    arguments = {"logits": torch.randn(3, 5), "target": torch.tensor([0, 1, 4])}
    for name in inspect.signature(function).parameters:
        for value in VALUES:
            attempt(function, arguments, name, value)


def a_cache():
    cache = tsallis.KVCache(1, 2, 8, dtype=torch.float32)
    sequence = cache.sequence()
    rows = torch.randn(1, 2, 5, 8)
    cache.append(0, [sequence], rows, rows)
    return cache, sequence, rows


def test_the_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # "?" is a file's name, too
    cache, sequence, rows = a_cache()
    path = tmp_path / "sequence"
    cache.save(sequence, path)
    calls = {
        tsallis.KVCache: {"layers": 1, "kv_heads": 1, "head_dim": 8},
        cache.append: {"layer": 0, "sequences": [sequence], "k": rows, "v": rows},
        cache.load: {"path": path},
        cache.save: {"sequence": sequence, "path": path},
        sequence.fork: {"length": 2},
        sequence.length: {"layer": 0},
        sequence.read: {"layer": 0},
        tsallis.decode: {
            "q": torch.randn(1, 4, 1, 8),
            "cache": cache,
            "layer": 0,
            "sequences": [sequence],
        },
    }
    for function, arguments in calls.items():
        for name in inspect.signature(function).parameters:
            for value in VALUES:
                attempt(function, arguments, name, value)
    assert len(sequence) >= 5


def test_names_of_arguments_in_errors(tmp_path):
    cache, sequence, rows = a_cache()
    q = torch.randn(1, 4, 1, 8)
    for call, error, message in [
        (lambda: tsallis.decode(q, None, 0, [sequence]), TypeError, "^cache: expected a KVCache"),
        (lambda: tsallis.decode(q, cache, 0, None), TypeError, "^sequences: expected those of"),
        (lambda: cache.append(0, None, rows, rows), TypeError, "^sequences: expected those of"),
        (lambda: cache.save(sequence, None), TypeError, "^path: expected a path, got NoneType"),
        (lambda: cache.save(sequence, ""), ValueError, "^path: expected a path without null"),
        (lambda: cache.save(sequence, "a\0b"), ValueError, "^path: expected a path without null"),
        (lambda: cache.load("a\0b"), ValueError, "^path: expected a path without null"),
        (
            lambda: cache.append(0, [sequence], *[rows[:, :, :1].expand(1, 2, 2**40, 8)] * 2),
            ValueError,
            "^k: expected as many tokens as there is memory for, got 1099511627776",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert not (tmp_path / "a").exists()
    assert len(sequence) == 5
