"""The cases of the attention benchmark: what is attended to, and how."""

from __future__ import annotations

import fnmatch
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LENGTHS = [2048, 4096, 8192, 16384, 32768, 65536]
DTYPES = ["bfloat16", "float32"]


@dataclass(frozen=True)
class Case:
    """One problem; `kind` says what it shows."""

    kind: str
    n: int
    dtype: str
    d: int = 64
    batch: int = 1
    heads: int = 2
    map: str = "entmax"
    alpha: float | tuple[float, ...] | None = 1.5  # one for each head; None: the map has none
    causal: bool = True
    spread: float = 1.0  # of q, k and v are standard normal; 0: all scores equal
    slopes: tuple[float, ...] | None = None  # ALiBi's, one for each head
    scale_invariant: float | None = None
    # q, k and v of a trained model, [heads, n, d] each, in place of normal ones; k and v may have
    # fewer heads, which groups of q's share.
    inputs: tuple[Tensor, Tensor, Tensor] | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        parts = [self.kind, self.dtype, f"n{self.n}", f"d{self.d}"]
        if (self.batch, self.heads) != (1, 2):
            parts.append(f"{self.batch}x{self.heads}")
        return "-".join(parts)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `tsallis.attention` and `tsallis.decode` for map and positions."""
        found: dict[str, Any] = {"map": self.map}
        if isinstance(self.alpha, tuple):
            found["alpha"] = torch.tensor(self.alpha, requires_grad=True)  # as heads learn it
        elif self.alpha is not None:
            found["alpha"] = self.alpha
        if self.slopes is not None:
            found["alibi_slopes"] = torch.tensor(self.slopes)
        if self.scale_invariant is not None:
            found["scale_invariant"] = self.scale_invariant
        return found

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a head of keys."""
        return self.inputs is not None and self.inputs[1].shape[0] != self.heads

    @property
    def forward_flops(self) -> float:
        """Multiplications and additions of dense attention: Q K^T and P V."""
        full = 4.0 * self.n * self.n * self.d * self.batch * self.heads
        return full / 2 if self.causal else full


def all_cases() -> list[Case]:
    """From what runs for milliseconds to what runs for minutes, within each kind."""
    main = [Case("entmax-1.5", n, dtype, d) for d in (64, 128) for dtype in DTYPES for n in LENGTHS]
    others: list[Case] = []
    for dtype in DTYPES:
        short = Case("short", 64, dtype, d=32, batch=128, heads=8)
        others += [replace(short, n=n) for n in (64, 96, 128)]
        others.append(Case("middle", 1024, dtype, batch=4, heads=16))
        for n in (4096, 16384):
            case = Case("", n, dtype)
            others += [
                replace(case, kind="entmax-2", alpha=2.0),
                replace(case, kind="entmax-1.25", alpha=1.25),
                replace(case, kind="per-head", alpha=(1.3, 1.8)),
                replace(case, kind="softmax", map="softmax", alpha=None),
                replace(case, kind="adaptive", map="adaptive_temperature", alpha=None),
                replace(case, kind="flat", spread=0.0),
            ]
        case = Case("", 16384, dtype)
        others += [
            replace(case, kind="spread-0.25", spread=0.25),
            replace(case, kind="spread-4", spread=4.0),
            Case("not-causal", 8192, dtype, causal=False),
            # NAPE: half of the heads ALiBi with slope 1/h, the others without positions.
            replace(case, kind="nape", heads=4, slopes=(1.0, 0.5, 0.0, 0.0)),
            replace(case, kind="scale-invariant", scale_invariant=10.0),
            Case("alibi", 65536, dtype, slopes=(0.5, 0.125)),
        ]
    return main + others


def quick_cases() -> list[Case]:
    """One of each kind, small enough for any implementation."""
    kinds: dict[str, Case] = {}
    for case in all_cases():
        kinds.setdefault(case.kind, replace(case, n=64, d=16, batch=min(case.batch, 2)))
    first = kinds["entmax-1.5"]
    return [replace(first, n=n, dtype=dtype) for dtype in DTYPES for n in (32, 64, 128)] + [
        case for kind, case in kinds.items() if kind != "entmax-1.5"
    ]


SOURCE = Path(__file__).resolve().parents[3]  # of the tree, if this is one
MODEL_KEYS = 8192  # tokens that the committed models read
MODEL_TEXT = Path(torch.__file__).parent / "_refs" / "__init__.py"


def model_cases(source: Path, text: Path) -> list[Case]:
    """A case for each layer of the language models in ``source/models``, reading ``text``.

    Raises OSError without the program of that source tree, ValueError if it fails.
    """
    program = source / "tsallis"
    folders = sorted(path.parent for path in source.glob("models/*/config.json"))
    if not program.is_file() or not folders:
        raise FileNotFoundError(f"{source}: expected a source tree of tsallis with models")
    cases = []
    with tempfile.TemporaryDirectory() as aside:
        for folder in folders:
            inputs = Path(aside) / f"{folder.name}.safetensors"
            command = [program, "eval", folder, "--text", text, "--inputs", inputs]
            command += ["--lengths", str(MODEL_KEYS), "--samples", "1", "--quiet"]
            done = subprocess.run(
                list(map(str, command)),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise ValueError(f"{program} eval {folder}: {done.stderr.strip()}")
            cases += trained_cases(inputs, folder.name)
    return cases


def trained_cases(path: Path, kind: str = "trained") -> list[Case]:
    """A case for each layer of a file that ``tsallis eval CHECKPOINT --inputs FILE`` or
    ``tsallis convert`` wrote.

    Raises ImportError without the safetensors package, OSError and ValueError for a file that
    cannot be read or is not of that kind.
    """
    from safetensors import SafetensorError, safe_open

    cases = []
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            about = file.metadata() or {}
            maps = {
                key.removesuffix(".map"): value
                for key, value in about.items()
                if key.startswith("layers.") and key.endswith(".map")
            }
            for layer in sorted(maps, key=lambda name: int(name.split(".")[1])):
                q, k, v = (file.get_tensor(f"{layer}.{name}") for name in "qkv")
                settings: dict[str, Any] = {"alpha": None}
                if f"{layer}.alpha" in names:
                    alphas = file.get_tensor(f"{layer}.alpha").tolist()
                    settings["alpha"] = alphas[0] if len(set(alphas)) == 1 else tuple(alphas)
                if f"{layer}.slopes" in names:
                    settings["slopes"] = tuple(file.get_tensor(f"{layer}.slopes").tolist())
                if f"{layer}.scale_invariant" in about:
                    settings["scale_invariant"] = float(about[f"{layer}.scale_invariant"])
                heads, n, d = q.shape
                cases.append(
                    Case(
                        f"{kind}-{layer.split('.')[1]}",
                        n,
                        str(q.dtype).removeprefix("torch."),
                        d=d,
                        heads=heads,
                        map=maps[layer],
                        inputs=(q, k, v),
                        **settings,
                    )
                )
    except SafetensorError as error:
        raise ValueError(f"{path}: {error}") from error
    if not cases:
        raise ValueError(
            f"{path}: no inputs of attention in it (tsallis eval --inputs writes them, and tsallis "
            "convert)"
        )
    return cases


def matching(cases: Iterable[Case], patterns: list[str]) -> list[Case]:
    """Cases whose name contains or, as a shell pattern, fits one of the patterns; all for none."""
    if not patterns:
        return list(cases)
    return [
        case
        for case in cases
        if any(p in case.name or fnmatch.fnmatch(case.name, p) for p in patterns)
    ]
