"""Gradients, autocast and vmap of the operators.

An operator computes and records nothing. The functions here record: each has an autograd function
for ordinary calls, which is quick to enter, and one for torch's transforms (``torch.func``,
``torch.vmap``), which torch asks to be written in another way. Settings travel as a dictionary of
the operator's own names and numbers.
"""

# torch has no types for `Function.apply`.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from tsallis import _fakes, _ops  # noqa: F401, _fakes registers shapes

__all__ = ["TENSOR_SETTINGS", "attention", "losses", "row_map", "weights"]

_OPS = torch.ops.tsallis
# In the order of the gradients; attention has some in the first five.
TENSOR_SETTINGS = (
    "alpha_heads",
    "length_scale",
    "alibi_slopes",
    "bias",
    "sink",
    "mask",
    "block_mask",
    "lengths",
    "query_lengths",
    "cu_seqlens_q",
    "cu_seqlens_k",
)
_GRADIENTS = 5
_TERMS = frozenset(TENSOR_SETTINGS)
_Settings = dict[str, Any]
_Dims = tuple[int | None, ...]

_ATTENTION = _OPS.attention.default
_ATTENTION_STATS = _OPS.attention_stats.default
_FORWARD = _OPS.attention_forward.default
_FORWARD_STATS = _OPS.attention_forward_stats.default
_BACKWARD = _OPS.attention_backward.default
_BACKWARD_TERMS = _OPS.attention_backward_terms.default
_ROWS = _OPS.row_map.default
_ROWS_STATS = _OPS.row_map_stats.default
_ROWS_BACKWARD = _OPS.row_map_backward.default
_ROWS_BACKWARD_ALPHA = _OPS.row_map_backward_alpha.default
_LOSS = _OPS.fenchel_young_loss.default
_LOSS_FORWARD = _OPS.fenchel_young_loss_forward.default


def _transformed() -> bool:
    """Whether one of torch's transforms, or forward-mode differentiation, looks at this call."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class _Transformed(Function):
    """For torch's transforms and for forward-mode differentiation, which it refuses."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(
            "tsallis: forward-mode differentiation (jvp) is not implemented; use reverse mode"
        )


class _Gradient(_Transformed):
    """Computes gradients, and refuses to be differentiated."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        _refuse_second()


class _Once(Function):
    """Gradients that refuse to be differentiated: of ``count`` tensors, by those behind them."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _refuse_second()


def _refuse_second() -> None:
    raise NotImplementedError(
        "tsallis: the gradient of this function cannot be differentiated again (second derivatives "
        "are not implemented)"
    )


def _once(found: tuple[Any, ...], *inputs: Tensor | None) -> tuple[Any, ...]:
    """``found``, in a graph that records gradients of gradients, with a refusal behind them."""
    return _Once.apply(len(found), *found, *inputs)  # type: ignore[no-any-return]


def _distinct(*tensors: Any) -> list[Any]:
    """Each tensor once: Dynamo traces no autograd function that has one twice."""
    if not torch.compiler.is_compiling():
        return list(tensors)
    distinct: list[Any] = []
    for x in tensors:
        twice = x is not None and any(x is other for other in distinct)
        distinct.append(x.view_as(x) if twice else x)
    return distinct


def _reduced(gradient: Any, like: Any) -> Any:
    return gradient.sum_to_size(like.shape).to(like.dtype)


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The mapped dimension first; a tensor that is not mapped repeats."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


# ---- attention


def _saves() -> int:
    """What the kernel can use; while something traces, what the shapes alone tell."""
    return 2 if torch.compiler.is_compiling() else 1


def _shown(ctx: Any, out: Tensor, tau: Tensor, rest: list[Tensor]) -> tuple[Tensor, ...]:
    """The output and its statistics; tau apart from the one that is saved."""
    statistics = (tau.clone(), *rest)
    ctx.mark_non_differentiable(*statistics)
    return (out, *statistics)


