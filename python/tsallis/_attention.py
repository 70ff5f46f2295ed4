"""Attention as one function; the kernels never store the [q_len, k_len] weights."""

from __future__ import annotations

import difflib
import inspect
import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args, get_type_hints, overload

import torch
from torch import Tensor

from tsallis import _autograd, _ops
from tsallis._call import call, choice, chosen, number, numbers

__all__ = ["AttentionExtras", "AttentionMap", "AttentionSettings", "Statistic", "attention"]

AttentionMap = Literal[
    "softmax",
    "entmax",
    "adaptive_temperature",
    "top_k_softmax",
    "sigmoid",
    "softpick",
    "stick_breaking",
]
Statistic = Literal["tau", "support_size", "entropy", "maximum", "weights"]
_STATISTICS = get_args(Statistic)


class AttentionSettings(TypedDict, total=False):
    """The keyword arguments of `attention`, which says what they mean."""

    map: AttentionMap
    alpha: float | Tensor
    causal: bool
    alignment: Literal["end", "start"]
    window: tuple[int | None, int | None] | None
    mask: Tensor | None
    block_mask: Tensor | None
    block_size: tuple[int, int] | None
    bias: Tensor | None
    length_scale: Tensor | None
    alibi_slopes: Tensor | None
    scale_invariant: float | None
    scale_invariant_alpha: float | None
    scale_invariant_beta: float | None
    scale: float | None
    softcap: float | None
    lengths: Tensor | None
    query_lengths: Tensor | None
    padding: Literal["right", "left"]
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    coefficients: Sequence[float] | None
    threshold: float | None
    top_k: int | None
    top_k_fraction: float | None
    sigmoid_bias: float | None
    sink: Tensor | None
    saved_budget: int


_TYPES = get_type_hints(AttentionSettings)
# None stands for the operator's own default.
# Settings that the operator takes in another form, or only beside another one.
_TRANSLATED = frozenset(
    {"map", "block_size", "block_mask", "coefficients", "window", "alignment", "padding"}
)
_NAMES = {"alignment": ("end", "start"), "padding": ("right", "left")}
_OPTIONAL = frozenset(name for name, kind in _TYPES.items() if type(None) in get_args(kind))


class AttentionExtras(NamedTuple):
    """What `attention` found beside its output, without gradients; None where not asked for.

    Shape [batch, heads, q_len] but for the weights. A query that sees no key has tau and maximum
    -inf, support size 0 and entropy 0; one with a NaN among its scores has support size -1.

    Attributes:
        tau: the threshold in z = (alpha - 1) s for entmax with alpha != 1; the log-sum-exp of the
            scores s for softmax, alpha = 1 and adaptive temperature, of the kept ones for top-k
            softmax; minus the bias for sigmoid; the logarithm of the denominator for softpick and
            of what is left of the stick for stick-breaking. Counts a sink. float32 (float64 for
            float64 inputs).
        support_size: number of keys with a weight > 0. int64.
        entropy: -sum p ln p of the weights, in nats, also where they do not sum to 1. dtype as tau.
        maximum: the largest score of a visible key. dtype as tau.
        weights: the weights > 0 as a sparse CSR matrix [batch * heads * q_len, k_len], float32: row
            (b * heads + h) * q_len + i holds those of query i. They are found by two more forward
            passes, and carry no gradients: for looking at, not for training. Not available under
            ``torch.compile``.
    """

    tau: Tensor | None = None
    support_size: Tensor | None = None
    entropy: Tensor | None = None
    maximum: Tensor | None = None
    weights: Tensor | None = None


