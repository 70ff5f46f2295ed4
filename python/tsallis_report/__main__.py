"""``python -m tsallis_report DIR…``: figures and report.html of finished studies."""

import argparse
import sys
from pathlib import Path

from .data import StudyError, load
from .figures import write_figures
from .page import write_page


def render(directory: str | Path) -> list[Path]:
    """Draw every figure and the page of a results folder; return the paths that were written."""
    directory = Path(directory)
    study = load(directory)
    written = write_figures(study, directory / "figures")
    written.append(write_page(study, directory))
    return written


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="tsallis_report", description=__doc__)
    parser.add_argument("directory", nargs="+", type=Path, help="a folder with results.json")
    parser.add_argument("--quiet", action="store_true", help="do not list the files")
    options = parser.parse_args(arguments)
    for directory in options.directory:
        try:
            written = render(directory)
        except (StudyError, OSError) as error:
            print(f"tsallis_report: {error}", file=sys.stderr)
            return 1
        if not options.quiet:
            for path in written:
                print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
