"""Training steps of the decoders of T6 (reverse), T8 (MQMTAR) and T10 (language), against PyTorch.

Ours is the C++ decoder of the lab; the peer is the same model written down in Python: attention by
scaled_dot_product_attention for softmax, by the entmax package for entmax (its exact entmax15, and
its entmax_bisect, which is what it has for other alphas), everything recorded by autograd. All have
NAPE, one thread, and an Adam step; the second half of every sequence is scored. Measured is the
processor's time, steps of all sides in turns; the median counts. Then where the time of
our steps goes, by operator (needs Linux perf), and the goals that the figures are held against.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from entmax import entmax15, entmax_bisect
from torch import nn

import step_operators
import training_figure
from common import ROOT, document, timing

Map = Callable[[torch.Tensor], torch.Tensor]
Shape = tuple[int, int]  # sequences, tokens of each

MODELS = {
    "T6": {"vocabulary": 37, "layers": 6, "width": 256, "heads": 8, "feed_forward": 1024},
    "T8": {"vocabulary": 265, "layers": 4, "width": 512, "heads": 16, "feed_forward": 1024},
    "T10": {"vocabulary": 256, "layers": 4, "width": 256, "heads": 4, "feed_forward": 1024},
}
# T10 is the modified GPT-2 of Anson et al. 2025; the others are Gemma-2-like.
MODIFIED = {
    "block": "pre",
    "norm_gain": False,
    "activation": "relu2",
    "qk_norm": True,
    "embedding": "normed",
}
# Sequences and tokens of each; by "T10-4096" the model T10 is meant.
SHAPES: dict[str, Shape] = {
    "T6": (128, 64),
    "T8": (128, 64),
    "T10": (16, 512),
    "T10-4096": (2, 4096),
}
# Peers of each method, and the map that they use.
PEERS: dict[str, dict[str, Map | None]] = {
    "softmax": {"torch": None},
    "asentmax": {
        "torch + entmax15": lambda scores: entmax15(scores, dim=-1),
        "torch + entmax_bisect": lambda scores: entmax_bisect(scores, alpha=1.5, dim=-1),
    },
}
METHODS = {
    "softmax": {"map": "softmax", "positions": {"kind": "nape"}},
    "asentmax": {
        "map": "entmax",
        "alpha": 1.5,
        "positions": {"kind": "nape"},
        "length_scaling": {"kind": "adaptive"},
    },
}


def rms(x: torch.Tensor) -> torch.Tensor:
    """RMSNorm without a gain."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Norm(nn.Module):
    """RMSNorm with gain 1 + w."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., width]."""
        return rms(x) * (1 + self.w)


class Attention(nn.Module):
    """Causal attention with NAPE: the first half of the heads has ALiBi, slopes 1/h."""

    def __init__(self, width: int, heads: int, entmax: Map | None, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads, self.map, self.qk_norm = heads, entmax, qk_norm
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        half = heads // 2
        slopes = torch.cat([1 / torch.arange(1, half + 1), torch.zeros(heads - half)])
        self.slopes: torch.Tensor
        self.register_buffer("slopes", slopes)
        if entmax is not None:
            self.beta, self.gamma = nn.Linear(width, half), nn.Linear(width, half)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, n, width]."""
        batch, n, width = x.shape
        q, k, v = self.project(x).view(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.qk_norm:
            q, k = rms(q).to(v.dtype), rms(k).to(v.dtype)
        at = torch.arange(n)
        bias = self.slopes[:, None, None] * (at[None, :] - at[:, None])
        bias = bias.masked_fill(at[None, :] > at[:, None], -math.inf)
        if self.map is not None:
            log_n = torch.log(at + 2.0)[:, None]
            c = 1 + F.softplus(self.beta(x)) * log_n ** (2 * torch.tanh(self.gamma(x)))
            c = torch.cat([torch.ones_like(c), c], -1).transpose(1, 2)[..., None]
            scores = (q * c) @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
            out = self.map(scores.float()).to(v.dtype) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.out(out.transpose(1, 2).reshape(batch, n, width))


class Layer(nn.Module):
    """Attention and gated feed-forward, normalised before and after."""

    def __init__(self, width: int, heads: int, feed_forward: int, entmax: Map | None) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(width) for _ in range(4))
        self.attention = Attention(width, heads, entmax)
        self.gate = nn.Linear(width, feed_forward, bias=False)
        self.up = nn.Linear(width, feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, n, width]."""
        x = x + self.norms[1](self.attention(self.norms[0](x)))
        h = self.norms[2](x)
        h = F.gelu(self.gate(h), approximate="tanh") * self.up(h)
        return x + self.norms[3](self.down(h))


