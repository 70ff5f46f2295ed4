"""Text that a corpus can be made of."""

from pathlib import Path


def write_pages(folder: Path) -> Path:
    """Sixty files of a few hundred bytes; every part of the corpus gets some."""
    folder.mkdir()
    for i in range(60):
        (folder / f"{i}.txt").write_text(f"Page {i} says {i * i}, and so does page {i}. " * 9)
    return folder
