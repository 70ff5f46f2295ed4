"""What transformers writes, to hold vLLM's answers against."""

import pytest
import torch

CLOSE = 1e-4  # log-probabilities, float32


def generated(model, prompt, count):
    """`count` tokens of greedy `generate` behind a prompt, and their log-probabilities."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = out.sequences[0, len(prompt) :].tolist()
    steps = [logits[0].log_softmax(-1) for logits in out.logits]
    return tokens, [step[token].item() for step, token in zip(steps, tokens, strict=True)]


def same(found, expected):
    """Every token; log-probabilities to CLOSE."""
    for answer, (tokens, logprobs) in zip(found, expected, strict=True):
        assert answer["tokens"] == tokens
        assert answer["logprobs"] == pytest.approx(logprobs, abs=CLOSE)
