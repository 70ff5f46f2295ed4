"""``tsallis look``: a page and a table of which keys every token of a text reads."""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import zlib
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from small_llama import write_llama, write_tokenizer
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    FalconConfig,
    FalconModel,
)

from tsallis.integrations import transformers as tsallis_transformers
from tsallis_look.__main__ import main
from tsallis_look.models import pieces_of
from tsallis_report.files import replace_text

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Seven times eight is fifty-six.\n\tSeven times nine – naïve – is sixty-three. 😀 <b>\n" * 2


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Small models in folders of their own, and text.txt."""
    folder = tmp_path_factory.mktemp("look")
    (folder / "text.txt").write_text(TEXT)
    texts = [TEXT] * 9
    write_llama(folder / "plain", texts, initializer_range=0.5)
    model = tsallis_transformers
    model.register()
    loaded = AutoModel.from_pretrained(folder / "plain", attn_implementation="tsallis_entmax")
    loaded.config.tsallis_alpha = [[1.2, 1.5, 2.0], [1.5, 1.5, 1.5]]
    model.export(loaded, folder / "sparse")
    write_tokenizer(folder / "sparse", texts)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    bert = BertConfig(**sizes, num_attention_heads=2, vocab_size=300, initializer_range=0.5)
    BertModel(bert).save_pretrained(folder / "both-ways")
    write_tokenizer(folder / "both-ways", texts)
    return folder


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def look(folder: Path, *arguments: str) -> Done:
    """In this process: every other would load torch and transformers for seconds."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments, "--out", "page.html"])
    return Done(code, out.getvalue(), err.getvalue())


def part(page: str, name: str) -> str:
    return re.search(rf'<script id="{name}"[^>]*>(.*?)</script>', page, re.DOTALL).group(1)


def read(file: Path) -> tuple[dict, np.ndarray]:
    """What a page is about, and its weights [heads, queries, keys], 0 where it has none."""
    page = file.read_text()
    about = json.loads(part(page, "about"))
    data = np.frombuffer(zlib.decompress(base64.b64decode(part(page, "weights"))), np.uint8)
    n = len(about["pieces"])
    rows = n * sum(map(len, about["layers"]))
    firsts, low, high, rest = np.split(data, [rows, 2 * rows, 3 * rows])
    counts = low.astype(int) + 256 * high.astype(int)
    low, high, levels = np.split(rest, 3)
    gaps = low.astype(int) + 256 * high.astype(int)
    weights = np.zeros((rows, n))
    weights[firsts > 0, 0] = 2.0 ** (-(firsts[firsts > 0].astype(float) - 1) / about["steps"])
    entry = 0
    for row, count in enumerate(counts):
        key = row % n if about["causal"] else n - 1
        for _ in range(count):
            key -= gaps[entry]
            weights[row, key] = 2.0 ** (-float(levels[entry]) / about["steps"])
            entry += 1
    assert entry == len(levels)
    return about, weights.reshape(-1, n, n)


def stored(folder: Path, implementation: str, text: str) -> np.ndarray:
    """The weights as transformers gives them: [heads of all layers, queries, keys]."""
    tsallis_transformers.register()
    model = AutoModel.from_pretrained(folder, attn_implementation=implementation)
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        found = model(input_ids=tokens, output_attentions=True).attentions
    return torch.cat(found, 1)[0].double().numpy()


def agree(shown: np.ndarray, true: np.ndarray, cut: float) -> None:
    """Weights from the cut up are there, within the half of a level; others are not."""
    clear = true > cut * 1.001
    assert clear.any()
    assert np.abs(np.log2(shown[clear] / true[clear])).max() < 1 / 16 + 1e-3
    assert (shown[true < cut * 0.999] == 0).all()


