"""Which keys `tsallis.decode` gives a weight."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecodeMode", "FirstAndLast", "GaussianPages", "TopPages", "Within"]


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
