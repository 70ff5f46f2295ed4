"""vLLM's attention on CPUs by Tsallis' kernels: backend, builder of a step's metadata, layer.

vLLM asks a backend on CPUs nothing before it makes layers: whatever is not served is refused where
a layer or a group of layers is made, before the first token, or where a step's metadata come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import vllm.envs as envs
from torch import Tensor
from vllm.config import VllmConfig, get_current_vllm_config, get_layers_from_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention import backend as base
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout, SlidingWindowSpec

from tsallis import decode_paged, put_paged, screen_bytes
from tsallis.integrations.vllm.settings import Settings, settings_of

__all__ = ["TsallisBackend", "TsallisScreenedBackend", "backend"]

logger = init_logger("vllm.tsallis")

_SCREENED = 64  # keys for which there are `screen_bytes`
_SPECS, _WIDEST = (FullAttentionSpec, SlidingWindowSpec), 512  # columns of a head


def backend(name: str) -> type[base.AttentionBackend]:
    """The class for a name of vLLM's, chosen by the settings of the model that is being made."""
    settings = settings_of(get_current_vllm_config())
    if settings is None:
        own: type[base.AttentionBackend] = resolve_obj_by_qualname(AttentionBackendEnum[name].value)
        logger.info_once("tsallis: the model names no map, vLLM's own %s runs", name)
        made = staticmethod(lambda: _kept(None, own.get_impl_cls()))
        return type(own.__name__, (own,), {"get_impl_cls": made})
    if name != "CPU_ATTN":
        raise _not_served(f"multi-head latent attention ({name})")
    return TsallisScreenedBackend if settings.screen else TsallisBackend


def _not_served(what: str) -> NotImplementedError:
    return NotImplementedError(f"tsallis: {what} is not served")


def _refuse(asked: dict[str, Any]) -> None:
    """NotImplementedError for the first that is asked for."""
    for what, value in asked.items():
        if value:
            raise _not_served(what)


def _kept(screen: bool | None, found: Any) -> Any:
    """vLLM keeps a class for all layers of the same shape in a process, of another model, too."""
    settings = settings_of(get_current_vllm_config())
    if (None if settings is None else settings.screen) is not screen:
        raise _not_served("a second model with another map in the same process")
    return found


