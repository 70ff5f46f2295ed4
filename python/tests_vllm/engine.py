"""One engine of vLLM in one process: reads a job as JSON from standard input, prints what came.

job: model, a folder; llm, arguments of `vllm.LLM`; passes, each {"prompts": [[token, ...], ...],
"together": true or false}; tokens, how many to write. Printed behind RESULT: for each pass the
tokens, their log-probabilities and how many tokens of the prompt were in the cache, and how often
the engine preempted a request.
"""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from vllm import LLM, SamplingParams


def main() -> None:
    job = json.load(sys.stdin)
    options = {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True}
    llm = LLM(job["model"], disable_log_stats=False, **(options | job.get("llm", {})))
    params = SamplingParams(
        temperature=0, max_tokens=job["tokens"], ignore_eos=True, detokenize=False, logprobs=1
    )
    passes = []
    for asked in job["passes"]:
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        groups = [prompts] if asked["together"] else [[prompt] for prompt in prompts]
        answers = [answer for group in groups for answer in llm.generate(group, params)]
        passes.append(
            [
                {
                    "tokens": list(answer.outputs[0].token_ids),
                    "logprobs": [
                        step[token].logprob
                        for token, step in zip(
                            answer.outputs[0].token_ids, answer.outputs[0].logprobs, strict=True
                        )
                    ],
                    "cached": answer.num_cached_tokens,
                }
                for answer in answers
            ]
        )
    preempted = sum(
        metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions"
    )
    print("RESULT", json.dumps({"passes": passes, "preempted": preempted}))


if __name__ == "__main__":
    main()
