"""``torchrun -m tsallis train``: what several processes train, and what a lost one leaves."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pages import write_pages
from safetensors.torch import load_file

pytestmark = pytest.mark.alone  # two processes at a time

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "bin" / "tsallis"

# A learning rate at which rounding is not yet seen after 600 steps.
SEQUENCES = """
[study]
name = "shared-copy"
title = "Copies, trained by several processes"

[task]
name = "copy"
symbols = 2
train_length = [1, 4]
eval_lengths = [2, 3]

[model]
name = "decoder"
layers = 1
width = 16
heads = 2
feed_forward = 16
compute = "float32"

[train]
optimizer = "adamw"
lr = 3e-4
clip = 1.0
batch = 15
log_every = 10
checkpoint_every = 20
validate_every = 50
best_length = 3
validate_samples = 21

[[method]]
name = "entmax"
attention = { map = "entmax" }

[scale.quick]
steps = 600
"""

SETS = """
[study]
name = "shared-sets"
title = "Sets, trained by several processes"

[task]
name = "max-retrieval"
train_length = [5, 16]
eval_lengths = [16]

[model]
name = "set-attention"
width = 16

[train]
lr = 1e-4
batch = 15
log_every = 20

[[method]]
name = "entmax"
map = "entmax"
alpha = 1.5

[scale.quick]
steps = 200
"""

# Real text, in parts that are worked on one after the other.
TEXT = """
[study]
name = "shared-text"
title = "Language, trained by several processes"

[task]
name = "text"
corpus = "./corpus"
chunk = 64
train_length = [32, 32]
eval_lengths = [32]

[model]
name = "decoder"
layers = 2
width = 16
heads = 2
feed_forward = 32
block = "pre"
activation = "relu2"
norm_gain = false
qk_norm = true
embedding = "normed"
compute = "float32"

[train]
optimizer = "muon"
lr = 1e-3
adam_lr = 1e-4
batch = 12
accumulate = 3
log_every = 10
validate_every = 30
best_length = 64
validate_samples = 7

[[method]]
name = "asentmax"
attention = { map = "entmax", length_scaling.kind = "adaptive", positions.kind = "nape" }

