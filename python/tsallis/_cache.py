"""Keys and values of sequences that grow, and exact sparse attention on them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tsallis import _ops
from tsallis._call import call, chosen, number
from tsallis._decode_modes import DecodeMode, FirstAndLast, GaussianPages, TopPages, Within

__all__ = ["CacheFull", "CacheUse", "CachedSequence", "DecodeExtras", "KVCache", "decode"]

_OPS = torch.ops.tsallis
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # in the operator's order
_SCREENS = ("bytes", "none")
Statistic = Literal[
    "tau",
    "support_size",
    "entropy",
    "maximum",
    "certificate",
    "lost",
    "scored",
    "bytes_read",
]
_STATISTICS = get_args(Statistic)
_DECODE, _DECODE_STATS = _OPS.decode.default, _OPS.decode_stats.default
_DECODE_MAPS = ("entmax", "softmax", "adaptive_temperature")


class CacheFull(RuntimeError):
    """An append or a load does not fit into ``max_bytes`` of the cache; nothing was added."""


@dataclass(frozen=True)
class CacheUse:
    """What a cache holds.

    Attributes:
        sequences: number of sequences that are alive.
        pages: number of pages (64 tokens each) in use.
        shared_pages: number of these pages that more than one sequence uses.
        page_bytes: size of one page, with all layers.
        bytes: memory of all pages, free ones too.
    """

    sequences: int
    pages: int
    shared_pages: int
    page_bytes: int
    bytes: int


@dataclass(frozen=True)
class DecodeExtras:
    """Statistics of `decode`, [batch, heads, q_len] each; None: not asked for.

    Attributes:
        tau: the threshold in z = (alpha - 1) s; of softmax the log-sum-exp. float64.
        support_size: keys with a weight > 0. int64.
        entropy: of the weights, in nats. float64.
        maximum: the largest score. float64.
        certificate: entmax: the largest bound of a key that was not scored, minus tau, in z; 0 or
            less proves that the output is exact, -inf where every key was scored. Softmax: no
            larger part of the mass lies on keys that were not scored. float64.
        lost: the part of the weights that the exact answer gives to keys that were not scored; it
            costs a pass over all rows of keys. float64.
        scored: keys that were scored from their rows. int64.
        bytes_read: of keys, values and what is kept beside them, for the answer alone; what heads
            read together is divided among them. int64.

    With a ``mode`` the others are of the keys that were read.
    """

    tau: Tensor | None = None
    support_size: Tensor | None = None
    entropy: Tensor | None = None
    maximum: Tensor | None = None
    certificate: Tensor | None = None
    lost: Tensor | None = None
    scored: Tensor | None = None
    bytes_read: Tensor | None = None


def _call(function: Any, *arguments: Any, **tensors: Any) -> Any:
    try:
        return call(function, *arguments, **tensors)
    except RuntimeError as error:
        text = str(error).split("\n")[0]
        if text.startswith("the cache is full"):
            raise CacheFull(text) from None
        raise


def _file_call(function: Any, *arguments: Any) -> Any:
    try:
        return _call(function, *arguments)
    except CacheFull:
        raise
    except RuntimeError as error:
        raise OSError(str(error).split("\n")[0]) from None


def _path(path: str | os.PathLike[str]) -> Tensor:
    """The bytes of a path, which is how the operators take it."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: expected a path, got {type(path).__name__}")
    name = os.fsencode(path)
    if not name or b"\0" in name:
        raise ValueError(f"path: expected a path without null characters, got {os.fspath(path)!r}")
    return torch.tensor(list(name), dtype=torch.uint8)


