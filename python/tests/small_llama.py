"""A small Llama with random weights and a tokenizer of its own."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SIZES = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": None,
}


def write_tokenizer(folder: Path, texts: list[str]) -> None:
    """Byte-level BPE, trained on the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def write_llama(folder: Path, texts: list[str], **more) -> Path:
    """As save_pretrained writes it; ``more`` goes to its config."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**(SIZES | more))).save_pretrained(folder)
    write_tokenizer(folder, texts)
    return folder
