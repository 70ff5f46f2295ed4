"""A cache of transformers whose keys and values lie in the pages of a `tsallis.KVCache`."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from tsallis._cache import CachedSequence, KVCache

__all__ = ["PagedRows", "TsallisCache"]

_SERVED = ("full_attention", "sliding_attention", "chunked_attention")
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


_Seen = tuple[Tensor | None, int, int, list[int] | None]
_NOTHING_SEEN: _Seen = (None, 0, 0, None)


def _version(mask: Tensor) -> int:
    """Rises when the mask is written to; tensors of inference mode do not count."""
    return -1 if mask.is_inference() else mask._version


class PagedRows(Tensor):
    """Keys or values of one layer, [batch, kv_heads, tokens, dim], that lie in pages.

    Attention of this package reads the pages. Every other operation works on a copy in one tensor.
    """

    layer: _Layer
    part: int  # 0: keys, 1: values

    @staticmethod
    def __new__(cls, layer: _Layer, part: int, like: Tensor, tokens: int) -> PagedRows:
        shape = (like.shape[0], like.shape[1], tokens, like.shape[3])
        base: Any = Tensor  # torch's stubs may lack its private functions
        made: PagedRows = base._make_wrapper_subclass(
            cls, shape, dtype=like.dtype, device=like.device
        )
        made.layer, made.part = layer, part
        return made

    def both(self) -> tuple[Tensor, Tensor]:
        """The layer's keys and values in one tensor each."""
        pairs = [sequence.read(self.layer.index) for sequence in self.layer.cache.sequences]
        keys, values = (torch.cat(rows)[:, :, : self.shape[2]] for rows in zip(*pairs, strict=True))
        return keys, values

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def plain(value: Any) -> Any:
            return value.both()[value.part] if isinstance(value, PagedRows) else value

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


