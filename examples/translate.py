"""An adaptively sparse transformer: torch's own, with an alpha that every head learns.

    python examples/translate.py

torch.nn.Transformer learns to say numbers backwards ("307" becomes "seven zero three"). Each of its
attention modules is replaced by Tsallis's, whose weights load from it and whose rest stays the same
(Correia, Niculae and Martins 2019). The lab trains such models on real sentences:
docs/guide/translation.md.
"""

import argparse
import math

import torch
from torch import Tensor, nn

import tsallis

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
WORDS = [*"0123456789", *NAMES, "<bos>"]


def batch(numbers: list[int]) -> tuple[Tensor, Tensor]:
    source = torch.tensor([[int(digit) for digit in f"{n:05d}"] for n in numbers])
    start = torch.full((len(numbers), 1), WORDS.index("<bos>"))
    return source, torch.cat((start, source.flip(1) + 10), 1)


class Translator(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), width)
        self.place = nn.Embedding(8, width)
        self.body = nn.Transformer(width, heads, 2, 2, 128, dropout=0.0, batch_first=True)
        for module in list(self.body.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.MultiheadAttention):
                    alpha = tsallis.nn.LearnedAlpha(heads)
                    sparse = tsallis.nn.MultiheadAttention(
                        width, heads, batch_first=True, alpha=alpha
                    )
                    setattr(module, name, sparse)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, y = (self.embedding(t) + self.place.weight[: t.shape[1]] for t in (source, target))
        mask = torch.full((y.shape[1],) * 2, -math.inf).triu(1)
        return self.body(x, y, tgt_mask=mask, tgt_is_causal=True) @ self.embedding.weight.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = Translator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, steps + 1):
        source, target = batch(torch.randint(0, 100_000, (64,)).tolist())
        logits = model(source, target[:, :-1])
        loss = nn.functional.cross_entropy(logits.mT, target[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 100 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}")
    source, target = batch([30712, 42, 98765])
    said = target[:, :1]
    with torch.no_grad():
        for _ in range(5):
            said = torch.cat((said, model(source, said)[:, -1:].argmax(-1)), 1)
    for digits, words in zip(source.tolist(), said[:, 1:].tolist(), strict=True):
        print("".join(WORDS[i] for i in digits), "->", " ".join(WORDS[i] for i in words))
    for name, module in model.named_modules():
        if isinstance(module, tsallis.nn.LearnedAlpha):
            alphas = " ".join(f"{alpha:.2f}" for alpha in module().tolist())
            print(f"{name.removeprefix('body.').removesuffix('.alpha')}: alpha {alphas}")


if __name__ == "__main__":
    main()
