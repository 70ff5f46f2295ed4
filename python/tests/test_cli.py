"""How the program `tsallis` behaves: exit codes, suggestions, and what goes to which stream."""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from pages import write_pages
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    *(
        "reproduce",
        "study",
        "train",
        "eval",
        "generate",
        "translate",
        "report",
        "task",
        "data",
        "list",
        "info",
    ),
    *("look", "convert", "bench"),
]
MODELS = ROOT / "models"

# A recipe that trains in seconds.
TINY = """
[study]
name = "tiny"
title = "A tiny study"

[task]
name = "max-retrieval"
train_length = [5, 16]
eval_lengths = [16, 32]
eval_items = 4096
eval_sets_min = 16
eval_sets_max = 64

[model]
name = "set-attention"
width = 16

[train]
batch = 16
log_every = 10
checkpoint_every = 20

[[method]]
name = "softmax"
map = "softmax"
paper = [98.6, 97.1]

[[method]]
name = "adaptive-temperature"
map = "adaptive-temperature"
weights_of = "softmax"

[[method]]
name = "asentmax-3"
map = "entmax"
alpha = 1.5
length_scaling = { kind = "scalar", gamma = 3.0 }

[scale.quick]
steps = 40
seeds = 1

[scale.long]
steps = 6000
seeds = 1

[scale.endless]
steps = 100_000_000
seeds = 1
"""


# Sequences, with all that a run of them keeps.
TINY_SEQUENCES = """
[study]
name = "tiny-copy"
title = "A tiny study of sequences"

[task]
name = "copy"
symbols = 2
train_length = [1, 3]
eval_lengths = [2, 3]
eval_samples = 50

[model]
name = "decoder"
layers = 1
width = 16
heads = 2
feed_forward = 16
attention = { positions = { kind = "nape" } }

[train]
optimizer = "adamw"
lr = 3e-3
clip = 1.0
schedule = "cosine"
warmup = 10
batch = 8
log_every = 10
checkpoint_every = 40
validate_every = 50
best_length = 3
validate_samples = 20

[[method]]
name = "softmax"

[[method]]
name = "asentmax"
attention = { map = "entmax", length_scaling = { kind = "adaptive" } }

[scale.quick]
steps = 60

[scale.long]
steps = 600
"""


def program() -> Path:
    path = Path(os.environ.get("TSALLIS_PROGRAM", ROOT / "build" / "bin" / "tsallis"))
    if not path.exists():
        pytest.fail(f"the program is not built: no {path}")
    return path


def environment() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}


