"""Training speed of max retrieval's model: ours against plain PyTorch, one core, same run.

The plain model is the listing of Velickovic et al. 2024, appendix A.3, line by line: projections
unfolded, Adam from torch.optim, batches drawn with torch. Its entmax is the `entmax` package's. The
two sides alternate, so that a machine whose speed drifts treats them alike; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from entmax import entmax15
from torch import nn

from common import ROOT, document, timing

WIDTH, CLASSES, BATCH = 128, 10, 128
Map = Callable[[torch.Tensor, int], torch.Tensor]


class PlainModel(nn.Module):
    """Two-layer GeLU MLPs around one attention head, as the paper lists it."""

    def __init__(self, attention_map: Map) -> None:
        super().__init__()
        self.map = attention_map
        self.item = nn.Sequential(
            nn.Linear(1 + CLASSES, WIDTH), nn.GELU("tanh"), nn.Linear(WIDTH, WIDTH), nn.GELU("tanh")
        )
        self.query = nn.Sequential(nn.Linear(1, WIDTH), nn.GELU("tanh"), nn.Linear(WIDTH, WIDTH))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.GELU("tanh"), nn.Linear(WIDTH, CLASSES)
        )

    def forward(self, items: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """items: [sets, n, 1 + classes], query: [sets, 1] -> [sets, classes]."""
        h = self.item(items)
        q = self.q(self.query(query)).unsqueeze(1)
        scores = q @ self.k(h).transpose(1, 2) / math.sqrt(WIDTH)
        pooled = (self.map(scores, -1) @ self.v(h)).squeeze(1)
        return self.head(self.o(pooled))


def draw() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One training batch: items, query, class of the item of highest priority."""
    n = int(torch.randint(5, 17, ()))
    priority = torch.rand(BATCH, n)
    label = torch.randint(0, CLASSES, (BATCH, n))
    items = torch.cat([priority.unsqueeze(2), F.one_hot(label, CLASSES).float()], 2)
    return items, torch.rand(BATCH, 1), label.gather(1, priority.argmax(1, keepdim=True)).squeeze(1)


def plain_step(attention_map: Map, steps: int) -> timing.Sample:
    """A step of the plain model: the mean of `steps`, after a warm-up."""
    torch.manual_seed(1)
    model = PlainModel(attention_map)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)

    def run(count: int) -> None:
        for _ in range(count):
            items, query, target = draw()
            loss = F.cross_entropy(model(items, query), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    run(20)
    taken = timing.clocked(lambda: run(steps))
    return timing.Sample(taken.wall_s / steps, taken.process_s / steps)


def our_step(program: Path, method: str, steps: int) -> timing.Sample:
    """A step of ours: the mean of `steps`, with the start and the final save."""
    done = subprocess.run(
        [program, "max-retrieval", method, str(steps)], check=True, capture_output=True, text=True
    )
    taken = json.loads(done.stdout)
    return timing.Sample(taken["seconds"] / steps, taken["process_seconds"] / steps)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--steps", type=int, default=1000, help="steps a measurement (default 1000)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="measurements of each side (default 5)"
    )
    arguments = parser.parse_args()
    program = ROOT / "build" / "bin" / "training_steps"
    if not program.exists():
        print(f"{program} is not built: run make bench-training", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    # Ours does; without it the plain model slows down as its weights decay.
    torch.set_flush_denormal(True)
    rows: list[dict[str, Any]] = []
    steps = arguments.steps
    cases: list[tuple[str, str, Map]] = [
        ("softmax", "torch", lambda x, dim: x.softmax(dim)),
        ("entmax-1.5", "torch + entmax", lambda x, dim: entmax15(x, dim=dim)),
    ]
    for method, peer, attention_map in cases:
        turns = {
            "tsallis": lambda method=method: [our_step(program, method, steps)],
            peer: lambda attention_map=attention_map: [plain_step(attention_map, steps)],
        }
        timings = timing.in_turns(turns, most=arguments.repeats)
        ours, theirs = timings["tsallis"], timings[peer]
        rows.append(
            {
                "case": f"max-retrieval {method}",
                "pass": "training step",
                **timing.compared(ours, peer, theirs),
            }
        )
        print(
            f"{method:12} ours {1 / ours.wall_s:6.0f} steps/s   "
            f"{peer} {1 / theirs.wall_s:6.0f} steps/s   {rows[-1]['speedup']:.2f}x",
            file=sys.stderr,
        )
    document.write(arguments.out, document.build(rows, threads=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
