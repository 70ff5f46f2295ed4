"""Tsallis' attention in vLLM on CPUs (docs/guide/serving.md).

`tsallis_vllm.register` gives vLLM the names below in place of its own classes. A name is looked up
when a model's first layer is made, so it stands for what that model asks for: our attention if
there are settings of ours (`settings_of`), else vLLM's own.
"""

from __future__ import annotations

from typing import Any

__all__ = ["AMX_MLA", "CPU_ATTN", "CPU_MLA"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tsallis.integrations.vllm.cpu_attn import backend

    return backend(name)