class _Attention(Function):
    """Of q, k and v alone."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, settings: _Settings, stats: bool) -> Any:
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        operator = _FORWARD_STATS if stats else _FORWARD
        out, tau, saved, *rest = operator(q, k, v, _saves(), **settings)
        ctx.save_for_backward(q, k, v, tau, saved)
        return _shown(ctx, out, tau, rest) if stats else out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> Any:
        if d_out is None:
            return (None,) * 5
        needs_q, needs_k, needs_v, *_ = ctx.needs_input_grad
        q, k, v, tau, saved = ctx.saved_tensors
        wanted = needs_q | needs_k << 1 | needs_v << 2
        dq, dk, dv = _BACKWARD(d_out, q, k, v, tau, saved, wanted, **ctx.settings)
        found: tuple[Any, ...] = (
            dq if needs_q else None,
            dk if needs_k else None,
            dv if needs_v else None,
        )
        if torch.is_grad_enabled():
            found = _once(found, d_out, q, k, v)
        return (*found, None, None)


def _given(tensors: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    named = zip(TENSOR_SETTINGS, tensors, strict=True)
    return {name: tensor for name, tensor in named if tensor is not None}


def _bits(needs: tuple[bool, ...]) -> int:
    """What the operator takes as ``wanted``."""
    return sum(need << i for i, need in enumerate(needs))


def _gradients(found: Any, needs: tuple[bool, ...], tensors: Any) -> tuple[Tensor | None, ...]:
    """Those that are needed, in q, k, v and the first tensors, in these tensors' own shapes."""
    likes = (None, None, None, *tensors[:_GRADIENTS])
    return tuple(
        None if not need else d if like is None else _reduced(d, like)
        for d, need, like in zip(found, needs, likes, strict=True)
    )


