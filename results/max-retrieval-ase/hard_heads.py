"""Max retrieval by one hard head in plain PyTorch, by how its threshold is found.

    python results/max-retrieval-ase/hard_heads.py bisect --alpha 64 --seed 1

prints one line of JSON: the accuracy in % at 16, 128, 1024 and 4096 items. Needs the packages
tsallis and entmax. The story beside this file has what came out.
"""

import argparse
import json
import math
from typing import Any

import torch
from entmax import entmax_bisect
from torch import nn
from torch.nn import functional as F

import tsallis

WIDTH, CLASSES, BATCH, WARMUP = 128, 10, 128, 500


class Halley(torch.autograd.Function):
    """Ten bracketed steps of Halley's method, and weights that are not divided by their sum."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, alpha: float) -> torch.Tensor:
        z = scores * (alpha - 1)
        power = 1 / (alpha - 1)
        most = z.amax(-1, keepdim=True)
        low, high = most - 1, most - (1 / z.shape[-1]) ** (alpha - 1)
        t = (low + high) / 2
        for _ in range(10):
            above = (z - t).clamp(min=0)
            p, dp, ddp = (
                torch.where(above > 0, above ** (power - k), 0.0).sum(-1, keepdim=True)
                for k in range(3)
            )
            f, df, ddf = p - 1, -power * dp, power * (power - 1) * ddp
            low, high = torch.where(f > 0, t, low), torch.where(f > 0, high, t)
            new = t - 2 * f * df / (2 * df * df - f * ddf)
            inside = (new > low) & (new < high) & new.isfinite()
            t = torch.where(inside, new, (low + high) / 2)
        p = torch.where(z > t, (z - t).clamp(min=0) ** power, 0.0)
        ctx.save_for_backward(p)
        ctx.alpha = alpha
        return p

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (p,) = ctx.saved_tensors
        u = torch.where(p > 0, p ** (2 - ctx.alpha), 0.0)
        mean = (grads[0] * u).sum(-1, keepdim=True) / u.sum(-1, keepdim=True)
        return u * (grads[0] - mean), None


SOLVERS: dict[str, Any] = {
    "exact": lambda s, alpha: tsallis.entmax(s, alpha=alpha),
    "bisect": lambda s, alpha: entmax_bisect(s, alpha=alpha, dim=-1, n_iter=50),
    "halley": Halley.apply,
    "theta": lambda s, alpha: s.softmax(-1),  # one learned temperature
}


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():  # LeCun's normal, cut at two deviations
        nn.init.trunc_normal_(layer.weight, 0, 1, -2, 2)
        layer.weight.div_(0.87962566103423978 * math.sqrt(inputs))
        if bias:
            layer.bias.zero_()
    return layer


class Model(nn.Module):
    """The head of "softmax is not enough": items and a query through MLPs, attention, an MLP."""

    def __init__(self, solver: str, alpha: float) -> None:
        super().__init__()
        self.items = nn.Sequential(
            linear(1 + CLASSES, WIDTH), nn.GELU(), linear(WIDTH, WIDTH), nn.GELU()
        )
        self.query = nn.Sequential(linear(1, WIDTH), nn.GELU(), linear(WIDTH, WIDTH))
        self.q, self.k = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH, False)
        self.answer = nn.Sequential(
            *(linear(WIDTH, WIDTH) for _ in range(3)), nn.GELU(), linear(WIDTH, CLASSES)
        )
        self.log_theta = nn.Parameter(
            torch.tensor(math.log(WIDTH) / 2), requires_grad=solver == "theta"
        )
        self.weights, self.alpha = SOLVERS[solver], alpha

    def forward(self, x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        h = self.items(x)
        u = self.q(self.query(query)) @ self.k.weight
        p = self.weights((h @ u[:, :, None])[..., 0] / self.log_theta.exp(), self.alpha)
        logits: torch.Tensor = self.answer((p[:, None] @ h)[:, 0])
        return logits


def draw(random: torch.Generator, sets: int, n: int) -> tuple[torch.Tensor, ...]:
    priority = torch.rand(sets, n, generator=random)
    label = torch.randint(0, CLASSES, (sets, n), generator=random)
    x = torch.cat([priority[..., None], F.one_hot(label, CLASSES).float()], -1)
    query = torch.rand(sets, 1, generator=random)
    return x, query, label.gather(1, priority.argmax(1, keepdim=True))[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("solver", choices=SOLVERS)
    parser.add_argument("--alpha", type=float, default=16.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = Model(args.solver, args.alpha)
    random = torch.Generator().manual_seed(1000 + args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), args.rate, weight_decay=0.0)
    for step in range(args.steps):
        done = max(0, step - WARMUP) / max(1, args.steps - WARMUP)
        factor = min(1, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * done))
        optimizer.param_groups[0]["lr"] = args.rate * factor
        n = int(torch.randint(5, 17, (1,), generator=random))
        x, query, label = draw(random, BATCH, n)
        optimizer.zero_grad()
        F.cross_entropy(model(x, query), label).backward()
        # A step whose gradient is not finite is left out.
        if all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters()):
            optimizer.step()
    accuracy = {}
    test = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for n in (16, 128, 1024, 4096):
            hits = asked = 0
            while asked < 2048:
                x, query, label = draw(test, max(16, min(2048, 2**19 // n)), n)
                hits += int((model(x, query).argmax(-1) == label).sum())
                asked += len(label)
            accuracy[n] = round(100 * hits / asked, 1)
    print(json.dumps({**vars(args), "theta": model.log_theta.exp().item(), "accuracy": accuracy}))


if __name__ == "__main__":
    main()
