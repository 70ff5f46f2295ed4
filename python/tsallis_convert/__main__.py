"""``tsallis convert``: the command line."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import ConvertError
from .methods import KINDS, MAPS, POSITIONS, READ, SCALES, UNTOUCHED, method_of
from .models import SMOLLM2, folder_of

INTERRUPTED = 130
SOURCE = Path(__file__).resolve().parents[2]

ABOUT = f"""Fine-tune a softmax language model by other maps, beside the same tokens with softmax.

MODEL is {SMOLLM2} (SmolLM2-135M-Instruct out of a Python package, 93 MB), or a folder that
save_pretrained wrote. A method is a map, and may have a factor of the queries and other positions
behind it: entmax, softmax+sharpen, learned+log+ntk. softmax itself is always run. With entmax and
learned the queries are first multiplied by a factor for each head, with which it answers most as
softmax did; --soften says one factor for all. Everything is trained on. Measured afterwards: the
loss on held-out text, the keys that heads keep, the time of a token behind a long prompt, and a
sample of text. What the attention of some layers gets from that prompt is kept for tsallis bench.

  maps       {", ".join(MAPS)}
  factors    {", ".join(f"{name}: {row.label}" for name, row in SCALES.items())}
  positions  {", ".join(f"{name}: {row.label}" for name, row in POSITIONS.items())}

Example:
  tsallis convert smollm2
  tsallis convert smollm2 --methods entmax,learned --tokens 500000 --corpus python:0.5,english:0.5
  tsallis convert smollm2 --methods entmax,entmax+sharpen,softmax+sharpen --length 2048 --batch 2
  tsallis convert ~/models/my-llama --corpus english --alpha 1.25
  tsallis convert smollm2 --methods entmax+ntk --length 16384 --device cuda --seconds 700
  tsallis bench decode --inputs runs/convert/smollm2/entmax/inputs.safetensors

Written into the folder of --out: METHOD/model (save_pretrained), METHOD/inputs.safetensors,
results.json, report.md and figures. Ctrl-C ends with code 130 and keeps what was trained and
measured; the same command goes on."""

# name, default, least, metavar, help
NUMBERS = (
    ("tokens", 163840, 1, "to train on"),
    ("length", 1024, 16, "tokens of a sequence"),
    ("batch", 1, 1, "sequences of a step"),
    ("micro", 1, 1, "sequences that are held at a time"),
    ("extend", 0, 0, "tokens that ntk and yarn scale positions for, if more than --length"),
    ("prompt", 8000, 1, "tokens before writing"),
    ("seed", 1, 0, "of the order of text"),
    ("documents", 8, 1, "held-out texts that --lengths are measured on"),
    ("keys", 0, 0, "pass keys to ask for at each of --ask-lengths"),
    ("ruler", 0, 0, "samples of each task of RULER at each of --ask-lengths (needs lm-eval)"),
    (
        "seconds",
        0,
        0,
        "train on as many tokens as fit into these, in place of --tokens; 0: no limit",
    ),
)


LISTS = (
    ("lengths", "rising tokens of context at which the loss of the same last tokens is measured"),
    ("ask-lengths", "those of pass keys and RULER (default: --lengths)"),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tsallis convert",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=f"{SMOLLM2}, or a folder")
    parser.add_argument(
        "--methods",
        default="entmax",
        metavar="NAMES",
        help="MAP[+FACTOR][+POSITIONS], separated by commas (default: entmax, beside softmax)",
    )
    parser.add_argument(
        "--corpus",
        default="python",
        help="one that tsallis data knows, or a folder that it made with the model's "
        "tokenizer.json; NAME:SHARE,NAME:SHARE mixes several (default: python)",
    )
    for name, default, _, about in NUMBERS:
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"{about} (default: {default})",
        )
    for name, about in LISTS:
        parser.add_argument(f"--{name}", default="", metavar="N,N", help=about)
    parser.add_argument(
        "--kinds",
        default=",".join(READ),
        metavar="NAMES",
        help="positions to read with beyond the length that the model holds "
        f"(default: {','.join(READ)})",
    )
    parser.add_argument(
        "--why",
        default="",
        metavar="NAMES",
        help="methods, or untouched, whose heads are looked at: entropies, sinks, scores",
    )
    parser.add_argument("--alpha", type=float, default=1.5, help="above 1, up to 2 (default: 1.5)")
    parser.add_argument(
        "--soften",
        type=float,
        metavar="FACTOR",
        help="what multiplies the queries of entmax and learned before they are trained "
        "(default: a factor for each head, found by comparing its answers with softmax's)",
    )
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate (default: 1e-4)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="default: every core"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/convert/MODEL")
    parser.add_argument("--json", action="store_true", help="print results.json at the end")
    parser.add_argument("--quiet", action="store_true", help="print nothing but results")
    return parser


def _checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    try:
        names = ["softmax", *(name.strip() for name in options.methods.split(","))]
        options.methods = list(dict.fromkeys(method_of(name).name for name in names))
    except ConvertError as error:
        parser.error(str(error))
    for name, least in (*((name, least) for name, _, least, _ in NUMBERS), ("threads", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: expected {least} or more, got {getattr(options, name)}")
    for name, _ in LISTS:
        key = name.replace("-", "_")
        text = getattr(options, key)
        try:
            found = [int(part) for part in text.split(",") if part]
        except ValueError:
            found = [0]
        if found != sorted(set(found)) or (found or [64])[0] < 64:
            parser.error(f"--{name}: expected rising numbers from 64 on, as in 64,128, got {text}")
        setattr(options, key, found)
    options.ask_lengths = options.ask_lengths or options.lengths
    options.kinds = options.kinds.split(",")
    if wrong := [kind for kind in options.kinds if kind not in KINDS]:
        parser.error(f"--kinds: expected of {', '.join(KINDS)}, got {wrong[0]!r}")
    options.why = [name for name in options.why.split(",") if name]
    if wrong := [name for name in options.why if name not in (UNTOUCHED, *options.methods)]:
        parser.error(f"--why: expected untouched or a method of --methods, got {wrong[0]!r}")
    for name, needed in (("keys", "ask_lengths"), ("ruler", "ask_lengths"), ("why", "lengths")):
        if getattr(options, name) and not getattr(options, needed):
            parser.error(f"--{name}: expected --lengths beside it, got none")
    if options.device not in ("cpu", "cuda"):
        parser.error(f"--device: expected cpu or cuda, got {options.device}")
    if not 1.0 < options.alpha <= 2.0:
        parser.error(f"--alpha: expected a number above 1, up to 2, got {options.alpha}")
    if options.soften is not None and not 0.0 < options.soften <= 1.0:
        parser.error(f"--soften: expected a number above 0, up to 1, got {options.soften}")
    if not 0.0 < options.rate < 1.0:
        parser.error(f"--rate: expected a number above 0 and below 1, got {options.rate}")
    return options


def main() -> int:
    """Exit code: 0, 2 for a mistake on the command line, 130 if interrupted."""
    options = _checked(_parser())
    try:
        model = folder_of(options.model, SOURCE / "data" / "models")
        # Torch and transformers take seconds to load; --help and mistakes need neither.
        from . import work

        return work.run(options, model)
    except ConvertError as error:
        print(f"tsallis convert: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ntsallis convert: interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
