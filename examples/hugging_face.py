"""Replace the attention of a Hugging Face model, train it a little, generate.

    python examples/hugging_face.py

A small Llama with random weights, so that nothing is downloaded. It learns to go on with a pattern
of seven numbers, for which a head has to look at one token of many: most weights become exactly 0.
Models that transformers serves with "sdpa" take the same two lines; others are refused by name.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tsallis.integrations import transformers as tsallis_transformers

PERIOD = 7


def patterns(batch: int, length: int) -> torch.Tensor:
    """Random numbers below 50 that repeat after PERIOD: [batch, length]."""
    return torch.randint(50, (batch, PERIOD)).repeat(1, -(-length // PERIOD))[:, :length]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
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
        tokens = patterns(32, 4 * PERIOD)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 50 == 0 or step == steps:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)

    model.eval()
    prompt = patterns(1, 2 * PERIOD)
    mask = torch.ones_like(prompt)
    out = model.generate(prompt, attention_mask=mask, max_new_tokens=PERIOD, do_sample=False)
    print("prompt   ", prompt[0].tolist())
    print("generated", out[0, 2 * PERIOD :].tolist())
    with torch.no_grad():
        weights = model(patterns(4, 4 * PERIOD), output_attentions=True).attentions
    visible = torch.ones(4 * PERIOD, 4 * PERIOD, dtype=torch.bool).tril()
    for layer, p in enumerate(weights):
        share = (p[..., visible] == 0).float().mean().item()
        print(f"layer {layer}: {100 * share:.0f} % of the visible weights are exactly 0")


if __name__ == "__main__":
    main()
