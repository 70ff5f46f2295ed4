"""Attention written out in plain PyTorch with the maps of the entmax package."""

import math

import entmax as peer
import torch

import tsallis

ROOT_E = math.exp(0.5)


def grouped(x, heads):
    """Every key head once for each query head that reads it."""
    return x.repeat_interleave(heads // max(x.shape[1], 1), dim=1)


def scores(
    q,
    k,
    *,
    causal=False,
    strict=False,
    alignment="end",
    window=None,
    mask=None,
    block_mask=None,
    block_size=None,
    bias=None,
    length_scale=None,
    alibi_slopes=None,
    scale_invariant=None,
    scale_invariant_alpha=ROOT_E,
    scale_invariant_beta=ROOT_E,
    scale=None,
    softcap=None,
):
    """Scores [batch, heads, q_len, k_len], and which of them are visible. strict: causal, and not
    the query's own key."""
    q_len, k_len = q.shape[2], k.shape[2]
    s = (
        q
        @ grouped(k, q.shape[1]).transpose(-1, -2)
        * (q.shape[3] ** -0.5 if scale is None else scale)
    )
    first = k_len - q_len if alignment == "end" else 0
    i, j = torch.arange(q_len)[:, None] + first, torch.arange(k_len)
    distance = (i - j).abs()
    if length_scale is not None:
        s = s * length_scale[..., None]
    if softcap is not None:
        s = softcap * (s / softcap).tanh()
    if scale_invariant is not None:
        ratio = scale_invariant_beta / scale_invariant_alpha
        a2 = torch.log(distance.to(s.dtype) / scale_invariant + 1)
        a2 = 2 * (a2 - math.log(scale_invariant_alpha) + ratio)
        s = ratio - a2 + a2.sqrt() * s
    if alibi_slopes is not None:
        s = s - alibi_slopes[..., None, None] * distance
    visible = torch.ones_like(s, dtype=torch.bool)
    if bias is not None:
        s = s + bias
        visible = visible & (bias > -math.inf)
    if causal:
        visible = visible & (j < i if strict else j <= i)
    if window is not None:
        left, right = window
        visible = visible & (j >= i - (10**6 if left is None else left))
        visible = visible & (j <= i + (10**6 if right is None else right))
    if mask is not None:
        visible = visible & mask
    if block_mask is not None:
        rows, columns = block_size
        blocks = block_mask.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
        visible = visible & blocks[..., :q_len, :k_len]
    return s, visible


def largest(s, k, fraction):
    """Which scores are kept. s: [..., n], -inf where not visible."""
    ordered = s.sort(-1, descending=True).values
    visible = (s > -math.inf).sum(-1, keepdim=True)
    kept = (fraction * visible).long().clamp(min=k).minimum(visible).clamp(min=1)
    return s >= ordered.gather(-1, kept - 1)


def stick_breaking(s):
    """One key after the other, from the last. s: [..., n], -inf where not visible."""
    rest = torch.ones_like(s[..., 0])
    weights = []
    for score in reversed(s.unbind(-1)):
        weights.append(rest * score.sigmoid())
        rest = rest * (-score).sigmoid()
    return torch.stack(weights[::-1], -1)


def baseline(s, map, *, top_k=None, top_k_fraction=0.0, sigmoid_bias=None):
    """The maps that sparse attention is compared with. s: [..., n], -inf where not visible."""
    if map == "stick_breaking":
        return stick_breaking(s)
    if map == "softpick":
        e = s.exp() - 1
        size = torch.where(s > -math.inf, e.abs(), torch.zeros_like(s))
        return e.relu() / (size.sum(-1, keepdim=True) + 1e-6)
    if map == "sigmoid":
        n = (s > -math.inf).sum(-1, keepdim=True).clamp(min=1)
        return (s + (-n.to(s.dtype).log() if sigmoid_bias is None else sigmoid_bias)).sigmoid()
    kept = largest(s, top_k, top_k_fraction)
    return s.masked_fill(~kept, -math.inf).softmax(-1)


def weights(
    q,
    k,
    *,
    map="entmax",
    alpha=1.5,
    top_k=None,
    top_k_fraction=0.0,
    sigmoid_bias=None,
    sink=None,
    **settings,
):
    """p: [batch, heads, q_len, k_len]; rows that see nothing are 0."""
    s, visible = scores(q, k, strict=map == "stick_breaking", **settings)
    if s.shape[-1] == 0:
        return torch.zeros_like(s)
    if sink is not None:
        # One key more, which rows see that see anything.
        more = sink.expand(s.shape[1])[None, :, None, None].expand(*s.shape[:3], 1)
        s = torch.cat((s, more.to(s.dtype)), -1)
        visible = torch.cat((visible, visible.any(-1, keepdim=True)), -1)
    some = visible.any(-1, keepdim=True)
    s = s.masked_fill(~visible & some, -math.inf).masked_fill(~some, 0.0)
    if map in ("top_k_softmax", "sigmoid", "softpick", "stick_breaking"):
        p = baseline(s, map, top_k=top_k, top_k_fraction=top_k_fraction, sigmoid_bias=sigmoid_bias)
    elif map == "adaptive_temperature":  # has its own tests
        p = tsallis.adaptive_temperature_softmax(s)
    elif map == "softmax" or (not isinstance(alpha, torch.Tensor) and alpha == 1.0):
        p = s.softmax(-1)
    else:
        per_head = alpha[:, None, None] if isinstance(alpha, torch.Tensor) else alpha
        p = peer.entmax_bisect(s, per_head, n_iter=100)
    p = p * some
    return p if sink is None else p[..., :-1]


def attention(q, k, v, **settings):
    return weights(q, k, **settings) @ grouped(v, q.shape[1])
