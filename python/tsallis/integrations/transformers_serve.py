"""``python -m tsallis.integrations.transformers_serve``: ``transformers serve`` with our attention.

Takes the arguments of ``transformers serve``, whose ``--attn-implementation`` may then be one of
`tsallis.integrations.transformers.NAMES`, and needs what that needs (``transformers[serving]``).
"""

from __future__ import annotations

import sys
from typing import Any

import transformers
from transformers.cli.serving import model_manager

from tsallis.integrations.transformers import NAMES, register
from tsallis_vllm import PREFIX

__all__ = ["ModelManager", "allow_serving", "main"]

ModelManager: Any = model_manager.ModelManager
"""transformers' own."""


def allow_serving() -> None:
    """Has transformers' server take `NAMES`, and models that `export` wrote; may be repeated.

    A model whose architecture has our prefix raises ValueError if another attention is asked for.
    """
    register()
    if getattr(ModelManager, "checked_by_tsallis", False):
        return
    check, load = ModelManager._validate_args, ModelManager._load_model

    def checked(manager: Any) -> None:
        asked = manager.attn_implementation
        if asked in NAMES:
            manager.attn_implementation = None
        check(manager)
        manager.attn_implementation = asked

    def loaded(manager: Any, model: str, *arguments: Any, **more: Any) -> Any:
        asked = own = manager.attn_implementation
        if more.get("gguf_file") is None:
            name, revision = model.split("@", 1)
            content, _ = transformers.PretrainedConfig.get_config_dict(name, revision=revision)
            for ours in content.get("architectures") or []:
                if not ours.startswith(PREFIX):
                    continue
                # Without one the model's config.json names its own, which None would go before.
                own = asked or content.get("attn_implementation")
                if own not in NAMES:
                    raise ValueError(
                        f"attn_implementation: expected one of {NAMES} for a model with the "
                        f"architecture {ours}, got {own}"
                    )
                # The server looks for the class by the name that the model gives.
                setattr(transformers, ours, getattr(transformers, ours.removeprefix(PREFIX)))
        manager.attn_implementation = own
        try:
            return load(manager, model, *arguments, **more)
        finally:
            manager.attn_implementation = asked

    ModelManager._validate_args = checked
    ModelManager._load_model = loaded
    ModelManager.checked_by_tsallis = True


def main() -> None:
    """The command line of ``transformers serve``."""
    from transformers.cli.transformers import main as command

    allow_serving()
    sys.argv.insert(1, "serve")
    command()


if __name__ == "__main__":
    main()
