"""`tsallis.KVCache` and `tsallis.decode`: the cache of keys and values, from Python."""

import copy
import gc
import math
import pickle
import threading

import pytest
import torch

import tsallis
from tsallis._device_cache import DevicePages

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 32, 24


@pytest.fixture(params=["host", "device"])
def pages(request):
    """Caches with the pages of a host, and with those of a device."""
    if request.param == "device":
        request.getfixturevalue("pages_of_a_device")


def drawn(seed, *shape, dtype=torch.float32, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(*shape, generator=generator)).to(dtype)


def filled(lengths, dtype=torch.float32, **options):
    """A cache of one layer with sequences of these lengths, and their keys and values."""
    cache = tsallis.KVCache(1, KV_HEADS, DIM, value_dim=VALUE_DIM, dtype=dtype, **options)
    sequences, keys = [], []
    for i, length in enumerate(lengths):
        k = drawn(2 * i, 1, KV_HEADS, length, DIM, dtype=dtype)
        v = drawn(2 * i + 1, 1, KV_HEADS, length, VALUE_DIM, dtype=dtype)
        sequences.append(cache.sequence())
        cache.append(0, [sequences[-1]], k, v)
        keys.append((k, v))
    return cache, sequences, keys


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("screen", ["bytes", "none"])
def test_sequences_of_any_length_have_the_bits_of_attention(dtype, screen):
    cache, sequences, keys = filled([1, 64, 700], dtype, screen=screen)
    q = drawn(9, 3, HEADS, 1, DIM, dtype=dtype, spread=2.0)
    for settings in [
        {},
        {"alpha": 2.0},
        {"map": "softmax"},
        {"map": "adaptive_temperature"},
        {"alpha": torch.tensor([1.0, 1.25, 1.5, 1.75, 2.0, 3.0])},
        {"alpha": 0.5},
        {"alibi_slopes": torch.linspace(0.0, 0.5, HEADS)},
        {"scale_invariant": 10.0, "scale": 0.3},
        {"scale_invariant": 5.0, "scale_invariant_alpha": 0.5, "scale_invariant_beta": 2.0},
        {"softcap": 5.0, "sink": torch.linspace(-1.0, 1.0, HEADS)},
    ]:
        out = tsallis.decode(q, cache, 0, sequences, **settings)
        for i, (k, v) in enumerate(keys):
            alone = tsallis.attention(q[i : i + 1], k, v, causal=True, **settings)
            assert torch.equal(out[i : i + 1], alone), settings
    scales = drawn(3, 3, HEADS, 1).exp()
    out = tsallis.decode(q, cache, 0, sequences, length_scale=scales, window=50)
    for i, (k, v) in enumerate(keys):
        one = {"length_scale": scales[i : i + 1], "window": (50, None)}
        assert torch.equal(
            out[i : i + 1], tsallis.attention(q[i : i + 1], k, v, causal=True, **one)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_of_a_device_have_the_bits_of_attention(dtype, pages_of_a_device):
    """Appended in pieces, of sequences whose pages lie between each other's."""
    cache = tsallis.KVCache(2, KV_HEADS, DIM, value_dim=VALUE_DIM, dtype=dtype)
    sequences = [cache.sequence() for _ in range(3)]
    keys = [
        (drawn(i, 1, KV_HEADS, n, DIM), drawn(i, 1, KV_HEADS, n, VALUE_DIM))
        for i, n in enumerate((1, 64, 700))
    ]
    keys = [(k.to(dtype), v.to(dtype)) for k, v in keys]
    for begin in range(0, 700, 50):
        for layer in range(2):
            for sequence, (k, v) in zip(sequences, keys, strict=True):
                piece = k[:, :, begin : begin + 50], v[:, :, begin : begin + 50]
                cache.append(layer, [sequence], *piece)
    q = drawn(9, 3, HEADS, 1, DIM, dtype=dtype, spread=2.0)
    scales = drawn(3, 3, HEADS, 1).exp()
    for settings in [
        {},
        {"map": "softmax", "window": 20},
        {"alpha": torch.tensor([1.0, 1.25, 1.5, 1.75, 2.0, 1.5])},
        {"softcap": 5.0, "sink": torch.linspace(-1.0, 1.0, HEADS), "scale": 0.3},
    ]:
        out, found = tsallis.decode(
            q, cache, 1, sequences, length_scale=scales, returns="support_size", **settings
        )
        window = {"window": (settings.pop("window"), None)} if "window" in settings else {}
        for i, (k, v) in enumerate(keys):
            one = {"length_scale": scales[i : i + 1], "causal": True, **window, **settings}
            alone, extra = tsallis.attention(q[i : i + 1], k, v, returns="support_size", **one)
            assert torch.equal(out[i : i + 1], alone), settings
            assert torch.equal(found.support_size[i : i + 1], extra.support_size)
    for mistake, text in [
        ({"mode": tsallis.TopPages(64)}, "mode: expected None on cpu, got TopPages"),
        ({"begin": [0, 3, 0]}, r"begin: expected None or zeros on cpu, got \[0, 3, 0\]"),
        ({"returns": "scored"}, "returns: expected names out of tau, .* on cpu, got"),
        ({"map": "adaptive_temperature"}, "map: expected 'entmax' or 'softmax'"),
    ]:
        with pytest.raises(ValueError, match=text):
            tsallis.decode(q, cache, 0, sequences, **mistake)
    with pytest.raises(ValueError, match="layer: expected 0 to 1, got 2"):
        tsallis.decode(q, cache, 2, sequences)
    k, v = keys[0]
    for bad, text in [
        (([sequences[0]] * 2, k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1)), "sequences: .* once"),
        ((sequences[:1], k[:, :1], v), r"k: expected \[1, 2, tokens, 32\], got \[1, 1, 1, 32\]"),
        ((sequences[:1], k, v.half()), "v: expected torch"),
        ((sequences[:1], k, v.to("meta")), "v: expected a tensor on cpu, got meta"),
    ]:
        with pytest.raises(ValueError, match=text):
            cache.append(0, *bad)


