"""llama.cpp's attention on cached keys, through the package xllamacpp.

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
from pathlib import Path
from typing import Any

from tsallis.bench.timing import Sample

__all__ = ["CACHES", "MOST_KEYS", "Writer", "build", "why_absent"]

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


def _write_model(path: Path, heads: int, kv_heads: int, d: int) -> None:
    """One layer of random weights, and a vocabulary without words."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(d)
    writer.add_value_length(d)
    writer.add_rope_dimension_count(d)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    special = [b"<unk>", b"<s>", b"</s>"]
    bytes_ = [f"<0x{i:02X}>".encode() for i in range(256)]
    others = [f"t{i}".encode() for i in range(VOCABULARY - 256 - len(special))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *bytes_, *others])
    writer.add_token_scores([0.0] * VOCABULARY)
    kinds = gguf.TokenType
    control = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    writer.add_token_types([*control, *[kinds.BYTE] * 256, *[kinds.NORMAL] * len(others)])
    random = numpy.random.default_rng(0)
    shapes = {
        "token_embd": (VOCABULARY, WIDTH),
        "output": (VOCABULARY, WIDTH),
        "blk.0.attn_q": (heads * d, WIDTH),
        "blk.0.attn_k": (kv_heads * d, WIDTH),
        "blk.0.attn_v": (kv_heads * d, WIDTH),
        "blk.0.attn_output": (WIDTH, heads * d),
        "blk.0.ffn_gate": (HIDDEN, WIDTH),
        "blk.0.ffn_up": (HIDDEN, WIDTH),
        "blk.0.ffn_down": (WIDTH, HIDDEN),
    }
    for name, (rows, columns) in shapes.items():
        weights = random.normal(0.0, columns**-0.5, (rows, columns))
        writer.add_tensor(f"{name}.weight", weights.astype(numpy.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", numpy.ones(WIDTH, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Writer:
    """A model that has read n - `WRITTEN` tokens into a cache of one of `CACHES`, and writes."""

    def __init__(self, cache: str, n: int, heads: int, kv_heads: int, d: int, threads: int) -> None:
        xllamacpp = _package()
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "model.gguf"
        _write_model(path, heads, kv_heads, d)
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = n + 256
        parameters.n_parallel = 1
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{CACHES[cache]}")
        parameters.cache_type_k = parameters.cache_type_v = kind
        flash = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
        parameters.flash_attn_type = flash
        parameters.verbosity = -1
        parameters.warmup = False
        self._server = xllamacpp.Server(parameters)
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
        answer: Any = self._server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": WRITTEN,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_prompt": True,
            }
        )
        process = time.process_time() - process
        if not isinstance(answer, dict):
            answer = json.loads(answer)
        if "timings" not in answer:
            raise RuntimeError(f"llama.cpp: {answer}")
        found = answer["timings"]
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
