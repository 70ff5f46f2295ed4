"""``transformers serve`` with our attention answers what ``generate`` writes."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings

import pytest
import torch
from small_llama import write_tokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

integration = pytest.importorskip("tsallis.integrations.transformers")
serving = pytest.importorskip("tsallis.integrations.transformers_serve")
pytest.importorskip("accelerate")  # which transformers loads onto a device with
PROMPT = "the cat sat on the mat and " * 6
NEW = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that `export` wrote: alpha 1.5, under an architecture that transformers lacks."""
    found = tmp_path_factory.mktemp("served")
    integration.register()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("tsallis_entmax15")
    integration.export(model, found)
    write_tokenizer(found, [PROMPT])
    names = ["input_ids", "attention_mask"]  # of Llama's arguments: generate refuses others
    AutoTokenizer.from_pretrained(found, model_input_names=names).save_pretrained(found)
    return found


def generated(folder, attention="tsallis_entmax"):
    """The text behind `PROMPT`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        # The server hands generate its tokenizer, and generate that to every attention.
        out = model.generate(
            inputs["input_ids"], max_new_tokens=NEW, do_sample=False, tokenizer=tokenizer
        )
    return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_the_server_loads_our_names_and_what_export_wrote(folder):
    serving.allow_serving()
    serving.allow_serving()
    manager = serving.ModelManager(device="cpu", attn_implementation="tsallis_entmax")
    model = manager._load_model(f"{folder}@main")
    assert type(model) is LlamaForCausalLM
    assert model.config._attn_implementation == "tsallis_entmax"
    assert generated(folder) != generated(folder, "sdpa")
    # What export wrote names its attention by itself.
    model = serving.ModelManager(device="cpu")._load_model(f"{folder}@main")
    assert model.config._attn_implementation == "tsallis_entmax"
    plain = serving.ModelManager(device="cpu", attn_implementation="sdpa")
    with pytest.raises(ValueError, match="TsallisLlamaForCausalLM, got sdpa"):
        plain._load_model(f"{folder}@main")
    with pytest.raises(ValueError, match="tsallis_other"):
        serving.ModelManager(device="cpu", attn_implementation="tsallis_other")
    with pytest.raises(ValueError, match="quantization"):
        serving.ModelManager(attn_implementation="tsallis_entmax", quantization="two bits")


@pytest.mark.slow
@pytest.mark.parametrize("batching", [False, True], ids=["one by one", "batching"])
def test_answers_are_those_of_generate(folder, tmp_path, batching):
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package)
    openai = pytest.importorskip("openai")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", serving.__name__, str(folder), "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    if batching:  # a server of batches asks for another attention where no name is given
        command += ["--attn-implementation", "tsallis_entmax"]
        command += ["--continuous-batching", "--cb-num-blocks", "64"]
    log = tmp_path / "log"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as text:
        server = subprocess.Popen(command, env=environment, stdout=text, stderr=text)
    address = f"http://127.0.0.1:{port}"
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=120)
    try:
        for _ in range(240):
            assert server.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except urllib.error.URLError:
                time.sleep(0.5)
        answer = client.completions.create(
            model=str(folder), prompt=PROMPT, max_tokens=NEW, temperature=0
        )
    except openai.APIError as error:
        raise AssertionError(log.read_text()[-3000:]) from error
    finally:
        server.terminate()
        server.wait()
    assert answer.usage.completion_tokens == NEW
    assert answer.choices[0].text == generated(folder)
    assert answer.choices[0].text != generated(folder, "sdpa")
