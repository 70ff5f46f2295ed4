"""The pages of a `KVCache` on a device: tensors of the device, with tables of them on the host."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PAGE = 64  # tokens, as in a cache of the host


@dataclass
class _Tokens:
    """The pages of one sequence, in order, and how many tokens each layer has in them."""

    pages: list[int]
    lengths: list[int]


class _Latest:
    """What was last made of a list of numbers: the layers of a step all ask for the same.

    The caller holds the lock of the pages.
    """

    def __init__(self, make: Callable[[Any], Tensor]) -> None:
        self._make = make
        self._of: Any = None
        self._made: Tensor | None = None

    def __call__(self, numbers: Any) -> Tensor:
        if self._made is None or numbers != self._of:
            self._made, self._of = self._make(numbers), numbers
        return self._made


class DevicePages:
    """Keys and values of sequences in pages that lie in two tensors [layers, pages, ...].

    The tensors grow to twice their pages where an append has no room. What a call needs of the
    tables goes to the device once for all layers that ask for the same; nothing waits for it.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        max_bytes: int,
        full: type[RuntimeError],
    ) -> None:
        for name, size in (
            ("layers", layers),
            ("kv_heads", kv_heads),
            ("head_dim", head_dim),
            ("value_dim", value_dim),
        ):
            if size < 1:
                raise ValueError(f"{name}: expected 1 or more, got {size}")
        self._layers, self._kv_heads, self._full = layers, kv_heads, full
        self._max_bytes = max_bytes

        def pages(dim: int) -> Tensor:
            return torch.empty(layers, 0, PAGE, kv_heads, dim, dtype=dtype, device=device)

        self._k, self._v = pages(head_dim), pages(value_dim)
        self._page_bytes = layers * PAGE * kv_heads * (head_dim + value_dim) * dtype.itemsize
        self._uses: list[int] = []  # of each page: sequences that have it
        self._free: list[int] = []
        self._sequences: dict[int, _Tokens] = {}
        self._next = 0
        self._lock = threading.RLock()
        # The garbage collector frees sequences in the middle of anything: the next call does it.
        self._dead: deque[int] = deque()

        def on_device(numbers: Any) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int32).to(device, non_blocking=True)

        self._table, self._lengths = _Latest(on_device), _Latest(on_device)
        self._slots = _Latest(lambda numbers: on_device(numbers).long())

    # ---- sequences

    def create(self) -> int:
        return self._add(_Tokens([], [0] * self._layers))

    def fork(self, handle: int, length: int) -> int:
        with self._lock:
            self._collect()
            parent = self._sequences[handle]
            most = min(parent.lengths)
            if length > most:
                raise ValueError(
                    f"length: expected at most the {most} tokens of the sequence, got {length}"
                )
            length = most if length < 0 else length
            pages = parent.pages[: -(-length // PAGE)]
            for page in pages:
                self._uses[page] += 1
            return self._add(_Tokens(pages, [length] * self._layers))

    def free(self, handle: int) -> None:
        self._dead.append(handle)

    def truncate(self, handle: int, length: int) -> None:
        with self._lock:
            self._collect()
            tokens = self._sequences[handle]
            tokens.lengths = [min(length, had) for had in tokens.lengths]
            kept = -(-length // PAGE)
            self._release(tokens.pages[kept:])
            del tokens.pages[kept:]

    def length(self, handle: int, layer: int) -> int:
        lengths = self._sequences[handle].lengths
        return min(lengths) if layer < 0 else lengths[self._layer(layer)]

    # ---- tokens

    def append(self, layer: int, handles: Sequence[int], k: Tensor, v: Tensor) -> None:
        layer = self._layer(layer)
        for name, given, pages in (("k", k, self._k), ("v", v, self._v)):
            expected = (len(handles), self._kv_heads, k.shape[2] if k.dim() > 2 else 0)
            if tuple(given.shape) != (*expected, pages.shape[-1]):
                shape = f"[{len(handles)}, {self._kv_heads}, tokens, {pages.shape[-1]}]"
                raise ValueError(f"{name}: expected {shape}, got {list(given.shape)}")
            if given.dtype != pages.dtype:
                raise ValueError(f"{name}: expected {pages.dtype}, got {given.dtype}")
            if given.device != pages.device:
                raise ValueError(f"{name}: expected a tensor on {pages.device}, got {given.device}")
        if len(set(handles)) < len(handles):
            raise ValueError("sequences: expected each one once, got one twice")
        count = k.shape[2]
        with self._lock:
            self._collect()
            all_tokens = [self._sequences[handle] for handle in handles]
            self._make_room(all_tokens, layer, count)
            slots: list[int] = []
            for tokens in all_tokens:
                begin = tokens.lengths[layer]
                for at in range(begin, begin + count):
                    slots.append(tokens.pages[at // PAGE] * PAGE + at % PAGE)
                tokens.lengths[layer] = begin + count
            if not slots:
                return
            places = self._slots(slots)
            for given, pages in ((k, self._k), (v, self._v)):
                rows = given.detach().transpose(1, 2).reshape(len(slots), *pages.shape[3:])
                pages[layer].flatten(0, 1).index_copy_(0, places, rows)

    def read(self, handle: int, layer: int) -> tuple[Tensor, Tensor]:
        layer = self._layer(layer)
        tokens = self._sequences[handle]
        k, v = (
            pages[layer, tokens.pages].flatten(0, 1)[: tokens.lengths[layer]].transpose(0, 1)[None]
            for pages in (self._k, self._v)
        )
        return k, v

    def on_pages(self, layer: int, handles: Sequence[int]) -> tuple[Tensor, ...]:
        """The pages of a layer's keys and of its values, the table and the lengths of sequences."""
        layer = self._layer(layer)
        # Another thread's append may be moving all pages to longer tensors.
        with self._lock:
            all_tokens = [self._sequences[handle] for handle in handles]
            width = max([1, *(len(tokens.pages) for tokens in all_tokens)])
            table = [tokens.pages + [0] * (width - len(tokens.pages)) for tokens in all_tokens]
            lengths = [tokens.lengths[layer] for tokens in all_tokens]
            return self._k[layer], self._v[layer], self._table(table), self._lengths(lengths)

    def serves(self, queries: int, begin: Sequence[int], map: str, alphas: Sequence[float]) -> bool:
        """Whether `decode` has a kernel for so many queries of each sequence."""
        if queries > 8 or any(begin):
            return False
        near = all(alpha == 1.0 or 1.1 <= alpha <= 2.0 for alpha in alphas)
        return map == "softmax" or (map == "entmax" and near)

    # ---- files: a cache of the host writes and reads them

    def save(self, handle: int, host: Any, path: str | os.PathLike[str]) -> None:
        sequence = host.sequence()
        for layer in range(self._layers):
            host.append(layer, [sequence], *(x.cpu() for x in self.read(handle, layer)))
        host.save(sequence, path)

    def load(self, host: Any, path: str | os.PathLike[str]) -> int:
        sequence = host.load(path)
        handle = self.create()
        try:
            for layer in range(self._layers):
                device = self._k.device
                self.append(layer, [handle], *(x.to(device) for x in sequence.read(layer)))
        except BaseException:
            self.free(handle)
            raise
        return handle

    def use(self) -> tuple[int, int, int, int, int]:
        with self._lock:
            self._collect()
            used = sum(uses > 0 for uses in self._uses)
            shared = sum(uses > 1 for uses in self._uses)
            memory = self._page_bytes * len(self._uses)
            return len(self._sequences), used, shared, self._page_bytes, memory

    # ---- pages

    def _layer(self, layer: int) -> int:
        if layer < self._layers:
            return layer
        raise ValueError(f"layer: expected 0 to {self._layers - 1}, got {layer}")

    def _add(self, tokens: _Tokens) -> int:
        with self._lock:
            handle, self._next = self._next, self._next + 1
            self._sequences[handle] = tokens
            return handle

    def _collect(self) -> None:
        while self._dead:
            self._release(self._sequences.pop(self._dead.popleft()).pages)

    def _release(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._uses[page] -= 1
            if self._uses[page] == 0:
                self._free.append(page)

    def _make_room(self, all_tokens: Sequence[_Tokens], layer: int, count: int) -> None:
        """Gives sequences the pages that `count` tokens more are written to, as their own."""
        plans = []  # sequence, its pages that others share, how many more it needs
        for tokens in all_tokens:
            begin = tokens.lengths[layer]
            written = range(begin // PAGE, min(-(-(begin + count) // PAGE), len(tokens.pages)))
            shared = [at for at in written if self._uses[tokens.pages[at]] > 1]
            more = max(-(-(begin + count) // PAGE) - len(tokens.pages), 0)
            plans.append((tokens, shared if count > 0 else [], more))
        self._grow(sum(len(shared) + more for _, shared, more in plans))
        for tokens, shared, more in plans:
            for at in shared:
                page = tokens.pages[at]
                if self._uses[page] == 1:
                    continue  # another sequence of the call has left it
                own = self._take()
                for pages in (self._k, self._v):
                    pages[:, own] = pages[:, page]
                self._uses[page] -= 1
                tokens.pages[at] = own
            tokens.pages.extend(self._take() for _ in range(more))

    def _take(self) -> int:
        page = self._free.pop()
        self._uses[page] = 1
        return page

    def _grow(self, wanted: int) -> None:
        """Makes room for so many pages more."""
        pages = len(self._uses)
        lacks = wanted - len(self._free)
        if lacks <= 0:
            return
        grown = max(pages + lacks, 2 * pages, 16)
        if self._max_bytes > 0:
            most = self._max_bytes // self._page_bytes
            if pages + lacks > most:
                raise self._full(
                    f"the cache is full: {pages - len(self._free)} pages of {self._page_bytes} "
                    "bytes are in use, and max_bytes allows no more"
                )
            grown = min(grown, most)
        for name in ("_k", "_v"):
            before: Tensor = getattr(self, name)
            after = before.new_empty((before.shape[0], grown, *before.shape[2:]))
            after[:, :pages] = before
            setattr(self, name, after)
        self._uses.extend([0] * (grown - pages))
        self._free.extend(reversed(range(pages, grown)))
