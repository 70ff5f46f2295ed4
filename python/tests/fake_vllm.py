"""The names of vLLM 0.32 that the plug-in uses, without vLLM, and an engine that calls a backend.

What each name does here stands in vLLM's sources; python/tests_vllm runs the plug-in in vLLM.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


@dataclass(frozen=True)
class Spec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    head_size_v: int
    state_content_bytes: int | None = None
    page_size_padded: int | None = None


class FullAttentionSpec(Spec):
    pass


class SlidingWindowSpec(Spec):
    pass


class OwnImpl:
    pass


class OwnBackend:
    get_impl_cls = staticmethod(lambda: OwnImpl)


class Builder:
    def __class_getitem__(cls, item: Any) -> type:
        return cls

    def __init__(self, kv_cache_spec: Any, layer_names: Any, config: Any, device: Any) -> None:
        self.kv_cache_spec = kv_cache_spec


class Impl:
    def __class_getitem__(cls, item: Any) -> type:
        return cls


class HFConfigParser:
    """Its `parse` gives the content of config.json and an object of transformers."""

    def parse(self, model: Any, **more: Any) -> Any:
        found = SimpleNamespace(**model)
        found.get_text_config = lambda: found
        return model, found


class Engine:
    """vLLM's state that the plug-in reads, and what it calls."""

    def __init__(self, monkeypatch: Any) -> None:
        self.infos: list[str] = []
        self.config: Any = config()
        self.rank = 0
        self.cpu = True
        self.overrides: dict[str, str] = {}
        self.parsers = {"hf": HFConfigParser}
        names = [SimpleNamespace(name=name, value=f"fake_vllm.{name}") for name in _BACKENDS]
        backends = {name.name: name for name in names}

        def put_parser(name: str) -> Any:
            return lambda found: self.parsers.update({name: found})

        def put_backend(backend: Any, path: str) -> None:
            self.overrides[backend.name] = path

        modules = {
            "vllm": {},
            "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
            "vllm.config": {
                "VllmConfig": object,
                "get_current_vllm_config": lambda: self.config,
                "get_layers_from_vllm_config": lambda _, kind, names: {
                    name: self.layers[name] for name in names
                },
            },
            "vllm.distributed": {"get_tensor_model_parallel_rank": lambda: self.rank},
            "vllm.logger": {"init_logger": lambda _: SimpleNamespace(info_once=self.info_once)},
            "vllm.model_executor": {},
            "vllm.model_executor.layers": {},
            "vllm.model_executor.layers.attention": {"Attention": object},
            "vllm.model_executor.models": {},
            "vllm.model_executor.models.utils": {
                "extract_layer_index": lambda name: int(re.findall(r"\d+", name)[0])
            },
            "vllm.utils": {},
            "vllm.utils.import_utils": {"resolve_obj_by_qualname": lambda path: OwnBackend},
            "vllm.v1": {},
            "vllm.v1.attention": {},
            "vllm.v1.attention.backend": {
                "AttentionBackend": object,
                "AttentionImpl": Impl,
                "AttentionMetadataBuilder": Builder,
                "AttentionType": SimpleNamespace(DECODER="decoder"),
                "CommonAttentionMetadata": object,
                "MultipleOf": lambda base: SimpleNamespace(base=base),
            },
            "vllm.v1.attention.backends": {},
            "vllm.v1.attention.backends.registry": {
                "AttentionBackendEnum": backends,
                "register_backend": put_backend,
            },
            "vllm.v1.kv_cache_interface": {
                "FullAttentionSpec": FullAttentionSpec,
                "SlidingWindowSpec": SlidingWindowSpec,
                "KVCacheLayout": SimpleNamespace(LBHNC="LBHNC"),
            },
            "vllm.platforms": {
                "current_platform": SimpleNamespace(is_cpu=lambda: self.cpu, device_type="cuda")
            },
            "vllm.transformers_utils": {},
            "vllm.transformers_utils.config": {
                "get_config_parser": lambda name: self.parsers[name](),
                "register_config_parser": put_parser,
            },
        }
        for name, content in modules.items():
            module = ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)
        self.envs = sys.modules["vllm.envs"]
        package = "tsallis.integrations.vllm"
        monkeypatch.delitem(sys.modules, f"{package}.cpu_attn", raising=False)
        self.plugin = importlib.import_module(package)
        self.layers: dict[str, Any] = {}

    def info_once(self, text: str, *values: Any) -> None:
        hash(values)  # by which vLLM knows what it said
        self.infos.append(text % values)

    def backend(self, name: str = "CPU_ATTN") -> Any:
        """As `resolve_obj_by_qualname` finds it under the path that was registered."""
        return getattr(self.plugin, name)