class ModifiedLayer(nn.Module):
    """Attention with QK-norm, and squared ReLU, behind norms without gains."""

    def __init__(self, width: int, heads: int, feed_forward: int, entmax: Map | None) -> None:
        super().__init__()
        self.attention = Attention(width, heads, entmax, qk_norm=True)
        self.up = nn.Linear(width, feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, n, width]."""
        x = x + self.attention(rms(x))
        return x + self.down(F.relu(self.up(rms(x))).square())


class PlainDecoder(nn.Module):
    """The decoder as the papers describe it."""

    def __init__(
        self,
        *,
        vocabulary: int,
        layers: int,
        width: int,
        heads: int,
        feed_forward: int,
        entmax: Map | None,
        modified: bool = False,
    ) -> None:
        super().__init__()
        self.modified = modified
        layer = ModifiedLayer if modified else Layer
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(
            *(layer(width, heads, feed_forward, entmax) for _ in range(layers))
        )
        self.norm = rms if modified else Norm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [batch, n] -> [batch, n, vocabulary]."""
        x = self.embedding(tokens)
        x = rms(x) if self.modified else x * math.sqrt(self.embedding.embedding_dim)
        return self.head(self.norm(self.layers(x)))


def model_of(case: str) -> str:
    """T10 of T10-4096."""
    return case.split("-")[0]


