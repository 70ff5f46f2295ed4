"""An engine for ``tsallis bench serve``: a program of its own, in the Python that has its package.

The first line of standard input is the engine as JSON: package (of `ENGINES`), model (a folder, or
llama.cpp's file), dtype, keys (their type where it is not the model's), cores (numbers), longest
(tokens of a request), additional_config (vLLM's). Each line after it is a case: prompts (lists of
as many token ids) and tokens (to write). Each answer is a line that begins with RESULT: prompt_s,
until every stream has its first token, and step_s, of a step in which every stream writes a token
and none reads. Nothing of Tsallis is imported here: vLLM loads the plug-in, or is told not to.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["ENGINES", "llama_server", "llama_timings", "step"]

Prompts = list[list[int]]


class Vllm:
    """vLLM in this process, whose steps are timed one by one."""

    def __init__(self, options: dict[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        self.vllm = importlib.import_module("vllm")
        self.engine: Any = self.vllm.LLM(
            options["model"],
            dtype=options["dtype"],
            max_model_len=options["longest"],
            enforce_eager=True,
            enable_prefix_caching=False,
            additional_config=options["additional_config"],
            hf_overrides={"max_position_embeddings": options["longest"]},
        ).llm_engine
        self.longest = options["longest"]
        self.number = 0

    def run(self, prompts: Prompts, tokens: int) -> dict[str, float]:
        """The first streams write while the last are read, so none ends by itself."""
        most = self.longest - len(prompts[0])
        params = self.vllm.SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
        names = [str(self.number + i) for i in range(len(prompts))]
        self.number += len(prompts)
        for name, ids in zip(names, prompts, strict=True):
            self.engine.add_request(name, {"prompt_token_ids": ids}, params)
        written: set[str] = set()
        begin = time.perf_counter()
        first = 0.0
        steps: list[float] = []
        while len(steps) < tokens - 1 and self.engine.has_unfinished_requests():
            start = time.perf_counter()
            answers = self.engine.step()
            end = time.perf_counter()
            whole = len(written) == len(prompts)
            written.update(answer.request_id for answer in answers)
            if whole and len(answers) == len(prompts):
                steps.append(end - start)
            elif not whole and len(written) == len(prompts):
                first = end - begin
        self.engine.abort_request(names)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return {"prompt_s": first, "step_s": statistics.median(steps)}


def llama_server(model: str, keys: str, streams: int, longest: int, threads: int) -> Any:
    """llama.cpp's server on a file. keys: their type, as "F16"; longest: tokens of a stream."""
    package: Any = importlib.import_module("xllamacpp")
    parameters = package.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = streams * longest
    parameters.n_parallel = streams
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    kind = getattr(package.ggml_type, f"GGML_TYPE_{keys}")
    parameters.cache_type_k = parameters.cache_type_v = kind
    parameters.flash_attn_type = package.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    parameters.verbosity = -1
    parameters.warmup = False
    return package.Server(parameters)


def llama_timings(server: Any, prompt: list[int], tokens: int, stream: int = 0) -> dict[str, Any]:
    """What llama.cpp says of the time of an answer; a prompt that the stream has read stays."""
    answer: Any = server.handle_completions(
        {
            "prompt": prompt,
            "n_predict": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": True,
            "id_slot": stream,
        }
    )
    if not isinstance(answer, dict):
        answer = json.loads(answer)
    if "timings" not in answer:
        raise RuntimeError(f"llama.cpp: {answer}")
    found: dict[str, Any] = answer["timings"]
    return found


