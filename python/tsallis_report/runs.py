"""Archives of the runs that the committed reports were made of.

``results/runs/<study>/<scale>.tar.xz`` holds the run folders of one recipe at one scale. ``unpack``
lays them into ``results/runs/<study>/<scale>/``, which git ignores, and ``pack`` makes the archive
from that folder. ``tsallis reproduce --runs results/runs`` unpacks what it needs by itself.

    python -m tsallis_report.runs unpack results/runs/copy
    python -m tsallis_report.runs pack results/runs/copy/small

An archive keeps the settings and the scores of a run as they are. It keeps what a page draws as
exactly as a page shows it: means and spreads of heads with three digits, attention weights on
24 steps of the figures' scale of colours, and 40 points of a training's losses and accuracies with
four digits. The time of a run is that of its last line.
"""

import argparse
import hashlib
import io
import json
import lzma
import math
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SUFFIX = ".tar.xz"
_STAMP = ".archive"  # in an unpacked folder: the checksum of the archive that it agrees with
_STEPS = 24  # of a weight's square root, on which the figures' colours are even

_POINTS = 40  # of a curve of training
_HEAD_DIGITS, _TRAINING_DIGITS = 3, 4


class ArchiveError(Exception):
    """An archive that cannot be made or laid out; the message names the file and says why."""


def _rounded(value: Any, digits: int) -> Any:
    """Every float of nested lists with that many digits."""
    if isinstance(value, list):
        return [_rounded(one, digits) for one in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return value


def _metrics(text: str) -> str:
    lines = [json.loads(line) for line in text.splitlines()]
    curve = [i for i, entry in enumerate(lines) if "loss" in entry]
    every = -(-len(curve) // _POINTS) or 1
    left_out = set(curve) - set(curve[::-every])  # the last one stays
    lines = [entry for i, entry in enumerate(lines) if i not in left_out]
    for entry in lines:
        for key in ("loss", "accuracy"):
            if key in entry:
                entry[key] = _rounded(entry[key], _TRAINING_DIGITS)
    for entry in lines[:-1]:
        entry.pop("seconds", None)
    return "".join(json.dumps(entry) + "\n" for entry in lines)


def _coarser(thousandths: list[int]) -> list[int]:
    """A map's entries, [cells since the last, thousandths, ...], with fewer different weights."""
    entries: list[int] = []
    passed = 0
    for cells, weight in zip(thousandths[::2], thousandths[1::2], strict=True):
        passed += cells
        step = round(math.sqrt(weight / 1000) * _STEPS)
        if step > 0:
            entries += [passed, round(1000 * (step / _STEPS) ** 2)]
            passed = 0
    return entries


def _heads(text: str) -> str:
    heads = json.loads(text)
    for length in heads["lengths"]:
        for table in length["tables"]:
            for key in ("mean", "std"):
                table[key] = _rounded(table[key], _HEAD_DIGITS)
    for attention in heads["maps"]:
        attention["thousandths"] = _coarser(attention["thousandths"])
    return json.dumps(heads, separators=(",", ":")) + "\n"


def _unchanged(text: str) -> str:
    return text


# Files of a run that are kept, by the beginning of their name. Files of a kind lie side by side in
# the archive, where they compress best.
_KINDS: list[tuple[str, Callable[[str], str]]] = [
    ("config.json", _unchanged),
    ("settings-", _unchanged),
    ("eval-", _unchanged),
    ("metrics.jsonl", _metrics),
    ("heads-", _heads),
]


def _kept(folder: Path) -> Iterator[tuple[str, str]]:
    """Names, relative to the folder, and texts of the files that an archive keeps."""
    files = sorted(path for path in folder.rglob("*.json*") if path.is_file())
    for beginning, keep in _KINDS:
        for path in files:
            if path.name.startswith(beginning) and path.suffix in (".json", ".jsonl"):
                yield path.relative_to(folder).as_posix(), keep(path.read_text(encoding="utf-8"))


def _checksum(archive: Path) -> str:
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def _members(archive: Path) -> dict[str, bytes]:
    try:
        with tarfile.open(archive, "r:xz") as tar:
            members = {}
            for member in tar:
                name = Path(member.name)
                if not member.isfile() or name.is_absolute() or ".." in name.parts:
                    raise ArchiveError(f"{archive}: {member.name}: expected a file of a run")
                file = tar.extractfile(member)
                assert file is not None  # of a file there is one
                members[member.name] = file.read()
            return members
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise ArchiveError(f"{archive}: not an archive of runs, or damaged: {error}") from error


def pack(folder: Path) -> Path:
    """Make ``<folder>.tar.xz`` from a folder of runs; return its path.

    The same runs make the same bytes. Raises ArchiveError if the folder lacks a run that its
    archive holds.
    """
    archive = folder.with_name(folder.name + SUFFIX)
    texts = dict(_kept(folder))
    if not texts:
        raise ArchiveError(f"{folder}: expected folders of runs with a config.json each, got none")
    if archive.exists():
        lost = sorted(set(_members(archive)) - set(texts))
        if lost:
            raise ArchiveError(f"{folder}: lacks {lost[0]}, which {archive} holds: unpack it first")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in texts.items():
            content = text.encode()
            member = tarfile.TarInfo(name)  # of no owner, of no time
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    aside = archive.with_name(f".{archive.name}.tmp")
    aside.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    aside.replace(archive)
    (folder / _STAMP).write_text(_checksum(archive), encoding="utf-8")
    return archive


def unpack(archive: Path) -> Path:
    """Lay an archive's runs into the folder beside it; return that folder.

    Runs that only the folder has stay. Raises ArchiveError if the folder was not made from an
    archive and holds other files under the same names.
    """
    folder = archive.with_name(archive.name.removesuffix(SUFFIX))
    stamp = folder / _STAMP
    before = stamp.read_text(encoding="utf-8") if stamp.exists() else ""
    now = _checksum(archive)
    if before == now:
        return folder
    members = _members(archive)
    if not before:
        for name, content in members.items():
            there = folder / name
            if there.exists() and there.read_bytes() != content:
                raise ArchiveError(
                    f"{there}: differs from the one in {archive}; move {folder} away, or keep your "
                    "runs in another folder (--runs)"
                )
    for name, content in members.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        aside.write_bytes(content)
        aside.replace(path)
    stamp.write_text(now, encoding="utf-8")
    return folder


def read(archive: Path) -> dict[str, str]:
    """The texts of an archive's files by their names, ``asentmax-nape/seed-1/config.json``."""
    return {name: content.decode() for name, content in _members(archive).items()}


def _archives(place: Path) -> list[Path]:
    """The archive itself, or all below a folder."""
    if place.name.endswith(SUFFIX):
        return [place]
    return sorted(place.rglob("*" + SUFFIX))


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tsallis_report.runs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument(
        "place",
        nargs="+",
        type=Path,
        help="unpack: an archive, or a folder with archives; pack: a folder of runs, "
        "results/runs/<study>/<scale>",
    )
    options = parser.parse_args(arguments)
    try:
        for place in options.place:
            if not place.exists():
                raise ArchiveError(f"{place}: not there")
            if options.action == "pack":
                print(pack(place))
            else:
                for archive in _archives(place):
                    unpack(archive)
    except (ArchiveError, OSError, ValueError) as error:
        print(f"tsallis_report.runs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
