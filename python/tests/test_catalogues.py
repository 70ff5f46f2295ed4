"""``tsallis_text.catalogues``: pairs of sentences out of .mo files."""

import io
import struct

import pytest

from tsallis_text.catalogues import CatalogueError, apart, is_prose, messages, pairs

OPEN = ("The file cannot be opened now", "Die Datei läßt sich nicht öffnen")
SAVE = ("All changes were saved before", "Alle Änderungen wurden schon gesichert")
PLURAL = "%d file was\nnot found here\0%d files were not found here"


def mo(entries: dict[str, str], charset: str = "UTF-8", encoded_as: str | None = None) -> bytes:
    """A catalogue as msgfmt writes it, little-endian, without a table of hashes."""
    header = f"Project-Id-Version: test\nContent-Type: text/plain; charset={charset}\n"
    plural = "Plural-Forms: nplurals=2; plural=(n != 1);\n"
    texts = [
        (source.encode(encoded_as or charset), target.encode(encoded_as or charset))
        for source, target in sorted({"": header + plural, **entries}.items())
    ]
    count = len(texts)
    at = 28 + 16 * count
    tables = [b"", b""]
    content = b""
    for side in (0, 1):
        for pair in texts:
            tables[side] += struct.pack("<II", len(pair[side]), at + len(content))
            content += pair[side] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, at)
    return head + tables[0] + tables[1] + content


@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-1"])
def test_the_header_says_the_charset(charset):
    content = mo(dict([OPEN, SAVE]), charset)
    assert (b"\xc3\xa4" in content) == (charset == "UTF-8")
    assert sorted(pairs(io.BytesIO(content), "a.mo")) == sorted([OPEN, SAVE])


def test_messages_are_one_line_in_their_first_form_without_context():
    content = mo(
        {
            PLURAL: "%d Datei wurde\nhier nicht gefunden\0%d Dateien wurden hier nicht gefunden",
            "menu\x04Save  the file": "Die Datei sichern",
        }
    )
    assert messages(io.BytesIO(content), "a.mo") == [
        ("%d file was not found here", "%d Datei wurde hier nicht gefunden"),
        ("Save the file", "Die Datei sichern"),
    ]


def test_what_cannot_be_read_names_file_and_charset():
    for content, why in [
        (mo(dict([OPEN]), "X-TEST", "UTF-8"), "b.mo: unknown encoding: X-TEST, as its header"),
        (mo(dict([OPEN]), "UTF-8", "ISO-8859-1"), "b.mo: its text is not utf-8"),
        (mo(dict([OPEN]), "ASCII", "UTF-8"), "b.mo: its text is not ascii"),
        (b"not a catalogue at all, that is clear", "b.mo: expected a catalogue of gettext"),
        (mo(dict([OPEN]))[:40], "b.mo: expected a catalogue of gettext"),
        (b"", "b.mo: expected a catalogue of gettext"),
    ]:
        with pytest.raises(CatalogueError, match=why):
            pairs(io.BytesIO(content), "b.mo")


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        (*OPEN, True),
        ("Cannot read %s: %m", "%s kann nicht gelesen werden: %m", True),
        ("Only three words", "Nur drei Worte hier", False),
        ("Only four words here", "Nur drei Worte", False),
        ("word " * 30, "Wort " * 30, True),
        ("word " * 31, "Wort " * 30, False),
        ("word " * 30, "Wort " * 31, False),
        ("", "", False),
        ("%s: %s (%d item)", "%s: %s (%d Objekt)", False),
        ("symbol is not exported here", "symbol is not exported here", False),
        ("symbol is not exported here", "Fehler: symbol is not exported here", False),
        ("git stash create [<message>]", "git stash create [<Meldung>]", False),
        ("the time is\x07 out now", "die Zeit ist\x07 jetzt um", False),
    ],
)
def test_sentences_are_kept(source, target, kept):
    assert is_prose(source, target) == kept


def test_no_part_has_a_source_of_one_before_it():
    other = (OPEN[0], "Die Datei kann nicht geöffnet werden")
    parts = {
        "test": {"a": [OPEN, OPEN]},
        "validation": {"b": [other, SAVE]},
        "train": {
            "c": [("the file can't be OPENED now", "x"), ("The file cannot be opened, now!", "x")],
            "d": [(SAVE[0].upper(), "y"), ("New words", "Neue")],
            "e": [("New words", "Neue"), ("New words", "Neuere")],
        },
    }
    kept = apart(parts)
    assert kept == {
        "test": {"a": [OPEN]},
        "validation": {"b": [SAVE]},
        "train": {
            "c": [("the file can't be OPENED now", "x")],
            "d": [("New words", "Neue")],
            "e": [("New words", "Neuere")],
        },
    }
