"""Hugging Face models on sequences split over processes: Ulysses of the package axolotl-ringmaster.

::

    import ringmaster
    from tsallis.integrations import ringmaster as tsallis_ringmaster

    config = ringmaster.RingmasterConfig(size=8, backend=ringmaster.Backend.ULYSSES)
    tsallis_ringmaster.setup(model, config, attn_implementation="tsallis_entmax15")

Around every attention the processes exchange pieces of sequences for heads: each computes some
heads on all tokens, so nothing of attention itself changes (docs/guide/long-sequences.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ringmaster as rm
import torch
import torch.distributed as dist
from ringmaster.shard import attention_chunk_size
from ringmaster.strategies.ulysses import make_ulysses_attention
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from tsallis.integrations import transformers as _integration

__all__ = ["setup"]


def setup(
    model: PreTrainedModel,
    config: Any,
    *,
    attn_implementation: str = "tsallis_entmax15",
    device_type: str | None = None,
    **more: Any,
) -> Any:
    """Sets ringmaster up with attention of this package inside, and has a model use it.

    Batches are split as ringmaster's adapters do: in order, with the positions of the whole
    sequence. Alphas and sinks by heads stay whole on every process, which takes those of its heads:
    sum their gradients over the processes, as those of any weight. Fewer key heads than processes
    are sent more than once. A model whose alphas are learned gets them before (`learn_alpha`).

    Args:
        model: one that `tsallis.integrations.transformers.register` serves, without windows.
        config: a ``ringmaster.RingmasterConfig``. ``Backend.AUTO`` may take a ring, which computes
            softmax whatever it was asked for: that is an error here.
        attn_implementation: one of `tsallis.integrations.transformers.NAMES`.
        device_type: of the processes' mesh; None: that of the model.
        more: other arguments of ``ringmaster.setup``: ``device_mesh``, ``cp_dim``.

    Returns:
        The ``ringmaster.CPRuntime``.

    Raises:
        ValueError: names what is refused: a model that `register` does not serve, a ring, heads
            that do not divide. When the model runs: windows, packed documents, masks, padding on
            the left, caches, ``output_attentions``, modules that are not causal.

    All-to-all over heads: Jacobs et al. 2023 (DeepSpeed Ulysses).
    """
    names = _integration.register()
    if attn_implementation not in names:
        raise ValueError(
            f"attn_implementation: expected one of {', '.join(names)}, got {attn_implementation!r}"
        )
    _integration._check_requested(model, attn_implementation)
    text = model.config.get_text_config()
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    resolved = dataclasses.replace(config)
    # Ulysses by name may send a key head to several processes, which ringmaster's own check of a
    # count of heads would refuse.
    by_name = config.backend == rm.Backend.ULYSSES
    resolved.normalize(
        num_kv_heads=None if by_name else kv_heads, intra_node_size=rm.intra_node_size()
    )
    if resolved.backend != rm.Backend.ULYSSES:
        raise ValueError(
            "config: expected backend=Backend.ULYSSES, for a ring merges parts of rows as softmax "
            f"alone allows, got {config.backend}, which is {resolved.backend} for {kv_heads} key "
            f"heads on {config.size} processes"
        )
    if heads % config.size != 0 or (kv_heads % config.size != 0 and config.size % kv_heads != 0):
        raise ValueError(
            f"config: expected processes that divide {heads} heads, and divide {kv_heads} key "
            f"heads or are a multiple of them, got size={config.size}"
        )
    if device_type is None:
        device_type = next(model.parameters()).device.type
    runtime = rm.setup(resolved, device_type=device_type, inner_attn=attn_implementation, **more)
    name = attn_implementation
    if config.size > 1:
        name = f"{attn_implementation}_ulysses"
        ALL_ATTENTION_FUNCTIONS.register(name, _ulysses(attn_implementation))
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, _no_mask)
    runtime.attn_implementation = name
    model.set_attn_implementation(name)
    return runtime


def _no_mask(*arguments: Any, attention_mask: Tensor | None = None, **more: Any) -> None:
    """Refuses padding: a mask of a piece of the sequence says nothing of the other pieces."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError(
            "attention_mask: expected None or all ones, got padding: put it on the right and leave "
            "the mask out, for no token before it sees it"
        )


def _refuse(module: nn.Module, what: dict[str, bool]) -> None:
    for name, given in what.items():
        if given:
            raise ValueError(
                f"{name}: expected none on split sequences, got one from {type(module).__name__}"
            )


def _ulysses(inner: str) -> Callable[..., Any]:
    """transformers' attention function of one of `NAMES` on a piece of each sequence."""
    alpha_of_all = _integration._IMPLEMENTATIONS[inner][1]
    exchange = make_ulysses_attention(inner)
    checked: Tensor | None = None  # the positions of the newest step, which every layer gets

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        is_causal: bool | None = None,
        s_aux: Tensor | None = None,
        position_ids: Tensor | None = None,
        **rest: Any,
    ) -> Any:
        """query: [batch, heads, tokens of this process, head_dim]; likewise key and value."""
        nonlocal checked
        runtime = rm.get_runtime()
        size, rank = runtime.ulysses_size, dist.get_rank(runtime.ulysses_group)
        tokens, heads = query.shape[2], query.shape[1]
        window = rest.get("sliding_window") or getattr(module, "sliding_window", None)
        _refuse(
            module,
            {
                "attention_mask": attention_mask is not None,
                "past_key_values": key.shape[2] != tokens,
                "sliding_window": bool(window),
                "attention_chunk_size": attention_chunk_size(module) is not None,
                "packed documents": runtime.varlen is not None,
                "position_bias": rest.get("position_bias") is not None,
                "output_attentions": _integration._weights_wanted(module, rest),
            },
        )
        if not (getattr(module, "is_causal", False) if is_causal is None else is_causal):
            raise ValueError(
                f"is_causal: expected True, got a {type(module).__name__} that is not causal"
            )
        if position_ids is not None and position_ids.dim() == 2 and position_ids is not checked:
            first = rank * tokens
            expected = torch.arange(first, first + tokens, device=position_ids.device)
            if not torch.equal(position_ids.long(), expected.expand_as(position_ids)):
                raise ValueError(
                    f"position_ids: expected {first} to {first + tokens - 1} on process {rank}, "
                    "the positions of its piece in sequences without packed documents, got others"
                )
            checked = position_ids
        alpha = _integration._alpha_of(module, query) if alpha_of_all is None else alpha_of_all
        share = slice(rank * heads // size, (rank + 1) * heads // size)
        if isinstance(alpha, Tensor):
            alpha = alpha.flatten().expand(heads)[share]
        if s_aux is not None:
            s_aux = s_aux.flatten().expand(heads)[share]
        if key.shape[1] < size:
            key, value = (x.repeat_interleave(size // x.shape[1], 1) for x in (key, value))
        return exchange(
            module,
            query,
            key,
            value,
            None,
            is_causal=True,
            s_aux=s_aux,
            tsallis_alpha=alpha,
            **rest,
        )

    return forward