class Peer:
    """A plain decoder in training."""

    def __init__(self, model: str, entmax: Map | None, compute: str, shape: Shape) -> None:
        torch.manual_seed(1)
        sizes = MODELS[model_of(model)]
        self.decoder = PlainDecoder(**sizes, entmax=entmax, modified=model_of(model) == "T10")
        self.optimizer = torch.optim.Adam(
            self.decoder.parameters(), lr=1e-3, betas=(0.9, 0.99), fused=True
        )
        self.shape = shape
        self.vocabulary = sizes["vocabulary"]
        self.autocast = (
            torch.autocast("cpu", torch.bfloat16)
            if compute == "bfloat16"
            else contextlib.nullcontext()
        )

    def step(self) -> timing.Sample:
        """One step, without drawing its batch."""
        tokens = torch.randint(self.vocabulary, self.shape)
        labels = torch.randint(self.vocabulary, self.shape)
        labels[:, : self.shape[1] // 2] = -100

        def update() -> None:
            with self.autocast:
                logits = self.decoder(tokens)
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

        return timing.clocked(update)

    def steps(self, count: int) -> list[timing.Sample]:
        """Steps after one that warms up."""
        self.step()
        return [self.step() for _ in range(count)]


def our_config(model: str, method: str, compute: str) -> dict[str, Any]:
    """The decoder's configuration."""
    name = model_of(model)
    kind = MODIFIED if name == "T10" else {}
    return {**MODELS[name], **kind, "compute": compute, "attention": METHODS[method]}


def our_steps(
    model: str, method: str, compute: str, shape: Shape, steps: int
) -> list[timing.Sample]:
    """Steps of bench/decoder_steps.cc, which warms up by itself."""
    program = ROOT / "build" / "bin" / "decoder_steps"
    config = json.dumps(our_config(model, method, compute))
    command = [str(program), config, *map(str, shape), str(steps), "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    taken = json.loads(done.stdout)
    return [
        timing.Sample(wall_s, process_s)
        for wall_s, process_s in zip(taken["seconds"], taken["process_seconds"], strict=True)
    ]


def operators(computes: list[str], shapes: dict[str, Shape]) -> list[dict[str, Any]]:
    """Shares of our steps by operator; none without perf, which is said."""
    rows = []
    for compute in computes:
        for model, shape in shapes.items():
            for method in METHODS:
                case = f"{model} {method} {compute}"
                try:
                    found = step_operators.shares(our_config(model, method, compute), shape)
                except (FileNotFoundError, subprocess.CalledProcessError) as error:
                    print(f"no table by operator: {error}", file=sys.stderr)
                    return []
                print(f"{case}, % of our step by operator:", file=sys.stderr)
                for name, share in found.items():
                    print(f"  {share:5.1f}  {name}", file=sys.stderr)
                    rows.append({"case": case, "operator": name, "percent": share})
    return rows


def goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was set out for, case by case, and whether it is reached."""
    seconds = {row["case"]: row["ours_process_s"] for row in rows}
    found = []
    for row in rows:
        case, softmax = row["case"], row["case"].replace("asentmax", "softmax")
        least = 1.3 if row["peer"] == "torch" else 5.0 if case.startswith("T10") else 10.0
        goal = f"at least {least:g} times as fast as {row['peer']}"
        found.append({"case": case, "goal": goal, "value": row["process_speedup"]})
        found[-1]["reached"] = row["process_speedup"] >= least
        if case == softmax or any(g["case"] == case and "softmax" in g["goal"] for g in found):
            continue
        ratio = seconds[case] / seconds[softmax]
        goal = "at most 1.15 times the time of our softmax"
        found.append({"case": case, "goal": goal, "value": ratio, "reached": ratio <= 1.15})
    for entry in found:
        mark = "reached" if entry["reached"] else "missed "
        print(f"{mark}  {entry['case']}: {entry['goal']}: {entry['value']:.2f}", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides (default 3)")
    parser.add_argument("--steps", type=int, default=3, help="steps a turn (default 3)")
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batch", type=int, help="sequences (default: the model's)")
    parser.add_argument("--length", type=int, help="tokens of each (default: the model's)")
    parser.add_argument(
        "--compute", nargs="+", default=["bfloat16", "float32"], help="dtypes (default both)"
    )
    parser.add_argument("--figure", type=Path, help="draw it as FIGURE.svg and FIGURE.png")
    arguments = parser.parse_args()
    if not (ROOT / "build" / "bin" / "decoder_steps").exists():
        print("build/bin/decoder_steps is not built: run make bench-training", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    shapes = {
        model: (arguments.batch or SHAPES[model][0], arguments.length or SHAPES[model][1])
        for model in arguments.models
    }
    rows = []
    for compute in arguments.compute:
        for model, shape in shapes.items():
            tokens = shape[0] * shape[1]
            for method in METHODS:
                peers = {
                    name: Peer(model, entmax, compute, shape)
                    for name, entmax in PEERS[method].items()
                }
                our_turn = partial(our_steps, model, method, compute, shape, arguments.steps)
                turns = {"tsallis": our_turn}
                for name, peer in peers.items():
                    turns[name] = partial(peer.steps, arguments.steps)
                timings = timing.in_turns(turns, most=arguments.rounds)
                ours = timings.pop("tsallis")
                for name, theirs in timings.items():
                    row = {
                        "case": f"{model} {method} {compute}",
                        "pass": "training step",
                        "tokens_per_s": tokens / ours.process_s,
                        **timing.compared(ours, name, theirs),
                    }
                    rows.append(row)
                    print(
                        f"{model} {method:9} {compute:9} ours {row['tokens_per_s']:7.0f} tokens/s"
                        f"   {name:21} {tokens / theirs.process_s:7.0f}   "
                        f"{row['process_speedup']:.2f}x",
                        file=sys.stderr,
                    )
    shares = operators(arguments.compute, shapes)
    more = {"operators": shares, "goals": goals(rows)}
    document.write(arguments.out, document.build(rows, threads=1, **more))
    if arguments.figure:
        training_figure.draw(rows, shares, arguments.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
