"""``tsallis convert``: the command line."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import METHODS, ConvertError
from .models import SMOLLM2, folder_of

INTERRUPTED = 130
SOURCE = Path(__file__).resolve().parents[2]

ABOUT = f"""Fine-tune a softmax language model to entmax, beside the same tokens with softmax.

MODEL is {SMOLLM2} (SmolLM2-135M-Instruct out of a Python package, 93 MB), or a folder that
save_pretrained wrote. Its queries are multiplied by (1/4)^(alpha - 1), with which entmax begins
close to softmax, and everything is trained on. Measured afterwards: the loss on held-out text, the
keys that heads keep, the time of a token behind a long prompt, and a sample of text. What the
attention of some layers gets from that prompt is kept for tsallis bench.

Example:
  tsallis convert smollm2
  tsallis convert smollm2 --methods entmax,softmax,learned --tokens 1000000 --corpus linux
  tsallis convert ~/models/my-llama --corpus english --alpha 1.25
  tsallis bench decode --inputs runs/convert/smollm2/entmax/inputs.safetensors

Written into the folder of --out: METHOD/model (save_pretrained), METHOD/inputs.safetensors,
results.json, report.md and a figure. Ctrl-C ends with code 130 and keeps what was trained; the same
command goes on."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tsallis convert",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=f"{SMOLLM2}, or a folder")
    parser.add_argument(
        "--methods",
        default="entmax,softmax",
        metavar="NAMES",
        help=f"of {', '.join(METHODS)}, separated by commas (default: entmax,softmax)",
    )
    parser.add_argument(
        "--corpus",
        default="python",
        help="one that tsallis data knows, or a folder that it made with the "
        "model's tokenizer.json (default: python)",
    )
    parser.add_argument(
        "--tokens", type=int, default=163840, metavar="N", help="to train on (default: 163840)"
    )
    parser.add_argument(
        "--length", type=int, default=1024, metavar="N", help="of a sequence (default: 1024)"
    )
    parser.add_argument(
        "--prompt",
        type=int,
        default=8000,
        metavar="N",
        help="tokens before writing (default: 8000)",
    )
    parser.add_argument("--alpha", type=float, default=1.5, help="above 1, up to 2 (default: 1.5)")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate (default: 1e-4)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of text (default: 1)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="default: every core"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/convert/MODEL")
    parser.add_argument("--json", action="store_true", help="print results.json at the end")
    parser.add_argument("--quiet", action="store_true", help="print nothing but results")
    return parser


def _checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    options.methods = [name.strip() for name in options.methods.split(",")]
    for name in options.methods:
        if name not in METHODS:
            parser.error(f"--methods: expected of {', '.join(METHODS)}, got {name!r}")
    for name, least in (("tokens", 1), ("length", 16), ("prompt", 1), ("threads", 1), ("seed", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: expected {least} or more, got {getattr(options, name)}")
    if not 1.0 < options.alpha <= 2.0:
        parser.error(f"--alpha: expected a number above 1, up to 2, got {options.alpha}")
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
