"""An engine of vLLM for ``tsallis bench serve``: runs as a program of its own, in vLLM's Python.

The first line of standard input is the engine as JSON: model, dtype, longest (tokens of a request),
additional_config. Each line after it is a case: prompt, streams, tokens. Each answer is a line that
begins with RESULT. Nothing of Tsallis is imported here: vLLM loads the plug-in, or is told not to.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # steps are timed in this process

TEXT = 3_000_000  # characters


def text() -> str:
    """Real text that every machine with torch has: its own sources."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    files = sorted((Path(spec.origin).parent / "nn").rglob("*.py"))
    return "".join(file.read_text(errors="replace") for file in files)[:TEXT]


class Served:
    """The engine, and text that no two requests share."""

    def __init__(self, options: dict[str, Any]) -> None:
        import vllm

        self.vllm = vllm
        llm = vllm.LLM(
            options["model"],
            dtype=options["dtype"],
            max_model_len=options["longest"],
            enforce_eager=True,
            enable_prefix_caching=False,
            additional_config=options["additional_config"],
        )
        self.engine: Any = llm.llm_engine
        self.tokens = llm.get_tokenizer()(text())["input_ids"]
        self.at = self.number = 0

    def run(self, prompt: int, streams: int, tokens: int) -> dict[str, float]:
        """prompt_s: until every stream has its first token; step_s: the median of the steps in
        which every stream writes a token and none reads."""
        params = self.vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        for _ in range(streams):
            if self.at + prompt > len(self.tokens):
                self.at = 0
            ids = self.tokens[self.at : self.at + prompt]
            self.at += prompt
            self.engine.add_request(str(self.number), {"prompt_token_ids": ids}, params)
            self.number += 1
        written: dict[str, int] = {}
        begin = time.perf_counter()
        first, steps = 0.0, []
        while self.engine.has_unfinished_requests():
            before = dict(written)
            start = time.perf_counter()
            answers = self.engine.step()
            end = time.perf_counter()
            written.update({x.request_id: len(x.outputs[0].token_ids) for x in answers})
            if len(before) == streams:
                steps.append(end - start)
            elif len(written) == streams:
                first = end - begin
        return {"prompt_s": first, "step_s": statistics.median(steps)}


def main() -> None:
    served = Served(json.loads(sys.stdin.readline()))
    about = {"version": served.vllm.__version__}
    print("RESULT", json.dumps(about), flush=True)
    for line in sys.stdin:
        print("RESULT", json.dumps(served.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
