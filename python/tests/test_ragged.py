"""Prompts in pieces and single tokens in one call on pages; screening bytes beside them."""

import math

import pytest
import torch
from torch.library import opcheck

import tsallis

HEADS, KV, D, E = 6, 2, 20, 12
LENGTHS = [200, 1, 700, 130, 64, 5]
QUERIES = [1, 1, 90, 17, 64, 0]


class Engine:
    """Pages as a serving engine keeps them, with heads before tokens, and what lies in them."""

    def __init__(self, page_size=64, screen=False, dtype=torch.float32, lengths=LENGTHS, seed=0):
        torch.manual_seed(seed)
        counts = [math.ceil(length / page_size) for length in lengths]
        pages = sum(counts) + 2
        self.k_pages = self._empty(pages, page_size, D, dtype)
        self.v_pages = self._empty(pages, page_size, E, dtype)
        # A page that was used before holds anything.
        bytes_of = page_size // 64 * tsallis.screen_bytes(D)
        old = torch.randint(0, 256, (pages, KV, bytes_of + 3), dtype=torch.uint8)
        self.screen = old[..., :bytes_of].contiguous() if screen else None
        free = torch.randperm(pages)[: sum(counts)].split(counts)
        self.table = torch.full((len(lengths), max(counts)), -1, dtype=torch.int32)
        for row, own in zip(self.table, free, strict=True):
            row[: len(own)] = own
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.k = [torch.randn(length, KV, D).to(dtype) for length in lengths]
        self.v = [torch.randn(length, KV, E).to(dtype) for length in lengths]
        for b, length in enumerate(lengths):
            for begin, end in ((0, length // 3), (length // 3, length)):  # a prompt in pieces
                self.put(self.k[b][begin:end], self.v[b][begin:end], self.slots(b, begin, end))

    @staticmethod
    def _empty(pages, page_size, columns, dtype):
        return torch.full((pages, KV, page_size, columns), math.nan, dtype=dtype).transpose(1, 2)

    def slots(self, b, begin, end):
        at = torch.arange(begin, end)
        size = self.k_pages.shape[1]
        return self.table[b, at // size].long() * size + at % size

    def put(self, k, v, slots):
        tsallis.put_paged(k, v, self.k_pages, self.v_pages, slots, screen=self.screen)

    def ask(self, queries=QUERIES, **settings):
        torch.manual_seed(1)
        rows = torch.randn(sum(queries), HEADS, D).to(self.k_pages.dtype)
        q = rows.transpose(0, 1).unsqueeze(0)
        starts = torch.tensor([0, *queries]).cumsum(0).int()
        arguments = (q, self.k_pages, self.v_pages, self.table, self.lengths)
        settings = {"screen": self.screen} | settings
        return q, starts, tsallis.decode_paged(*arguments, cu_seqlens_q=starts, **settings)

    def alone(self, q, starts, b, **settings):
        k, v = (x[b].transpose(0, 1).unsqueeze(0) for x in (self.k, self.v))
        own = q[:, :, starts[b] : starts[b + 1]]
        return tsallis.attention(own, k, v, causal=True, alignment="end", **settings)


SETTINGS = [
    {},
    {"map": "softmax"},
    {"alpha": 2.0},
    {"alpha": torch.tensor([1.0, 1.2, 1.5, 1.75, 2.0, 1.5])},
    {"alpha": 5.0},  # which the kernel of lists does not serve
    {"window": 40},
    {"alibi_slopes": torch.linspace(0.01, 0.5, HEADS), "sink": torch.linspace(-1, 1, HEADS)},
    {"scale_invariant": 8.0, "softcap": 5.0},
]
NAMES = [", ".join(f"{k}" for k in s) or "plain" for s in SETTINGS]


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@pytest.mark.parametrize("screen", [False, True])
@pytest.mark.parametrize("page_size", [64, 192])
def test_every_sequence_has_what_it_has_alone(settings, screen, page_size):
    engine = Engine(page_size, screen)
    same = dict(settings)
    if "window" in same:
        same["window"] = (same["window"], None)
    q, starts, out = engine.ask(**settings)
    for b, count in enumerate(QUERIES):
        found, alone = out[:, :, starts[b] : starts[b + 1]], engine.alone(q, starts, b, **same)
        torch.testing.assert_close(found, alone, rtol=2e-5, atol=5e-6)
        # Of few queries each has its own bits with a screen.
        if count == 1 or count > 64 or not screen:
            assert torch.equal(found, alone)


def test_the_screen_changes_no_bit_of_single_tokens():
    screened, plain = Engine(screen=True, seed=3), Engine(screen=False, seed=3)
    ones = [1] * len(LENGTHS)
    for settings in SETTINGS:
        assert torch.equal(screened.ask(ones, **settings)[2], plain.ask(ones, **settings)[2])


def test_the_screen_is_read():
    """Bytes of other keys hide those that matter."""
    engine = Engine(screen=True)
    right = engine.ask([1] * len(LENGTHS))[2]
    assert engine.screen is not None
    engine.screen.zero_()
    assert not torch.equal(engine.ask([1] * len(LENGTHS))[2], right)
    # Softmax does not use them.
    plain = Engine(screen=False)
    assert torch.equal(engine.ask(map="softmax")[2], plain.ask(map="softmax")[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype):
    engine = Engine(screen=True, dtype=dtype)
    q, starts, out = engine.ask()
    assert out.dtype == dtype
    for b in range(len(LENGTHS)):
        found = out[:, :, starts[b] : starts[b + 1]]
        alone = engine.alone(q, starts, b)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-2
        torch.testing.assert_close(found, alone, rtol=tolerance, atol=tolerance)


def test_pages_are_copied_shared_and_used_again_with_their_bytes():
    engine = Engine(screen=True)
    assert engine.screen is not None
    # Sequence 3 begins with the pages of sequence 2, then has tokens of its own.
    engine.table[3, :2] = engine.table[2, :2]
    engine.k[3][:128], engine.v[3][:128] = engine.k[2][:128], engine.v[2][:128]
    # Sequence 0's pages move.
    spare = sorted(set(range(len(engine.k_pages))) - set(engine.table.flatten().tolist()))
    old, new = int(engine.table[0, 1]), spare[0]
    for pages in (engine.k_pages, engine.v_pages, engine.screen):
        pages[new] = pages[old]
        pages[old] = 77
    engine.table[0, 1] = new
    # Sequence 4's page goes to sequence 1, whose key is short: the norms of longer ones are gone.
    engine.table[1, 0] = engine.table[4, 0]
    engine.lengths[4] = 0
    engine.k[1] *= 0.01
    engine.put(engine.k[1], engine.v[1], engine.slots(1, 0, 1))
    for settings in ({}, {"alibi_slopes": torch.linspace(0.01, 0.5, HEADS)}):
        q, starts, out = engine.ask([1, 1, 1, 1, 0, 0], **settings)
        for b in range(4):
            found = out[:, :, starts[b] : starts[b + 1]]
            assert torch.equal(found, engine.alone(q, starts, b, **settings)), b


def test_slots_are_skipped_written_twice_and_in_any_order():
    engine, ordered = Engine(screen=True), Engine(screen=True)
    k, v = torch.randn(6, KV, D), torch.randn(6, KV, E)
    at = engine.slots(2, 640, 646)
    engine.put(k[[5, 0, 1, 2, 3, 0]], v[[5, 0, 1, 2, 3, 0]], at[[5, 0, 1, 2, 3, 4]])
    engine.put(k[[4, 1, 4]], v[[4, 1, 4]], torch.tensor([-1, int(at[4]), int(at[4])]))
    ordered.put(k, v, at.int())
    for name in ("k_pages", "v_pages", "screen"):
        assert torch.equal(getattr(engine, name).nan_to_num(), getattr(ordered, name).nan_to_num())


def test_the_output_goes_where_it_should():
    engine = Engine(screen=True)
    _, starts, expected = engine.ask()
    memory = torch.full((sum(QUERIES) + 4, HEADS, E), 7.0)
    # Two rows before the first sequence and two behind the last belong to nobody.
    q = torch.zeros(1, HEADS, sum(QUERIES) + 4, D)
    torch.manual_seed(1)
    q[:, :, 2:-2] = torch.randn(sum(QUERIES), HEADS, D).transpose(0, 1)
    arguments = (q, engine.k_pages, engine.v_pages, engine.table, engine.lengths)
    settings = {"cu_seqlens_q": starts + 2, "screen": engine.screen}
    out = memory.transpose(0, 1).unsqueeze(0)
    assert tsallis.decode_paged(*arguments, out=out, **settings) is out
    assert torch.equal(out[:, :, 2:-2], expected)
    assert (memory[[0, 1, -2, -1]] == 7).all()
    fresh, extras = tsallis.decode_paged(*arguments, returns=("tau", "support_size"), **settings)
    assert torch.equal(fresh[:, :, 2:-2], expected)
    assert (fresh[:, :, [0, 1, -2, -1]] == 0).all()
    assert extras.tau.shape == (1, HEADS, sum(QUERIES) + 4)
    assert (extras.tau[:, :, 0] == -math.inf).all()
    assert (extras.support_size[:, :, [0, -1]] == 0).all()
    assert (extras.support_size[:, :, 2:-2] > 0).all()


def test_bits_do_not_depend_on_threads_or_company():
    lengths, queries = [3000, 70, 20, 500, 90], [1, 1, 20, 1, 70]
    engine = Engine(screen=True, lengths=lengths)
    threads = torch.get_num_threads()
    outs = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            q, starts, out = engine.ask(queries)
            outs.append(out)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    for b in range(len(lengths)):
        own = q[:, :, starts[b] : starts[b + 1]]
        alone = tsallis.decode_paged(
            own,
            engine.k_pages,
            engine.v_pages,
            engine.table[b : b + 1],
            engine.lengths[b : b + 1],
            screen=engine.screen,
        )
        assert torch.equal(out[:, :, starts[b] : starts[b + 1]], alone), b


def test_no_sequence_and_no_query():
    engine = Engine()
    none = torch.zeros(0, dtype=torch.int32)
    q = torch.randn(1, HEADS, 3, D)
    arguments = (q, engine.k_pages, engine.v_pages, engine.table[:0], none)
    out = tsallis.decode_paged(*arguments, cu_seqlens_q=torch.zeros(1, dtype=torch.int32))
    assert torch.equal(out, torch.zeros(1, HEADS, 3, E))
    engine.put(torch.zeros(0, KV, D), torch.zeros(0, KV, E), none.long())


def test_as_torch_sees_it():
    engine = Engine(screen=True)
    q, starts, out = engine.ask()
    arguments = (q, engine.k_pages, engine.v_pages, engine.table, engine.screen)
    settings = {"causal": True, "lengths": engine.lengths, "cu_seqlens_q": starts}
    into = torch.ops.tsallis.attention_on_pages_out.default
    opcheck(into, (torch.zeros_like(out), *arguments), settings)
    k, v = torch.randn(3, KV, D), torch.randn(3, KV, E)
    slots = engine.slots(0, 100, 103)
    pages = (engine.k_pages.nan_to_num(), engine.v_pages.nan_to_num())
    opcheck(torch.ops.tsallis.put_on_pages.default, (k, v, *pages, slots, engine.screen))

    def step(k, v, slots, q):
        tsallis.put_paged(k, v, *pages, slots, screen=engine.screen)
        return tsallis.decode_paged(
            q, *pages, engine.table, engine.lengths, cu_seqlens_q=starts, screen=engine.screen
        )

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    assert torch.equal(compiled(k, v, slots, q), step(k, v, slots, q))
    assert not torch.equal(step(k, v, slots, q), out)  # the new keys are seen


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"cu_seqlens_q": torch.tensor([0, 1, 2, 92, 109, 173, 174])},
            r"cu_seqlens_q\[6\]: expected an integer in \[173, 173\]",
        ),
        (
            {"cu_seqlens_q": torch.tensor([0, 2, 1, 92, 109, 173, 173])},
            r"cu_seqlens_q\[2\]: expected an integer in \[2, 173\] .*, got 1",
        ),
        ({"cu_seqlens_q": torch.tensor([0, 1])}, "block_table: .* with batch = 1"),
        ({"cu_seqlens_q": torch.zeros(0).int()}, r"cu_seqlens_q: expected \[sequences \+ 1\]"),
        ({"cu_seqlens_q": torch.zeros(7)}, "cu_seqlens_q: expected dtype int32 or int64"),
        ({"q": torch.randn(6, HEADS, 1, D)}, r"q: expected \[1, heads, tokens, head_dim\]"),
        ({"screen": torch.zeros(3).byte()}, r"screen: expected uint8 \[pages, kv_heads, "),
        ({"screen": torch.zeros(22, KV, 2112)}, "screen: expected uint8 .* Float"),
        ({"out": torch.zeros(1, HEADS, 173, D)}, r"out: expected the shape of the output"),
        ({"out": torch.zeros(1, HEADS, 173, E).double()}, "out: expected the dtype of q"),
        (
            {"out": torch.zeros(1, HEADS, 1, E).expand(1, HEADS, 173, E)},
            "out: expected a stride other than 0 along rows",
        ),
        (
            {"out": torch.zeros(1, HEADS, 173, E), "returns": "tau"},
            "out: expected None with returns",
        ),
    ],
)
def test_mistakes_are_named(change, message):
    engine = Engine(screen=True)
    q, starts, _ = engine.ask()
    arguments = {
        "q": q,
        "k_pages": engine.k_pages,
        "v_pages": engine.v_pages,
        "block_table": engine.table.clamp(min=0),
        "lengths": engine.lengths,
        "cu_seqlens_q": starts,
        "screen": engine.screen,
    }
    with pytest.raises(ValueError, match=message):
        tsallis.decode_paged(**(arguments | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": torch.tensor([0, 9])}, r"slots: expected one slot a token, \[3\]"),
        ({"slots": torch.tensor([0, -2, 1])}, r"slots\[1\]: expected -1, or a slot from 0 to 1279"),
        ({"slots": torch.tensor([0, 1, 1280])}, r"slots\[2\]: .* got 1280"),
        ({"slots": torch.zeros(3)}, "slots: expected dtype int32 or int64"),
        ({"k": torch.randn(3, KV, D + 1)}, "k_pages: expected heads and columns of k"),
        ({"k": torch.randn(1, 3, KV, D)}, r"k: expected \[tokens, kv_heads, head_dim\]"),
        ({"v": torch.randn(2, KV, E)}, "v: expected tokens and heads of k"),
        ({"v": torch.randn(3, KV, E).double()}, "v: expected the dtype of k, Float, got Double"),
        ({"v_pages": torch.zeros(3, 64, KV, E)}, "v_pages: expected pages of k_pages"),
        ({"screen": torch.zeros(20, KV, 7).byte()}, "screen: expected uint8"),
        (
            {"k_pages": torch.zeros(20, 40, KV, D), "v_pages": torch.zeros(20, 40, KV, E)},
            "screen: expected none for pages that are no multiple of 64 keys",
        ),
    ],
)
def test_mistakes_of_writing_are_named(change, message):
    arguments = {
        "k": torch.randn(3, KV, D),
        "v": torch.randn(3, KV, E),
        "k_pages": torch.zeros(20, 64, KV, D),
        "v_pages": torch.zeros(20, 64, KV, E),
        "slots": torch.tensor([5, 6, 7]),
        "screen": torch.zeros(20, KV, tsallis.screen_bytes(D), dtype=torch.uint8),
    }
    with pytest.raises(ValueError, match=message):
        tsallis.put_paged(**(arguments | change))
    assert arguments["k_pages"].abs().max() == 0
    assert arguments["screen"].max() == 0


def test_sizes_of_a_screen():
    assert tsallis.screen_bytes(64) == 64 * 77
    assert tsallis.screen_bytes(65) == 64 * 81
    with pytest.raises(ValueError, match="head_dim: expected a size from 1 to 512, got 0"):
        tsallis.screen_bytes(0)
    with pytest.raises(TypeError, match=r"head_dim: expected an integer, got 64\.0"):
        tsallis.screen_bytes(64.0)
    rows, pages = torch.zeros(1, KV, D), torch.zeros(2, 8, KV, D)
    with pytest.raises(ValueError, match="slots: expected a tensor, got None"):
        tsallis.put_paged(rows, rows, pages, pages.clone(), None)
