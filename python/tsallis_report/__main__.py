"""``python -m tsallis_report DIR…``: figures, report.html and report.md of finished studies."""

import argparse
import json
import sys
from pathlib import Path

from . import analysis, analysis_figures, analysis_page
from .data import load, write
from .derive import derive
from .figures import write_figures
from .markdown import write_markdown
from .page import write_page
from .run_folder import StudyError
from .table import terminal_table


def render(directory: str | Path) -> list[Path]:
    """Draw every figure and the page of a results folder; return the paths that were written."""
    directory = Path(directory)
    if (directory / "study.json").exists():
        about = analysis.load(directory)
        drawn = analysis_figures.write_figures(about, directory / "figures")
        return [*drawn, *analysis_page.write_pages(about, directory)]
    study = load(directory)
    written = write_figures(study, directory / "figures")
    return [*written, write_page(study, directory), write_markdown(study, directory)]


def _table(directory: Path, columns: int, color: bool, several: bool) -> str:
    if (directory / "study.json").exists():
        most = 5 if several else 24
        return analysis_page.terminal_text(analysis.load(directory), columns, most)
    return terminal_table(load(directory), columns, color)


def _write(options: argparse.Namespace) -> None:
    """Draws what `options` name and prints the files' names, or a table of each folder."""
    several = len(options.directory) > 1
    if options.runs:
        write(derive(json.load(sys.stdin)), options.directory[0])
    for directory in options.directory:
        written = render(directory)
        if options.table:
            print(_table(directory, options.width, options.color, several), end="")
        elif not options.quiet:
            for path in written:
                print(path)
    if options.together is not None:
        studies = [(analysis.load(folder), folder) for folder in options.directory]
        for path in analysis_page.write_together(studies, options.together):
            if not (options.quiet or options.table):
                print(path)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="tsallis_report", description=__doc__)
    parser.add_argument(
        "directory", nargs="+", type=Path, help="a folder with results.json or study.json"
    )
    parser.add_argument(
        "--together", type=Path, help="a folder for one page of the folders, of study.json all"
    )
    parser.add_argument(
        "--runs",
        action="store_true",
        help="first make results.json and data/ of the runs that standard input describes",
    )
    parser.add_argument("--quiet", action="store_true", help="do not list the files")
    parser.add_argument("--table", action="store_true", help="show the results instead of files")
    parser.add_argument("--width", type=int, default=100, help="columns of the table")
    parser.add_argument("--color", action="store_true", help="colours of a terminal in the table")
    options = parser.parse_args(arguments)
    try:
        _write(options)
        sys.stdout.flush()
    except (StudyError, OSError) as error:
        print(f"tsallis_report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
