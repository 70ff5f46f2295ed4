"""The interface of the ``adasplash`` package 0.2, on any device and shape that Tsallis takes.

``import tsallis.compat.adasplash as adasplash`` runs a program written for it. Thresholds are found
to a tolerance, so the two versions, with and without a block mask, are one function; ``niter``,
``use_histogram`` and ``fast_math`` are checked and then have nothing to decide.
docs/guide/adasplash.md lists where results differ on purpose.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tsallis import functional
from tsallis._attention import attention

__version__ = "0.2.0"

__all__ = [
    "__version__",
    "adasplash",
    "adasplash2",
    "adasplash_no_block_mask",
    "adasplash_v1",
    "adasplash_v2",
    "entmax_attention",
    "triton_entmax",
    "triton_entmax15",
    "triton_entmax_v1",
    "triton_entmax_v2",
    "triton_sparsemax",
]


def _steps(value: object, argument: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{argument}: expected an integer >= 0, got {value!r}")


def adasplash_v1(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor = 1.5,
    is_causal: bool = False,
    varlen: Tensor | None = None,
    niter: int = 10,
) -> Tensor:
    """`tsallis.attention` on a batch that is padded on the right.

    Args:
        q: [batch, heads, q_len, head_dim].
        k: [batch, kv_heads, k_len, head_dim]; heads is a multiple of kv_heads.
        v: [batch, kv_heads, k_len, value_dim].
        alpha: > 0; a number, or a tensor with gradient that broadcasts to [heads].
        is_causal: queries see keys at their own index and before it.
        varlen: integers [batch], lengths of the sequences; the rows behind them get output 0.
        niter: an integer >= 0; has no influence.

    Returns:
        [batch, heads, q_len, value_dim].
    """
    _steps(niter, "niter")
    return attention(
        q,
        k,
        v,
        alpha=alpha,
        causal=is_causal,
        alignment="start",
        lengths=varlen,
        query_lengths=varlen,
    )


adasplash_no_block_mask = adasplash_v1


def adasplash_v2(
    q: Tensor, k: Tensor, v: Tensor, niter: int = 1, varlen: Tensor | None = None
) -> Tensor:
    """`adasplash_v1` with alpha = 1.5, causal."""
    return adasplash_v1(q, k, v, 1.5, True, varlen, niter)


adasplash2 = adasplash_v2


def adasplash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor = 1.5,
    is_causal: bool = True,
    varlen: Tensor | None = None,
    niter: int | None = None,
) -> Tensor:
    """`adasplash_v1`, causal unless told otherwise; ``niter`` may be None."""
    return adasplash_v1(q, k, v, alpha, is_causal, varlen, 0 if niter is None else niter)


def entmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor = 1.5,
    varlen: Tensor | None = None,
    is_causal: bool = False,
    padding: Literal["right", "left"] = "right",
    niter: int = 2,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """Attention with padding on either side and ALiBi.

    Args:
        q: [batch, heads, q_len, head_dim].
        k: [batch, kv_heads, k_len, head_dim]; heads is a multiple of kv_heads.
        v: [batch, kv_heads, k_len, value_dim].
        alpha: > 0; a number, or a tensor with gradient that broadcasts to [heads].
        varlen: integers [batch], number of keys that are not padding. If q_len = k_len, queries are
            padded alike and the padding's rows get output 0.
        is_causal: the last query stands at the last key, padding or not.
        padding: the side of the padding, "right" or "left".
        niter: an integer >= 0; has no influence.
        alibi_slopes: [heads] with gradient; slope * (key - query) is added to a score, so that
            without ``is_causal`` keys ahead of the query gain.

    Returns:
        [batch, heads, q_len, value_dim].
    """
    _steps(niter, "niter")
    if padding not in ("right", "left"):
        raise ValueError(f'padding: expected "right" or "left", got {padding!r}')
    q_len, k_len = q.shape[-2], k.shape[-2]
    mask = bias = lengths = None
    if varlen is not None and q_len == k_len:
        lengths = varlen
    elif varlen is not None:
        if varlen.dim() != 1 or varlen.shape[0] != q.shape[0]:
            raise ValueError(
                f"varlen: expected shape [batch] = [{q.shape[0]}], got {list(varlen.shape)}"
            )
        # A mask, not `lengths`: the last query stands at the last key of the buffer, not at that of
        # its sequence.
        index = torch.arange(k_len, device=q.device)
        size = varlen.to(q.device)[:, None]
        kept = index < size if padding == "right" else index >= k_len - size
        mask = kept[:, None, None, :]  # [batch, 1, 1, k_len]
    if alibi_slopes is not None:
        if list(alibi_slopes.shape) != [q.shape[1]]:
            raise ValueError(
                f"alibi_slopes: expected shape [heads] = [{q.shape[1]}], got "
                f"{list(alibi_slopes.shape)}"
            )
        if not is_causal:
            # No map sees what a whole row gains, so slope * key does for slope * (key - query). In
            # float32 at least: 16 bits would round the positions.
            slopes = alibi_slopes.to(torch.promote_types(alibi_slopes.dtype, torch.float32))
            keys = torch.arange(k_len, device=q.device) - (k_len - 1)
            bias = slopes[:, None, None] * keys  # [heads, 1, k_len]
    return attention(
        q,
        k,
        v,
        alpha=alpha,
        causal=is_causal,
        mask=mask,
        bias=bias,
        alibi_slopes=alibi_slopes if is_causal else None,
        lengths=lengths,
        query_lengths=lengths,
        padding=padding,
    )


def triton_entmax_v2(
    x: Tensor,
    alpha: float | Tensor = 1.5,
    n_iter: int = 2,
    use_histogram: bool = True,
    fast_math: bool = False,
) -> Tensor:
    """`tsallis.entmax` along the last dimension.

    Args:
        x: scores, any shape.
        alpha: > 0; a number or a tensor, as for `tsallis.entmax`.
        n_iter: an integer >= 0; has no influence, nor have ``use_histogram`` and ``fast_math``.
    """
    _steps(n_iter, "n_iter")
    return functional.entmax(x, alpha)


triton_entmax = triton_entmax_v2


def triton_entmax_v1(
    x: Tensor, alpha: float | Tensor = 1.5, n_iter: int = 10, fast_math: bool = True
) -> Tensor:
    """`triton_entmax_v2`."""
    return triton_entmax_v2(x, alpha, n_iter, fast_math=fast_math)


def triton_sparsemax(
    x: Tensor, n_iter: int = 2, use_histogram: bool = True, fast_math: bool = False
) -> Tensor:
    """`triton_entmax_v2` with alpha = 2."""
    return triton_entmax_v2(x, 2.0, n_iter, use_histogram, fast_math)


def triton_entmax15(
    x: Tensor, n_iter: int = 2, use_histogram: bool = True, fast_math: bool = False
) -> Tensor:
    """`triton_entmax_v2` with alpha = 1.5."""
    return triton_entmax_v2(x, 1.5, n_iter, use_histogram, fast_math)