class CachedSequence:
    """The tokens of one sequence of a `KVCache`, which makes it; freed with the object."""

    def __init__(self, cache: KVCache, handle: int) -> None:
        self._cache = cache
        self._handle = handle
        self._finalizer = weakref.finalize(self, _ops.free_sequence, cache._number, handle)

    @property
    def cache(self) -> KVCache:
        return self._cache

    def __len__(self) -> int:
        """Tokens that every layer has."""
        return int(_call(_OPS.cache_length, self._cache._cache, self._handle, -1))

    def length(self, layer: int) -> int:
        """Tokens that one layer has."""
        layer = _index(layer, "layer")
        return int(_call(_OPS.cache_length, self._cache._cache, self._handle, layer))

    def fork(self, length: int | None = None) -> CachedSequence:
        """Another sequence that begins with the first ``length`` tokens (default: all) of this.

        Pages are shared; one is copied when either sequence writes to it.
        """
        first = -1 if length is None else _index(length, "length")
        handle = _call(_OPS.cache_fork, self._cache._cache, self._handle, first)
        return CachedSequence(self._cache, handle)

    def truncate(self, length: int) -> None:
        """Forgets the tokens from ``length`` on."""
        length = _index(length, "length")
        _call(_OPS.cache_truncate, self._cache._cache, self._handle, length)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Copies of a layer's keys and values: [1, kv_heads, tokens, head_dim or value_dim]."""
        layer = _index(layer, "layer")
        k, v = _call(_OPS.cache_read, self._cache._cache, self._handle, layer)
        return k, v

    def __reduce__(self) -> Any:
        raise TypeError("a CachedSequence cannot be copied or pickled: use fork, or KVCache.save")


