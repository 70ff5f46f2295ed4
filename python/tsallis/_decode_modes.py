"""Which keys `tsallis.decode` gives a weight, and what it and `decode_paged` share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["DecodeExtras", "DecodeMode", "FirstAndLast", "GaussianPages", "TopPages", "Within"]


@dataclass(frozen=True)
class Within:
    """Softmax on keys that hold at least 1 - ``epsilon`` of the mass, which is proved.

    The output differs from the exact one by at most 2 epsilon times the largest norm of a value.
    Entmax stays exact.

    Attributes:
        epsilon: between 0 and 1.
    """

    epsilon: float = 1e-3


@dataclass(frozen=True)
class TopPages:
    """The pages of 64 keys with the largest bounds of their scores (Quest; Tang et al. 2024).

    Each query head chooses its own; the newest page is always among them. The cache must keep
    ``ranges``.

    Attributes:
        budget: tokens, of whole pages; at least one page.
    """

    budget: int


@dataclass(frozen=True)
class GaussianPages:
    """The pages with the largest quantiles of their best score, for normal keys (EntmaxKV, 2026).

    As `TopPages`; the cache must keep ``moments``.

    Attributes:
        budget: tokens, of whole pages; at least one page.
        quantile: between 0 and 1, of the largest of a page's scores.
    """

    budget: int
    quantile: float = 0.5


@dataclass(frozen=True)
class FirstAndLast:
    """The first tokens and the newest (StreamingLLM; Xiao et al. 2024).

    Attributes:
        budget: tokens in all.
        first: of them, at the beginning.
    """

    budget: int
    first: int = 4


DecodeMode = Within | TopPages | GaussianPages | FirstAndLast


@dataclass(frozen=True)
class DecodeExtras:
    """Statistics of `decode`, [batch, heads, q_len] each; None: not asked for.

    Attributes:
        tau: the threshold in z = (alpha - 1) s; of softmax the log-sum-exp. float64.
        support_size: keys with a weight > 0. int64.
        entropy: of the weights, in nats. float64.
        maximum: the largest score. float64.
        certificate: entmax: the largest bound of a key that was not scored, minus tau, in z; 0 or
            less proves that the output is exact, -inf where every key was scored. Softmax: no
            larger part of the mass lies on keys that were not scored. float64.
        lost: the part of the weights that the exact answer gives to keys that were not scored; it
            costs a pass over all rows of keys. float64.
        scored: keys that were scored from their rows. int64.
        bytes_read: of keys, values and what is kept beside them, for the answer alone; what heads
            read together is divided among them. int64.

    With a ``mode`` the others are of the keys that were read.
    """

    tau: Tensor | None = None
    support_size: Tensor | None = None
    entropy: Tensor | None = None
    maximum: Tensor | None = None
    certificate: Tensor | None = None
    lost: Tensor | None = None
    scored: Tensor | None = None
    bytes_read: Tensor | None = None
