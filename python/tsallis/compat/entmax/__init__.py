"""The interface of the ``entmax`` package, 1.3 and its development version after it.

``import tsallis.compat.entmax as entmax`` runs a program written for it. Every map is solved to a
tolerance, so ``k``, ``n_iter`` and ``ensure_sum_one`` are checked and then have nothing to decide.
docs/guide/entmax.md lists where results differ on purpose.
"""

from tsallis.compat.entmax import activations, losses, root_finding
from tsallis.compat.entmax.activations import *
from tsallis.compat.entmax.losses import *
from tsallis.compat.entmax.root_finding import *

__version__ = "1.3"

__all__: list[str] = []
__all__ += activations.__all__
__all__ += losses.__all__
__all__ += root_finding.__all__