class _Terms(Function):
    """With tensors among the settings."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        settings: _Settings,
        stats: bool,
        *tensors: Tensor | None,
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        operator = _FORWARD_STATS if stats else _FORWARD
        out, tau, saved, *rest = operator(q, k, v, _saves(), **_given(tensors), **settings)
        ctx.save_for_backward(q, k, v, tau, saved, *tensors)
        return _shown(ctx, out, tau, rest) if stats else out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> Any:
        if d_out is None:
            return (None,) * (5 + len(TENSOR_SETTINGS))
        saved = ctx.saved_tensors  # checkpoints let it be asked for once
        inputs, tensors = saved[:5], saved[5:]
        needs = ctx.needs_input_grad
        needs = (*needs[:3], *needs[5 : 5 + _GRADIENTS])
        given = _given(tensors)
        found = _BACKWARD_TERMS(d_out, *inputs, _bits(needs), **given, **ctx.settings)
        found = _gradients(found, needs, tensors)
        if torch.is_grad_enabled():
            found = _once(found, d_out, *inputs[:3], *tensors[:_GRADIENTS])
        rest = (None,) * (len(TENSOR_SETTINGS) - _GRADIENTS)
        return (*found[:3], None, None, *found[3:], *rest)


# Dimensions that each term has for a slice: of one, heads; else heads are the second.
_RANKS = {"alpha_heads": 1, "length_scale": 3, "alibi_slopes": 2, "bias": 4, "sink": 1}
_RANKS |= {"mask": 4, "block_mask": 4}
_RANGES = ("lengths", "query_lengths")


class _Folding:
    """Folds the mapped dimension of a call of attention into its heads, as every term has heads.

    Where lengths are mapped, it becomes part of the batch.
    """

    def __init__(self, size: int, dims: dict[str, int | None], q: Tensor) -> None:
        self.size = size
        self.dims = dims
        self.batch = any(dims[name] is not None for name in _RANGES)
        unmapped = ["cu_seqlens_q", "cu_seqlens_k"]
        unmapped += ["alpha_heads", "sink"] if self.batch else []
        for name in unmapped:
            if dims[name] is not None:
                beside = " beside lengths" if self.batch else ""
                raise NotImplementedError(
                    f"{name.removesuffix('_heads')}: torch.vmap over it{beside} is not implemented"
                )
        self.entries = _front(q, dims["q"], size).shape[1 if self.batch else 2]

    def tensor(self, x: Tensor, name: str) -> Tensor:
        """q, k, v, tau or a gradient: [batch, heads, ...] of a slice."""
        x = _front(x, self.dims[name], self.size)
        return x.flatten(0, 1) if self.batch else x.movedim(0, 1).flatten(1, 2)

    def term(self, x: Tensor | None, name: str) -> Tensor | None:
        if x is None:
            return None
        if name in _RANGES:
            return _front(x, self.dims[name], self.size).flatten() if self.batch else x
        rank = _RANKS.get(name, 0)
        if rank == 0 or (rank == 1 and self.batch):
            return x
        x = _front(x, self.dims[name], self.size)
        x = x.reshape(self.size, *(1,) * (rank + 1 - x.dim()), *x.shape[1:])
        axis = 0 if self.batch or rank == 1 else 1
        shape = list(x.shape)
        shape[axis + 1] = self.entries
        return x.expand(shape).movedim(0, axis).flatten(axis, axis + 1)

    def back(self, x: Any) -> Any:
        """A result with the slices in front: [batch, heads, ...], or [heads]."""
        axis = 0 if self.batch or x.dim() == 1 else 1
        return x.unflatten(axis, (self.size, -1)).movedim(axis, 0)


class _AttentionTransformed(_Transformed):
    """For torch.func: results are (out, tau, support size, entropy, maximum)."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, settings: _Settings, *tensors: Tensor | None
    ) -> Any:
        out, tau, _, *rest = _FORWARD_STATS(q, k, v, 0, **_given(tensors), **settings)
        return (out, tau, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, ctx.settings, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(q, k, v, output[1], *tensors)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> Any:
        if d_out is None:
            return (None,) * (4 + len(TENSOR_SETTINGS))
        q, k, v, tau, *tensors = ctx.saved_tensors
        needs = ctx.needs_input_grad
        needs = (*needs[:3], *needs[4 : 4 + _GRADIENTS])
        found = _BackwardTransformed.apply(d_out, q, k, v, tau, ctx.settings, needs, *tensors)
        gradients = _gradients(found, needs, tensors)
        rest = (None,) * (len(TENSOR_SETTINGS) - _GRADIENTS)
        return (*gradients[:3], None, *gradients[3:], *rest)

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *inputs: Any) -> Any:
        q, k, v, settings, *tensors = inputs
        names = ("q", "k", "v", "settings", *TENSOR_SETTINGS)
        fold = _Folding(info.batch_size, dict(zip(names, in_dims, strict=True)), q)
        results = _AttentionTransformed.apply(
            *(fold.tensor(x, name) for x, name in zip((q, k, v), "qkv", strict=True)),
            settings,
            *(fold.term(x, name) for x, name in zip(tensors, TENSOR_SETTINGS, strict=True)),
        )
        return tuple(fold.back(x) for x in results), (0,) * len(results)


class _BackwardTransformed(_Gradient):
    """Gradients in q, k, v and the first tensors, not yet summed over what these repeat."""

    @staticmethod
    def forward(
        d_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tau: Tensor,
        settings: _Settings,
        needs: tuple[bool, ...],
        *tensors: Tensor | None,
    ) -> Any:
        saved = q.new_empty(0, dtype=torch.uint8)
        given = _given(tensors)
        return _BACKWARD_TERMS(d_out, q, k, v, tau, saved, _bits(needs), **given, **settings)

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *inputs: Any) -> Any:
        d_out, q, k, v, tau, settings, needs, *tensors = inputs
        names = ("d_out", "q", "k", "v", "tau", "settings", "needs", *TENSOR_SETTINGS)
        fold = _Folding(info.batch_size, dict(zip(names, in_dims, strict=True)), q)
        terms = [fold.term(x, name) for x, name in zip(tensors, TENSOR_SETTINGS, strict=True)]
        found = _BackwardTransformed.apply(
            *(fold.tensor(x, name) for x, name in zip((d_out, q, k, v, tau), names, strict=False)),
            settings,
            needs,
            *terms,
        )
        if fold.batch and (needs[3] or needs[7]):
            raise NotImplementedError(
                "alpha: torch.vmap over lengths has no gradient in alpha or in a sink"
            )
        results = (fold.back(d) if need else d for d, need in zip(found, needs, strict=True))
        return tuple(results), tuple(0 if need else None for need in needs)


