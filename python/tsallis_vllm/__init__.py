"""Tells vLLM about Tsallis' attention: the entry point of ``vllm.general_plugins``.

vLLM calls `register` in the server, the engine and every worker, and goes on without a plug-in
that it cannot import. So this module imports neither `tsallis` nor its library: what is wrong with
those comes up where vLLM asks for the attention class, and ends the start.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["PREFIX", "register"]

# `tsallis convert` puts it before the architecture's name of a model that is no softmax model.
# vLLM alone knows no such architecture: without the plug-in it refuses the model.
PREFIX = "Tsallis"

_CLASSES = "tsallis.integrations.vllm"


def register() -> None:
    """Puts our attention where vLLM looks for that of CPUs, and reads `PREFIX` off configs."""
    from vllm.platforms import current_platform
    from vllm.transformers_utils import config
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if current_platform.is_cpu():
        for name in ("CPU_ATTN", "CPU_MLA", "AMX_MLA"):
            register_backend(AttentionBackendEnum[name], f"{_CLASSES}.{name}")
    elif os.environ.get("TSALLIS_ATTENTION"):
        raise _elsewhere("TSALLIS_ATTENTION", current_platform.device_type)
    plain = type(config.get_config_parser("hf"))
    if getattr(plain, "reads_tsallis", False):
        return

    class Parser(plain):  # type: ignore[misc,valid-type]
        reads_tsallis = True

        def parse(self, *arguments: Any, **more: Any) -> Any:
            content, found = super().parse(*arguments, **more)
            names = found.architectures or []
            ours = any(name.startswith(PREFIX) for name in names)
            named = getattr(found.get_text_config(), "tsallis_map", None)
            if ours and named is None:
                raise ValueError(
                    f"tsallis_map: expected in the config of a model with the architecture "
                    f"{names[0]}, got none"
                )
            if (ours or named is not None) and not current_platform.is_cpu():
                raise _elsewhere(f"tsallis_map = {named!r}", current_platform.device_type)
            found.architectures = [name.removeprefix(PREFIX) for name in names]
            return content, found

    config.register_config_parser("hf")(Parser)


def _elsewhere(setting: str, device: str) -> NotImplementedError:
    return NotImplementedError(f"{setting}: tsallis serves in vLLM for CPUs alone, got {device}")