def _index(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < 0:
        raise ValueError(f"{name}: expected 0 or more, got {value}")
    if value >= 2**63:
        raise ValueError(f"{name}: expected at most 2^63 - 1, got {value}")
    return value


def _flag(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(f"{name}: expected True or False, got {value!r}")


def _mode(mode: Any) -> tuple[int, float, int, int, float]:
    """The kind, epsilon, budget, first and quantile that the operator takes."""
    if isinstance(mode, Within):
        return 1, number(mode.epsilon, "mode.epsilon"), 1, 0, 0.5
    if not isinstance(mode, TopPages | GaussianPages | FirstAndLast):
        expected = "None, Within, TopPages, GaussianPages or FirstAndLast"
        raise TypeError(f"mode: expected {expected}, got {mode!r}")
    budget = _index(mode.budget, "mode.budget")
    if isinstance(mode, TopPages):
        return 2, 0.5, budget, 0, 0.5
    if isinstance(mode, GaussianPages):
        return 3, 0.5, budget, 0, number(mode.quantile, "mode.quantile")
    return 4, 0.5, budget, _index(mode.first, "mode.first"), 0.5


def score_terms(*values: float | None) -> dict[str, float]:
    """Settings of those that are given: scale, softcap and the scale-invariant ones."""
    names = ("scale", "softcap", "scale_invariant", "scale_invariant_alpha", "scale_invariant_beta")
    given = zip(names, values, strict=True)
    return {name: number(value, name) for name, value in given if value is not None}


def _tensor(value: Any, name: str, *, optional: bool = False) -> Any:
    if isinstance(value, Tensor) or (optional and value is None):
        return value
    expected = "a tensor or None" if optional else "a tensor"
    raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")


class KVCache:
    """Keys and values of a model's layers for any number of sequences, in pages of 64 tokens.

    While a call changes a sequence no other thread may use it: that raises ``ValueError``.
    Different sequences may be used from several threads at once, also if they share pages.

    Args:
        layers: of the model, >= 1.
        kv_heads: heads of keys and values, >= 1.
        head_dim: of queries and keys, 1 to 512.
        value_dim: of values, 1 to 512; None: head_dim.
        dtype: torch.bfloat16, torch.float16 or torch.float32.
        screen: "bytes" keeps head_dim + 12 bytes more a key and head, with which `decode` skips the
            keys that have no weight; "none": every key is scored from its row.
        ranges: keeps what `TopPages` chooses by: 8 (head_dim + 1) bytes more a page of 64 tokens
            and head.
        moments: likewise for `GaussianPages`.
        max_bytes: of pages; 0: no limit. An append that does not fit raises `CacheFull`.

    Raises:
        ValueError: names the argument, what was expected and what came.
        TypeError: likewise, for a value of the wrong type.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        screen: Literal["bytes", "none"] = "bytes",
        ranges: bool = False,
        moments: bool = False,
        max_bytes: int = 0,
    ) -> None:
        if dtype not in _DTYPES:
            names = ", ".join(sorted(map(str, _DTYPES)))
            raise ValueError(f"dtype: expected one of {names}, got {dtype}")
        if screen not in _SCREENS:
            raise ValueError(f"screen: expected one of {', '.join(_SCREENS)}, got {screen!r}")
        sizes = (
            _index(layers, "layers"),
            _index(kv_heads, "kv_heads"),
            _index(head_dim, "head_dim"),
            _index(head_dim if value_dim is None else value_dim, "value_dim"),
        )
        kept = screen == "bytes", _flag(ranges, "ranges"), _flag(moments, "moments")
        most = _index(max_bytes, "max_bytes")
        self._number = _call(_OPS.cache_new, *sizes, _DTYPES.index(dtype), *kept, most)
        self._cache = torch.tensor([self._number])
        self._finalizer = weakref.finalize(self, _ops.delete_cache, self._number)
        self.layers, self.kv_heads, self.head_dim, self.value_dim = sizes
        self.dtype = dtype

    def sequence(self) -> CachedSequence:
        """A new sequence without tokens."""
        return CachedSequence(self, _call(_OPS.cache_create, self._cache))

    def append(
        self, layer: int, sequences: SequenceOf[CachedSequence], k: Tensor, v: Tensor
    ) -> None:
        """Adds tokens to one layer of each sequence.

        Args:
            layer: from 0.
            sequences: of this cache, as many as k and v have.
            k: [sequences, kv_heads, tokens, head_dim] of the cache's dtype, any strides.
            v: [sequences, kv_heads, tokens, value_dim].

        Raises:
            CacheFull: it does not fit; nothing was appended.
            ValueError: names the argument, what was expected and what came.
        """
        handles = self._handles(sequences)
        tensors = _tensor(k, "k"), _tensor(v, "v")
        _call(_OPS.cache_append, self._cache, _index(layer, "layer"), handles, *tensors)

    def save(self, sequence: CachedSequence, path: str | os.PathLike[str]) -> None:
        """Writes the keys and values of a sequence to a file, with checksums.

        The file is written beside ``path`` and renamed when it is complete: what stood there
        before stays until then.

        Raises:
            OSError: the file cannot be written.
            ValueError: the sequence is not of this cache.
        """
        (handle,) = self._handles([sequence])
        _file_call(_OPS.cache_save, self._cache, handle, _path(path))

    def load(self, path: str | os.PathLike[str]) -> CachedSequence:
        """A new sequence with the tokens that `save` wrote, of this or of another cache.

        The cache must have the shape and the dtype of the one that saved; its other options may
        differ. `decode` gives the same bits on both.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged, cut short, no saved sequence, or of another shape.
            CacheFull: it does not fit; nothing was added.
        """
        return CachedSequence(self, _file_call(_OPS.cache_load, self._cache, _path(path)))

    def use(self) -> CacheUse:
        """What the cache holds now."""
        return CacheUse(*_call(_OPS.cache_use, self._cache))

    def __reduce__(self) -> Any:
        raise TypeError("a KVCache cannot be copied or pickled: use save and load")

    def _handles(self, sequences: SequenceOf[CachedSequence]) -> list[int]:
        if not isinstance(sequences, SequenceOf):
            raise TypeError(f"sequences: expected those of this cache, got {sequences!r}")
        for sequence in sequences:
            if not isinstance(sequence, CachedSequence) or sequence.cache is not self:
                raise ValueError(f"sequences: expected those of this cache, got {sequence!r}")
        return [sequence._handle for sequence in sequences]


def decode(
    q: Tensor,
    cache: KVCache,
    layer: int,
    sequences: SequenceOf[CachedSequence],
    *,
    map: Literal["entmax", "softmax", "adaptive_temperature"] = "entmax",
    alpha: float | Tensor = 1.5,
    mode: DecodeMode | None = None,
    window: int | None = None,
    begin: SequenceOf[int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    scale_invariant: float | None = None,
    scale_invariant_alpha: float | None = None,
    scale_invariant_beta: float | None = None,
    alibi_slopes: Tensor | None = None,
    length_scale: Tensor | None = None,
    sink: Tensor | None = None,
    returns: Statistic | SequenceOf[Statistic] = (),
) -> Any:
    """Attention of the newest tokens of sequences on all their tokens, exact and sparse.

    Query i of q_len stands at token len - q_len + i and sees no later one. Without a ``mode`` the
    output has the same bits as `tsallis.attention` of one query with the same keys in one tensor.
    More queries of a sequence than one for every 128 keys, or than 64 (8 for softmax, without a
    screen, or on a processor without AVX2), have those of `tsallis.attention` of the same queries,
    if ``returns`` asks for nothing but "tau", "support_size", "entropy" and "maximum". No
    gradients.

    Args:
        q: [sequences, heads, q_len, head_dim] of the cache's dtype; heads is a multiple of
            kv_heads.
        cache: holds the keys and values.
        layer: from 0.
        sequences: of the cache; their lengths may differ.
        map: "entmax", "softmax" or, without a ``mode``, "adaptive_temperature" with the published
            coefficients.
        alpha: of entmax: > 0; a tensor [heads]: one for each. With a ``mode`` or statistics of
            `DecodeExtras` from certificate on: 1, or from 1.1 to 4.
        mode: `Within`, for softmax with a proved bound of what is lost; or an approximation,
            `TopPages`, `GaussianPages` or `FirstAndLast`. None: exact.
        window: keys from i - window on are visible; None: all before.
        begin: for each sequence, the first token that may be seen: those before are padding. None:
            all may be.
        scale: > 0; None: 1 / sqrt(head_dim).
        softcap: as in `tsallis.attention`, and so the following.
        scale_invariant: length scale.
        scale_invariant_alpha: A beside it.
        scale_invariant_beta: B beside it.
        alibi_slopes: [heads].
        length_scale: broadcasts to [sequences, heads, q_len].
        sink: [heads].
        returns: names of `DecodeExtras` to return beside the output.

    Returns:
        [sequences, heads, q_len, value_dim] of the cache's dtype; with ``returns``, also
        `DecodeExtras`.

    Raises:
        ValueError: names the argument, what was expected and what came.
        TypeError: likewise, for a value of the wrong type.
    """
    names = chosen(returns, _STATISTICS)
    _tensor(q, "q")
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache: expected a KVCache, got {type(cache).__name__}")
    if not isinstance(map, str):
        raise TypeError(f"map: expected a name, got {map!r}")
    if map not in _DECODE_MAPS:
        expected = "'entmax', 'softmax' or 'adaptive_temperature'"
        raise ValueError(f"map: expected {expected}, got {map!r}")
    settings: dict[str, Any] = score_terms(
        scale, softcap, scale_invariant, scale_invariant_alpha, scale_invariant_beta
    )
    # A default costs a microsecond to hand over.
    if map != "entmax":
        settings["map"] = _ops.MAPS.index(map)
    if isinstance(alpha, Tensor):
        settings["alpha_heads"] = alpha.detach()
    elif alpha != 1.5:
        settings["alpha"] = number(alpha, "alpha")
    if window is not None:
        settings["left"] = _index(window, "window")
    for name, tensor in (
        ("alibi_slopes", alibi_slopes),
        ("length_scale", length_scale),
        ("sink", sink),
    ):
        if _tensor(tensor, name, optional=True) is not None:
            settings[name] = tensor.detach()  # type: ignore[union-attr]
    if begin is not None and not isinstance(begin, SequenceOf):
        raise TypeError(f"begin: expected integers or None, got {begin!r}")
    first = None if begin is None else [_index(token, "begin") for token in begin]
    q = q.detach() if q.requires_grad else q
    arguments = cache._cache, q, cache.value_dim, _index(layer, "layer"), cache._handles(sequences)
    keys = () if mode is None else _mode(mode)
    if not names:
        return _call(lambda: _DECODE(*arguments, first, *keys, **settings))
    wanted = sum(1 << _STATISTICS.index(name) for name in names)
    out, *found = _call(lambda: _DECODE_STATS(*arguments, first, wanted, *keys, **settings))
    statistics = dict(zip(_STATISTICS, found, strict=True))
    return out, DecodeExtras(**{name: statistics[name] for name in names})
