"""``tsallis look``: the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from . import LookError

INTERRUPTED = 130
MAPS = ("entmax", "entmax15", "sparsemax", "softmax", "adaptive_temperature")

ABOUT = """Write a page that shows which keys every token of a text reads.

MODEL is smollm2 (SmolLM2-135M-Instruct out of a Python package, 93 MB), a folder that
save_pretrained or tsallis convert wrote, or a language model of the lab (the folder of a run). The
page is one file that needs no network: a click on a token shades the keys that it reads, for one
head, a layer or all, or the tokens that read it. The table has a line for every layer, with means
over its heads and the text's tokens; --layer has one for every head.

Softmax and other maps without zeros are shown from weights of 1 % up.

Examples:
  tsallis look models/asentmax-nape --text README.md --tokens 1000
  tsallis look runs/convert/smollm2/entmax/model --text notes.txt --out notes.html
  tsallis look smollm2 --map entmax15 --text notes.txt --layer 3"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tsallis look",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="smollm2, or a folder")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="in UTF-8")
    parser.add_argument(
        "--map",
        metavar="NAME",
        help=f"of a Hugging Face model, of {', '.join(MAPS)} (default: that of its config.json, "
        "else softmax)",
    )
    parser.add_argument(
        "--tokens", type=int, metavar="N", help="the first of the text (default: all)"
    )
    parser.add_argument(
        "--megabytes",
        type=float,
        default=10.0,
        metavar="N",
        help="of the page at most; the smallest weights are left out (default: 10)",
    )
    parser.add_argument("--layer", type=int, metavar="N", help="its heads in the table")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: runs/look/MODEL/TEXT.html"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the table")
    return parser


def _checked(parser: argparse.ArgumentParser, words: list[str] | None) -> argparse.Namespace:
    options = parser.parse_args(words)
    if options.map is not None and options.map not in MAPS:
        parser.error(f"--map: expected of {', '.join(MAPS)}, got {options.map!r}")
    for name in ("tokens", "layer"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name}: expected 1 or more, got {value}")
    if not 0.0 < options.megabytes <= 100.0:
        parser.error(f"--megabytes: expected a number above 0, up to 100, got {options.megabytes}")
    if options.out is not None and options.out.is_dir():
        parser.error(f"--out: expected a file, got the folder {options.out}")
    return options


def _name(model: str) -> str:
    """Of a model for people: its folder's, and of METHOD/model, as tsallis convert writes it, both
    above."""
    if not Path(model).exists():
        return model
    parts = Path(model).resolve().parts
    return "-".join(parts[-3:-1]) if parts[-1] == "model" and len(parts) > 3 else parts[-1]


def _look(options: argparse.Namespace) -> dict[str, Any]:
    # Torch takes seconds to load; --help and mistakes need none.
    from tsallis_convert.screen import Screen
    from tsallis_report.files import replace_text

    from .calls import Call
    from .gather import Gathered
    from .models import text_of
    from .page import Subject, page
    from .read import reading_of
    from .report import map_of, numbers

    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    begun = time.perf_counter()
    screen = Screen(options.quiet)
    text = text_of(options.text, options.tokens)
    reading = reading_of(options.model, options.map, text)
    if options.layer is not None and options.layer > reading.layers:
        raise LookError(f"--layer: expected 1 to {reading.layers}, got {options.layer}")
    if reading.note:
        screen.say(reading.note)
    tokens = len(reading.pieces)
    found = Gathered(tokens)

    def look(call: Call) -> None:
        layer = len(found.layers) + 1
        found.add(
            call,
            lambda query: screen.step(
                f"layer {layer} of {reading.layers}: {query} of {tokens} tokens"
            ),
        )

    reading.visit(look)
    if not found.layers:
        raise LookError(f"MODEL: {options.model}: expected layers of attention, got none")
    screen.say("packing the page")
    model = _name(options.model)
    subject = Subject(model, options.text.name, reading.pieces, reading.note)
    content, packed = page(found, subject, round(1e6 * options.megabytes))
    out = options.out or Path("runs") / "look" / model / f"{options.text.stem}.html"
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, content)
    return {
        "model": options.model,
        "text": str(options.text),
        "map": map_of(found),
        "note": reading.note,
        "tokens": tokens,
        "page": str(out),
        "bytes": len(content.encode()),
        "weights": packed.entries,
        "cut": found.cut(packed.level),
        "shown": found.shown(packed.level),
        "seconds": round(time.perf_counter() - begun, 3),
        "layers": [
            {
                "layer": i + 1,
                "heads": [
                    {"head": h + 1, **numbers(found, head, packed.level)}
                    for h, head in enumerate(layer)
                ],
            }
            for i, layer in enumerate(found.layers)
        ],
    }


def main(words: list[str] | None = None) -> int:
    """words: None: those of the command line. Exit code: 0, 2 for a mistake, 130 if interrupted."""
    options = _checked(_parser(), words)
    try:
        found = _look(options)
    except LookError as error:
        print(f"tsallis look: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ntsallis look: interrupted; no page was written", file=sys.stderr)
        return INTERRUPTED
    try:
        _print(found, options)
        sys.stdout.flush()
    except OSError as error:
        print(f"tsallis look: standard output: {error.strerror}", file=sys.stderr)
        # What is still buffered cannot be written either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _print(found: dict[str, Any], options: argparse.Namespace) -> None:
    """The numbers: a JSON document, or a table."""
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    from .report import percent, table

    print(table(found, options.layer))
    if not options.quiet:
        print(
            f"\n{found['map']}; {found['tokens']} tokens; the page shows weights of at least "
            f"{percent(found['cut'])}, {percent(found['shown'])} of all weight\n"
            f"{found['page']}, {found['bytes'] / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    sys.exit(main())
