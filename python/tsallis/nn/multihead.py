"""torch.nn.MultiheadAttention with sparse weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from tsallis._attention import attention
from tsallis._dense import check_map, dense_attention
from tsallis.nn.alpha import AlphaLike, alpha_value, check_alpha

__all__ = ["MultiheadAttention"]


class MultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` whose weights come from entmax or another map.

    Constructor, call and ``state_dict`` are torch's: weights load from one into the other, and
    ``map="softmax"`` gives the same results. Where torch gives NaN, a query that sees no key has
    weights 0. The weights are stored only if they are asked for (``need_weights``, True by default
    as in torch) or dropped at random in training.

    Args:
        embed_dim: width of queries and of the output.
        num_heads: divides ``embed_dim``.
        dropout: probability of a weight to become 0 in training.
        bias: whether projections have biases.
        add_bias_kv: append a learned key and value to every sequence.
        add_zero_attn: append a key and value of zeros to every sequence.
        kdim: width of keys; None: ``embed_dim``.
        vdim: width of values; None: ``embed_dim``.
        batch_first: whether inputs are [batch, length, width] rather than [length, batch, width].
        alpha: of entmax, > 0: a number, a tensor or parameter that broadcasts to [num_heads], or a
            module that returns one, such as `LearnedAlpha`.
        map: "entmax", "softmax" or "adaptive_temperature".

    Raises:
        ValueError: names the argument, what was expected and what came.
        TypeError: likewise, for a value of the wrong type.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        alpha: AlphaLike = 1.5,
        map: Literal["softmax", "entmax", "adaptive_temperature"] = "entmax",
    ) -> None:
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of embed_dim = {embed_dim}, got {num_heads}"
            )
        check_map(map)
        check_alpha(alpha, num_heads)
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            dtype,
        )
        self.alpha = alpha
        self.map: Literal["softmax", "entmax", "adaptive_temperature"] = map

    def _reset_parameters(self) -> None:
        # False afterwards: where it is True torch's encoder layers go around forward(), to softmax.
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Inputs [batch, length, width], projected to [batch, length, embed_dim]."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        inputs = (query, key, value)
        return [linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention and its weights.

        Args:
            query: [q_len, batch, embed_dim], [batch, q_len, embed_dim] with ``batch_first``, or
                [q_len, embed_dim].
            key: the same with k_len and ``kdim``.
            value: the same with k_len and ``vdim``.
            key_padding_mask: [batch, k_len], or [k_len] without a batch; bool, True = not visible,
                or floating, added to the scores.
            need_weights: also return the weights, which are stored then.
            attn_mask: [q_len, k_len] or [batch * num_heads, q_len, k_len]; as key_padding_mask.
            average_attn_weights: return the mean of the weights over heads.
            is_causal: queries see keys at their own index and before it. Given with a mask that
                says so, the mask is not read.

        Returns:
            The output, of the layout of ``query``; the weights [batch, q_len, k_len], or [batch,
            num_heads, q_len, k_len] if not averaged, without batch as the inputs are, or None.

        Raises:
            ValueError: names the argument, what was expected and what came.
        """
        self._check(query, key, value)
        single = query.dim() == 2
        if single:
            query, key, value = (x[None] for x in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._projected(query, key, value)
        batch, q_len, k_len = q.shape[0], q.shape[1], k.shape[1]
        appended = 0
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat((k, self.bias_k.expand(batch, 1, -1)), 1)
            v = torch.cat((v, self.bias_v.expand(batch, 1, -1)), 1)
            appended += 1
        if self.add_zero_attn:
            k, v = (pad(x, (0, 0, 0, 1)) for x in (k, v))
            appended += 1
        keep_weights = need_weights or (self.training and self.dropout > 0)
        fused_causal = is_causal and appended == 0 and not keep_weights
        visible, bias = self._masks(
            key_padding_mask,
            None if is_causal else attn_mask,
            is_causal and not fused_causal,
            (batch, q_len, k_len),
            appended,
            q.device,
        )
        q, k, v = (self._heads(x) for x in (q, k, v))
        alpha = alpha_value(self.alpha)
        weights = None
        if keep_weights:
            out, weights = dense_attention(
                q,
                k,
                v,
                bias=bias,
                visible=visible,
                map=self.map,
                alpha=alpha,
                dropout_p=self.dropout if self.training else 0.0,
            )
        else:
            out = attention(
                q,
                k,
                v,
                map=self.map,
                alpha=alpha,
                causal=fused_causal,
                alignment="start",
                mask=visible,
                bias=bias,
            )
        out = self.out_proj(out.transpose(1, 2).flatten(-2))
        if not need_weights:
            weights = None
        elif weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if single:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        widths = (self.embed_dim, self.kdim, self.vdim)
        for name, x, width in zip(
            ("query", "key", "value"), (query, key, value), widths, strict=True
        ):
            if x.is_nested:
                raise ValueError(f"{name}: expected a tensor that is not nested")
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != width:
                raise ValueError(
                    f"{name}: expected shape [length, {width}] or [.., .., {width}] with as many "
                    f"dimensions as query, got {list(x.shape)}"
                )
        batch = 0 if self.batch_first else 1
        if query.dim() == 3 and query.shape[batch] != key.shape[batch]:
            raise ValueError(
                f"key: expected the batch of query, {query.shape[batch]}, got {key.shape[batch]}"
            )
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(
                f"value: expected the length and batch of key, {list(key.shape[:-1])}, got "
                f"{list(value.shape[:-1])}"
            )

    def _masks(
        self,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        causal: bool,
        sizes: tuple[int, int, int],
        appended: int,
        device: torch.device,
    ) -> tuple[Tensor | None, Tensor | None]:
        """What is visible, and what is added to the scores; both fit [batch, heads, q_len, keys].

        Appended keys are visible to all.
        """
        batch, q_len, k_len = sizes
        visible: Tensor | None = None
        bias: Tensor | None = None
        masks = []
        if causal:
            masks.append(torch.ones(q_len, k_len, dtype=torch.bool, device=device).triu(1))
        if attn_mask is not None:
            full = (batch * self.num_heads, q_len, k_len)
            if attn_mask.shape not in (full, full[1:]):
                raise ValueError(
                    f"attn_mask: expected shape {list(full[1:])} or {list(full)}, got "
                    f"{list(attn_mask.shape)}"
                )
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
            masks.append(attn_mask)
        if key_padding_mask is not None:
            if key_padding_mask.shape != (batch, k_len):
                raise ValueError(
                    f"key_padding_mask: expected shape {[batch, k_len]}, got "
                    f"{list(key_padding_mask.shape)}"
                )
            masks.append(key_padding_mask[:, None, None])
        for mask in masks:
            mask = pad(mask, (0, appended)) if appended else mask
            if mask.dtype == torch.bool:
                visible = ~mask if visible is None else visible & ~mask
            elif mask.is_floating_point():
                bias = mask if bias is None else bias + mask
            else:
                raise ValueError(f"attn_mask: expected dtype bool or floating, got {mask.dtype}")
        return visible, bias

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._qkv_same_embed_dim = False
