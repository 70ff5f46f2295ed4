"""Keys and values of sequences that grow, and exact sparse attention on them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from tsallis import _ops
from tsallis._call import call, chosen, number
from tsallis._decode_modes import (
    DecodeExtras,
    DecodeMode,
    FirstAndLast,
    GaussianPages,
    TopPages,
    Within,
)
from tsallis._device_cache import DevicePages
from tsallis._paged import TERMS, decode_paged, score_terms

__all__ = ["CacheFull", "CacheUse", "CachedSequence", "KVCache", "decode"]

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


class _HostPages:
    """The pages of a `KVCache` in the host's memory, by the library's operators."""

    def __init__(self, *settings: int) -> None:
        number = _call(_OPS.cache_new, *settings)
        self.number = torch.tensor([number])
        # Past torch: the garbage collector may free a sequence while something traces.
        self.free = partial(_ops.free_sequence, number)
        self._finalizer = weakref.finalize(self, _ops.delete_cache, number)

    def create(self) -> int:
        return int(_call(_OPS.cache_create, self.number))

    def fork(self, handle: int, length: int) -> int:
        return int(_call(_OPS.cache_fork, self.number, handle, length))

    def truncate(self, handle: int, length: int) -> None:
        _call(_OPS.cache_truncate, self.number, handle, length)

    def length(self, handle: int, layer: int) -> int:
        return int(_call(_OPS.cache_length, self.number, handle, layer))

    def append(self, layer: int, handles: list[int], k: Tensor, v: Tensor) -> None:
        _call(_OPS.cache_append, self.number, layer, handles, k, v)

    def read(self, handle: int, layer: int) -> tuple[Tensor, Tensor]:
        k, v = _call(_OPS.cache_read, self.number, handle, layer)
        return k, v

    def use(self) -> tuple[int, ...]:
        return tuple(_call(_OPS.cache_use, self.number))

    def serves(self, *_: Any) -> bool:
        return True


class CachedSequence:
    """The tokens of one sequence of a `KVCache`, which makes it; freed with the object."""

    def __init__(self, cache: KVCache, handle: int) -> None:
        self._cache = cache
        self._handle = handle
        self._finalizer = weakref.finalize(self, cache._pages.free, handle)

    @property
    def cache(self) -> KVCache:
        return self._cache

    def __len__(self) -> int:
        """Tokens that every layer has."""
        return self._cache._pages.length(self._handle, -1)

    def length(self, layer: int) -> int:
        """Tokens that one layer has."""
        return self._cache._pages.length(self._handle, _index(layer, "layer"))

    def fork(self, length: int | None = None) -> CachedSequence:
        """Another sequence that begins with the first ``length`` tokens (default: all) of this.

        Pages are shared; one is copied when either sequence writes to it.
        """
        first = -1 if length is None else _index(length, "length")
        return CachedSequence(self._cache, self._cache._pages.fork(self._handle, first))

    def truncate(self, length: int) -> None:
        """Forgets the tokens from ``length`` on."""
        self._cache._pages.truncate(self._handle, _index(length, "length"))

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Copies of a layer's keys and values: [1, kv_heads, tokens, head_dim or value_dim]."""
        return self._cache._pages.read(self._handle, _index(layer, "layer"))

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


