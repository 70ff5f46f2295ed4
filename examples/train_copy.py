"""Train a small model to copy words of 4 to 16 symbols, with softmax and with ASEntmax, and read
both at longer lengths. They are alike at this size; docs/explain/what-decides.md has the study.

    python examples/train_copy.py --steps 600
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tsallis

SYMBOLS, SEPARATOR, WIDTH, HEADS = 16, 16, 64, 4


class Block(nn.Module):
    """Causal attention; half the heads have ALiBi. ASEntmax scales the others with the length."""

    def __init__(self, asentmax: bool) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.slopes = tsallis.nn.NAPE(HEADS)
        self.alpha = 1.5 if asentmax else 1.0  # 1: softmax
        scale = tsallis.nn.ASEntmaxScale(WIDTH, HEADS, unscaled=HEADS // 2)
        self.scale = scale if asentmax else None
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        # [batch, heads, length, size] each
        q, k, v = self.qkv(y).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scale = None if self.scale is None else self.scale(y)
        options = {"alpha": self.alpha, "alibi_slopes": self.slopes(), "length_scale": scale}
        y = tsallis.attention(q, k, v, causal=True, **options)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


def batch(size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [size, 2 length] (a word, a separator, the word but its end) and the word."""
    word = torch.randint(SYMBOLS, (size, length))
    separator = torch.full((size, 1), SEPARATOR)
    return torch.cat((word, separator, word[:, :-1]), 1), word


def train(asentmax: bool, steps: int) -> nn.Module:
    print("ASEntmax" if asentmax else "softmax")
    torch.manual_seed(0)
    layers = [nn.Embedding(SYMBOLS + 1, WIDTH), Block(asentmax), Block(asentmax)]
    model = nn.Sequential(*layers, nn.RMSNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS + 1))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.0)
    for step in range(1, steps + 1):
        tokens, word = batch(32, int(torch.randint(4, 17, ())))
        loss = cross_entropy(model(tokens)[:, word.shape[1] :].flatten(0, 1), word.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 100 == 0 or step == steps:
            print(f"step {step:4d}  loss {loss.item():.3f}", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="for each of the two")
    steps = parser.parse_args().steps
    models = [train(asentmax, steps) for asentmax in (False, True)]
    print("symbols right, %   softmax  ASEntmax")
    for length in (8, 16, 32, 64):
        tokens, word = batch(64, length)
        right = [(m(tokens)[:, length:].argmax(-1) == word).float().mean() for m in models]
        print(f"length {length:3d} {100 * right[0]:15.1f} {100 * right[1]:9.1f}")


if __name__ == "__main__":
    main()
