"""Write with a Hugging Face model on a paged cache, exact and sparse.

    python examples/generate.py
    python examples/generate.py --model runs/convert/smollm2/entmax/model --prompt "def main("

Without --model a small Llama with random weights, so that nothing is downloaded: its text says
nothing, its time and its supports do. `tsallis convert smollm2` makes a real one.
"""

import argparse
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tsallis.integrations import transformers as tsallis_transformers

PROMPT_TOKENS = 2000  # of a model without a tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder that save_pretrained wrote")
    parser.add_argument("--prompt", default="import torch\n", help="text to go on from")
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    torch.manual_seed(0)
    tsallis_transformers.register()
    tokenizer = None
    if options.model is None:
        config = LlamaConfig(
            vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
        model.set_attn_implementation("tsallis_entmax15")
        prompt = torch.randint(256, (1, PROMPT_TOKENS))
    else:
        model = AutoModelForCausalLM.from_pretrained(
            options.model, attn_implementation="tsallis_entmax", dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        prompt = tokenizer(options.prompt, return_tensors="pt").input_ids
    model.eval()

    kept: list[float] = []  # keys with a weight, of those that a query sees

    def look(module: torch.nn.Module, support_size: torch.Tensor, entropy: torch.Tensor) -> None:
        if support_size.shape[2] == 1:  # a token that is written
            kept.append(support_size.double().mean().item() / cache.get_seq_length())

    cache = tsallis_transformers.TsallisCache(model.config)
    begin = time.perf_counter()
    with tsallis_transformers.observe(look):
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            past_key_values=cache,
            max_new_tokens=options.tokens,
            do_sample=False,
        )
    seconds = time.perf_counter() - begin
    written = out[0, prompt.shape[1] :]
    print(tokenizer.decode(out[0]) if tokenizer is not None else written.tolist())
    print(f"{len(written)} tokens behind {prompt.shape[1]} in {seconds:.1f} s")
    print(f"a query kept {100 * sum(kept) / len(kept):.1f} % of the keys that it sees")


if __name__ == "__main__":
    main()
