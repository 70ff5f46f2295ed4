"""One layer's attention on a text, whose weights are computed some queries at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsallis import attention

from . import LookError


@dataclass(frozen=True)
class Call:
    """The arguments of `tsallis.attention` for one sequence whose queries are its keys.

    q: [1, heads, n, head_dim]; k: [1, kv_heads, n, head_dim].
    """

    q: Tensor
    k: Tensor
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        if self.q.shape[0] != 1 or self.q.shape[2] != self.k.shape[2]:
            raise LookError(
                "MODEL: expected attention of one text on itself, got "
                f"{self.q.shape[2]} queries on {self.k.shape[2]} keys in a batch of "
                f"{self.q.shape[0]}"
            )

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def tokens(self) -> int:
        return self.q.shape[2]

    @property
    def map(self) -> str:
        return str(self.settings.get("map", "entmax"))

    @property
    def alphas(self) -> list[float] | None:
        """Of every head; None for a map without."""
        if self.map != "entmax":
            return None
        alpha = torch.as_tensor(self.settings.get("alpha", 1.5), dtype=torch.float64)
        return [float(x) for x in alpha.flatten().expand(self.heads)]

    @property
    def has_zeros(self) -> bool:
        """Whether the map leaves keys without any weight."""
        return self.alphas is not None and min(self.alphas) > 1.0

    def weights(self, begin: int, end: int) -> Tensor:
        """The weights > 0 of queries [begin, end): CSR [heads * (end - begin), keys]."""
        keys = end if self.settings.get("causal") else self.tokens
        settings = dict(self.settings, alignment="end")
        for name in ("mask", "bias"):
            x = settings.get(name)
            if x is None:
                continue
            if x.dim() > 1 and x.shape[-2] != 1:
                x = x[..., begin:end, :]
            settings[name] = x[..., :keys] if x.shape[-1] != 1 else x
        q, k = self.q[:, :, begin:end], self.k[:, :, :keys]
        # Values are not looked at: a single column of them costs least.
        _, extras = attention(q, k, k[..., :1], returns="weights", **settings)
        assert extras.weights is not None
        return extras.weights
