"""Replace the attention of a Hugging Face model, train it a little, generate.

    python examples/hugging_face.py

A small Llama with random weights, so that nothing is downloaded; any model whose attention goes
through transformers' interface takes the same two lines.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tsallis.integrations import transformers as tsallis_transformers


def counting(batch: int, length: int) -> torch.Tensor:
    """Sequences that count up from a random start: [batch, length], below 50."""
    return (torch.randint(50, (batch, 1)) + torch.arange(length)) % 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    )

    tsallis_transformers.register()
    model.set_attn_implementation("tsallis_entmax15")

    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(1, steps + 1):
        tokens = counting(16, 24)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 20 == 0 or step == steps:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)

    model.eval()
    prompt = torch.tensor([[7, 8, 9, 10]])
    mask = torch.ones_like(prompt)
    out = model.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False)
    print("generated", out[0].tolist())
    with torch.no_grad():
        weights = model(counting(4, 24), output_attentions=True).attentions
    visible = torch.ones(24, 24, dtype=torch.bool).tril()
    for layer, p in enumerate(weights):
        share = (p[..., visible] == 0).float().mean().item()
        print(f"layer {layer}: {100 * share:.0f} % of the visible weights are exactly 0")


if __name__ == "__main__":
    main()