@pytest.mark.parametrize(
    ("name", "options", "implementation"),
    [
        ("sparse", (), "tsallis_entmax"),
        ("plain", ("--map", "sparsemax"), "tsallis_sparsemax"),
        ("plain", (), "tsallis_softmax"),
        ("both-ways", ("--map", "entmax15"), "tsallis_entmax15"),
    ],
)
def test_the_page_holds_the_weights_of_the_model(made, name, options, implementation):
    done = look(made, name, "--text", "text.txt", "--json", "--quiet", *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    about, shown = read(made / "page.html")
    true = stored(made / name, implementation, TEXT)
    n = true.shape[1]
    assert shown.shape == true.shape
    assert "".join(about["pieces"]) == TEXT
    assert about["causal"] == (name != "both-ways")
    dense = implementation == "tsallis_softmax"
    cut = found["cut"]
    assert cut == (0.01 if dense else pytest.approx(2.0 ** (-254.5 / 8)))
    agree(shown, true, cut)
    assert found["weights"] == (shown > 0).sum()
    assert found["shown"] == pytest.approx(true[true >= cut].sum() / true.sum(), rel=1e-4)
    if dense:
        assert "those of at least 1.0 % are shown" in about["facts"]
        assert "names no map of ours" in about["facts"]
    # The numbers of every head.
    distance = np.abs(np.arange(n)[:, None] - np.arange(n)[None])
    heads = [head for layer in found["layers"] for head in layer["heads"]]
    assert len(heads) == len(true)
    visible = n * n if name == "both-ways" else n * (n + 1) / 2
    for head, w in zip(heads, true, strict=True):
        logs = np.log(w, where=w > 0, out=np.zeros_like(w))
        assert head["keys"] == pytest.approx((w > 0).sum() / n, rel=1e-2)
        assert head["share"] == pytest.approx(head["keys"] * n / visible)
        assert head["entropy"] == pytest.approx(-(w * logs).sum() / n, rel=1e-3)
        assert head["first"] == pytest.approx(w[:, 0].mean(), rel=1e-3)
        assert head["distance"] == pytest.approx((w * distance).sum() / w.sum(), rel=1e-3)
    alphas = {
        "tsallis_entmax": [1.2, 1.5, 2.0, 1.5, 1.5, 1.5],
        "tsallis_sparsemax": [2.0] * 6,
        "tsallis_softmax": [None] * 6,
        "tsallis_entmax15": [1.5] * 2,
    }[implementation]
    for head, alpha in zip(heads, alphas, strict=True):
        assert head["alpha"] == (alpha if alpha is None else pytest.approx(alpha))


def test_windows_are_seen_in_the_weights(made, tmp_path):
    """Layers with a window get a mask, whose rows are taken block by block."""
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 300}
    config = MistralConfig(**sizes, **heads, sliding_window=6, initializer_range=0.5)
    MistralModel(config).save_pretrained(tmp_path / "window")
    write_tokenizer(tmp_path / "window", [TEXT] * 9)
    (tmp_path / "text.txt").write_text(TEXT)
    done = look(tmp_path, "window", "--map", "entmax15", "--text", "text.txt", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    about, shown = read(tmp_path / "page.html")
    agree(shown, stored(tmp_path / "window", "tsallis_entmax15", TEXT), found["cut"])
    n = len(about["pieces"])
    head = found["layers"][0]["heads"][0]
    assert head["share"] == pytest.approx(head["keys"] * n / (6 * n - 15))


def test_blocks_of_queries_are_those_of_the_whole(made, monkeypatch):
    from tsallis_look import gather
    from tsallis_look.calls import Call

    q, k = torch.randn(1, 4, 50, 8), torch.randn(1, 2, 50, 8)
    bias = torch.randn(1, 1, 50, 50)
    mask = torch.rand(1, 1, 50, 50) < 0.7
    for settings in ({"causal": True, "alpha": 1.5}, {"bias": bias, "mask": mask, "alpha": 2.0}):
        call = Call(q, k, {"alignment": "start", **settings})
        counts = []
        for most in (1 << 22, 600):
            monkeypatch.setattr(gather, "_AT_ONCE", most)
            found = gather.Gathered(50)
            steps = []
            found.add(call, steps.append)
            counts.append([(h.keys, h.visible, h.counts.tolist()) for h in found.heads])
            assert steps[-1] == 50
        assert len(steps) > 3
        assert counts[0] == counts[1]


def test_a_page_of_a_given_size_has_the_largest_weights(made):
    whole = look(made, "sparse", "--text", "text.txt", "--json", "--quiet")
    _, everything = read(made / "page.html")
    whole = json.loads(whole.stdout)
    packed = len(part((made / "page.html").read_text(), "weights"))
    room = (whole["bytes"] - packed // 2) / 1e6
    done = look(made, "sparse", "--text", "text.txt", "--json", "--megabytes", f"{room:.6f}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    about, shown = read(made / "page.html")
    assert found["bytes"] == (made / "page.html").stat().st_size <= room * 1e6
    assert found["bytes"] > room * 1e6 - 600
    assert found["cut"] > 2 * whole["cut"]
    assert (shown == np.where(everything >= found["cut"], everything, 0)).all()
    assert found["shown"] == pytest.approx(shown.sum() / everything.sum(), abs=0.02)
    assert f"so that the page has at most {room:g} MB" in about["facts"]


def test_what_is_held_for_a_long_text_stays_bounded(monkeypatch):
    from tsallis_look import gather
    from tsallis_look.calls import Call

    monkeypatch.setattr(gather, "_HELD", 3000)
    found = gather.Gathered(60)
    torch.manual_seed(0)
    calls = [Call(*torch.randn(2, 1, 2, 60, 8), {"causal": True, "alpha": 1.2}) for _ in range(4)]
    for call in calls:
        found.add(call, lambda _: None)
    held = sum(len(head.kept(found.level)[0]) for head in found.heads)
    assert 1000 < held <= 3000
    assert held == sum(head.counts[: found.level + 1].sum() for head in found.heads)
    assert held < sum(head.keys for head in found.heads)


def test_a_model_of_the_lab(tmp_path):
    """Shares as `tsallis eval --heads` finds them on the same bytes."""
    model = ROOT / "models" / "asentmax-nape"
    text = (ROOT / "models" / "README.md").read_text()[:400] + "é"
    (tmp_path / "text.txt").write_text(text)
    done = look(tmp_path, str(model), "--text", "text.txt", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    about, shown = read(tmp_path / "page.html")
    n = len(text.encode()) - 1  # the last byte is what the model predicts
    assert shown.shape == (16, n, n)
    assert "".join(about["pieces"]) == text
    assert np.abs(shown.sum(-1) - 1).max() < 0.045
    command = [sys.executable, "-m", "tsallis", "eval", model, "--text", "text.txt"]
    command += ["--lengths", str(n), "--samples", "1", "--heads", "heads", "--quiet"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    table = (tmp_path / "heads" / "data" / "heads.csv").read_text().splitlines()
    shares = [float(line.split(",")[2]) for line in table[1:]]
    heads = [head for layer in found["layers"] for head in layer["heads"]]
    assert [head["share"] for head in heads] == pytest.approx(shares, rel=1e-2)


@pytest.mark.parametrize("how", [["--json"], []])
def test_a_full_standard_output_is_named(how, tmp_path):
    (tmp_path / "text.txt").write_text("def look(): pass")
    command = [sys.executable, "-m", "tsallis_look", str(ROOT / "models" / "asentmax-nape")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "--text", "text.txt", "--out", "page.html", "--quiet", *how],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
        )
    assert done.returncode == 1
    assert done.stderr.endswith("tsallis look: standard output: No space left on device\n")


def test_the_table_has_a_line_for_every_layer_or_head(made):
    done = look(made, "sparse", "--text", "text.txt")
    assert done.returncode == 0, done.stderr
    title, *lines = done.stdout.split("\n\n")[0].splitlines()
    assert re.split(r"\s{2,}", title.strip()) == [
        *("layer", "keys kept", "of those seen", "entropy, nats", "on the first key"),
        "mean distance",
    ]
    assert [line.split()[0] for line in lines] == ["1", "2"]
    assert "entmax, α from 1.20 to 2.00" in done.stdout
    done = look(made, "sparse", "--text", "text.txt", "--layer", "2", "--quiet")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["head", "1", "2", "3"]


def test_tokens_show_every_character_once():
    text = "naïve  😀"
    places = [(0, 0), (0, 2), (2, 3), (2, 3), (3, 5), (7, 8), (7, 8), (0, 0)]
    names = ["<s>", *"abcdef", "</s>"]
    pieces = pieces_of(text, places, names)
    assert pieces == ["<s>", "na", "ï", "", "ve", "  😀", "", "</s>"]


def test_a_page_asks_for_nothing(made):
    look(made, "sparse", "--text", "text.txt")
    page = (made / "page.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=|https?://|url\(|fetch\(|import ", page)
    assert page.count("</script>") == 3  # the text's own < are written otherwise


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("sparse", "--text", "none.txt"), "--text none.txt: No such file or directory"),
        (("sparse", "--text", "empty.txt"), "--text empty.txt: expected a text, got an empty one"),
        (("sparse", "--text", "bytes.txt"), "expected UTF-8, got the byte 0xff at 2"),
        (("none", "--text", "text.txt"), "MODEL: expected smollm2, or a folder with config.json"),
        (("short", "--text", "text.txt"), "expected at most 8 tokens, as many as the model has"),
        (("sparse", "--text", "text.txt", "--layer", "3"), "--layer: expected 1 to 2, got 3"),
        (("sparse", "--text", "text.txt", "--megabytes", "0.01"), "--megabytes: expected at least"),
        (
            ("plain", "--text", "text.txt", "--map", "entmax"),
            "--map entmax: expected tsallis_alpha",
        ),
        (("falcon", "--text", "text.txt"), "expected one of transformers' own for FalconModel"),
        (("t5", "--text", "text.txt"), "got one of an encoder and a decoder (t5)"),
        ((str(ROOT / "models/rope"), "--text", "text.txt", "--map", "softmax"), "--map: expected"),
    ],
)
def test_mistakes_are_named(made, tmp_path, arguments, says):
    for path in made.iterdir():
        if path.name != "page.html":
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "bytes.txt").write_bytes(b"ab\xff")
    if arguments[0] == "short":
        write_llama(tmp_path / "short", [TEXT], max_position_embeddings=8)
    if arguments[0] == "falcon":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        FalconModel(FalconConfig(vocab_size=300, **sizes)).save_pretrained(tmp_path / "falcon")
        write_tokenizer(tmp_path / "falcon", [TEXT])
    if arguments[0] == "t5":
        (tmp_path / "t5").mkdir()
        (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
        write_tokenizer(tmp_path / "t5", [TEXT])
    done = look(tmp_path, *arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "page.html").exists()


def test_a_long_text_can_be_read_in_part(made):
    done = look(made, "sparse", "--text", "text.txt", "--tokens", "7", "--json", "--quiet")
    assert json.loads(done.stdout)["tokens"] == 7
    assert read(made / "page.html")[1].shape == (6, 7, 7)


def test_an_interruption_leaves_nothing(made, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 20)
    (tmp_path / "out").mkdir()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tsallis_look", made / "sparse"),
            *("--text", "text.txt", "--out", "out/page.html"),
        ],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
        # A job that a shell runs in the background ignores Ctrl-C, and its children do too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert "layer 1 of 2" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=100)
    assert process.returncode == 130, rest
    assert "interrupted; no page was written" in rest
    assert os.listdir(tmp_path / "out") == []


def test_a_file_that_is_not_written_leaves_none_beside_it(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_text(tmp_path / "page.html", "text")
    assert os.listdir(tmp_path) == []
