"""Where the tree is, and what writes JSON; importing it makes tsallis importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from tsallis.bench import document, timing  # noqa: E402

__all__ = ["ROOT", "document", "timing"]