def _autocasts(tensor: Tensor) -> bool:
    # Quicker than to ask for the tensor's device, if it is enabled for none.
    if not torch.compiler.is_compiling() and not torch._C._is_any_autocast_enabled():
        return False
    kind = tensor.device.type
    return kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)


def _cast(tensor: Any, dtype: torch.dtype) -> Any:
    """As autocast casts: no float64, nothing that has no fraction."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(dtype)


def _autocast(
    q: Tensor, k: Tensor, v: Tensor | None, settings: _Settings
) -> tuple[Any, Any, Any, _Settings]:
    """As torch's own attention: the products are in autocast's dtype, small tensors stay exact."""
    dtype = torch.get_autocast_dtype(q.device.type)
    settings = dict(settings)
    for name in ("alpha_heads", "length_scale", "alibi_slopes", "sink"):
        if name in settings:
            settings[name] = _cast(settings[name], torch.float32)
    return _cast(q, dtype), _cast(k, dtype), _cast(v, dtype), settings


def attention(q: Tensor, k: Tensor, v: Tensor, settings: _Settings, stats: bool = False) -> Any:
    """The output, or (output, tau, support size, entropy, maximum) as the kernels have them."""
    if _autocasts(q):
        q, k, v, settings = _autocast(q, k, v, settings)
    plain = _TERMS.isdisjoint(settings)
    if not plain:
        tensors = [settings.get(name) for name in TENSOR_SETTINGS]
        for name, x in zip(TENSOR_SETTINGS, tensors, strict=True):
            if x is not None and not isinstance(x, Tensor):
                raise TypeError(f"{name}: expected a tensor or None, got {type(x).__name__}")
        rest = {name: value for name, value in settings.items() if name not in _TERMS}
    if _transformed():
        if plain:
            tensors, rest = [None] * len(TENSOR_SETTINGS), settings
        results = _AttentionTransformed.apply(q, k, v, rest, *tensors)
        return results if stats else results[0]
    if torch.is_grad_enabled():
        if plain:
            if q.requires_grad or k.requires_grad or v.requires_grad:
                return _Attention.apply(*_distinct(q, k, v), settings, stats)
        elif any(x is not None and x.requires_grad for x in (q, k, v, *tensors[:_GRADIENTS])):
            q, k, v, *tensors = _distinct(q, k, v, *tensors)
            return _Terms.apply(q, k, v, rest, stats, *tensors)
    return (_ATTENTION_STATS if stats else _ATTENTION)(q, k, v, **settings)


def weights(q: Tensor, k: Tensor, settings: _Settings) -> tuple[Tensor, Tensor, Tensor]:
    """The weights as CSR, without gradients."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            "tsallis: the weights of attention cannot be traced or mapped: how many there are "
            "depends on the data. Ask for them outside of torch.compile and torch.func"
        )
    if _autocasts(q):
        q, k, _, settings = _autocast(q, k, None, settings)
    with torch.no_grad():
        return _OPS.attention_weights.default(q, k, **settings)  # type: ignore[no-any-return]


# ---- row maps


def _keeps_scores(scores: Tensor, alpha_rows: Tensor | None, settings: _Settings) -> bool:
    """Whether the backward pass reads the scores: else they would only keep memory alive."""
    kind = 2 if alpha_rows is not None else int(settings.get("alpha", 1.5) > 2.0)
    return _ops.READS_SCORES.get((settings.get("map", _ops.ENTMAX), scores.dtype, kind), True)


def _rows_backward(
    d_p: Tensor,
    scores: Tensor,
    p: Tensor,
    alpha_rows: Tensor | None,
    settings: _Settings,
    want_alpha: bool,
) -> tuple[Any, Any]:
    if not want_alpha:
        return _ROWS_BACKWARD(d_p, scores, p, alpha_rows, **settings), None
    return _ROWS_BACKWARD_ALPHA(d_p, scores, p, alpha_rows, **settings)  # type: ignore[no-any-return]