def test_a_device_keeps_nothing_beside_the_keys():
    with pytest.raises(ValueError, match='screen: expected "none" on cuda'):
        tsallis.KVCache(1, 1, 8, device="cuda", screen="bytes")
    with pytest.raises(ValueError, match="moments: expected False on cuda"):
        tsallis.KVCache(1, 1, 8, device="cuda", moments=True)
    with pytest.raises(ValueError, match="device: expected cpu or a CUDA device, got 'meta'"):
        tsallis.KVCache(1, 1, 8, device="meta")


def test_what_a_call_tells():
    cache, sequences, keys = filled([3000], torch.bfloat16)
    q = drawn(9, 1, HEADS, 1, DIM, dtype=torch.bfloat16, spread=3.0)
    out, found = tsallis.decode(
        q, cache, 0, sequences, returns=("tau", "support_size", "certificate", "scored")
    )
    assert torch.equal(out, tsallis.decode(q, cache, 0, sequences))
    _, expected = tsallis.attention(q, *keys[0], causal=True, returns=("tau", "support_size"))
    assert torch.equal(found.tau.float(), expected.tau.float())
    assert torch.equal(found.support_size, expected.support_size)
    assert found.entropy is None
    assert (found.certificate < 0.0).all()
    assert (found.scored >= found.support_size).all()
    assert (found.scored < 300).all(), "most keys are skipped"
    assert out.shape == (1, HEADS, 1, VALUE_DIM)


