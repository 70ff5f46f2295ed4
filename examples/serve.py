"""Ask a model in a vLLM server about a long text, through OpenAI's client.

    ./tsallis convert smollm2 --methods entmax
    build-vllm/env/bin/python examples/serve.py

Needs vLLM (docs/guide/serving.md). Prints the answer, tokens a second, and keys that heads keep.
"""

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tsallis.integrations import transformers as tsallis_transformers

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "\n\nIn two sentences: what is the text above about?"


@torch.no_grad()
def kept_by_last(folder: Path, ids: list[int]) -> float:
    tsallis_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="tsallis_entmax")
    keys: list[torch.Tensor] = []
    with tsallis_transformers.observe(lambda module, support, _: keys.append(support[0, :, -1])):
        model(torch.tensor([ids]), use_cache=False, logits_to_keep=1)
    return torch.cat(keys).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "runs/convert/smollm2/entmax/model")
    parser.add_argument("--tokens", type=int, default=8000, help="of text and question")
    parser.add_argument("--answer", type=int, default=96, help="tokens to write at most")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    try:
        import openai
        import vllm  # noqa: F401
    except ImportError as error:
        parser.error(f"needs vLLM and OpenAI's client (docs/guide/serving.md): {error}")
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs").rglob("*.md")))
    asked = tokenizer(QUESTION)["input_ids"]
    ids = tokenizer(pages)["input_ids"][: options.tokens - len(asked)] + asked
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    command += [str(options.model), "--port", str(options.port), "--served-model-name", "model"]
    limits = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600"}  # GiB, s
    log = Path("serve.log")
    server = subprocess.Popen(command, env=limits | os.environ, stdout=log.open("w"), stderr=-2)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{options.port}/v1", api_key="none")
    ask = partial(client.completions.create, model="model", temperature=0, stream=True)
    try:
        while server.poll() is None:
            try:
                begin, times = time.perf_counter(), []
                for part in ask(prompt=ids, max_tokens=options.answer):
                    times.append(time.perf_counter())
                    print(part.choices[0].text, end="", flush=True)
                break
            except openai.APIConnectionError:  # it is still starting
                time.sleep(1)
        else:
            raise SystemExit("the server ended, serve.log says why")
    finally:
        server.terminate()
        server.wait()
    read, written = len(ids) / (times[0] - begin), (len(times) - 1) / (times[-1] - times[0])
    print(f"\n{read:.0f} tokens a second read, {written:.1f} written")
    print(f"a head kept {kept_by_last(options.model, ids):.1f} of {len(ids)} keys")


if __name__ == "__main__":
    main()
