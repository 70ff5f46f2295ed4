"""Files that a reader never sees half written."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> Path:
    """Write beside ``path``, then rename; return the path."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    return path