class Llama:
    """llama.cpp, whose cache is cut into equal parts: a server for every shape of case."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.server: Any = None
        self.shape: tuple[int, int] | None = None

    def run(self, prompts: Prompts, tokens: int) -> dict[str, float]:
        """Reads all prompts, which stay, and then writes behind all of them."""
        shape = (len(prompts), len(prompts[0]) + tokens + 64)
        if self.shape != shape:
            self.server = None  # gives its memory back first
            threads = len(self.options["cores"])
            model, keys = self.options["model"], self.options["keys"]
            self.server = llama_server(model, keys, *shape, threads)
            self.shape = shape
        with ThreadPoolExecutor(len(prompts)) as pool:

            def ask(tokens: int) -> list[dict[str, Any]]:
                calls = [
                    pool.submit(llama_timings, self.server, ids, tokens, stream)
                    for stream, ids in enumerate(prompts)
                ]
                return [call.result() for call in calls]

            begin = time.perf_counter()
            ask(1)
            prompt_s = time.perf_counter() - begin
            # The first token comes with the prompt's last, which is read again.
            found = [own["predicted_ms"] / 1e3 / (own["predicted_n"] - 1) for own in ask(tokens)]
        return {"prompt_s": prompt_s, "step_s": statistics.median(found)}


def step(times: list[list[float]]) -> float:
    """The median time of a token where all streams write. times: of every token of each stream."""
    begin, end = max(own[0] for own in times), min(own[-1] for own in times)
    found = [y - x for own in times for x, y in pairwise(own) if y > begin and x < end]
    if not found:
        raise RuntimeError("a stream ended before the last began")
    return statistics.median(found)


class Mistral:
    """mistral.rs, whose streams are read by a thread each."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.package: Any = importlib.import_module("mistralrs")
        # It reads rope_theta beside the other settings, and serves no more tokens than the config
        # has positions.
        model = Path(options["model"])
        config = json.loads((model / "config.json").read_text())
        config |= config.get("rope_parameters") or {}
        config["max_position_embeddings"] = options["longest"]
        with tempfile.TemporaryDirectory() as folder:
            for file in model.iterdir():
                (Path(folder) / file.name).symlink_to(file.absolute())
            (Path(folder) / "config.json").unlink()
            (Path(folder) / "config.json").write_text(json.dumps(config))
            plain = Path(folder) / "plain.jinja"
            plain.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
            kinds = self.package.ModelDType
            dtype = kinds.BF16 if options["dtype"] == "bfloat16" else kinds.F32
            which = self.package.Which.Plain(
                model_id=folder, arch=self.package.Architecture.Llama, dtype=dtype
            )
            self.runner: Any = self.package.Runner(
                which=which,
                max_seqs=options["streams"],
                prefix_cache_n=0,
                token_source="none",
                jinja_explicit=str(plain),
            )

    def run(self, prompts: Prompts, tokens: int) -> dict[str, float]:
        """The first streams may write a little while the last are read, and write so much more."""
        requests = [
            self.package.ChatCompletionRequest(
                messages=self.runner.detokenize_text(ids, False),
                model="default",
                max_tokens=tokens + len(prompts),
                temperature=0.0,
                ignore_eos=True,
                stream=True,
            )
            for ids in prompts
        ]
        begin = time.perf_counter()
        streams = [iter(self.runner.send_chat_completion_request(one)) for one in requests]

        def read(stream: Any) -> list[float]:
            return [time.perf_counter() for _ in stream]

        with ThreadPoolExecutor(len(prompts)) as pool:
            times = list(pool.map(read, streams))
        return {"prompt_s": max(own[0] for own in times) - begin, "step_s": step(times)}


ENGINES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "vllm": Vllm,
    "xllamacpp": Llama,
    "mistralrs": Mistral,
}


def main() -> None:
    options = json.loads(sys.stdin.readline())
    package = options["package"]
    if package != "vllm":  # which binds its threads itself
        os.sched_setaffinity(0, options["cores"])
    engine = ENGINES[package](options)
    known = getattr(importlib.import_module(package), "__version__", None)
    about = {"version": known or importlib.metadata.version(package)}
    print("RESULT", json.dumps(about), flush=True)
    for line in sys.stdin:
        print("RESULT", json.dumps(engine.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
