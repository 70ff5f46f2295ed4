"""Real text through vLLM: softmax as vLLM's own attention, entmax as transformers' generate."""

import os
from pathlib import Path

import pytest
import torch
from greedy import generated, same
from transformers import AutoModelForCausalLM, AutoTokenizer

from tsallis.integrations import transformers as tsallis_transformers

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = [10, 17, 33, 64, 65, 100, 127, 128, 129, 200]
LENGTHS += [256, 300, 400, 513, 700, 900, 1200, 1700, 2300, 3000]
TOKENS = 16
ENGINE = {"max_model_len": 3072, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def softmax_model():
    """SmolLM2-135M-Instruct, as `tsallis convert smollm2` fetches it."""
    return Path(os.environ["TSALLIS_TEST_MODEL"])


@pytest.fixture(scope="module")
def prompts(softmax_model):
    """Of the project's pages, each from another place on."""
    tokenizer = AutoTokenizer.from_pretrained(softmax_model)
    pages = sorted((ROOT / "docs").rglob("*.md"))
    tokens = tokenizer("\n".join(page.read_text() for page in pages))["input_ids"]
    assert len(tokens) > sum(LENGTHS)
    found, at = [], 0
    for length in LENGTHS:
        found.append(tokens[at : at + length])
        at += length
    return found


@pytest.fixture(scope="module")
def entmax_model(softmax_model, tmp_path_factory):
    """The same weights as `tsallis convert` begins with for entmax: its queries are halved."""
    tsallis_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(
        softmax_model, attn_implementation="tsallis_entmax15", dtype=torch.float32
    )
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 0.5
    folder = tmp_path_factory.mktemp("entmax")
    tsallis_transformers.export(model, folder)
    AutoTokenizer.from_pretrained(softmax_model).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(entmax_model, prompts):
    """Tokens and log-probabilities of transformers' greedy `generate`, a prompt at a time."""
    model = AutoModelForCausalLM.from_pretrained(
        entmax_model, attn_implementation="tsallis_entmax15", dtype=torch.float32
    )
    return [generated(model, prompt, TOKENS) for prompt in prompts]


def job(model, passes, **engine):
    return {"model": str(model), "llm": ENGINE | engine, "tokens": TOKENS, "passes": passes}


def test_softmax_is_that_of_vllm(served, softmax_model, prompts):
    asked = job(softmax_model, [{"prompts": prompts, "together": True}])
    own, text = served(asked, VLLM_PLUGINS="")
    assert "tsallis" not in text
    own_beside, text = served(asked)
    assert text.count("tsallis: the model names no map, vLLM's own CPU_ATTN runs") == 1
    ours, text = served(asked, TSALLIS_ATTENTION="softmax")
    assert text.count("tsallis: attention is softmax") == 1
    wanted = [(answer["tokens"], answer["logprobs"]) for answer in own["passes"][0]]
    same(own_beside["passes"][0], wanted)
    same(ours["passes"][0], wanted)


def test_entmax_alone_and_eight_at_once_with_prefix_hits(served, entmax_model, prompts, expected):
    passes = [{"prompts": prompts, "together": together} for together in (False, True)]
    found, text = served(job(entmax_model, passes))
    assert text.count("tsallis: attention is entmax, alpha 1.5, screened by bytes") == 1
    alone, together = found["passes"]
    same(alone, expected)
    same(together, expected)
    assert all(answer["cached"] == 0 for answer in alone)
    # Whole blocks of 128 tokens of every longer prompt were there the second time.
    hits = [answer["cached"] for answer in together]
    assert [hit > 0 for hit in hits] == [length > 128 for length in LENGTHS]


def test_entmax_in_chunks(served, entmax_model, prompts, expected):
    chunks = {"max_num_batched_tokens": 128, "enable_prefix_caching": False}
    found, _ = served(job(entmax_model, [{"prompts": prompts, "together": True}], **chunks))
    same(found["passes"][0], expected)


def test_entmax_when_requests_lose_their_blocks(served, entmax_model, prompts, expected):
    # Eight requests that just fit before they write lose blocks to each other when they do.
    asked = [i for i, length in enumerate(LENGTHS) if length in (127, 128, 129, 256, 513, 700)]
    small = {"num_gpu_blocks_override": 18, "max_model_len": 1024, "enable_prefix_caching": False}
    chosen = [prompts[i] for i in asked]
    found, _ = served(job(entmax_model, [{"prompts": chosen, "together": True}], **small))
    assert found["preempted"] > 0
    same(found["passes"][0], [expected[i] for i in asked])


def test_entmax_on_plain_pages_and_by_an_argument(served, softmax_model, prompts):
    """The same weights under other settings: TSALLIS_ATTENTION, and the engine's argument."""
    asked = [{"prompts": prompts[:12], "together": True}]
    screened, _ = served(job(softmax_model, asked), TSALLIS_ATTENTION="entmax15")
    argument = {"tsallis": {"map": "entmax", "alpha": 1.5, "screen": False}}
    plain, text = served(job(softmax_model, asked, additional_config=argument))
    assert text.count("tsallis: attention is entmax, alpha 1.5, unscreened") == 1
    same(plain["passes"][0], [(a["tokens"], a["logprobs"]) for a in screened["passes"][0]])