def _pair(value: Sequence[int], argument: str) -> tuple[int, int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ValueError(f"{argument}: expected a pair, got {value!r}")
    first, second = value
    return first, second


def _sides(window: Sequence[int | None]) -> tuple[int, int]:
    """The operator's left and right, where a negative number leaves a side open."""
    sides = []
    for side in _pair(window, "window"):  # type: ignore[arg-type]
        keys: Any = side
        if side is None:
            keys = -1
        elif not isinstance(side, int | torch.SymInt):  # of numpy, or a tensor
            try:
                keys = operator.index(side)
            except TypeError:
                raise TypeError(
                    f"window: expected an integer or None, got {type(side).__name__}"
                ) from None
        if side is not None and not 0 <= keys < 2**63:
            raise ValueError(
                "window: expected integers from 0 to 2^63 - 1, or None for an open side, got "
                f"{keys}"
            )
        sides.append(keys)
    return sides[0], sides[1]


def _operator_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the operators for those of `attention`."""
    if not settings:
        return settings
    for name in settings:
        if name not in _TYPES:
            close = difflib.get_close_matches(name, _TYPES, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"attention() got an unexpected keyword argument {name!r}{meant}")
    # Handing every default over would take longer than a call on few tokens.
    given = {n: v for n, v in settings.items() if v is not None or n not in _OPTIONAL}
    if "alpha" in given:
        if isinstance(given["alpha"], Tensor):
            given["alpha_heads"] = given.pop("alpha")
        else:
            given["alpha"] = number(given["alpha"], "alpha")
    if _TRANSLATED.isdisjoint(given):
        return given
    if "block_size" in given and "block_mask" not in given:
        raise ValueError("block_size: expected None without block_mask, got a pair")
    if "block_mask" in given and "block_size" not in given:
        raise ValueError("block_size: expected two integers >= 1 beside block_mask, got None")
    if "map" in given:
        choice(given["map"], "map", _ops.ATTENTION_MAPS)
        if given["map"] == "top_k_softmax" and "top_k" not in given:
            raise ValueError("top_k: expected an integer >= 1 for top_k_softmax, got None")
        given["map"] = _ops.MAPS.index(given["map"])
    for name, names in _NAMES.items():
        if name in given:
            given[name] = choice(given[name], name, names)
    if "coefficients" in given:
        given["coefficients"] = numbers(given["coefficients"], "coefficients")
    if "window" in given:
        given["left"], given["right"] = _sides(given.pop("window"))
    if "block_size" in given:
        given["block_q"], given["block_k"] = _pair(given.pop("block_size"), "block_size")
    return given


@overload  # an empty tuple is a sequence of names too, but this one comes first
def attention(  # type: ignore[overload-overlap]
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    returns: tuple[()] = (),
    **settings: Unpack[AttentionSettings],
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    returns: Statistic | Sequence[Statistic],
    **settings: Unpack[AttentionSettings],
) -> tuple[Tensor, AttentionExtras]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    returns: str | Sequence[str] = (),
    **settings: Unpack[AttentionSettings],
) -> Tensor | tuple[Tensor, AttentionExtras]:
    """Attention with sparse weights: out_i = sum_j p_ij v_j with p_i = map(s_i).

    For query i and key j at positions i and j, and their distance d = |i - j|::

        s_ij = m_d + a_d cap(c_i scale <q_i, k_j>) - slope d + bias_ij    (-inf if j is not visible)

    cap is the identity unless ``softcap`` is given.

    A query that sees no key, or only scores of -inf, has output 0 and gradient 0. A NaN or +inf
    among the visible scores of a query makes its own output NaN. Keys that are not visible may hold
    anything. Where |v| k_len exceeds 3.4e38, float32's largest number, an output may overflow, as
    it does in torch's ``scaled_dot_product_attention``: weights are divided by their sum at the
    end. Results do not depend on the number of threads, to the bit.

    Gradients: in q, k, v and the tensors marked (g), each in its own shape and dtype, by
    ``backward``, ``torch.autograd`` and ``torch.func`` (``grad``, ``vjp``, ``jacrev``). First
    derivatives in reverse mode only: others raise ``NotImplementedError``. ``torch.vmap`` makes one
    call of all slices.
    float32, bfloat16 and float16 are computed in float32, float64 in float64 (by the slow
    reference). Under ``torch.autocast`` q, k and v are cast to its dtype.

    Args:
        q: [batch, heads, q_len, head_dim]; head_dim at most 512. Any strides, as for k and v:
            nothing is copied, also not expanded or transposed tensors.
        k: [batch, kv_heads, k_len, head_dim]; heads is a multiple of kv_heads, and query head h
            reads key head h // (heads // kv_heads).
        v: [batch, kv_heads, k_len, value_dim]; value_dim at most 512.
        map: "entmax", "softmax" or "adaptive_temperature", as the functions of these names, or a
            sparse baseline:

            - "top_k_softmax": softmax of the ``top_k`` largest scores, and of all that tie with the
              least of them
            - "sigmoid": p_j = sigmoid(s_j + b)
            - "softpick": p_j = max(e^s_j - 1, 0) / (sum_m |e^s_m - 1| + 1e-6)
            - "stick_breaking": p_j = sigmoid(s_j) prod_m sigmoid(-s_m) over the visible keys m
              between j and the query; needs ``causal=True``, and leaves out the query's own key

            Weights of the last three do not sum to 1.
        alpha: of entmax, finite and > 0: a number, or (g) a tensor that broadcasts to [heads].
        causal: queries see keys at their own position and before it; only before it with
            ``map="stick_breaking"``.
        alignment: where the queries stand if there are fewer or more of them than keys: "end", the
            last query at the last key (as in decoding); "start", the first at the first (as in
            ``scaled_dot_product_attention(is_causal=True)``).
        window: (left, right), >= 0: keys from i - left to i + right; None leaves a side open.
        mask: bool, True = visible; broadcasts to [batch, heads, q_len, k_len].
        block_mask: bool, True = visible; broadcasts to [batch, heads, ceil(q_len / block_size[0]),
            ceil(k_len / block_size[1])].
        block_size: rows and keys of one element of ``block_mask``.
        bias: (g) added to the scores; broadcasts to [batch, heads, q_len, k_len]. Give it as small
            as it is rather than expanded: its gradient has its shape.
        length_scale: (g) c, broadcasts to [batch, heads, q_len]; multiplies the query of a row.
        alibi_slopes: (g) [heads] or [batch, heads]; positive ones make far keys weaker.
        scale_invariant: length scale l > 0 of a_d^2 = 2 ln(d / l + 1) + 1 and m_d = 1 - a_d^2.
        scale_invariant_alpha: A from 1e-6 to 1e6 of the general form a_d^2 = 2 [ln(d / l + 1) - ln
            A + B / A] and m_d = B / A - a_d^2 (Anson et al. 2025, eq. 16): of scores that are
            standard normal before, a key at distance d has the expected weight A / (d / l + 1),
            not yet divided by the row's sum. None: e^(1/2).
        scale_invariant_beta: B beside it, from A ln A to 100 A. None: e^(1/2).
        scale: > 0; None: 1 / sqrt(head_dim).
        softcap: scores become softcap tanh(score / softcap) before slopes, bias and scale-invariant
            factors; from 1e-6 to 1e6; None: as they are.
        lengths: integers [batch], number of keys that are not padding.
        query_lengths: integers [batch], the same for queries, whose other rows get output 0; None:
            all queries count. Self-attention on a right-padded batch needs both, since positions
            count from the ends of the sequences unless ``alignment="start"``.
        padding: the side of the padding, "right" or "left".
        cu_seqlens_q: integers [sequences + 1], ascending: sequences lie behind each other in q, of
            shape [1, heads, total, head_dim], sequence n in rows cu_seqlens_q[n] to
            cu_seqlens_q[n + 1]. Each sees its own keys only. Rows of no sequence get output 0.
        cu_seqlens_k: the same for keys; None: those of the queries.
        coefficients: of adaptive temperature, see `adaptive_temperature_softmax`.
        threshold: of adaptive temperature.
        top_k: of top-k softmax, >= 1.
        top_k_fraction: of top-k softmax, in [0, 1]: of n visible keys, max(top_k, floor(fraction
            n)) are kept; None: 0.
        sigmoid_bias: b of sigmoid; None: -ln n for n visible keys.
        sink: (g) for softmax and entmax, broadcasts to [heads]: the score of one more key of every
            query, whose value is 0.
        saved_budget: most bytes that the forward pass keeps to spare the backward pass work.
        returns: names of `AttentionExtras` to return beside the output.

    Returns:
        [batch, heads, q_len, value_dim] of q's dtype; with ``returns``, also `AttentionExtras`.

    Raises:
        ValueError: names the argument, what was expected and what came.
        TypeError: likewise, for a value of the wrong type.

    Maps: Peters, Niculae and Martins 2019, eq. 8-9; gradient in alpha, Correia, Niculae and Martins
    2019, proposition 1; adaptive temperature, Velickovic et al. 2024. Slopes: Press, Smith and
    Lewis 2022. Length scaling: Vasylenko, Pitorro, Martins and Treviso 2025. Baselines: top-k,
    Gupta et al. 2021; sigmoid, Ramapuram et al. 2024; softpick, Zuhri et al. 2025; stick-breaking,
    Tan et al. 2024; sinks, OpenAI 2025 (gpt-oss). Soft-capping: Gemma 2, Gemma Team 2024.
    """
    names = chosen(returns, _STATISTICS)
    arguments = _operator_settings(settings)  # type: ignore[arg-type]
    out: Tensor
    if not names:
        out = call(_autograd.attention, arguments, q=q, k=k, v=v)
        return out
    extras: dict[str, Tensor | None] = dict.fromkeys(_STATISTICS)
    if any(name != "weights" for name in names):
        out, *statistics = call(_autograd.attention, arguments, True, q=q, k=k, v=v)
        for name, value in zip(_STATISTICS[:4], statistics, strict=True):
            if name in names:
                wide = value.dtype != torch.float64 or out.dtype == torch.float64
                extras[name] = value if wide else value.float()
    else:
        out = call(_autograd.attention, arguments, q=q, k=k, v=v)
    if "weights" in names:
        rows, columns, values = call(_autograd.weights, arguments, q=q, k=k)
        shape = (rows.numel() - 1, k.shape[2])
        extras["weights"] = torch.sparse_csr_tensor(
            rows, columns, values, shape, check_invariants=False
        )
    return out, AttentionExtras(**extras)


def _signature() -> inspect.Signature:
    """`attention`'s, argument by argument, with the operator's defaults: for help() and editors."""
    schema = torch.ops.tsallis.attention.default._schema
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    names: dict[str, Any] = {"map": _ops.MAPS, **_NAMES}
    defaults |= {name: known[defaults[name]] for name, known in names.items()}
    plain = inspect.signature(attention)
    parameters = [p for p in plain.parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if name in _OPTIONAL else defaults[name],
            annotation=kind,
        )
        for name, kind in _TYPES.items()
    ]
    return plain.replace(parameters=parameters)


attention.__signature__ = _signature()  # type: ignore[attr-defined]