def _device(value: Any) -> torch.device:
    if not isinstance(value, str | torch.device):
        raise TypeError(f"device: expected a name or a torch.device, got {value!r}")
    try:
        device = torch.device(value)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or a CUDA device, got {value!r}")
    return device


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
        device: "cpu" or a CUDA device, where k, v and the queries of `decode` are then, and where
            its kernels were compiled.
        screen: "bytes" keeps head_dim + 12 bytes more a key and head, with which `decode` skips the
            keys that have no weight; "none": every key is scored from its row. None: "bytes" on a
            CPU, "none" on a CUDA device, which has no other, nor ranges and moments.
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
        device: torch.device | str = "cpu",
        screen: Literal["bytes", "none"] | None = None,
        ranges: bool = False,
        moments: bool = False,
        max_bytes: int = 0,
    ) -> None:
        if dtype not in _DTYPES:
            names = ", ".join(sorted(map(str, _DTYPES)))
            raise ValueError(f"dtype: expected one of {names}, got {dtype}")
        where = _device(device)
        if screen is None:
            screen = "bytes" if where.type == "cpu" else "none"
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
        self._pages: _HostPages | DevicePages
        if where.type == "cpu":
            self._pages = _HostPages(*sizes, _DTYPES.index(dtype), *kept, most)
        else:
            for name, value in zip(("screen", "ranges", "moments"), kept, strict=True):
                if value:
                    expected = '"none"' if name == "screen" else "False"
                    raise ValueError(f"{name}: expected {expected} on {where}, got another value")
            self._pages = DevicePages(*sizes, dtype, where, most, CacheFull)
        self.layers, self.kv_heads, self.head_dim, self.value_dim = sizes
        self.dtype, self.device = dtype, where

    def sequence(self) -> CachedSequence:
        """A new sequence without tokens."""
        return CachedSequence(self, self._pages.create())

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
        self._pages.append(_index(layer, "layer"), handles, *tensors)

    def save(self, sequence: CachedSequence, path: str | os.PathLike[str]) -> None:
        """Writes the keys and values of a sequence to a file, with checksums.

        The file is written beside ``path`` and renamed when it is complete: what stood there
        before stays until then.

        Raises:
            OSError: the file cannot be written.
            ValueError: the sequence is not of this cache.
        """
        (handle,) = self._handles([sequence])
        if isinstance(self._pages, DevicePages):
            self._pages.save(handle, self._on_host(), path)
        else:
            _file_call(_OPS.cache_save, self._pages.number, handle, _path(path))

    def load(self, path: str | os.PathLike[str]) -> CachedSequence:
        """A new sequence with the tokens that `save` wrote, of this or of another cache.

        The cache must have the shape and the dtype of the one that saved; its other options may
        differ. `decode` gives the same bits on both.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged, cut short, no saved sequence, or of another shape.
            CacheFull: it does not fit; nothing was added.
        """
        if isinstance(self._pages, DevicePages):
            return CachedSequence(self, self._pages.load(self._on_host(), path))
        return CachedSequence(self, _file_call(_OPS.cache_load, self._pages.number, _path(path)))

    def use(self) -> CacheUse:
        """What the cache holds now."""
        return CacheUse(*self._pages.use())

    def __reduce__(self) -> Any:
        raise TypeError("a KVCache cannot be copied or pickled: use save and load")

    def _on_host(self) -> KVCache:
        """An empty cache of the same shape, which writes and reads files."""
        return KVCache(
            self.layers,
            self.kv_heads,
            self.head_dim,
            value_dim=self.value_dim,
            dtype=self.dtype,
            screen="none",
        )

    def serves(self, queries: int, begin: SequenceOf[int], map: str, alpha: float | Tensor) -> bool:
        """Whether `decode` takes a call of so many queries a sequence: on a CPU every one."""
        alphas = alpha.flatten().tolist() if isinstance(alpha, Tensor) else [alpha]
        return self._pages.serves(queries, begin, map, alphas)

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

    On a CUDA device the kernels are those of `decode_paged`, within its limits: alphas of 1 or from
    1.1 to 2, a few queries of a sequence, no ``mode``, no ``begin``, and of the statistics these
    four.

    Args:
        q: [sequences, heads, q_len, head_dim] of the cache's dtype; heads is a multiple of
            kv_heads.
        cache: holds the keys and values.
        layer: from 0.
        sequences: of the cache; their lengths may differ.
        map: "entmax", "softmax" or, without a ``mode`` and on a CPU, "adaptive_temperature" with
            the published coefficients.
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
    if begin is not None and not isinstance(begin, SequenceOf):
        raise TypeError(f"begin: expected integers or None, got {begin!r}")
    first = None if begin is None else [_index(token, "begin") for token in begin]
    terms = (scale, softcap, scale_invariant, scale_invariant_alpha, scale_invariant_beta)
    if isinstance(cache._pages, DevicePages):
        return _decode_on_device(
            q,
            cache._pages.on_pages(_index(layer, "layer"), cache._handles(sequences)),
            mode,
            first,
            names,
            map=map,
            alpha=alpha,
            window=window,
            **dict(zip(TERMS, terms, strict=True)),
            alibi_slopes=alibi_slopes,
            length_scale=length_scale,
            sink=sink,
        )
    settings: dict[str, Any] = score_terms(*terms)
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
    q = q.detach() if q.requires_grad else q
    number_of = cache._pages.number
    arguments = number_of, q, cache.value_dim, _index(layer, "layer"), cache._handles(sequences)
    keys = () if mode is None else _mode(mode)
    if not names:
        return _call(lambda: _DECODE(*arguments, first, *keys, **settings))
    wanted = sum(1 << _STATISTICS.index(name) for name in names)
    out, *found = _call(lambda: _DECODE_STATS(*arguments, first, wanted, *keys, **settings))
    statistics = dict(zip(_STATISTICS, found, strict=True))
    return out, DecodeExtras(**{name: statistics[name] for name in names})


def _decode_on_device(
    q: Tensor,
    pages: tuple[Tensor, ...],
    mode: DecodeMode | None,
    begin: list[int] | None,
    names: tuple[str, ...],
    **settings: Any,
) -> Any:
    """`decode` by the kernels that read pages on a device; what they do not have is refused."""
    if mode is not None:
        raise ValueError(f"mode: expected None on {q.device}, got {mode!r}")
    if begin is not None and any(begin):
        raise ValueError(f"begin: expected None or zeros on {q.device}, got {begin}")
    if beyond := [name for name in names if name not in _STATISTICS[:4]]:
        expected = ", ".join(_STATISTICS[:4])
        raise ValueError(f"returns: expected names out of {expected} on {q.device}, got {beyond}")
    return decode_paged(q, *pages, returns=cast(Any, names), **settings)