class TsallisBackend(base.AttentionBackend):
    """Blocks of one key head: all keys, then all values."""

    forward_includes_kv_cache_update = False
    screen: ClassVar[bool] = False

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"  # vLLM asks AttentionBackendEnum for it

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | base.MultipleOf]:
        return [base.MultipleOf(_SCREENED)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        if not cls.screen:
            return spec
        if spec.state_content_bytes is not None or spec.page_size_padded is not None:
            raise _not_served("a screen in blocks of several sizes (a hybrid model)")
        item = spec.dtype.itemsize
        # vLLM counts by token, in elements of the keys' dtype.
        screen = -(-screen_bytes(spec.head_size) // (_SCREENED * item)) * item
        rows = (spec.head_size + spec.head_size_v) * item
        return replace(spec, state_content_bytes=rows + screen)

    @classmethod
    def get_impl_cls(cls) -> type[TsallisImpl]:
        return _kept(cls.screen, TsallisImpl)

    @staticmethod
    def get_builder_cls() -> type[TsallisMetadataBuilder]:
        return TsallisMetadataBuilder


class TsallisScreenedBackend(TsallisBackend):
    """Behind the values of a block lie the bytes that `decode_paged` screens its keys by."""

    screen = True


@dataclass
class TsallisMetadata:
    """Of one step: requests with one new token, and with pieces of prompts, in any order."""

    num_actual_tokens: int
    query_start_loc: Tensor  # int32 [requests + 1]
    seq_lens: Tensor  # int32 [requests]
    block_table: Tensor  # int32 [requests, most blocks]


class TsallisMetadataBuilder(base.AttentionMetadataBuilder[TsallisMetadata]):
    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        kind, own = type(kv_cache_spec), type(self)
        _refuse(
            {
                f"attention through {own.__name__}": own is not TsallisMetadataBuilder,
                f"a KV cache of {kind.__name__}": kind not in _SPECS,
                "a KV cache with padded blocks (a hybrid model)": kv_cache_spec.page_size_padded,
                "a value of another size": kv_cache_spec.head_size_v != kv_cache_spec.head_size,
            }
        )
        # A layer is not told its number: it stands in its name.
        for name, layer in get_layers_from_vllm_config(vllm_config, Attention, layer_names).items():
            layer.impl.set_layer(extract_layer_index(name))

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: base.CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> TsallisMetadata:
        m = common_attn_metadata
        _refuse(
            {
                "attention that is not causal": m.causal is not True,
                "a multimodal prefix that sees all of itself": m.mm_req_doc_ranges,
                "reference sliding window attention (R-SWA)": m.rswa_prefix_lens is not None,
            }
        )
        return TsallisMetadata(
            num_actual_tokens=m.num_actual_tokens,
            query_start_loc=m.query_start_loc[: m.num_reqs + 1],
            seq_lens=m.seq_lens[: m.num_reqs],
            block_table=m.block_table_tensor[: m.num_reqs],
        )


class TsallisImpl(base.AttentionImpl[TsallisMetadata]):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = base.AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
        **others: Any,
    ) -> None:
        config = get_current_vllm_config()
        settings = settings_of(config)
        assert settings is not None  # or vLLM's own class would be made
        model, parallel = config.model_config, config.parallel_config
        dtype = str(model.dtype).removeprefix("torch.")
        given = ", ".join(name for name, value in others.items() if value is not None)
        cache = kv_cache_dtype not in ("auto", dtype)
        ranks = max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size)
        _refuse(
            {
                f"attention of the kind {attn_type}": attn_type != base.AttentionType.DECODER,
                f"attention with {given}": given,
                f"a KV cache of {kv_cache_dtype} beside a model of {dtype}": cache,
                f"a head of more than {_WIDEST} columns ({head_size})": head_size > _WIDEST,
                "a layer that reads the keys of another": kv_sharing_target_layer_name,
                "VLLM_BATCH_INVARIANT": envs.VLLM_BATCH_INVARIANT,
                "KV transfer (kv_transfer_config)": config.kv_transfer_config,
                "speculative decoding (speculative_config)": config.speculative_config,
                "a multimodal prefix that sees all of itself": model.is_mm_prefix_lm,
                "reference sliding window attention (R-SWA)": model.rswa_window is not None,
                "context parallelism": ranks > 1,
            }
        )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype, self.sliding_window, self.sinks = kv_cache_dtype, sliding_window, sinks
        self.settings: Settings = settings
        logger.info_once("tsallis: attention is %s", str(settings))
        self.options: dict[str, Any] = {"map": settings.map, "scale": self.scale}
        if settings.map == "entmax":
            self.options["alpha"] = None  # `decode_paged` refuses it, until `set_layer` was called
        if alibi_slopes is not None:
            self.options["alibi_slopes"] = torch.tensor(alibi_slopes, dtype=torch.float32)
        if logits_soft_cap:
            self.options["softcap"] = float(logits_soft_cap)
        if sliding_window is not None:
            # vLLM counts the query's own key, `decode_paged` the keys before it.
            self.options["window"] = sliding_window - 1
        self._seen: tuple[Tensor, tuple[Tensor, Tensor, Tensor | None]] | None = None

    def set_layer(self, layer: int) -> None:
        """The alpha of a layer, and of the heads that this process has of it."""
        if self.settings.map == "softmax":
            return
        alpha = self.settings.alpha
        if isinstance(alpha, list | tuple):
            alpha = alpha[layer]
        if isinstance(alpha, list | tuple):
            first = get_tensor_model_parallel_rank() * self.num_heads
            alpha = torch.tensor(alpha[first : first + self.num_heads], dtype=torch.float32)
        self.options["alpha"] = alpha

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        if self.sinks is not None:
            self.options["sink"] = self.sinks.detach().float()

    def _pages(self, kv_cache: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values [blocks, block, kv_heads, head_size], bytes [blocks, kv_heads, ...], out
        of [blocks, kv_heads, block, columns]: how a contiguous block of a head is filled is ours.
        """
        if self._seen is not None and self._seen[0] is kv_cache:
            return self._seen[1]
        size = kv_cache.shape[2]
        block = kv_cache.flatten(2)  # [blocks, kv_heads, columns of a block]
        rows = size * self.head_size

        def part(at: int) -> Tensor:
            return block[..., at : at + rows].unflatten(2, (size, self.head_size)).transpose(1, 2)

        screen = block[..., 2 * rows :].view(torch.uint8) if self.settings.screen else None
        found = part(0), part(rows), screen
        self._seen = kv_cache, found
        return found

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        tokens = slot_mapping.shape[0]
        if key.shape[0] != tokens:
            key, value = key[:tokens], value[:tokens]
        k_pages, v_pages, screen = self._pages(kv_cache)
        put_paged(key, value, k_pages, v_pages, slot_mapping, screen=screen)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: TsallisMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query, output: [tokens, heads, head_size]; writes output."""
        if output_scale is not None or output_block_scale is not None:
            raise _not_served("quantised output")
        if attn_metadata is None:  # vLLM looks how much memory a step takes
            return output
        m, (k_pages, v_pages, screen) = attn_metadata, self._pages(kv_cache)
        found = output
        # A short step is made of such small calls: a slice of all is one too many.
        if query.shape[0] != m.num_actual_tokens:
            query, output = query[: m.num_actual_tokens], output[: m.num_actual_tokens]
        decode_paged(
            query.transpose(0, 1).unsqueeze(0),
            k_pages,
            v_pages,
            m.block_table,
            m.seq_lens,
            cu_seqlens_q=m.query_start_loc,
            screen=screen,
            out=output.transpose(0, 1).unsqueeze(0),
            **self.options,
        )
        return found