class _RowMap(Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, alpha_rows: Tensor | None, settings: _Settings, stats: bool
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        kept = scores if _keeps_scores(scores, alpha_rows, settings) else None
        if not stats:
            p = _ROWS(scores, alpha_rows, **settings)
            ctx.save_for_backward(p, kept, alpha_rows)
            return p
        p, *rest = _ROWS_STATS(scores, alpha_rows, **settings)
        ctx.save_for_backward(p, kept, alpha_rows)
        ctx.mark_non_differentiable(*rest)
        return (p, *rest)

    @staticmethod
    def backward(ctx: Any, d_p: Tensor | None, *_: Any) -> Any:
        if d_p is None:
            return (None,) * 4
        p, scores, alpha_rows = ctx.saved_tensors
        scores = p if scores is None else scores
        want_alpha = alpha_rows is not None and ctx.needs_input_grad[1]
        d_scores, d_alpha = _rows_backward(d_p, scores, p, alpha_rows, ctx.settings, want_alpha)
        if want_alpha:
            d_alpha = _reduced(d_alpha, alpha_rows)
        if torch.is_grad_enabled():
            d_scores, d_alpha = _once((d_scores, d_alpha), d_p, p, scores, alpha_rows)
        return d_scores, d_alpha, None, None


class _RowMapTransformed(_Transformed):
    """For torch.func: results are (p, tau, support size, entropy)."""

    @staticmethod
    def forward(scores: Tensor, alpha_rows: Tensor | None, settings: _Settings) -> Any:
        return _ROWS_STATS(scores, alpha_rows, **settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        scores, alpha_rows, ctx.settings = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[0], scores, alpha_rows)

    @staticmethod
    def backward(ctx: Any, d_p: Tensor | None, *_: Any) -> Any:
        if d_p is None:
            return (None,) * 3
        p, scores, alpha_rows = ctx.saved_tensors
        want_alpha = alpha_rows is not None and ctx.needs_input_grad[1]
        found = _RowMapBackwardTransformed.apply(
            d_p, scores, p, alpha_rows, ctx.settings, want_alpha
        )
        return found[0], _reduced(found[1], alpha_rows) if want_alpha else None, None

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *inputs: Any) -> Any:
        scores, alpha_rows, settings = inputs
        scores, alpha_rows, settings = _mapped_rows(
            info.batch_size, in_dims, scores, alpha_rows, settings
        )
        return _RowMapTransformed.apply(scores, alpha_rows, settings), (0, 0, 0, 0)


class _RowMapBackwardTransformed(_Gradient):
    """d_scores, and d_alpha with size 1 in ``dim`` (no elements unless wanted)."""

    @staticmethod
    def forward(
        d_p: Tensor,
        scores: Tensor,
        p: Tensor,
        alpha_rows: Tensor | None,
        settings: _Settings,
        want_alpha: bool,
    ) -> Any:
        d_scores, d_alpha = _rows_backward(d_p, scores, p, alpha_rows, settings, want_alpha)
        return d_scores, d_scores.new_empty(0) if d_alpha is None else d_alpha

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *inputs: Any) -> Any:
        d_p, scores, p, alpha_rows, settings, want_alpha = inputs
        size = info.batch_size
        d_p, p = _front(d_p, in_dims[0], size), _front(p, in_dims[2], size)
        scores, alpha_rows, settings = _mapped_rows(
            size, (in_dims[1], in_dims[3]), scores, alpha_rows, settings
        )
        found = _RowMapBackwardTransformed.apply(d_p, scores, p, alpha_rows, settings, want_alpha)
        return found, (0, 0 if want_alpha else None)


def _mapped_rows(
    size: int, in_dims: _Dims, scores: Tensor, alpha_rows: Tensor | None, settings: _Settings
) -> tuple[Tensor, Tensor | None, _Settings]:
    """Scores and alphas with a leading dimension of slices; counts ``dim`` from the end."""
    scores = _front(scores, in_dims[0], size)
    rank = scores.dim() - 1  # of a slice
    dim = settings.get("dim", -1)
    if not -rank <= dim < rank:
        raise IndexError(f"dim: expected an integer in [{-rank}, {rank - 1}], got {dim}")
    if alpha_rows is not None and in_dims[1] is not None:
        alpha_rows = alpha_rows.movedim(in_dims[1], 0)
        missing = rank - (alpha_rows.dim() - 1)
        alpha_rows = alpha_rows.reshape(size, *[1] * missing, *alpha_rows.shape[1:])
    return scores, alpha_rows, settings | {"dim": dim - rank if dim >= 0 else dim}


