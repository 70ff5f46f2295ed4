"""Learn alpha for each head: one task wants a sharp head, another a broad one.

    python examples/learn_alpha.py

Both heads see the same scores. The first has to return the value of the best key, the second the
mean of all values. Gradients reach alpha through attention, and it stays between its bounds.
"""

import argparse

import torch

import tsallis


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    alpha = tsallis.nn.LearnedAlpha(heads=2, initial=1.5, low=1.0, high=4.0)
    optimizer = torch.optim.Adam(alpha.parameters(), lr=0.05)
    length, size = 64, 16
    for step in range(1, steps + 1):
        q = torch.randn(32, 1, 1, size)
        k = torch.randn(32, 1, length, size)
        v = torch.randn(32, 1, length, size)
        best = (q @ k.mT).argmax(-1)  # [batch, 1, 1]
        wanted = torch.cat(
            (v.gather(2, best[..., None].expand(-1, -1, -1, size)), v.mean(2, keepdim=True)), 1
        )  # [batch, 2, 1, size]
        out = tsallis.attention(q.expand(-1, 2, -1, -1), k, v, alpha=alpha())
        loss = (out - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 50 == 0 or step == steps:
            sharp, broad = alpha().tolist()
            print(f"step {step:3d}  loss {loss.item():.3f}  alpha {sharp:.2f} and {broad:.2f}")


if __name__ == "__main__":
    main()