[scale.quick]
steps = 60
"""

TRAIN = ("train", "recipe.toml", "--quiet", "--folder")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "NO_COLOR": "1", **more}


def start(folder: Path, arguments, processes: int, module: bool = False) -> subprocess.Popen:
    """The program, on its own or by torchrun; `module`: through the Python package."""
    command = [str(PROGRAM)]
    if processes > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", str(processes)]
        command = [*torchrun, *(["-m", "tsallis"] if module else ["--no-python", *command])]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env=environment(OMP_NUM_THREADS="1", TSALLIS_PROCESS_TIMEOUT="60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(folder: Path, name: str, processes: int, *more: str, module: bool = False) -> str:
    """Trains to the end; what was printed."""
    process = start(folder, (*TRAIN, name, *more), processes, module)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return stdout


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def expect_same_curve(found: Path, wanted: Path):
    assert len(metrics(found)) == len(metrics(wanted))
    for one, other in zip(metrics(found), metrics(wanted), strict=True):
        one.pop("seconds")
        other.pop("seconds")
        # Several processes add gradients in another order; means over them differ by rounding.
        if "loss" in one:
            assert one.pop("loss") == pytest.approx(other.pop("loss"), rel=2e-5)
        if "observed" in one:
            assert one.pop("observed") == pytest.approx(other.pop("observed"), rel=1e-3)
        assert one == other  # step and accuracies


def files(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.name == "metrics.jsonl":
            content = re.sub(rb', "seconds": [0-9.]+', b"", content)
        found[str(path.relative_to(folder))] = content
    return found


@pytest.mark.parametrize("recipe", [SEQUENCES, SETS], ids=["sequences", "sets"])
def test_two_processes_give_the_loss_curve_of_one(tmp_path, recipe):
    (tmp_path / "recipe.toml").write_text(recipe)
    train(tmp_path, "one", 1)
    printed = train(tmp_path, "two", 2, module=recipe is SEQUENCES)
    assert printed.count("Weights of step") == 1, "only the first process speaks"
    expect_same_curve(tmp_path / "two", tmp_path / "one")
    if recipe is SEQUENCES:
        train(tmp_path, "again", 2)
        assert files(tmp_path / "again") == files(tmp_path / "two")


def prepare(folder: Path, recipe: str):
    """The recipe, and its corpus."""
    (folder / "recipe.toml").write_text(recipe)
    write_pages(folder / "pages")
    command = [str(PROGRAM), "data", "prepare", "pages", "--from", "pages"]
    subprocess.run(
        [*command, "--folder", "corpus", "--quiet"], cwd=folder, env=environment(), check=True
    )


def test_language_is_trained_alike_by_two_processes(tmp_path):
    prepare(tmp_path, TEXT)
    train(tmp_path, "one", 1)
    printed = train(tmp_path, "two", 2)
    assert re.search(r"\d+ tokens a second in each of 2 processes", printed)
    # Eight of loss and validation, nine of what is observed: after 1, 2, 3, 6, 10, ... 60 steps.
    assert len(metrics(tmp_path / "two")) == len(metrics(tmp_path / "one")) == 17
    for one, other in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        for name in ("loss", "accuracy"):
            if name in one:
                assert one[name] == pytest.approx(other[name], rel=1e-3)
        if "validation" in one:
            assert one["validation"] == pytest.approx(other["validation"], rel=1e-3)


ATTENTIONS = {
    "softmax": [],
    "entmax": ["map=entmax"],
    "asentmax-nape": ["map=entmax", "length_scaling.kind=adaptive", "positions.kind=nape"],
    "rope": ["positions.kind=rope"],
    "window": ["pattern.kind=window", "pattern.window=4"],
    "rope-ntk": ["positions.kind=rope", "positions.scaling.kind=ntk"],
    "scale-invariant-p-rope": [
        "map=entmax",
        "scale_invariant=10",
        "positions.kind=rope",
        "positions.kept=0.5",
    ],
}
# Fewer samples than processes, and shares of 37 tokens are unequal. Muon would give its steps the
# size of the weights, however small the difference that decides them.
PARTS = TEXT.replace('"muon"', '"adamw"\nsplit = "sequence"').replace("adam_lr = 1e-4\n", "")
PARTS = PARTS.replace("batch = 12\naccumulate = 3\nlog_every = 10", "batch = 2\naccumulate = 2")
PARTS = PARTS.replace("[32, 32]", "[37, 37]").replace("heads = 2", "heads = 4")
PARTS = re.sub("attention = .*", "", PARTS).replace("lr = 1e-3", "lr = 1e-3\nlog_every = 1")


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder) if "loss" in line]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_processes_that_split_sequences_train_as_one(tmp_path, name):
    prepare(tmp_path, PARTS)
    settings = ["steps=12", *(f"model.attention.{setting}" for setting in ATTENTIONS[name])]
    train(tmp_path, "one", 1, *settings)
    weights = load_file(tmp_path / "one" / "model.safetensors")
    for processes in (2, 4):
        folder = str(processes)
        train(tmp_path, folder, processes, *settings)
        assert len(losses(tmp_path / folder)) == 12
        # Both curves have six digits.
        assert losses(tmp_path / folder) == pytest.approx(losses(tmp_path / "one"), rel=4e-6)
        # Twelve steps of 1e-3 at most.
        for key, value in load_file(tmp_path / folder / "model.safetensors").items():
            assert (value - weights[key]).abs().max().item() < 1e-5, key


def test_a_run_on_parts_of_sequences_is_resumed_in_any_number(tmp_path):
    prepare(tmp_path, PARTS)
    settings = ("steps=150", "train.lr=1e-4", "train.checkpoint_every=1")
    train(tmp_path, "one", 1, *settings)
    resume = (*TRAIN, "two", "--resume", *settings)
    for processes in (2, 4):
        torchrun = start(tmp_path, resume, processes)
        wait_for_lines(tmp_path / "two", 10 * processes, torchrun)
        os.kill(worker(torchrun, 1), signal.SIGKILL)
        _, stderr = torchrun.communicate(timeout=60)
        assert "rank 1 was lost (" in stderr
    train(tmp_path, "two", 1, "--resume", *settings)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model.heads=1", "model.heads: expected at least 2 heads, one for each process, with "),
        ("model.name=encoder-decoder", 'train.split: expected "batch" with model "encoder-'),
    ],
)
def test_what_parts_of_sequences_do_not_serve_is_refused(tmp_path, setting, says):
    prepare(tmp_path, PARTS)
    torchrun = start(tmp_path, (*TRAIN, "refused", setting), 2)
    _, stderr = torchrun.communicate(timeout=60)
    assert torchrun.returncode not in (0, None)
    assert says in stderr


def worker(torchrun: subprocess.Popen, rank: int) -> int:
    """The process of a rank."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if parent == torchrun.pid and f"RANK={rank}".encode() in variables:
            return int(path.name)
    pytest.fail(f"no process of rank {rank}")