def test_a_model_writes_token_by_token(pages):
    """Two layers, a prompt in one piece, forks that go different ways."""
    cache = tsallis.KVCache(2, KV_HEADS, DIM, dtype=torch.float32)
    prompt = cache.sequence()
    for layer in range(2):
        k, v = (drawn(10 * layer + i, 1, KV_HEADS, 100, DIM) for i in range(2))
        cache.append(layer, [prompt], k, v)
    assert len(prompt) == prompt.length(1) == 100
    forks = [prompt.fork() for _ in range(3)]
    short = prompt.fork(10)
    assert len(short) == 10
    assert cache.use().pages == 2
    assert cache.use().shared_pages == 2
    k, v = drawn(50, 3, KV_HEADS, 1, DIM), drawn(51, 3, KV_HEADS, 1, DIM)
    for layer in range(2):
        cache.append(layer, forks, k, v)
    assert [len(sequence) for sequence in (prompt, *forks)] == [100, 101, 101, 101]
    keys, values = forks[1].read(1)
    assert keys.shape == (1, KV_HEADS, 101, DIM)
    assert torch.equal(keys[0, :, 100], k[1, :, 0])
    assert torch.equal(values[0, :, 100], v[1, :, 0])
    forks[1].truncate(100)
    assert torch.equal(forks[1].read(0)[0], prompt.read(0)[0])
    # Pages that nobody holds are given back.
    used = cache.use().sequences
    del forks, short
    gc.collect()
    assert cache.use().sequences == used - 4
    assert cache.use().pages == 2


def test_a_budget_holds_and_nothing_is_half_done(pages):
    page = tsallis.KVCache(1, KV_HEADS, DIM).use().page_bytes
    cache = tsallis.KVCache(1, KV_HEADS, DIM, max_bytes=2 * page)
    a, b = cache.sequence(), cache.sequence()
    k = drawn(1, 2, KV_HEADS, 64, DIM, dtype=torch.bfloat16)
    cache.append(0, [a, b], k, k)
    with pytest.raises(tsallis.CacheFull, match="the cache is full: 2 pages of"):
        cache.append(0, [a, b], k[:, :, :1], k[:, :, :1])
    b.truncate(1)
    with pytest.raises(tsallis.CacheFull):
        cache.append(0, [b, a], k[:, :, :1], k[:, :, :1])
    assert (len(a), len(b)) == (64, 1)