class _Layer(CacheLayerMixin):
    """One layer of a `TsallisCache`. What concerns sequences, the cache does for all layers."""

    is_sliding = False  # windows are said by masks: every token stays
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: TsallisCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cache = cache
        self.index = index
        self.tokens = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.cache._append(self.index, key_states, value_states)
        self.is_initialized = True
        fresh = self.tokens == 0
        self.tokens += key_states.shape[2]
        if fresh:  # they are at hand
            return key_states, value_states
        return (
            PagedRows(self, 0, key_states, self.tokens),
            PagedRows(self, 1, value_states, self.tokens),
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.tokens + int(query_length), 0

    def get_seq_length(self) -> int:
        return self.tokens

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise NotImplementedError("layers share their pages: call the cache's reorder_cache")


class TsallisCache(Cache):
    """Keys and values of a model in pages, for ``generate(past_key_values=...)`` and by hand.

    With the implementations of `register` a new token reads the pages where they lie: under entmax
    it screens all keys by bytes and scores only those that may have a weight
    (docs/guide/decoding.md).
    Beams, assisted decoding and several answers to one prompt share pages. Other implementations
    get a copy of all keys and values for every token, and so do, on a CUDA device, prompts and
    sequences with padding on the left.

    Args:
        config: of the model. Every layer that has keys must have the same heads and sizes.
        screen: as `tsallis.KVCache`; "none" is smaller, and enough for softmax. On a CUDA device
            None or "none".
        max_bytes: of pages; 0: no limit. What does not fit raises `tsallis.CacheFull`.

    Raises:
        ValueError: the model is an encoder and decoder, or has layers without keys and values.
    """

    def __init__(
        self, config: Any, *, screen: Literal["bytes", "none"] | None = None, max_bytes: int = 0
    ) -> None:
        if getattr(config, "is_encoder_decoder", False):
            raise ValueError(
                "config: expected that of a decoder, got one with an encoder: TsallisCache has no "
                "cross-attention"
            )
        text = config.get_text_config(decoder=True)
        for kind in set(getattr(text, "layer_types", None) or ()):
            if kind not in _SERVED:
                raise ValueError(
                    f"config: expected layers of {', '.join(_SERVED)}, got {kind!r} in "
                    f"{type(text).__name__}"
                )
        self._rows = [_Layer(self, i) for i in range(text.num_hidden_layers)]
        super().__init__(layers=list(self._rows))
        self._settings: dict[str, Any] = {"screen": screen, "max_bytes": max_bytes}
        KVCache(1, 1, 1, **self._settings)  # names a wrong setting before the first token
        self._cache: KVCache | None = None
        self.sequences: list[CachedSequence] = []
        self._seen: _Seen = _NOTHING_SEEN

    def _append(self, layer: int, k: Tensor, v: Tensor) -> None:
        if k.device.type not in ("cpu", "cuda") or k.dtype not in _DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise ValueError(
                f"TsallisCache: expected keys of {names} on a CPU or a CUDA device, got {k.dtype} "
                f"on {k.device}"
            )
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError(
                "TsallisCache: expected torch.no_grad(), for pages keep no gradients, got keys "
                "that require them"
            )
        if self._cache is None:
            self._cache = KVCache(
                len(self.layers),
                k.shape[1],
                k.shape[3],
                value_dim=v.shape[3],
                dtype=k.dtype,
                device=k.device,
                **self._settings,
            )
            self.sequences = [self._cache.sequence() for _ in range(k.shape[0])]
        cache = self._cache
        expected = (len(self.sequences), cache.kv_heads, cache.head_dim, cache.value_dim)
        got = (k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        if got != expected or k.dtype != cache.dtype:
            raise ValueError(
                "TsallisCache: expected keys of [batch, kv_heads, head_dim, value_dim] = "
                f"{list(expected)} and {cache.dtype} as before, got {list(got)} and {k.dtype} in "
                f"layer {layer}"
            )
        cache.append(layer, self.sequences, k, v)

    def first_seen(self, mask: Tensor | None, q_len: int, k_len: int) -> list[int] | None:
        """For each sequence the first token that the newest q_len see, if they see all from there
        on up to themselves; None if the mask says anything else."""
        batch = len(self.sequences)
        if mask is None:
            return [0] * batch if q_len == 1 else None
        if mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[1] != 1:
            return None
        # Every layer of a step has the same answer; the version tells a mask that was written to
        # since.
        known, version, length, found = self._seen
        if known is mask and version == _version(mask) and length == k_len:
            return found
        rows = mask[:, 0, :, :k_len]
        begin = rows[:, 0].to(torch.uint8).argmax(-1)
        token = torch.arange(k_len, device=rows.device)
        expected = (token >= begin[:, None, None]) & (token <= token[k_len - q_len :, None])
        found = None
        if torch.equal(rows, expected) and int(begin.max()) <= k_len - q_len:
            found = begin.tolist() * (batch if len(rows) == 1 else 1)
        self._seen = (mask, _version(mask), k_len, found)
        return found

    def _take(self, sequences: SequenceOf[int]) -> None:
        """Makes sequence i what sequence sequences[i] was."""
        taken: set[int] = set()
        made = []
        for index in sequences:
            old = self.sequences[index]
            made.append(old.fork() if index in taken else old)
            taken.add(index)
        self.sequences = made

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence i becomes a fork of sequence beam_idx[i].

        Raises:
            ValueError: an index is not that of a sequence.
        """
        if not self.sequences:
            return
        indices = beam_idx.tolist()
        for index in indices:
            if not 0 <= index < len(self.sequences):
                raise ValueError(
                    f"beam_idx: expected indices from 0 to {len(self.sequences) - 1}, got {index}"
                )
        self._take(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence becomes ``repeats`` forks of it, one behind the other."""
        self._take([i for i in range(len(self.sequences)) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the sequences of these indices."""
        if self.sequences:
            self._take(torch.arange(len(self.sequences))[indices].tolist())

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last ``-tokens_to_remove`` tokens.

        Raises:
            ValueError: it is above 0.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                "tokens_to_remove: expected 0 or less, as transformers counts tokens to remove, "
                f"got {tokens_to_remove}"
            )
        for layer in self._rows:
            layer.tokens = max(0, layer.tokens + tokens_to_remove)
        remaining = max((layer.tokens for layer in self._rows), default=0)
        for sequence in self.sequences:
            sequence.truncate(remaining)

    def reset(self) -> None:
        """Forgets all tokens, and how many sequences there were."""
        for layer in self._rows:
            layer.tokens = 0
        self.sequences = []
        self._cache = None

    def fork(self) -> TsallisCache:
        """Another cache that begins with the tokens of this one, and shares their pages."""
        made = TsallisCache.__new__(TsallisCache)
        made._rows = [_Layer(made, layer.index) for layer in self._rows]
        Cache.__init__(made, layers=list(made._rows))
        for own, layer in zip(made._rows, self._rows, strict=True):
            own.tokens, own.is_initialized = layer.tokens, layer.is_initialized
        made._settings, made._cache, made._seen = self._settings, self._cache, _NOTHING_SEEN
        made.sequences = [sequence.fork() for sequence in self.sequences]
        return made

    def __deepcopy__(self, memo: Any) -> TsallisCache:
        # Transformers' pages on prefix caching copy a cache so.
        return self.fork()

    @property
    def pages(self) -> KVCache | None:
        """The cache of the pages; None before the first token."""
        return self._cache