_BACKENDS = ("CPU_ATTN", "CPU_MLA", "AMX_MLA")


def config(layers: int = 1, heads: int = 4, own: Any = None, **model: Any) -> Any:
    """A VllmConfig. own: ``--additional-config``; model: keys of the model's config."""
    text = SimpleNamespace(num_hidden_layers=layers, num_attention_heads=heads, **model)
    return SimpleNamespace(
        additional_config={} if own is None else {"tsallis": own},
        model_config=SimpleNamespace(
            hf_text_config=text, dtype=torch.float32, is_mm_prefix_lm=False, rswa_window=None
        ),
        kv_transfer_config=None,
        speculative_config=None,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
    )


class Server:
    """One layer, its cache of blocks, and sequences that grow: a step is as vLLM's runner does it.

    Blocks are handed out again as they come back, with what they held.
    """

    BLOCK = 128

    def __init__(
        self, engine: Engine, heads: int, kv_heads: int, size: int, blocks: int = 40, **layer: Any
    ) -> None:
        dtype = engine.config.model_config.dtype
        backend = engine.backend()
        assert backend.get_name() == "CPU_ATTN"
        assert not backend.forward_includes_kv_cache_update
        assert self.BLOCK % backend.get_supported_kernel_block_sizes()[0].base == 0
        name = "model.layers.0.self_attn.attn"
        self.impl = backend.get_impl_cls()(heads, size, size**-0.5, kv_heads, **layer)
        self.layer = SimpleNamespace(impl=self.impl, layer_name=name)
        engine.layers = {name: self.layer}
        kind = FullAttentionSpec if self.impl.sliding_window is None else SlidingWindowSpec
        spec = kind(self.BLOCK, kv_heads, size, dtype, size)
        customize = getattr(backend, "customize_spec", lambda spec: spec)
        spec = customize(spec)
        self.builder = backend.get_builder_cls()(spec, [name], engine.config, "cpu")
        self.impl.process_weights_after_loading(dtype)
        columns = (spec.state_content_bytes or 2 * size * dtype.itemsize) // dtype.itemsize
        shape = (blocks, kv_heads, self.BLOCK, columns)
        self.cache = torch.randn(shape).to(dtype)  # what somebody left
        self.free = list(range(blocks - 1, 0, -1))  # block 0 belongs to nobody
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def drop(self, sequence: int) -> None:
        self.free += self.tables.pop(sequence)
        del self.lengths[sequence]

    def metadata(self, asked: list[tuple[int, int]], slots: list[int]) -> Any:
        starts = [0]
        for _, count in asked:
            starts.append(starts[-1] + count)
        width = max(len(self.tables[sequence]) for sequence, _ in asked) + 3
        table = torch.full((len(asked), width), 2**30, dtype=torch.int32)  # stale behind the last
        for row, (sequence, _) in enumerate(asked):
            blocks = self.tables[sequence]
            table[row, : len(blocks)] = torch.tensor(blocks)
        lengths = [self.lengths[sequence] for sequence, _ in asked]
        return SimpleNamespace(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            num_reqs=len(asked),
            num_actual_tokens=starts[-1],
            block_table_tensor=table,
            slot_mapping=torch.tensor(slots),
            causal=True,
            mm_req_doc_ranges=None,
            rswa_prefix_lens=None,
        )

    def step(self, asked: list[tuple[int, int]], q: Any, k: Any, v: Any) -> Any:
        """asked: sequences, each with a number of new tokens; q, k, v: [tokens, heads, size]."""
        slots = []
        for sequence, count in asked:
            blocks = self.tables.setdefault(sequence, [])
            begin = self.lengths.get(sequence, 0)
            while len(blocks) * self.BLOCK < begin + count:
                blocks.append(self.free.pop())
            self.lengths[sequence] = begin + count
            slots += [
                blocks[i // self.BLOCK] * self.BLOCK + i % self.BLOCK
                for i in range(begin, begin + count)
            ]
        # vLLM's steps may be padded: tokens of nobody behind the others.
        pad = 3
        common = self.metadata(asked, slots + [-1] * pad)
        metadata = self.builder.build(0, common)
        q, k, v = (
            torch.cat([x, torch.full_like(x[:1], torch.nan).expand(pad, -1, -1)]) for x in (q, k, v)
        )
        output = torch.full_like(q, 7.0)
        self.impl.do_kv_cache_update(self.layer, k, v, self.cache, common.slot_mapping)
        self.impl.forward(self.layer, q, k, v, self.cache, metadata, output)
        assert (output[len(slots) :] == 7.0).all()
        return output[: len(slots)]


def replaced(spec: Any, **more: Any) -> Any:
    return dataclasses.replace(spec, **more)