MODES = [
    tsallis.Within(0.01),
    tsallis.TopPages(256),
    tsallis.GaussianPages(256, 0.9),
    tsallis.FirstAndLast(256, first=8),
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
@pytest.mark.parametrize("map_", ["entmax", "softmax"])
def test_modes_say_what_they_lose(mode, map_):
    cache, sequences, keys = filled([1000, 90], ranges=True, moments=True)
    q = drawn(9, 2, HEADS, 1, DIM, spread=2.0)
    names = ("certificate", "lost", "scored", "bytes_read")
    out, found = tsallis.decode(q, cache, 0, sequences, map=map_, mode=mode, returns=names)
    exact, all_ = tsallis.decode(q, cache, 0, sequences, map=map_, returns=names)
    assert torch.equal(out, tsallis.decode(q, cache, 0, sequences, map=map_, mode=mode))
    assert (all_.lost == 0.0).all()
    largest = max(v.norm(dim=-1).max() for _, v in keys)
    assert ((out - exact).norm(dim=-1) <= 2.0 * found.lost.float() * largest + 1e-4).all()
    if map_ == "softmax":
        assert (found.lost <= found.certificate + 1e-6).all()
    else:
        same = (found.certificate <= 0.0)[..., None].expand_as(out)
        assert torch.equal(out[same], exact[same])
    if isinstance(mode, tsallis.Within):
        assert (found.certificate <= (0.01 if map_ == "softmax" else 0.0)).all()
    else:
        assert (found.scored[0] < 1000).all()
        assert (found.lost[0] > 0.0).any()
        assert (found.lost[1] == 0.0).all(), "the short sequence is read whole"
    assert (found.bytes_read > 0).all()


@pytest.mark.parametrize("sink", [math.nan, math.inf])
@pytest.mark.parametrize("map_", ["entmax", "softmax"])
@pytest.mark.parametrize("mode", [None, tsallis.Within(0.01), tsallis.FirstAndLast(64)])
def test_a_broken_sink_breaks_its_head(sink, map_, mode):
    cache, (a,), _ = filled([100])
    q = drawn(1, 1, HEADS, 1, DIM)
    sinks = torch.zeros(HEADS)
    sinks[2] = sink
    if mode is not None and map_ == "entmax" and isinstance(mode, tsallis.Within):
        mode = None
    out, extras = tsallis.decode(
        q, cache, 0, [a], map=map_, mode=mode, sink=sinks, returns=("tau", "support_size")
    )
    broken = torch.arange(HEADS) == 2
    assert torch.equal(out[0, :, 0].isnan().all(-1), broken)
    assert torch.equal(extras.tau[0, :, 0].isnan(), broken)
    assert torch.equal(extras.support_size[0, :, 0] == -1, broken)


def test_views_that_negate_are_read_as_what_they_say():
    k = drawn(1, 1, KV_HEADS, 5, DIM)
    view = torch.complex(torch.zeros_like(k), -k).conj().imag
    assert view.is_neg()
    cache = tsallis.KVCache(1, KV_HEADS, DIM, dtype=torch.float32)
    sequence = cache.sequence()
    cache.append(0, [sequence], view, view)
    assert torch.equal(sequence.read(0)[0], k)
    q = view[:, :, -1:].repeat_interleave(HEADS // KV_HEADS, 1)
    scales = torch.complex(torch.zeros(HEADS, 1), -torch.full((HEADS, 1), 2.0)).conj().imag[None]
    assert scales.is_neg()
    told = tsallis.decode(q, cache, 0, [sequence], length_scale=scales)
    plain = tsallis.decode(q.resolve_neg(), cache, 0, [sequence], length_scale=scales.resolve_neg())
    assert torch.equal(told, plain)


def test_no_query_is_an_empty_answer():
    cache, (a,), _ = filled([5])
    out = tsallis.decode(drawn(1, 1, HEADS, 0, DIM), cache, 0, [a])
    assert out.shape == (1, HEADS, 0, VALUE_DIM)


def test_mistakes_about_modes_are_named():
    cache, (a,), _ = filled([5])
    q = drawn(1, 1, HEADS, 1, DIM)
    for mode, why in [
        (tsallis.TopPages(64), "mode: expected a cache that keeps ranges, got one without"),
        (tsallis.GaussianPages(64), "mode: expected a cache that keeps moments"),
        (tsallis.FirstAndLast(0), "mode.budget: expected 1 token or more, got 0"),
        (tsallis.FirstAndLast(9, -1), "mode.first: expected 0 or more, got -1"),
        (tsallis.Within(1.0), "mode.epsilon: expected a number between 0 and 1"),
    ]:
        with pytest.raises(ValueError, match=why):
            tsallis.decode(q, cache, 0, [a], mode=mode)
    with pytest.raises(TypeError, match="mode: expected None, Within, TopPages"):
        tsallis.decode(q, cache, 0, [a], mode="within")
    with pytest.raises(TypeError, match=r"mode\.epsilon: expected a number"):
        tsallis.decode(q, cache, 0, [a], mode=tsallis.Within("small"))
    with pytest.raises(TypeError, match="ranges: expected True or False, got 1"):
        tsallis.KVCache(1, 2, 8, ranges=1)


def test_a_sequence_on_a_device_is_saved_and_loaded(tmp_path):
    host, (a,), _ = filled([300], torch.bfloat16)
    host.save(a, tmp_path / "prompt")
    device = tsallis.KVCache(1, KV_HEADS, DIM, value_dim=VALUE_DIM)
    sizes, where = (1, KV_HEADS, DIM, VALUE_DIM), torch.device("cpu")
    device._pages = DevicePages(*sizes, torch.bfloat16, where, 0, tsallis.CacheFull)
    b = device.load(tmp_path / "prompt")
    for ours, theirs in zip(b.read(0), a.read(0), strict=True):
        assert torch.equal(ours, theirs)
    device.save(b.fork(100), tmp_path / "again")
    again = host.load(tmp_path / "again")
    assert torch.equal(again.read(0)[1], a.read(0)[1][:, :, :100])
    with pytest.raises(OSError, match="missing: cannot be read"):
        device.load(tmp_path / "missing")
    assert device.use().sequences == 1


def test_a_sequence_is_saved_and_loaded(tmp_path):
    cache, (a,), _ = filled([300], torch.bfloat16)
    cache.save(a, tmp_path / "prompt")
    other = tsallis.KVCache(1, KV_HEADS, DIM, value_dim=VALUE_DIM, screen="none")
    b = other.load(str(tmp_path / "prompt"))
    q = drawn(9, 1, HEADS, 1, DIM, dtype=torch.bfloat16)
    assert torch.equal(tsallis.decode(q, other, 0, [b]), tsallis.decode(q, cache, 0, [a]))
    fork = b.fork(10)
    other.save(fork, tmp_path / "prompt")  # replaces it
    assert len(cache.load(tmp_path / "prompt")) == 10

    whole = (tmp_path / "prompt").read_bytes()
    (tmp_path / "damaged").write_bytes(whole[:-7] + b"x" + whole[-6:])
    with pytest.raises(ValueError, match=r"damaged, which is damaged: its checksum is"):
        cache.load(tmp_path / "damaged")
    with pytest.raises(ValueError, match=r"a sequence of a cache like this one \(1 layers"):
        tsallis.KVCache(1, KV_HEADS, DIM).load(tmp_path / "prompt")
    with pytest.raises(OSError, match="missing: cannot be read: No such file or directory"):
        cache.load(tmp_path / "missing")
    with pytest.raises(OSError, match="cannot be written"):
        cache.save(a, tmp_path / "no" / "folder")
    with pytest.raises(ValueError, match="sequences: expected those of this cache"):
        cache.save(b, tmp_path / "prompt")
    assert cache.use().sequences == 1


def test_mistakes_are_named():
    cache, (a,), _ = filled([5])
    other, (foreign,), _ = filled([5])
    q = drawn(1, 1, HEADS, 1, DIM)
    k = drawn(1, 1, KV_HEADS, 1, DIM)

    def tell(**settings):
        return tsallis.decode(q, cache, 0, [a], **settings)

    for call, why in [
        (lambda: tsallis.KVCache(1, 2, 600), "^head_dim: expected a size from 1 to 512"),
        (lambda: tell(scale=0.0), "^scale: expected a finite number > 0 or None, got 0"),
        (lambda: tell(softcap=-1.0), "^softcap: expected a finite number > 0 or None, got -1"),
        (lambda: tell(scale_invariant=0.0), "^scale_invariant: expected a finite number > 0"),
        (lambda: tell(alpha=torch.tensor([1.5, -1.0] * 3)), r"^alpha\[1\]: expected a finite"),
        (lambda: tell(window=2**63), r"^window: expected at most 2\^63 - 1, got"),
        (lambda: a.fork(2**64), r"^length: expected at most 2\^63 - 1, got"),
        (lambda: tsallis.KVCache(1, 2, 8, dtype=torch.float64), "dtype: expected one of"),
        (lambda: tsallis.KVCache(1, 2, 8, screen="bits"), "screen: expected one of bytes, none"),
        (lambda: tsallis.KVCache(0, 2, 8), "layers: expected a size from 1"),
        (lambda: cache.append(0, [foreign], k, k), "sequences: expected those of this cache"),
        (lambda: cache.append(0, [a], k, k), "v: expected a dense CPU tensor of shape"),
        (lambda: cache.append(3, [a], k, k[..., :24]), "layer: expected one from 0 to 0, got 3"),
        (lambda: tsallis.decode(q, cache, 0, [foreign]), "sequences: expected those of this"),
        (lambda: tsallis.decode(q, cache, 0, [a], alpha=-1.0), "alpha: expected a finite number"),
        (
            lambda: tsallis.decode(q, cache, 0, [a], alpha=7.0, mode=tsallis.FirstAndLast(64)),
            r"mode: expected the exact one with alpha outside \[1.1, 4\] and not 1, got another",
        ),
        (lambda: tell(alpha=7.0, returns=("scored",)), r"scored: expected none of this statistic"),
        (lambda: tsallis.decode(q, cache, 0, [a], map="sigmoid"), "map: expected 'entmax', "),
        (
            lambda: tsallis.decode(q[:, :5], cache, 0, [a]),
            "q: expected a multiple of kv_heads = 2 heads",
        ),
        (lambda: tsallis.decode(q.bfloat16(), cache, 0, [a]), "q: expected the dtype of the cache"),
        (lambda: tsallis.decode(q, cache, 0, [a], returns=("w",)), "returns: expected names"),
        (lambda: tsallis.decode(q, cache, 0, [a], sink=torch.zeros(2)), "sink: expected a shape"),
        (lambda: tsallis.decode(q.expand(1, HEADS, 9, DIM), cache, 0, [a]), "q_len: expected at"),
        (lambda: tell(begin=[5]), r"begin\[0\]: expected a token from 0 to the first query's, 4"),
        (lambda: tell(begin=[0, 0]), "begin: expected 1 tokens, one for each sequence, got 2"),
        (lambda: tell(length_scale=torch.ones(3, 7)), "length_scale: expected a shape that broadc"),
        (lambda: tell(length_scale=torch.ones(1, dtype=torch.int64)), "length_scale: expected dty"),
        (
            lambda: tell(length_scale=torch.ones(1, device="meta")),
            "length_scale: expected the device of q, cpu",
        ),
        (lambda: tell(sink=torch.ones(HEADS, dtype=torch.int32)), "sink: expected dtype float32"),
        (lambda: a.fork(6), "length: expected at most the 5 tokens"),
        (lambda: a.truncate(-1), "length: expected 0 or more, got -1"),
    ]:
        with pytest.raises(ValueError, match=why):
            call()
    with pytest.raises(TypeError, match="layer: expected an integer, got 'x'"):
        tsallis.decode(q, cache, "x", [a])
    with pytest.raises(TypeError, match="alpha: expected a number, got 'x'"):
        tell(alpha="x")
    with pytest.raises(TypeError, match="length_scale: expected a tensor or None, got float"):
        tell(length_scale=3.0)
    with pytest.raises(TypeError, match="k: expected a tensor, got list"):
        cache.append(0, [a], [1.0], k)
    assert len(a) == 5
    assert len(foreign) == 5
    assert other.use().sequences == 1
    assert math.isfinite(float(tsallis.decode(q, cache, 0, [a]).sum()))


def test_one_sequence_is_not_changed_while_it_is_read():
    """An error in one of the threads, and no crash."""
    cache = tsallis.KVCache(1, 1, 64, dtype=torch.float32)
    sequence = cache.sequence()
    rows, q = torch.randn(1, 1, 16, 64), torch.randn(1, 1, 1, 64)
    cache.append(0, [sequence], rows, rows)
    refused = []

    def work(call):
        for _ in range(2000):
            try:
                call()
            except ValueError as error:
                refused.append(str(error))

    calls = [
        lambda: cache.append(0, [sequence], rows, rows),
        lambda: tsallis.decode(q, cache, 0, [sequence]),
    ]
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(text.startswith("sequences: expected one that no other call") for text in refused)
    assert len(sequence) % 16 == 0
    assert math.isfinite(float(tsallis.decode(q, cache, 0, [sequence]).sum()))


def test_caches_are_not_copied():
    cache = tsallis.KVCache(1, 1, 8)
    for thing in (cache, cache.sequence()):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copied(thing)


def test_a_cache_that_is_gone():
    cache = tsallis.KVCache(1, 1, 8)
    number = cache._pages.number.clone()
    del cache
    gc.collect()
    with pytest.raises((ValueError, RuntimeError), match="cache: expected one that is alive"):
        torch.ops.tsallis.cache_create(number)


def test_compiled_calls_keep_their_order():
    cache = tsallis.KVCache(1, 1, 8, dtype=torch.float32)
    sequence = cache.sequence()

    def step(q, k, v):
        cache.append(0, [sequence], k, v)
        return tsallis.decode(q, cache, 0, [sequence])

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    k, v = torch.randn(2, 3, 1, 1, 1, 8)
    q = torch.randn(1, 1, 1, 8)
    for i in range(3):
        out = compiled(q, k[i], v[i])
        keys, values = (x[: i + 1].permute(1, 2, 0, 3, 4).flatten(2, 3) for x in (k, v))
        torch.testing.assert_close(out, tsallis.attention(q, keys, values))
    assert len(sequence) == 3