def run(*arguments, cwd=None, timeout=120) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(program()), *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture
def tiny(tmp_path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def test_the_recipe_of_the_page_trains(tmp_path):
    page = (ROOT / "docs" / "guide" / "recipes.md").read_text()
    recipe = tmp_path / "short-copy.toml"
    recipe.write_text(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    scales = ["scale.quick.steps=2", "scale.long.steps=2"]
    for scale in ("quick", "long"):
        settings = ["train.batch=2", "train.warmup=0", *scales]
        arguments = ["--scale", scale, "--method", "asentmax", "--folder", tmp_path / scale]
        done = run("train", recipe, *arguments, "--quiet", *settings)
        assert done.returncode == 0, done.stderr


def test_help_of_the_program_names_every_command():
    done = run("--help")
    assert done.returncode == 0
    assert not done.stderr
    for command in COMMANDS:
        assert re.search(rf"^\s+{command}\s", done.stdout, re.MULTILINE), command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command):
    done = run(command, *(["attention"] if command == "bench" else []), "--help")
    assert done.returncode == 0
    assert f"tsallis {command}" in done.stdout
    assert "--json" in done.stdout
    assert "--quiet" in done.stdout


def test_version():
    done = run("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], f"expected a command: {', '.join(COMMANDS)}"),
        (["reprodcue"], 'unknown command "reprodcue"; did you mean "reproduce"?'),
        (["list", "--jsno"], 'unknown option "--jsno"; did you mean "--json"?'),
        (["reproduce", "x", "--seedz=3"], 'unknown option "--seedz=3"; did you mean "--seeds"?'),
        (["reproduce"], "NAME is required"),
        (["reproduce", "copy", "--resume", "--finished"], "cannot be given together"),
        (["reproduce", "copy", "--methods", ""], "--methods: expected names separated by commas"),
        (
            ["reproduce", "copy", "--methods", "a,,b"],
            "expected names separated by commas, got a,,b",
        ),
        (["reproduce", "copy", "--maps", "8,x"], "expected integers separated by commas, got 8,x"),
        (["reproduce", "copy", "--runs", ""], "--runs: expected a value, got nothing"),
        (["reproduce", "copy", "--out", "/dev/null/x"], "--out: expected a folder that can be"),
        (["reproduce", "copy", "--device", "gpu"], 'train.device: expected "cpu", "cuda" or'),
        (["reproduce", "max-retrieval", "--device", "cuda"], 'train.device: expected "cpu" with'),
        (["reproduce", "copy", "--workers", "0"], "--workers: expected an integer from 1 to 4096"),
        (["reproduce", "copy", "--seed", f"{2**64 - 1}"], "so that every seed after it exists"),
        (["list", "everything"], '"everything" was not expected'),
        (["train"], "RECIPE is required"),
        (["train", "."], 'unknown recipe "."'),
        (["train", "no/such.toml"], 'no recipe file "no/such.toml"'),
        (["train", "/etc/passwd"], "/etc/passwd:1: "),
        (["train", "copy", "--seed"], "--seed: expected an integer from 0 to"),
        (["train", "copy", "--seed", ""], "--seed: expected an integer from 0 to"),
        (["train", "copy", "--seed", "-1"], "18446744073709551615, got -1"),
        (["train", "copy", "--seed", "010"], "18446744073709551615, got 010"),
        (["train", "copy", "--seed", "1.5"], "18446744073709551615, got 1.5"),
        (["train", "copy", "--seed", "9" * 30], f"18446744073709551615, got {'9' * 30}"),
        (["train", "copy", "--seed", "1", "--seed", "2"], "--seed: given 2 times, expected once"),
        (["train", "copy", "--folder", ""], "--folder: expected a value, got nothing"),
        (
            ["train", "copy", "--threads", "0"],
            "--threads: expected an integer from 1 to 4096, got 0",
        ),
        (
            ["train", "copy", "train.lr"],
            'expected key=value, as in train.lr=1e-3, got "train.lr"',
        ),
        (["train", "copy", "train.lr="], 'got "train.lr="'),
        (["train", "copy", "=1"], 'got "=1"'),
        (["train", "copy", ".lr=1"], 'got ".lr=1"'),
        (["train", "copy", "train..lr=1"], 'got "train..lr=1"'),
        (["train", "copy", "train.lr.x=1"], '"lr" is not a table'),
        (["train", "copy", "train=1"], "train: expected a table, got 1"),
        (["train", "copy", "train.lr=1", "train.lr=2"], '"train.lr" is set twice'),
        (["train", "copy", "train.lr=nan"], "train.lr: expected a finite number, got nan"),
        (["train", "copy", "model.width=7"], "width 7 is no multiple of heads 8"),
        (["train", "copy", "train.batch=16777216"], "lower model.layers, model.width, train.batch"),
        (
            ["train", "copy", "model.layers=1024", "model.width=4096"],
            "step of this size needs more",
        ),
        (["train", "copy", "a\nb=1"], "unknown key"),
        (["reproduce", "max-retreival"], 'did you mean "max-retrieval"?'),
        (["reproduce", "max-retrieval", "--scale", "quik"], 'did you mean "quick"?'),
        (["reproduce", "max-retrieval", "--methods", "sofmax"], 'did you mean "softmax"?'),
        (["reproduce", "max-retrieval", "--seeds", "0"], "--seeds"),
        (["reproduce", "max-retrieval", "--seeds", "many"], "--seeds"),
        (["reproduce", "max-retrieval", "--threads", "2"], 'unknown option "--threads"'),
        (["task", "srot"], 'unknown sequence task "srot"; did you mean "sort"?'),
        (["task", "sort", "--split", "tset"], 'got tset; did you mean "test"?'),
        (["task", "sort", "--export", ""], "--export: expected a value, got nothing"),
        (["task", "sort", "--length", "9" * 20], f"got {'9' * 20}"),
        (["task", "sort", "symbols=3", "symbols=4"], '"symbols" is set twice'),
        (["eval", "x"], "--lengths is required"),
        (["eval", "x", "--lengths", "8,,16"], "expected integers separated by commas, got 8,,16"),
        (["eval", "/dev", "--lengths", "8"], "/dev: no weights in this folder"),
        (["task", "sort", "--length", "0"], "length: expected 1 to"),
        (["task", "sort", "symbol=3"], 'symbol: unknown key; did you mean "symbols"?'),
        (["data", "prepare", "x", "--from", "none", "--pairs", "en,de"], "none: no such file or"),
        *(
            (["data", "prepare", "x", "--from", ".", "--pairs", pairs], "--pairs: expected two")
            for pairs in ("en", "en,", ",de", "en,en", "en,de,fr", ".en,.de")
        ),
        (["data", "prepare", "x", "--from", ".", "--extension", "md"], "--extension: expected one"),
        (["data", "prepare", "linux", "--pairs", "en,de"], "--pairs: linux is no parallel text"),
        (["data", "prepare", "german", "--skip-bad"], "--skip-bad: german is parallel text"),
        (["data", "prepare", "x", "--from", ".", "--pairs", "en,de", "--skip-bad"], "--skip-bad:"),
        (
            ["data", "prepare", "x", "--from", ".", "--pairs", "en,de", "--extension", ".en"],
            "--extension: with --pairs the endings are en,de, got .en",
        ),
        (["train", "copy", "train.lrr=1"], 'train.lrr: unknown key; did you mean "lr"?'),
        (["train", "copy", "--method", "sofmax-nape"], 'did you mean "softmax-nape"?'),
        (["eval", "no-such-folder", "--lengths", "8"], "no-such-folder: no such file or folder"),
        (["report", "no-such-folder"], 'no results.json in "no-such-folder"'),
        (["generate"], "CHECKPOINT is required"),
        (["generate", "no-such-folder", "--prompt", "x"], "no such file or folder"),
        (["generate", MODELS / "rope"], "--prompt or --prompt-file is required"),
        (["generate", MODELS / "rope", "--prompt", ""], "--prompt: expected a value, got nothing"),
        (["generate", MODELS / "rope", "--prompt-file", "none"], "--prompt-file: none cannot be"),
        (["generate", MODELS / "rope", "--prompt", "x", "--task", "copy"], "cannot be given"),
        (["generate", MODELS / "rope", "--task", "copy"], "expected a task of the model's 256"),
        (["generate", MODELS / "rope", "--prompt", "x", "symbols=3"], "settings need the --task"),
        (["generate", MODELS / "rope", "--prompt", "x", "--top-p", "2"], "--top-p: expected"),
        (
            ["generate", MODELS / "rope", "--prompt", "x", "--beams", "2", "--seed", "7"],
            "without --seed",
        ),
        (
            ["generate", MODELS / "rope", "--prompt", "x", "--temperature", "0", "--top-k", "3"],
            "--top-k: expected with a --temperature above 0",
        ),
        (["generate", MODELS / "rope", "--prompt", "x", "--max-new", "0"], "--max-new: expected"),
        (["generate", MODELS / "rope", "--prompt", "x", "--length", "9"], "cannot be given"),
        (["generate", MODELS / "rope", "--prompt-file", "x", "--task", "copy"], "cannot be given"),
        (
            ["generate", MODELS / "rope", "--prompt", "x", "--beams", "2", "--top-k", "3"],
            "--beams 2: expected without --top-k",
        ),
        (["generate", MODELS / "rope", "--prompt", "x", "--entmax", "1"], "--entmax: expected a"),
        (["look", MODELS / "rope"], "the following arguments are required: --text"),
        (["look", "x", "--text", "x", "--map", "max"], "--map: expected of entmax, entmax15"),
        (["look", "x", "--text", "x", "--tokens", "0"], "--tokens: expected 1 or more, got 0"),
        (["look", "x", "--text", "x", "--megabytes", "0"], "--megabytes: expected a number above"),
        (["look", MODELS / "rope", "--text", "none"], "--text none: No such file or directory"),
        (["convert"], "the following arguments are required: MODEL"),
        (["convert", "no-such-folder"], "MODEL: expected smollm2, or a folder with config.json"),
        (["convert", "smollm2", "--methods", "sparse"], "--methods: expected of entmax, softmax"),
        (["convert", "smollm2", "--alpha", "1"], "--alpha: expected a number above 1, up to 2"),
        (["convert", "smollm2", "--tokens", "0"], "--tokens: expected 1 or more, got 0"),
        (["bench"], "the following arguments are required: WHAT"),
        (["bench", "attention", "--thread", "two"], "argument --threads: invalid int value: 'two'"),
        (["bench", "attention", "--repeat", "0"], "--repeat: expected a number > 0, got 0"),
        (["bench", "attention", "--cases", "entmin"], "--cases: no case's name has entmin in it"),
    ],
)
def test_mistakes_end_with_2_and_say_what_is_meant(arguments, says, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert not done.stdout
    assert not list(tmp_path.iterdir()), "a mistake must leave nothing behind"


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        ("width = 16", "widht = 16", 'model.widht: unknown key; did you mean "width"?'),
        ("batch = 16", 'batch = "big"', "train.batch: expected an integer"),
        ("alpha = 1.5", "alpha = 0.5", "method.asentmax-3.alpha: expected 1 <= alpha"),
        ('weights_of = "softmax"', 'weights_of = "sofmax"', 'did you mean "softmax"?'),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_its_line(tiny, line, instead, says):
    number = TINY.splitlines().index(line) + 1
    tiny.write_text(TINY.replace(line, instead, 1))
    done = run("reproduce", tiny, cwd=tiny.parent)
    assert done.returncode == 2
    assert f"{tiny}:{number}: " in done.stderr
    assert says in done.stderr


def test_an_unknown_key_in_a_copy_of_the_committed_recipe(tmp_path):
    copy = tmp_path / "copy.toml"
    shutil.copy(ROOT / "experiments" / "max-retrieval.toml", copy)
    copy.write_text(copy.read_text().replace("[train]", "[train]\nbetta = 0.9", 1))
    done = run("reproduce", copy, cwd=tmp_path)
    assert done.returncode == 2
    assert "train.betta: unknown key" in done.stderr


@pytest.mark.parametrize("command", ["list", "info"])
def test_json_is_one_document(command):
    done = run(command, "--json")
    assert done.returncode == 0
    assert isinstance(json.loads(done.stdout), dict)


def test_list_shows_recipes_tasks_and_maps():
    document = json.loads(run("list", "--json").stdout)
    assert "max-retrieval" in [recipe["name"] for recipe in document["recipes"]]
    assert "max-retrieval" in [task["name"] for task in document["tasks"]]
    assert {"entmax", "top-k-softmax", "softpick"} <= {e["name"] for e in document["maps"]}
    assert "bigbird" in [entry["name"] for entry in document["patterns"]]
    text = run("list").stdout
    for word in ("max-retrieval", "entmax", "--scale paper"):
        assert word in text
    assert "max-retrieval" in run("list", "--quiet").stdout.splitlines()


def test_info_tells_the_build_and_the_machine():
    document = json.loads(run("info", "--json").stdout)
    assert document["version"] == run("--version").stdout.strip()
    assert document["isa"] in document["isa_compiled"]
    assert document["threads"] >= 1
    assert document["processor"]
    assert document["commit"]
    assert re.match(r"\d+\.\d+", document["torch"])
    assert document["version"] in run("info").stdout


def test_info_tells_the_kernels_and_what_runs():
    plain = json.loads(run("info", "--json").stdout)
    document = json.loads(run("info", "--kernels", "--json").stdout)
    assert plain.items() <= document.items()
    kernels = {kernel["name"]: kernel for kernel in document["attention_kernels"]}
    assert kernels["reference"]["usable"]
    assert list(kernels)[-1] == "reference"  # best first
    for kernel in kernels.values():
        assert kernel["usable"] == bool(kernel["isa"])
        assert kernel["serves"]
    choices = document["attention_choices"]
    assert {choice["dtype"] for choice in choices} == {"float32", "bfloat16", "float16", "float64"}
    for choice in choices:
        assert kernels[choice["forward"]]["usable"]
        assert kernels[choice["backward"]]["usable"]
        assert choice["forward"] in choice["reason"]
    assert next(c for c in choices if c["dtype"] == "float64")["forward"] == "reference"
    text = run("info", "--kernels").stdout
    for word in (*kernels, *(choice["case"] for choice in choices), plain["version"]):
        assert word in text
    usable = [name for name, kernel in kernels.items() if kernel["usable"]]
    assert run("info", "--kernels", "--quiet").stdout.split() == usable
    assert "--kernels" in run("info", "--help").stdout


def test_reproduce_report_and_resume(tiny):
    folder = tiny.parent
    done = run("reproduce", tiny, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["study"] == "tiny"
    assert {row["method"] for row in document["rows"]} == {
        "softmax",
        "adaptive-temperature",
        "asentmax-3",
    }
    report = folder / "runs" / "tiny" / "quick" / "report"
    assert (report / "report.html").is_file()
    assert json.loads((report / "results.json").read_text())["rows"] == document["rows"]

    # Nothing is left to do, so nothing may change; with --quiet only the table is printed.
    again = run("reproduce", tiny, "--resume", "--quiet", "--out", folder / "out", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert f"Page: {folder / 'out' / 'report.html'}" in again.stdout
    assert "98.6" in again.stdout
    assert not again.stderr
    written = json.loads((folder / "out" / "results.json").read_text())
    assert written["rows"] == document["rows"]

    shown = run("report", report, "--json", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["rows"] == document["rows"]
    assert "Page: " in shown.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_with_130_and_says_how_to_go_on(tiny, number):
    process = subprocess.Popen(
        [str(program()), "reproduce", str(tiny), "--scale", "endless", "--methods", "softmax"],
        cwd=tiny.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        metrics = tiny.parent / "runs" / "tiny" / "endless" / "softmax" / "seed-1" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size > 0):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "training never began"
            time.sleep(0.05)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert not stdout
    assert "--scale endless --methods softmax --resume" in stderr


def kill_at_random_moments(command, folder: Path, metrics, moments, *, seed: int):
    """Starts the command again and again, and kills it soon after the files of metrics() have so
    many lines: progress, not time, as machines differ."""
    random_delay = random.Random(seed)

    def lines() -> int:
        return sum(path.read_bytes().count(b"\n") for path in metrics())

    for lines_wanted in moments:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        while lines() < lines_wanted and process.poll() is None:
            time.sleep(0.002)
        time.sleep(random_delay.uniform(0.0, 0.02))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the run ended before it could be killed"


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(tiny):
    """SIGKILL at any moment, then --resume: weights, metrics and evaluations as if nothing was."""
    text = tiny.read_text().replace("log_every = 10", "log_every = 100")
    tiny.write_text(text.replace("checkpoint_every = 20", "checkpoint_every = 500"))
    command = [
        str(program()),
        *("reproduce", str(tiny), "--scale", "long", "--methods", "softmax,asentmax-3"),
        *("--quiet", "--json", "--resume"),
    ]
    metrics = tiny.parent / "killed" / "tiny" / "long"
    kill_at_random_moments(
        [*command, "--runs", "killed"],
        tiny.parent,
        lambda: metrics.glob("*/*/metrics.jsonl"),
        (1, 9, 21, 34, 50, 77),  # of 120
        seed=7,
    )
    finished = run(*command[1:], "--runs", "killed", cwd=tiny.parent)
    assert finished.returncode == 0, finished.stderr
    whole = run(*command[1:], "--runs", "whole", cwd=tiny.parent)
    assert whole.returncode == 0, whole.stderr

    def kept(runs: str) -> dict[str, bytes]:
        root = tiny.parent / runs / "tiny" / "long"
        files = {}
        for path in sorted(root.glob("*/seed-1/*")):
            content = path.read_bytes()
            if path.name == "metrics.jsonl":  # seconds are measured anew
                content = re.sub(rb', "seconds": [0-9.]+', b"", content)
            files[str(path.relative_to(root))] = content
        return files

    killed = kept("killed")
    assert killed == kept("whole")
    assert "softmax/seed-1/model.safetensors" in killed
    assert "asentmax-3/seed-1/eval-asentmax-3.json" in killed


def run_files(folder: Path) -> dict[str, bytes]:
    """All files of a run's folder; seconds are measured anew and left out."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.name == "metrics.jsonl":
            content = re.sub(rb', "seconds": [0-9.]+', b"", content)
        files[str(path.relative_to(folder))] = content
    return files


def test_training_on_sequences_killed_at_random_moments_ends_with_the_same_bits(tmp_path):
    (tmp_path / "r.toml").write_text(TINY_SEQUENCES)
    command = ["train", "r.toml", "--scale", "long", "--method", "asentmax", "--quiet", "--resume"]
    kill_at_random_moments(
        [str(program()), *command, "--folder", "killed", "--threads", "1"],
        tmp_path,
        lambda: tmp_path.glob("killed/metrics.jsonl"),
        (1, 7, 20, 33, 51),  # of 72
        seed=11,
    )
    for folder in ("killed", "whole"):
        done = run(*command, "--folder", folder, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    whole = run_files(tmp_path / "whole")
    assert run_files(tmp_path / "killed") == whole
    assert set(whole) == {
        "best/model.safetensors",
        "config.json",
        "lock",
        "metrics.jsonl",
        "model.safetensors",
    }


@pytest.mark.parametrize("from_the_start", [True, False])
def test_tensorboard_reads_what_metrics_say(tmp_path, from_the_start):
    """Also of a run that was killed and went on: all is there, and what ran again is there once."""
    (tmp_path / "r.toml").write_text(TINY_SEQUENCES)
    command = ["train", "r.toml", "--quiet", "--folder", "run", "--scale", "long"]
    folder = tmp_path / "run"
    first = [*command, "--tensorboard"] if from_the_start else command
    process = subprocess.Popen([str(program()), *first], cwd=tmp_path, env=environment())
    while process.poll() is None and not (folder / "last").exists():
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    done = run(*command, "--resume", "--tensorboard", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("events.out.tfevents.*"))) == (2 if from_the_start else 1)

    wanted: dict[str, list[tuple[int, float]]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        numbers = {name: entry[name] for name in ("loss", "accuracy") if name in entry}
        for name in ("validation", "validation_tokens", "observed"):
            for key, number in entry.get(name, {}).items():
                numbers[f"{name}/{key}"] = number
        for tag, value in numbers.items():
            wanted.setdefault(tag, []).append((entry["step"], value))
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    assert (
        set(events.Tags()["scalars"])
        == set(wanted)
        >= {"loss", "validation/3", "validation_tokens/3"}
    )
    for tag, values in wanted.items():
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in values]
        assert [value for _, value in found] == pytest.approx([value for _, value in values])
    assert abs(events.Scalars("loss")[-1].wall_time - time.time()) < 600


def test_train_eval_and_reproduce_on_sequences(tmp_path):
    (tmp_path / "r.toml").write_text(TINY_SEQUENCES)
    trained = run("train", "r.toml", "--json", "train.lr=1e-2", "--quiet", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    document = json.loads(trained.stdout)
    assert document["folder"] == "runs/tiny-copy/quick/softmax/seed-1"
    assert document["weights"].endswith("best/model.safetensors")
    config = json.loads((tmp_path / document["folder"] / "config.json").read_text())
    assert config["train"]["lr"] == 0.01
    assert config["task"] == {"name": "copy", "train_length": [1, 3], "symbols": 2}
    again = run("train", "r.toml", "--quiet", cwd=tmp_path)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    other = run("train", "r.toml", "--resume", "--quiet", cwd=tmp_path)
    assert other.returncode == 2
    assert "other settings (train.lr was 0.01, is 0.003)" in other.stderr
    steps = run("train", "r.toml", "--resume", "--quiet", "train.lr=1e-2", "steps=3", cwd=tmp_path)
    assert "; train.lr" not in steps.stderr
    assert "steps was" in steps.stderr

    command = ["eval", document["folder"], "--lengths", "1,3", "--samples", "40"]
    shown = run(*command, "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout)["rows"]
    assert [row["n"] for row in rows] == [1, 3]
    assert all(row["asked"] == 40 for row in rows)
    # More of the tokens are right than of the whole answers.
    assert all(row["accuracy"] <= row["token_accuracy"] <= 100.0 for row in rows)
    text = run(*command, cwd=tmp_path).stdout
    assert f"{rows[0]['hits']} of 40, {rows[0]['token_accuracy']:.1f} % of " in text
    mismatch = run(*command, "--task", "sort", cwd=tmp_path)
    assert mismatch.returncode == 2
    assert "expected a task of the model's 7 tokens, it has 37" in mismatch.stderr
    assert run(*command, "--task", "sort", "symbols=2", cwd=tmp_path).returncode == 0

    study = run("reproduce", "r.toml", "--runs", "study", "--json", "--quiet", cwd=tmp_path)
    assert study.returncode == 0, study.stderr
    results = json.loads(study.stdout)
    assert [(row["method"], row["n"]) for row in results["rows"]] == [
        ("softmax", 2),
        ("softmax", 3),
        ("asentmax", 2),
        ("asentmax", 3),
    ]
    report = tmp_path / "study" / "tiny-copy" / "quick" / "report"
    assert (report / "report.html").exists()
    figures = {path.stem for path in (report / "figures").glob("*.png")}
    assert figures >= {"entropy", "heads-entropy", "heads-learned", "attention", "attention-long"}
    with (report / "data" / "heads.csv").open(newline="") as file:
        learned = [entry for entry in csv.DictReader(file) if entry["quantity"] == "beta"]
    assert {(entry["method"], entry["n"]) for entry in learned} == {
        ("asentmax", "2"),
        ("asentmax", "3"),
    }
    refused = run("reproduce", "r.toml", "--runs", "study", "--resume", "--maps", "0", cwd=tmp_path)
    assert refused.returncode == 2
    assert "length: expected 1 to" in refused.stderr


LANGUAGE = """
[study]
name = "pages"
title = "Pages"

[task]
name = "text"
corpus = "./corpus"
chunk = 64
train_length = [32, 32]
eval_lengths = [32, 64]
eval_samples = 8

[model]
name = "decoder"
layers = 1
width = 16
heads = 2
feed_forward = 16

[train]
optimizer = "muon"
batch = 4
log_every = 10

[[method]]
name = "rope"
attention = { positions.kind = "rope" }

[[method]]
name = "rope-ntk"
weights_of = "rope"
attention = { positions = { kind = "rope", scaling.kind = "ntk" } }

[scale.quick]
steps = 20
seeds = 2
"""


def test_language_from_files_to_the_loss_on_another_file(tmp_path):
    (tmp_path / "r.toml").write_text(LANGUAGE)
    pages = write_pages(tmp_path / "pages")
    without = run("train", "r.toml", "--quiet", "--folder", "run", cwd=tmp_path)
    assert without.returncode == 2
    assert "./corpus: no corpus there; `tsallis data prepare corpus` makes it" in without.stderr
    without = run("reproduce", "r.toml", "--quiet", cwd=tmp_path)
    assert "./corpus: no corpus there" in without.stderr
    assert not list((tmp_path / "runs").rglob("config.json"))
    assert not (tmp_path / "run" / "config.json").exists(), (
        "nothing is there that would be in the way"
    )
    prepare = ("data", "prepare", "pages", "--from", "pages", "--folder", "corpus")
    made = run(*prepare, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "60 files, 0 left out" in made.stdout
    every = ("train.validate_every=10", "train.best_length=64")
    many = (*every, "train.validate_samples=100000", "--folder", "run")
    refused = run("train", "r.toml", "--quiet", *many, cwd=tmp_path)
    assert refused.returncode == 2
    assert "its validation part has" in refused.stderr
    assert not (tmp_path / "run" / "config.json").exists(), "before the first step"

    # Two shards, and then what a single run gives.
    shard = ("reproduce", "r.toml", "--quiet", "--job-shard")
    assert run(*shard, "2/2", cwd=tmp_path).returncode == 0
    report = tmp_path / "runs" / "pages" / "quick" / "report"
    assert not report.exists(), "one run of two is missing"
    assert run(*shard, "1/2", cwd=tmp_path).returncode == 0
    rows = json.loads((report / "results.json").read_text())["rows"]
    assert [(row["method"], row["n"], row["seeds"]) for row in rows] == [
        ("rope", 32, 2),
        ("rope", 64, 2),
        ("rope-ntk", 32, 2),
        ("rope-ntk", 64, 2),
    ]
    assert rows[0]["mean"] == rows[2]["mean"]
    assert rows[1]["mean"] != rows[3]["mean"]
    for bad in ("0/2", "3/2", "2", "a/b", "1/2/3", "-1/2"):
        refused = run(*shard, bad, cwd=tmp_path)
        assert refused.returncode == 2
        assert f"--job-shard: expected I/N with 1 <= I <= N, as 2/4, got {bad}" in refused.stderr

    weights = "runs/pages/quick/rope/seed-1"
    config = tmp_path / weights / "config.json"
    assert len(json.loads(config.read_text())["corpus_checksum"]) == 8
    # The corpus made anew of other pages, and one page less: another run.
    again = ("reproduce", "r.toml", "--quiet", "--resume")
    assert run(*again, cwd=tmp_path).returncode == 0
    (tmp_path / "corpus").rename(tmp_path / "kept")
    assert "./corpus: no corpus there" in run(*again, cwd=tmp_path).stderr
    write_pages(tmp_path / "others")
    next((tmp_path / "others").iterdir()).unlink()
    anew = ("data", "prepare", "pages", "--from", "others", "--folder", "corpus")
    assert run(*anew, cwd=tmp_path).returncode == 0
    refused = run(*again, cwd=tmp_path)
    assert refused.returncode == 2
    assert "holds a run with other settings (corpus_checksum was" in refused.stderr
    configs = {path: path.read_text() for path in (tmp_path / "runs").rglob("config.json")}
    for path, written in configs.items():
        path.write_text(re.sub(r',\s*"corpus_checksum": "\w+"', "", written))
    older = run(*again, cwd=tmp_path)
    assert older.returncode == 0, "runs from before checksums were kept are taken as they are"
    for path, written in configs.items():
        path.write_text(written)
    shutil.rmtree(tmp_path / "corpus")
    (tmp_path / "kept").rename(tmp_path / "corpus")
    read = ("eval", weights, "--text", "pages/7.txt")
    shown = run(*read, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    size = (pages / "7.txt").stat().st_size
    assert f"n = {size - 1}" in shown.stdout
    assert "nats a byte" in shown.stdout
    assert "bits a byte" in shown.stdout
    assert shown.stdout.count("█") > 40
    document = json.loads(run(*read, "--lengths", "16,64", "--json", cwd=tmp_path).stdout)
    for row in document["rows"]:
        assert row["asked"] == row["samples"] * row["n"]
        assert row["by_position"][0]["begin"] == 0
        assert row["by_position"][-1]["end"] == row["n"]
        total = sum((part["end"] - part["begin"]) * part["loss"] for part in row["by_position"])
        assert total / row["n"] == pytest.approx(row["loss"], rel=1e-4)
    for arguments, why in [
        (["--text", "none.txt"], "none.txt: cannot be read"),
        (["--text", "pages"], "pages: cannot be read"),
        (["--text", "pages/7.txt", "--lengths", "100000"], "length: expected 1 to"),
        (["--text", "pages/7.txt", "--task", "copy"], "cannot be given together"),
        (["--text", "pages/7.txt", "--split", "test"], "cannot be given together"),
    ]:
        refused = run("eval", weights, *arguments, cwd=tmp_path)
        assert refused.returncode == 2
        assert why in refused.stderr

    looked = run(*read, "--lengths", "128", "--scores", "scores", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert (tmp_path / "scores" / "scores.png").exists()
    looked = run(*read, "--lengths", "128", "--heads", "heads", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert (tmp_path / "heads" / "report.html").exists()
    page = json.loads((tmp_path / "heads" / "study.json").read_text())
    assert "weight above 0" in page["finding"]
    shares = (tmp_path / "heads" / "data" / "density.csv").read_text().splitlines()
    assert shares[0] == "of,layer,share"
    assert any(line.startswith("blocks of 64²,1,") for line in shares)
    too_long = run(*read, "--lengths", "5000", "--scores", "scores", cwd=tmp_path)
    assert "--scores: expected --lengths up to 4096, got 5000" in too_long.stderr

    # Going on from those weights, with another task.
    tuned = run("train", "r.toml", "--from", weights, "--folder", "tuned", "--quiet", cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["start"] == weights
    for wrong, why in [("nowhere", "nowhere: no weights to start from"), ("pages", "no weights")]:
        arguments = ["train", "r.toml", "--from", wrong, "--folder", f"from-{wrong}", "--quiet"]
        refused = run(*arguments, cwd=tmp_path)
        assert refused.returncode == 2
        assert why in refused.stderr
    other = ["model.width=8", "--folder", "other", "--quiet"]
    refused = run("train", "r.toml", "--from", weights, *other, cwd=tmp_path)
    assert refused.returncode == 2
    assert "to start from: " in refused.stderr


def test_small_language_models_come_with_the_tree():
    """What README of models says: RoPE breaks beyond its training length, ASEntmax holds."""
    text = str(Path(torch.__file__).parent / "_refs" / "__init__.py")
    losses = {}
    for folder in sorted(path for path in MODELS.iterdir() if path.is_dir()):
        read = ("eval", str(folder), "--text", text, "--lengths", "512,4096", "--samples", "2")
        rows = json.loads(run(*read, "--json").stdout)["rows"]
        losses[folder.name] = [row["loss"] for row in rows]
    assert set(losses) == {"rope", "asentmax-nape"}
    for name, (short, long) in losses.items():
        assert 0.7 < short < 1.5, name
        assert (long > short + 0.8) == (name == "rope"), name


def test_a_language_model_writes(tmp_path):
    model = MODELS / "asentmax-nape"
    (tmp_path / "prompt.txt").write_text("import torch\n")
    (text,) = json.loads(
        run("generate", model, "--prompt-file", "prompt.txt", "--json", cwd=tmp_path).stdout
    )["texts"]
    assert len(text["tokens"]) == len(text["text"].encode()) == 256
    assert text["log_likelihood"] < 0
    # The text is printed as it is written, behind the prompt; its cost goes to the other stream.
    arguments = ("generate", model, "--prompt", "import torch\n", "--max-new", "64")
    shown = run(*arguments)
    assert shown.stdout == "import torch\n" + text["text"][:64] + "\n"
    assert re.search(r"64 tokens in .* a second; \d\.\d+ nats a token", shown.stderr)
    assert run(*arguments, "--quiet").stdout == text["text"][:64] + "\n"
    # Mates do not change a text; another place has another one.
    mates = json.loads(run(*arguments, "--samples", "3", "--prompt", "class ", "--json").stdout)
    texts = [row["text"] for row in mates["texts"]]
    assert [row["prompt"] for row in mates["texts"]] == ["import torch\n"] * 3 + ["class "] * 3
    assert texts[0] == text["text"][:64]
    assert len(set(texts)) == 6
    greedy = run(*arguments, "--temperature", "0", "--quiet").stdout
    assert greedy == run(*arguments, "--top-k", "1", "--quiet").stdout
    assert greedy == run(*arguments, "--beams", "1", "--temperature", "0", "--quiet").stdout
    full = run(*arguments[:4], "--cache-mb", "1", "--max-new", "5000")
    assert full.returncode == 2
    assert "--cache-mb 1: the cache is full" in full.stderr


def test_a_task_is_answered_as_it_is_evaluated(tmp_path):
    """Greedy writing is right just where teacher forcing is."""
    (tmp_path / "r.toml").write_text(TINY_SEQUENCES)
    trained = run(
        "train",
        "r.toml",
        "--method",
        "asentmax",
        "--folder",
        "m",
        "steps=300",
        "--quiet",
        cwd=tmp_path,
    )
    assert trained.returncode == 0, trained.stderr
    for length in ("3", "6"):
        samples = ("--samples", "40", "--json")
        rows = json.loads(run("eval", "m", "--lengths", length, *samples, cwd=tmp_path).stdout)
        answers = json.loads(
            run("generate", "m", "--length", length, *samples, cwd=tmp_path).stdout
        )
        assert answers["right"] == rows["rows"][0]["hits"]
        assert answers["right"] == sum(row["right"] for row in answers["samples"])
    shown = run("generate", "m", "--length", "3", "--samples", "2", cwd=tmp_path).stdout
    assert shown.count("reads  <bos> ") == 2
    assert re.search(r"\d of 2 right", shown)
    refused = run("generate", "m", "--prompt", "1 2", cwd=tmp_path)
    assert refused.returncode == 2
    assert "expected a model of text, this one was trained on copy" in refused.stderr
    labels = run("generate", "m", "--task", "nback", "symbols=4", cwd=tmp_path)
    assert labels.returncode == 2


def test_writing_stops_when_it_is_told_to(tmp_path):
    process = subprocess.Popen(
        [program(), "generate", MODELS / "rope", "--prompt", "x", "--max-new", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.read(40)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "what was written is complete up to here" in errors


def test_task_shows_and_exports_the_same_samples(tmp_path):
    arguments = ["task", "sort", "symbols=5", "--length", "6", "--samples", "4"]
    document = json.loads(run(*arguments, "--json").stdout)
    assert document["vocabulary"] == 10
    assert run(*arguments, "--export", "s.tsv", cwd=tmp_path).returncode == 0
    lines = (tmp_path / "s.tsv").read_text().splitlines()
    assert len(lines) == len(document["samples"]) == 4
    for line, sample in zip(lines, document["samples"], strict=True):
        source, target = ([int(word) for word in side.split()] for side in line.split("\t"))
        assert target == sorted(source)
        assert sample["tokens"] == [6, *source, 9, *target]
        assert [label for label in sample["labels"] if label != -100] == [*target, 7]
    text = run(*arguments).stdout
    assert text.count("reads <bos> ") == text.count("<eos>") == 4
    unwritable = run(*arguments, "--export", "no-folder/s.tsv", cwd=tmp_path)
    assert unwritable.returncode == 1
    assert "no-folder/s.tsv: cannot be written" in unwritable.stderr


def test_task_stops_when_it_is_told_to(tmp_path):
    file = tmp_path / "many.tsv"
    process = subprocess.Popen(
        [program(), "task", "sort", "--samples", "1000000000", "--export", file],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (file.exists() and file.stat().st_size > 0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    stopped = re.search(r"stopped after (\d+) samples", errors)
    assert len(file.read_text().splitlines()) == int(stopped[1])


def test_reproduce_checks_every_study_before_it_runs_one(tmp_path):
    for name in ("one", "two"):
        text = TINY_SEQUENCES.replace('"tiny-copy"', f'"{name}"')
        (tmp_path / f"{name}.toml").write_text(text)
    assert run("train", "two.toml", "--quiet", cwd=tmp_path).returncode == 0
    refused = run("reproduce", "one.toml", "two.toml", "--quiet", cwd=tmp_path)
    assert refused.returncode == 2
    assert "two/quick/softmax/seed-1 already holds a run" in refused.stderr
    assert not (tmp_path / "runs" / "one").exists()
    twice = run("reproduce", "one.toml", "one.toml", cwd=tmp_path)
    assert twice.returncode == 2
    assert "NAME: expected each study once, got one twice" in twice.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "--seed: expected an integer from 0 to 18446744073709551615, got -1"),
        (["--seed", "x"], "--seed: expected an integer from 0 to 18446744073709551615, got x"),
        (["--threads", "x"], "--threads: expected an integer from 1 to 4096, got x"),
        (
            ["train.batch=99999999999999"],
            "train.batch: expected an integer from 1 to 16777216, got 99999999999999",
        ),
        (["steps=0"], "scale.quick.steps: expected an integer from 1 to"),
        (["task.eval_samples=99999999999999"], "task.eval_samples: expected an integer from 1 to"),
    ],
)
def test_numbers_that_no_run_can_have_are_named(tmp_path, arguments, message):
    (tmp_path / "r.toml").write_text(TINY_SEQUENCES)
    answer = run("train", "r.toml", "--quiet", *arguments, cwd=tmp_path)
    assert answer.returncode == 2, answer.stderr
    assert message in answer.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_that_diverges_says_when_and_what_is_left(tmp_path):
    (tmp_path / "r.toml").write_text(TINY_SEQUENCES)
    answer = run("train", "r.toml", "--quiet", "train.lr=1e30", "steps=50", cwd=tmp_path)
    assert answer.returncode == 1
    assert "is not finite; there was no checkpoint yet" in answer.stderr
    assert "nan" not in answer.stderr


def test_resuming_nothing_is_said(tmp_path):
    (tmp_path / "r.toml").write_text(TINY_SEQUENCES)
    answer = run("train", "r.toml", "--resume", "steps=2", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "nothing to go on with; starting anew" in answer.stderr


def test_inputs_are_checked_before_the_evaluation(tmp_path):
    answer = run("eval", "nowhere", "--lengths", "4", "--inputs", "no/such/file", cwd=tmp_path)
    assert answer.returncode == 2
    assert "--inputs: expected a file in a folder that exists, got no/such/file" in answer.stderr


@pytest.mark.parametrize("command", [["list"], ["--help"], ["info"], ["list", "--json"]])
def test_a_full_disk_behind_standard_output_is_an_error(command):
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [str(program()), *command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert answer.returncode == 1
    assert "standard output: No space left on device" in answer.stderr


def test_a_wrong_source_folder_is_named(tmp_path):
    environment = {**os.environ, "TSALLIS_SOURCE_DIR": str(tmp_path / "gone")}
    answer = subprocess.run(
        [str(program()), "list"], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert "TSALLIS_SOURCE_DIR: expected a folder that holds experiments/" in answer.stderr


def test_a_mistake_of_the_model_is_said_once(tmp_path):
    (tmp_path / "r.toml").write_text(TINY_SEQUENCES)
    answer = run("train", "r.toml", "model.heads=7", cwd=tmp_path)
    assert answer.returncode == 2
    assert len(answer.stderr.strip().splitlines()) == 1, answer.stderr


def test_the_papers_language_models_take_ten_steps_at_a_small_width(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    words = [f"w{i * 7919 % 1000}" for i in range(20000)]
    for i in range(40):
        (pages / f"{i}.txt").write_text(" ".join(words[i * 400 : i * 400 + 2000]))
    prepare = ("data", "prepare", "pages", "--from", "pages", "--folder", "corpus")
    made = run(*prepare, "--tokenizer", "bpe:400", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    recipe = (ROOT / "experiments" / "language-paper.toml").read_text()
    text = recipe.replace('corpus       = "fineweb"', 'corpus = "./corpus"')
    (tmp_path / "r.toml").write_text(text)
    study = run("reproduce", "r.toml", "--json", "--quiet", cwd=tmp_path)
    assert study.returncode == 0, study.stderr
    rows = json.loads(study.stdout)["rows"]
    assert len(rows) == 4
    # Ten steps are enough to leave the loss of equal tokens, ln 50304.
    assert all(3.0 < row["mean"] < 10.0 for row in rows)


def test_parallel_text_becomes_a_task(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for part in ("train", "dev", "test"):
        lines = [f"the word {i} of {part}" for i in range(40)]
        (texts / f"{part}.en").write_text("\n".join(lines))
        (texts / f"{part}.de").write_text("\n".join(line[::-1] for line in lines))
    prepare = ("data", "prepare", "words", "--from", "texts", "--folder", "corpus")
    made = run(*prepare, "--pairs", "en,de", "--tokenizer", "bpe:300", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "3 files, 0 left out" in made.stdout
    assert "pairs of en and de: 40 train, 40 validation, 40 test" in made.stdout
    again = run(*prepare, "--pairs", "en,de", "--tokenizer", "bpe:300", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["pairs"] == [40, 40, 40]
    assert not json.loads(again.stdout)["made"]

    ask = ("task", "translation", "corpus=./corpus", "vocabulary=300", "--length", "40")
    shown = run(*ask, "--split", "test", "--samples", "2", cwd=tmp_path)
    assert "  reads <bos>the word 1 of test<sep>\n" in shown.stdout
    assert f"  says  {'the word 1 of test'[::-1]}<eos>\n" in shown.stdout
    export = run(*ask, "--samples", "4", "--export", "pairs.txt", cwd=tmp_path)
    assert export.returncode == 0, export.stderr
    rows = (tmp_path / "pairs.txt").read_text().splitlines()
    assert [row.count("\t") for row in rows] == [1] * 4

    text = ("task", "text", "corpus=./corpus", "vocabulary=300", "--length", "8")
    running = run(*text, cwd=tmp_path)
    assert running.returncode == 2
    assert "expected text that runs on, got pairs of sentences, en and de" in running.stderr


def test_study_writes_data_figures_and_pages(tmp_path):
    listed = run("study")
    assert listed.returncode == 0
    assert listed.stdout.startswith("entmax-temperature")
    names = [entry["name"] for entry in json.loads(run("study", "--json").stdout)]
    assert {"dispersion", "collapse", "positions", "scale-invariance"} <= set(names)
    for shown in (run("study", "--help").stdout, run("list").stdout):
        assert not [name for name in names if name not in shown]
    made = run("study", "insertion", "entmax-temperature", "--scale", "quick", "--out", tmp_path)
    assert made.returncode == 0, made.stderr
    assert "done; 2/2 jobs done" in made.stderr
    assert f"Page: {tmp_path}/report.html" in made.stdout
    for name in ("insertion", "entmax-temperature"):
        assert {path.name for path in (tmp_path / name).iterdir()} == {
            "study.json",
            "data",
            "figures",
            "report.html",
            "report.md",
        }
    # A finished one is left alone; a single one is one JSON document.
    again = run(
        *("study", "insertion", "--scale", "quick", "--out", tmp_path / "insertion"),
        *("--resume", "--json", "--quiet"),
    )
    assert (
        json.loads(again.stdout)["command"]
        == json.loads((tmp_path / "insertion" / "study.json").read_text())["command"]
    )
    assert "insertion entmax-temperature" in json.loads(again.stdout)["command"]
    assert run("report", tmp_path / "insertion").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["disperson"], 'unknown study "disperson"; did you mean "dispersion"?'),
        (["insertion", "--scale", "large"], "--scale: expected"),
        (["misreading", "--checkpoint", "nowhere"], "nowhere: no such file or folder"),
        (
            ["insertion", "--decoder", MODELS / "rope"],
            "--decoder: only has an effect on sparsefinder",
        ),
    ],
)
def test_mistakes_in_a_study_are_named(arguments, said, tmp_path):
    answer = run("study", *arguments, cwd=tmp_path)
    assert answer.returncode == 2
    assert said in answer.stderr