def wait_for_lines(folder: Path, count: int, process: subprocess.Popen):
    path = folder / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "training never came that far"
        time.sleep(0.002)


def test_a_run_passes_from_hand_to_hand(tmp_path):
    """One process is killed, two go on, one of them is killed, two go on, and one ends the run."""
    (tmp_path / "recipe.toml").write_text(SEQUENCES)
    folder = tmp_path / "passed-on"
    resume = (*TRAIN, "passed-on", "--resume")
    alone = start(tmp_path, resume, 1)
    wait_for_lines(folder, 8, alone)
    alone.kill()
    alone.communicate()

    torchrun = start(tmp_path, resume, 2)
    wait_for_lines(folder, 24, torchrun)
    os.kill(worker(torchrun, 1), signal.SIGKILL)
    _, stderr = torchrun.communicate(timeout=60)
    assert torchrun.returncode not in (0, None)
    said = re.search(r"tsallis: (entmax seed 1: rank 1 was lost \(.*)", stderr)
    assert said, stderr
    assert "To go on, with any number of processes: --resume" in said[1]
    kept = re.search(r"the checkpoint of step (\d+) is kept", said[1])
    assert kept, stderr
    assert (folder / "last").resolve().name == f"step-{int(kept[1]):08}"

    torchrun = start(tmp_path, resume, 2)
    wait_for_lines(folder, 45, torchrun)
    torchrun.send_signal(signal.SIGINT)
    _, stderr = torchrun.communicate(timeout=60)
    assert torchrun.returncode not in (0, None)
    stopped = re.search(r"tsallis: entmax seed 1 stopped at step (\d+)\nTo go on: torchrun", stderr)
    assert stopped, stderr
    assert (folder / "last").resolve().name == f"step-{int(stopped[1]):08}"
    assert stderr.count("To go on") == 1

    train(tmp_path, "passed-on", 1, "--resume")
    train(tmp_path, "whole", 1)
    expect_same_curve(folder, tmp_path / "whole")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_a_process_that_hangs_ends_the_other_in_time(tmp_path):
    """Started by hand, by the variables that torchrun sets; torchrun itself would wait longer."""
    (tmp_path / "recipe.toml").write_text(SEQUENCES)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first, second = (
        subprocess.Popen(
            [str(PROGRAM), *TRAIN, "hangs"],
            cwd=tmp_path,
            env=environment(
                **place, RANK=str(rank), OMP_NUM_THREADS="1", TSALLIS_PROCESS_TIMEOUT="8"
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    )
    try:
        wait_for_lines(tmp_path / "hangs", 4, first)
        second.send_signal(signal.SIGSTOP)
        _, stderr = first.communicate(timeout=40)
    finally:
        first.kill()
        second.kill()
        second.communicate()
    assert first.returncode == 1
    assert "rank 1 was lost (Timed out" in stderr


@pytest.mark.parametrize(
    ("variables", "arguments", "says"),
    [
        ({"RANK": "0"}, ["list"], "WORLD_SIZE: expected beside RANK"),
        ({"RANK": "2"}, ["list"], "RANK: expected an integer from 0 to 1"),
        ({"MASTER_PORT": "door"}, ["list"], "MASTER_PORT: expected an integer from 1 to 65535"),
        ({}, ["reproduce", "copy"], "reproduce runs as one process, and torchrun started 2"),
    ],
)
def test_what_torchrun_says_is_checked(tmp_path, variables, arguments, says):
    whole = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    if variables != {"RANK": "0"}:
        variables = {**whole, **variables}
    done = subprocess.run(
        [PROGRAM, *arguments],
        cwd=tmp_path,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert says in done.stderr


def test_a_mistake_that_only_the_first_process_sees_ends_all(tmp_path):
    (tmp_path / "recipe.toml").write_text(SETS)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.json").write_text("{}")
    torchrun = start(tmp_path, (*TRAIN, "taken"), 2)
    _, stderr = torchrun.communicate(timeout=60)
    assert torchrun.returncode not in (0, None)
    assert "tsallis: taken already holds a run: add --resume" in stderr
    assert "tsallis (rank 1): rank 0 failed: taken already holds a run" in stderr