def row_map(
    scores: Tensor, alpha_rows: Tensor | None, settings: _Settings, stats: bool = False
) -> Any:
    """The probabilities, or (probabilities, tau, support size, entropy)."""
    if _autocasts(scores):
        # As torch does for softmax on accelerators: a map's threshold wants the digits.
        scores = _cast(scores, torch.float32)
    graph = torch.is_grad_enabled() and (
        scores.requires_grad or (alpha_rows is not None and alpha_rows.requires_grad)
    )
    if (
        alpha_rows is not None
        and alpha_rows.requires_grad
        and settings.get("map", _ops.ENTMAX) == _ops.NORMMAX
    ):
        raise ValueError(
            "alpha: expected a tensor that requires no gradient for normmax (it has none), got one "
            "that does"
        )
    if _transformed():
        results = _RowMapTransformed.apply(scores, alpha_rows, settings)
        return results if stats else results[0]
    if graph:
        return _RowMap.apply(scores, alpha_rows, settings, stats)
    return (_ROWS_STATS if stats else _ROWS)(scores, alpha_rows, **settings)


# ---- losses


class _Loss(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor, settings: _Settings) -> Tensor:
        ctx.set_materialize_grads(False)
        losses, gradient = _LOSS_FORWARD(scores, targets, **settings)
        ctx.save_for_backward(gradient)
        ctx.dtype = scores.dtype
        return losses  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, d_losses: Tensor | None) -> Any:
        if d_losses is None:
            return (None,) * 3
        if torch.is_grad_enabled():
            # The saved gradient has no history: a second derivative would silently miss its part.
            raise NotImplementedError(
                "tsallis: the gradient of a Fenchel-Young loss cannot be differentiated again "
                "(create_graph=True is not supported)"
            )
        (gradient,) = ctx.saved_tensors
        return (gradient * d_losses.unsqueeze(-1)).to(ctx.dtype), None, None


class _LossTransformed(_Transformed):
    """For torch.func: results are (losses, gradient)."""

    @staticmethod
    def forward(scores: Tensor, targets: Tensor, settings: _Settings) -> Any:
        return _LOSS_FORWARD(scores, targets, **settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], inputs[0])

    @staticmethod
    def backward(ctx: Any, d_losses: Tensor, _: Any) -> Any:
        gradient, scores = ctx.saved_tensors
        found = (gradient * d_losses.unsqueeze(-1)).to(scores.dtype)
        return _OnceTransformed.apply(found, scores), None, None

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *inputs: Any) -> Any:
        scores, targets, settings = inputs
        scores, targets = (
            _front(x, dim, info.batch_size)
            for x, dim in zip((scores, targets), in_dims, strict=False)
        )
        return _LossTransformed.apply(scores, targets, settings), (0, 0)


class _OnceTransformed(_Gradient):
    """A gradient in the scores that refuses to be differentiated, for torch.func."""

    @staticmethod
    def forward(gradient: Tensor, scores: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, gradient: Tensor, scores: Tensor) -> Any:
        return _OnceTransformed.apply(gradient, scores), in_dims[0]


def losses(scores: Tensor, targets: Tensor, settings: _Settings) -> Tensor:
    """Fenchel-Young losses, not reduced."""
    if _autocasts(scores):
        scores = _cast(scores, torch.float32)
    if _transformed():
        return _LossTransformed.apply(scores, targets, settings)[0]  # type: ignore[no-any-return]
    if torch.is_grad_enabled() and scores.requires_grad:
        return _Loss.apply(scores, targets, settings)  # type: ignore[no-any-return]
    return _LOSS(scores, targets, **settings)  # type: ignore[no-any-return]
