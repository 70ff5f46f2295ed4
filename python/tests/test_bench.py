"""The attention benchmark: every kind of case, peers that are missing, files, interruptions."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import tsallis
from tsallis.bench import attention, cases, decode_modes, figure, llama, peers
from tsallis.bench import decode as bench_decode
from tsallis.bench.__main__ import main
from tsallis.bench.command import no_figure

ROOT = Path(__file__).resolve().parents[2]
SIDES = ("ours", "peer")
NUMBERS = {"speedup", "process_speedup", "roofline", "spread"}
NUMBERS |= {f"{side}_{clock}" for side in SIDES for clock in ("s", "process_s")}
QUARTILES = {f"{side}_{clock}_quartiles" for side in SIDES for clock in ("s", "process_s")}
COUNTS = {"batch", "heads", "n", "d", *(f"{side}_calls" for side in SIDES)}
TEXTS = {"case", "map", "dtype", "pass", "peer"}
SINGLE = ["--threads", "1"]


def command(*arguments, what="attention"):
    return [sys.executable, "-m", "tsallis.bench", what, *map(str, arguments)]


def environment(**more):
    return os.environ | {"PYTHONPATH": str(ROOT / "python"), **more}


def run(*arguments, what="attention", **more):
    return subprocess.run(
        command(*arguments, what=what),
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def decode(*arguments):
    return run(*arguments, what="decode")


@pytest.fixture
def here(monkeypatch):
    """Runs the program in this process, as another one first imports torch; the exit code."""

    def here(*arguments, what="attention"):
        monkeypatch.setattr(sys, "argv", ["tsallis bench", what, *map(str, arguments)])
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # of all tests
        try:
            return main()
        except SystemExit as end:
            return end.code

    return here


@pytest.fixture
def refused(here, capsys):
    """What the program says to a mistake."""

    def refused(*arguments, what="attention"):
        assert here(*arguments, what=what) == 2
        out, error = capsys.readouterr()
        assert not out
        return error

    return refused


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "new"
    done = run("--quick", *SINGLE, "--out", out)
    assert done.returncode == 0, done.stderr
    return done, out


def test_files(quick):
    done, out = quick
    assert {path.name for path in out.iterdir()} == {
        f"attention.{suffix}" for suffix in ("json", "svg", "png", "csv")
    }
    assert all(path.stat().st_size > 100 for path in out.iterdir())
    assert str(out / "attention.json") in done.stderr


def test_schema(quick):
    document = json.loads((quick[1] / "attention.json").read_text())
    top = {"date", "commit", "processor", "isa", "threads", "torch", "load", "caches"}
    assert set(document) == top | {"absent", "rows"}
    assert document["threads"] == 1
    assert document["torch"] == torch.__version__
    assert "--quick" in document["absent"]["flex"][0]
    for row in document["rows"]:
        assert set(row) == TEXTS | NUMBERS | QUARTILES | COUNTS | {"alpha", "causal"}
        assert all(isinstance(row[key], str) for key in TEXTS)
        assert all(isinstance(row[key], int) and row[key] > 0 for key in COUNTS)
        numbers = NUMBERS if row["roofline"] is not None else NUMBERS - {"roofline"}
        assert all(isinstance(row[key], float) and row[key] >= 0 for key in numbers)
        for key in QUARTILES:
            assert row[key][0] <= row[key.removesuffix("_quartiles")] <= row[key][1]
        assert row["speedup"] == pytest.approx(row["peer_s"] / row["ours_s"], rel=1e-3)
    seen = {(row["case"], row["pass"], row["peer"]) for row in document["rows"]}
    names = {case for case, _, _ in seen}
    assert len(names) >= 15
    for name in names:
        assert {(name, "fwd", "sdpa"), (name, "fwd+bwd", "sdpa")} <= seen
    assert any(peer == "entmax" for _, _, peer in seen)


def test_table(quick):
    """A line for each case and pass, with the numbers of the document."""
    done, out = quick
    title, *lines = done.stdout.splitlines()
    assert title.split() == [
        "case",
        "pass",
        "ours",
        "ms",
        "sdpa",
        "ms",
        "entmax",
        "ms",
        "of",
        "dense",
    ]
    rows = json.loads((out / "attention.json").read_text())["rows"]
    assert len(lines) == len({(row["case"], row["pass"]) for row in rows})
    for line in lines:
        *cells, roofline = line.split()
        name, direction, ours, sdpa, times, *rest = cells
        chosen = {r["peer"]: r for r in rows if r["case"] == name and r["pass"] == direction}
        assert float(ours) == pytest.approx(chosen["sdpa"]["ours_s"] * 1e3, rel=0.01, abs=1e-3)
        assert float(sdpa) == pytest.approx(chosen["sdpa"]["peer_s"] * 1e3, rel=0.01, abs=1e-3)
        assert times.endswith("x")
        assert ("-" in rest) == ("entmax" not in chosen)
        assert (roofline == "-") == (chosen["sdpa"]["roofline"] is None)


@pytest.mark.parametrize(("n", "shown"), [(64, False), (1024, True)])
def test_no_share_of_dense_where_a_call_costs_more_than_its_products(n, shown):
    case = cases.Case("entmax-1.5", n, "float32")
    options = attention.Options(peers=["sdpa"], budget_s=0.01, repeat=1)
    (row,) = attention.measure_pass(case, "fwd", options, 1e11).rows
    if shown:
        assert row["roofline"] == pytest.approx(row["ours_s"] / (case.forward_flops / 1e11))
    else:
        assert row["roofline"] is None


def test_the_figure_of_the_start_page_can_be_drawn_from_its_points(tmp_path):
    source = ROOT / "docs/figures/attention.csv"
    assert figure.write(source, tmp_path / "attention")
    assert (tmp_path / "attention.csv").read_text() == source.read_text()


def test_a_forward_pass_slower_than_both_is_marked_and_not_joined():
    def point(direction, n, seconds):
        values = ("float32", direction, "entmax", n, seconds)
        return dict(zip(figure.COLUMNS, values, strict=True))

    sure = [point("fwd", 64, 1.0), point("fwd+bwd", 64, 3.0), point("fwd", 256, 9.0)]
    noise = [point("fwd", 128, 5.0), point("fwd+bwd", 128, 4.0)]
    assert figure.doubtful(sure) == set()
    assert figure.doubtful(sure + noise) == {("float32", "entmax", 128)}
    (axes,) = figure.plot(sure + noise).axes
    joined = [line.get_xdata() for line in axes.lines if line.get_linestyle() != "None"]
    hollow = [line.get_xdata() for line in axes.lines if line.get_linestyle() == "None"]
    assert [list(x) for x in joined] == [[64, 256], [64]]
    assert [list(x) for x in hollow] == [[128], [128]]


def test_a_wheel_has_nothing_to_draw_figures_with(monkeypatch):
    assert no_figure() is None
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tsallis_report" else find(name)
    )
    assert no_figure() == (
        "no figure: tsallis_report is not installed, draw the JSON in a checkout"
    )


def test_missing_packages_are_named(tmp_path):
    """The program without entmax and matplotlib, as a plain `pip install` leaves it."""
    hide = (
        "import sys, importlib.util as u; find = u.find_spec; gone = ('entmax', 'matplotlib');"
        "u.find_spec = lambda name, *more: None if name in gone else find(name, *more);"
        "from tsallis.bench.__main__ import main; sys.exit(main())"
    )
    line = [sys.executable, "-c", hide, "attention", "--quick", *SINGLE, "--json"]
    line += ["--cases", "entmax-1.5-float32-n32", "--out", str(tmp_path)]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "entmax: not installed (pip install entmax)" in done.stderr
    assert "no figure: matplotlib is not installed" in done.stderr
    document = json.loads(done.stdout)  # all else is on the other stream
    assert document == json.loads((tmp_path / "attention.json").read_text())
    assert document["absent"]["entmax"] == ["not installed (pip install entmax)"]
    assert {row["peer"] for row in document["rows"]} == {"sdpa"}


@pytest.mark.parametrize("sent", ["while measuring", "before anything"])
def test_an_interruption_keeps_what_was_measured(tmp_path, sent):
    line = command("--cases", "n2048", "--peers", "sdpa", "--budget", 60, *SINGLE)
    process = subprocess.Popen(
        [*line, "--out", str(tmp_path / "new")],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background may have them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    written = tmp_path / "new" / "attention.json"
    try:
        if sent == "while measuring":
            deadline = time.monotonic() + 120
            while not written.exists() and time.monotonic() < deadline:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
        else:
            assert "matrix product" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert "Traceback" not in error
    if sent == "while measuring":
        rows = json.loads(written.read_text())["rows"]
        assert rows
        assert f"what was measured is in {written}" in error
        assert len(out.splitlines()) == 1 + len(rows)
    else:
        assert "nothing was measured" in error
        assert not written.exists()


def test_flex_attention(monkeypatch):
    """What it is compared with is what SDPA computes, and what it cannot do is said."""
    whole = torch.compile  # which would call a C++ compiler for half a minute

    def compile(function, **settings):
        return whole(function, **({"backend": "eager"} | settings))

    monkeypatch.setattr(torch, "compile", compile)
    case = cases.Case("flex", 200, "float32", d=16)  # not a multiple of its blocks
    inputs = attention.draw(case, 0)
    found = peers.peer("flex", case, inputs, False, 4096)
    assert isinstance(found, peers.Runner), found
    assert found.name == "flex"
    q, k, v, _ = inputs
    with torch.no_grad():
        out = found.attend(q, k, v)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    backward = peers.peer("flex", case, inputs, True, 4096)
    if isinstance(backward, peers.Absent):
        assert "backward" in backward.reason
    assert peers.peer("flex", cases.Case("", 64, "float32", alpha=2.0), inputs, False, 64) == (
        peers.Absent("flex")
    )


def test_flex_attention_that_does_not_compile(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no compiler\nand more")

    whole = torch.compile  # eager FlexAttention has a use of its own for it

    def compile(*arguments, **settings):
        return whole(*arguments, **settings) if "backend" in settings else broken

    monkeypatch.setattr(torch, "compile", compile)
    case = cases.Case("flex", 130, "float32", d=16, slopes=(0.5, 0.125))
    inputs = attention.draw(case, 0)
    found = peers.peer("flex", case, inputs, False, 4096)
    assert found.name == "flex eager"
    q, k, v, _ = inputs
    expected = peers.ours(cases.Case("", 130, "float32", d=16, map="softmax", slopes=case.slopes))
    with torch.no_grad():
        torch.testing.assert_close(found.attend(q, k, v), expected.attend(q, k, v))


def test_time_left():
    assert attention.minutes_left([60, 60, 120], 0, 0.0) == 4
    assert attention.minutes_left([60, 60, 120], 1, 30.0) == 1.5  # twice as fast as thought
    assert attention.minutes_left([60], 1, 50.0) == 0


def test_cases_are_found_by_parts_of_names_and_patterns(capsys, here):
    everything = cases.all_cases()
    names = [case.name for case in everything]
    assert len(set(names)) == len(names)
    assert "entmax-1.5-bfloat16-n65536-d64" in names
    assert cases.matching(everything, []) == everything
    assert cases.matching(everything, ["no-such-case"]) == []
    chosen = cases.matching(everything, ["alibi", "flat-*-d64"])
    assert {case.kind for case in chosen} == {"alibi", "flat"}
    assert here("--list", "--cases", "alibi") == 0
    assert capsys.readouterr().out.splitlines() == [name for name in names if "alibi" in name]


def trained(path, metadata=None, kv_heads=3):
    """Two layers of three heads, as ``tsallis eval --inputs`` writes them."""
    generator = torch.Generator().manual_seed(3)
    layers = {}
    for layer in range(2):
        for name in "qkv":
            heads = 3 if name == "q" else kv_heads
            layers[f"layers.{layer}.{name}"] = torch.randn(heads, 40, 8, generator=generator)
        layers[f"layers.{layer}.alpha"] = torch.tensor([1.5, 1.5, 1.5 + 0.1 * layer])
    layers["layers.1.slopes"] = torch.tensor([1.0, 0.5, 0.0])
    maps = {"layers.0.map": "entmax", "layers.1.map": "entmax"} if metadata is None else metadata
    if metadata is None:
        maps["layers.1.scale_invariant"] = "10"
    save_file(layers, path, maps)
    return layers


def test_inputs_of_a_trained_model(tmp_path):
    layers = trained(tmp_path / "inputs.safetensors")
    first, second = cases.trained_cases(tmp_path / "inputs.safetensors")
    assert (first.alpha, first.slopes, first.map) == (1.5, None, "entmax")
    assert (first.scale_invariant, second.scale_invariant) == (None, 10.0)
    assert second.alpha == pytest.approx((1.5, 1.5, 1.6))
    assert second.slopes == (1.0, 0.5, 0.0)
    q, k, v, gradient = attention.draw(second, 0)
    assert torch.equal(q[0], layers["layers.1.q"])
    assert torch.equal(v[0], layers["layers.1.v"])
    assert gradient.shape == k.shape == (1, 3, 40, 8)
    done = run(
        "--inputs", tmp_path / "inputs.safetensors", "--quick", "--out", tmp_path / "out", *SINGLE
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out/attention.json").read_text())["rows"]
    assert {row["case"] for row in rows} == {f"trained-{i}-float32-n40-d8-1x3" for i in (0, 1)}
    assert {row["spread"] for row in rows} == {None}


def test_inputs_whose_keys_several_heads_share(tmp_path, monkeypatch, refused):
    # Eager: another test compiles.
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    file = tmp_path / "inputs.safetensors"
    layers = trained(file, kv_heads=1)
    case = cases.trained_cases(file)[0]
    assert case.grouped
    inputs = attention.draw(case, 0)
    assert [x.shape[1] for x in inputs] == [3, 1, 1, 3]
    q, k, v, _ = inputs
    repeated = peers.ours(case).attend(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1))
    for name in ("sdpa", "entmax", "flex"):
        found = peers.peer(name, case, inputs, False, 4096)
        assert isinstance(found, peers.Runner), found
        expected = repeated
        if name != "entmax":
            softmax = replace(case, map="softmax", alpha=None)
            expected = peers.ours(softmax).attend(q, k, v)
        assert torch.allclose(found.attend(q, k, v), expected, atol=1e-5)
    found = bench_decode.trained_cases_of(file, ["float32"])
    assert [c.name for c in found] == [f"trained-{i}-float32-n40-d8-3/1" for i in (0, 1)]
    rows = bench_decode.measure(found[0], repeat=1, budget_s=0.01)
    # The support is that of the last token's query.
    q, k = layers["layers.0.q"][:, -1:], layers["layers.0.k"]
    weights = tsallis.entmax(q @ k.transpose(-2, -1) * 8**-0.5, 1.5)
    assert rows[0]["support"] == pytest.approx((weights > 0).sum().item() / 3)
    assert next(iter(decode_modes.measure(case)))["mass"] == pytest.approx(1.0)
    trained(file, {"layers.0.map": "softmax"})
    said = refused("--inputs", file, what="decode")
    assert "expected a model with entmax, got one with softmax" in said


def test_models_of_the_tree(monkeypatch, tmp_path, capsys, here, refused):
    monkeypatch.setattr(cases, "MODEL_KEYS", 64)
    text = tmp_path / "text.py"
    text.write_text("import torch\n" * 20)
    found = cases.model_cases(ROOT, text)
    models = ["asentmax-nape", "rope"]
    assert [case.kind for case in found] == [f"{m}-{layer}" for m in models for layer in range(4)]
    assert {(case.n, case.heads, case.d) for case in found} == {(64, 4, 32)}
    assert {case.map for case in found[:4]} == {"entmax"}
    assert {case.scale_invariant for case in found} == {None}
    text.write_text("short")
    with pytest.raises(ValueError, match="length: expected 1 to 4"):
        cases.model_cases(ROOT, text)
    with pytest.raises(OSError, match="expected a source tree"):
        cases.model_cases(tmp_path, text)
    assert here("--models", "--list") == 0
    assert len(capsys.readouterr().out.split()) == 8
    assert "not allowed with argument" in refused("--models", "--inputs", "x")


def test_decode(tmp_path):
    out = tmp_path / "out"
    # One query is the default.
    plain = ("--quick", "--repeat", "2", "--threads", "1", "--queries", "1")
    done = decode(*plain, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "decode.json").read_text())
    assert (tmp_path / "out" / "decode.png").stat().st_size > 10_000
    assert json.loads(done.stdout) == found
    assert {row["peer"] for row in found["rows"]} == {"rows", "tensors", "gqa", "repeated", "cat"}
    assert {row["dtype"] for row in found["rows"]} == {"bfloat16", "float32"}
    assert found["memory_bytes_per_s"] > 1e8
    assert "GB/s read by 1 threads" in done.stderr
    for row in found["rows"]:
        assert 0 < row["support"] <= row["scored"] <= row["n"] == 512
        assert row["speedup"] > 0
        assert row["bytes_read"] > 512 * 8 * 64


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--models", "--llama"], "--llama: expected without --models"),
        (["--inputs", "x", "--keys", "64"], "--keys: expected without --inputs"),
        (["--inputs", "x", "--quick"], "--quick: expected without --inputs"),
        (["--keys", "12,x"], "--keys: expected numbers >= 2"),
        (["--keys", "9" * 14], "--keys: expected keys and values that fit into"),
        (["--keys", "9" * 5000], "--keys: expected numbers >= 2"),
        (["--out", "/proc/x"], "--out: expected a folder to write into, got /proc/x"),
        (["--models", "--out", "/proc/x"], "--out: expected a folder to write into, got /proc/x"),
        (["--threads", "0"], "--threads: expected a number > 0, got 0"),
        (["--queries", "0"], "--queries: expected numbers >= 1"),
        (["--queries", "600", "--quick"], "--queries: expected at most 512"),
        (["--queries", "8", "--llama"], "--llama: expected without --queries"),
        (["--models", "--queries", "8"], "--queries: expected without --models"),
    ],
)
def test_mistakes_in_decoding_are_named(arguments, why, refused):
    assert why in refused(*arguments, what="decode")


def test_chunks_of_new_tokens(tmp_path):
    done = decode(
        *("--keys", "300", "--queries", "5,100", "--dtype", "float32", "--repeat", "2"),
        *("--out", tmp_path, *SINGLE),
    )
    assert done.returncode == 0, done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["decode-chunks.json"]
    found = json.loads((tmp_path / "decode-chunks.json").read_text())
    assert {row["queries"] for row in found["rows"]} == {5, 100}
    assert {row["peer"] for row in found["rows"]} == {"rows", "tensors", "gqa", "repeated"}
    for row in found["rows"]:
        assert 0 < row["support"] <= row["scored"] <= 300


def test_llama_cpp_as_a_peer_of_decoding(tmp_path):
    pytest.importorskip("xllamacpp")
    done = decode(
        *("--keys", "256", "--dtype", "float32", "--llama", "--repeat", "2", "--budget", "0.2"),
        *("--out", tmp_path, *SINGLE),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "decode.json").read_text())
    assert found["llama"].startswith("xllamacpp ")
    plain = "float32-n256-d64-32/8"
    measured = {row["case"] for row in found["rows"] if row["peer"] in llama.CACHES}
    assert measured == {plain, "float32-n256-d128-32/8"}
    assert {row["peer"] for row in found["rows"] if row["case"] == plain} >= set(llama.CACHES)
    # A model of one layer has read what it was given: more keys take longer.
    few, many = (llama.Writer("llama f16", n, 32, 8, 64, 1) for n in (256, 2048))
    try:
        assert min(many.turn()[0].wall_s for _ in range(5)) > min(
            few.turn()[0].wall_s for _ in range(5)
        )
    finally:
        few.close()
        many.close()


def test_llama_cpp_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert "pip install xllamacpp" in llama.why_absent()


def test_modes_of_decoding_on_trained_heads():
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 1500, 16, generator=generator) for _ in range(3))
    inputs = (8.0 * q, k, v)  # sharp heads: flat ones are read whole
    case = cases.Case("small-model-0", 1500, "float32", d=16, inputs=inputs)
    rows = [
        *decode_modes.measure(case),
        *decode_modes.measure(replace(case, kind="soft-1", map="softmax", alpha=None)),
    ]
    found = {(row["model"], row["mode"]): row for row in decode_modes.summaries(rows)}
    assert len(decode_modes.line(rows[0] | {"model": "x"})) == len(decode_modes.TITLE)
    for model in ("small-model", "soft"):
        exact = found[model, "exact"]
        assert exact["mass"] == exact["whole"] == exact["proved"] == 1.0
        few, many = found[model, "top pages 256"], found[model, "top pages 1024"]
        assert few["mass"] < many["mass"] <= 1.0
        assert few["bytes_read"] < many["bytes_read"]
    assert ("small-model", "within 0.1") not in found, "entmax is exact"
    assert found["soft", "within 0.1"]["least_mass"] >= 0.9
    assert found["soft", "within 0.001"]["proved"] == 1.0
    assert found["soft", "within 0.1"]["scored"] < found["soft", "within 0.001"]["scored"]


def test_inputs_that_are_not_there(tmp_path, refused):
    (tmp_path / "text").write_text("something else")
    trained(tmp_path / "weights.safetensors", metadata={})
    for name in ("missing", "text", "weights.safetensors"):
        said = refused("--inputs", tmp_path / name)
        assert "--inputs: " in said
        assert name in said
