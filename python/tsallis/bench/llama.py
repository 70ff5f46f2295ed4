"""llama.cpp's files, and its attention on cached keys, through the package xllamacpp.

llama.cpp has no call for attention alone. A model of one layer with random weights and the case's
heads reads as many tokens as the case has keys, and then writes: the time of a token behind them,
less the time of a token behind a few, is what attention takes.
"""

from __future__ import annotations

import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tsallis.bench.serve_engine import llama_server, llama_timings
from tsallis.bench.timing import Sample

__all__ = ["CACHES", "MOST_KEYS", "Writer", "build", "why_absent", "write_folder"]

# name of a contender: llama.cpp's type of keys and values
CACHES = {"llama f16": "F16", "llama q8_0": "Q8_0"}
# Its prompt is read with dense attention, for q8_0 at some 200 tokens a second.
MOST_KEYS = 16384

WIDTH, HIDDEN, VOCABULARY = 256, 256, 512
FEW = 32  # keys of the token whose time is taken away
WRITTEN = 8  # tokens a turn


def why_absent() -> str | None:
    """Why llama.cpp cannot be measured; None if it can."""
    for name in ("xllamacpp", "gguf"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{error} (pip install {name})"
    return None


def _package() -> Any:
    return importlib.import_module("xllamacpp")


def build() -> str:
    """The package's version, and the instructions that its llama.cpp was compiled for."""
    xllamacpp = _package()
    found = str(xllamacpp.get_system_info()).split(":", 1)[-1].split("|")
    names = [part.split("=")[0].strip() for part in found if part.strip()]
    return f"xllamacpp {xllamacpp.__version__}: {' '.join(names)}"


def _write(path: Path, config: dict[str, Any], tensors: Iterable[tuple[str, Any]], to: str) -> None:
    """A file of llama.cpp, with a vocabulary without words.

    config: of a Llama, as Hugging Face's config.json has it. tensors: their names there and
    float32 arrays. to: the type of the matrices, as "BF16".
    """
    import gguf

    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    d = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(d)
    writer.add_value_length(d)
    writer.add_rope_dimension_count(d)
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope.get("rope_theta", 1e4))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    special = [b"<unk>", b"<s>", b"</s>"]
    bytes_ = [f"<0x{i:02X}>".encode() for i in range(256)]
    others = [f"t{i}".encode() for i in range(config["vocab_size"] - 256 - len(special))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *bytes_, *others])
    writer.add_token_scores([0.0] * config["vocab_size"])
    kinds = gguf.TokenType
    control = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    writer.add_token_types([*control, *[kinds.BYTE] * 256, *[kinds.NORMAL] * len(others)])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    kind = gguf.GGMLQuantizationType[to]
    for name, numbers in tensors:
        found = names.get_name(name, try_suffixes=(".weight",))
        if found is None:
            raise ValueError(f"{name}: expected a tensor of a Llama, got one that llama.cpp lacks")
        if "q_proj" in name or "k_proj" in name:
            # Rotated are neighbours there, halves of a head here.
            halves = numbers.reshape(-1, 2, d // 2, numbers.shape[1])
            numbers = halves.swapaxes(1, 2).reshape(numbers.shape)
        if numbers.ndim > 1 and kind != gguf.GGMLQuantizationType.F32:
            packed = gguf.quants.quantize(numbers, kind)
            writer.add_tensor(found, packed, raw_dtype=kind)
        else:
            writer.add_tensor(found, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(folder: Path, path: Path, to: str) -> None:
    """llama.cpp's file of a Llama that save_pretrained wrote into one file of weights.

    to: the type of its matrices, as "F32", "BF16" or "Q4_1".

    Raises:
        ValueError: it is no Llama, or not in one file.
    """
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    file = folder / "model.safetensors"
    if config.get("model_type") != "llama" or not file.is_file():
        raise ValueError(f"{folder}: expected a Llama in model.safetensors, for llama.cpp's file")
    tensors = ((name, x.float().numpy()) for name, x in load_file(file).items())
    _write(path, config, tensors, to)


def _write_layer(path: Path, heads: int, kv_heads: int, d: int) -> None:
    """One layer of random weights."""
    import numpy

    config = {
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": d,
        "rms_norm_eps": 1e-5,
    }
    random = numpy.random.default_rng(0)
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens": (VOCABULARY, WIDTH),
        "lm_head": (VOCABULARY, WIDTH),
        f"{layer}.self_attn.q_proj": (heads * d, WIDTH),
        f"{layer}.self_attn.k_proj": (kv_heads * d, WIDTH),
        f"{layer}.self_attn.v_proj": (kv_heads * d, WIDTH),
        f"{layer}.self_attn.o_proj": (WIDTH, heads * d),
        f"{layer}.mlp.gate_proj": (HIDDEN, WIDTH),
        f"{layer}.mlp.up_proj": (HIDDEN, WIDTH),
        f"{layer}.mlp.down_proj": (WIDTH, HIDDEN),
    }
    norms = ("model.norm", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    tensors = {
        name: random.normal(0.0, shape[1] ** -0.5, shape).astype(numpy.float32)
        for name, shape in shapes.items()
    } | {name: numpy.ones(WIDTH, numpy.float32) for name in norms}
    _write(path, config, ((f"{name}.weight", x) for name, x in tensors.items()), "F32")


class Writer:
    """A model that has read n - `WRITTEN` tokens into a cache of one of `CACHES`, and writes."""

    def __init__(self, cache: str, n: int, heads: int, kv_heads: int, d: int, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "model.gguf"
        _write_layer(path, heads, kv_heads, d)
        self._server = llama_server(str(path), CACHES[cache], 1, n + 256, threads)
        few = [self._write(FEW) for _ in range(9)]
        self._rest = Sample(
            statistics.median(sample.wall_s for sample in few),
            statistics.median(sample.process_s for sample in few),
        )
        self._keys = n - WRITTEN
        self._write(self._keys)  # reads the prompt, which stays in the cache

    def _write(self, keys: int) -> Sample:
        prompt = [1, *(3 + (7919 * i) % (VOCABULARY - 3) for i in range(keys - 1))]
        process = time.process_time()
        found = llama_timings(self._server, prompt, WRITTEN)
        process = time.process_time() - process
        # The first token comes with the prompt's last, which is read again: the clock of what is
        # written starts behind it, that of the processor before.
        steps = found["predicted_n"] - 1
        return Sample(found["predicted_ms"] / 1e3 / steps, process / (steps + 1))

    def turn(self) -> list[Sample]:
        """Attention of a token."""
        found = self._write(self._keys)
        return [
            Sample(
                max(0.0, found.wall_s - self._rest.wall_s),
                max(0.0, found.process_s - self._rest.process_s),
            )
        ]

    def close(self) -> None:
        """Ends the model and its threads."""
        del self._server
        self._folder.cleanup()
