"""Calls on CUDA tensors: what a machine without a device tells, and the rest where one is."""

import json
import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode

import tsallis
from tsallis import _ops

INFO = tsallis.cuda_info()
needs_device = pytest.mark.skipif(
    not (INFO.architectures and torch.cuda.is_available()),
    reason=INFO.why_not_compiled or INFO.why_no_devices or "torch sees no CUDA device",
)


def draw(device, dtype=torch.bfloat16, heads=4, kv_heads=2, length=40, batch=2):
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(batch, heads, length, 32, generator=generator)
    k, v = torch.randn(2, batch, kv_heads, length, 32, generator=generator)
    return [x.to(dtype).to(device).requires_grad_() for x in (q, k, v)]


def test_what_there_is():
    assert bool(INFO.architectures) != bool(INFO.why_not_compiled)
    if INFO.why_not_compiled:
        assert "TSALLIS_CUDA=ON" in INFO.why_not_compiled
        assert not INFO.devices
    else:
        assert INFO.compiler.startswith("nvcc ")
        assert bool(INFO.devices) != bool(INFO.why_no_devices)


needs_cuda_torch = pytest.mark.skipif(
    torch.version.cuda is None,
    reason="autograd of a torch without CUDA ends the process on a CUDA tensor, a traced one too",
)


@pytest.mark.parametrize("returns", [(), ("tau", "support_size", "entropy", "maximum")])
def test_traced_tensors_stay_on_their_device(returns):
    with FakeTensorMode():
        q, k, v = (x.detach() for x in draw("cuda:0"))
        out = tsallis.attention(q, k, v, causal=True, returns=returns)
        if returns:
            out, extra = out
            assert all(x.device == q.device for x in extra if x is not None)
        assert (out.device, out.dtype, out.shape) == (q.device, q.dtype, q.shape)


@needs_cuda_torch
def test_traced_gradients_stay_on_their_device():
    with FakeTensorMode():
        q, k, v = draw("cuda:0")
        out = tsallis.attention(q, k, v, causal=True)
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
        for x, gradient in zip((q, k, v), gradients, strict=True):
            assert (gradient.device, gradient.dtype, gradient.shape) == (x.device, x.dtype, x.shape)


def test_traced_calls_reserve_memory_for_lists():
    rows = 2 * 4 * 40
    with FakeTensorMode():
        q, k, v = (x.detach() for x in draw("cuda:0"))
        for settings, expected in (
            ({}, rows * 512),
            ({"saved_budget": 1000}, 1000),
            ({"map": _ops.SOFTMAX}, 0),
        ):
            saved = torch.ops.tsallis.attention_forward(q, k, v, 2, **settings)[2]
            assert (saved.device, saved.numel()) == (q.device, expected), settings


ROW_MAPS = {
    "softmax": tsallis.softmax,
    "sparsemax": tsallis.sparsemax,
    "entmax": lambda x: tsallis.entmax(x, alpha=1.3),
    "normmax": lambda x: tsallis.normmax(x, alpha=1.5),
    "budget": lambda x: tsallis.budget(x, budget=3.0),
    "adaptive_temperature": tsallis.adaptive_temperature_softmax,
    "along another dimension": lambda x: tsallis.entmax(x, dim=1),
}


@pytest.mark.parametrize("name", ROW_MAPS)
def test_traced_row_maps_stay_on_their_device(name):
    with FakeTensorMode():
        x = draw("cuda:0")[0].detach()
        p = ROW_MAPS[name](x)
        assert (p.device, p.dtype, p.shape) == (x.device, x.dtype, x.shape)


@needs_device
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ROW_MAPS)
def test_row_maps_are_those_of_the_cpu(name, dtype):
    results = []
    for device in ("cuda:0", "cpu"):
        x = draw(device, dtype)[0]
        p = ROW_MAPS[name](x)
        weights = torch.linspace(-1, 1, p.numel(), device=device).reshape(p.shape).to(dtype)
        results.append([p, *torch.autograd.grad((p * weights).sum(), x)])
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, 1e-5)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=tolerance, atol=tolerance)


@needs_device
def test_alpha_of_rows_and_losses_have_their_gradients():
    results = []
    for device in ("cuda:0", "cpu"):
        x = draw(device, torch.float32)[0]
        alpha = torch.tensor([1.2, 1.5, 2.0, 1.0], device=device).reshape(4, 1, 1).requires_grad_()
        p, stats = tsallis.row_stats(tsallis.entmax, x, alpha=alpha)
        gradients = torch.autograd.grad((p * p).sum(), (x, alpha))
        scores = draw(device, torch.float32)[0]
        targets = torch.arange(40, device=device).remainder(32).expand(2, 4, 40)
        loss = tsallis.entmax_loss(scores, targets)
        results.append([p, *stats, *gradients, loss, *torch.autograd.grad(loss.sum(), scores)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


@needs_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
def test_the_same_as_on_the_cpu(dtype, alpha):
    ours, theirs = draw("cuda:0", dtype), draw("cpu", dtype)
    results = []
    for inputs in (ours, theirs):
        out, extra = tsallis.attention(
            *inputs, alpha=alpha, causal=True, returns=("tau", "support_size", "entropy")
        )
        gradients = torch.autograd.grad(out.sum(), inputs)
        results.append([out, *gradients, extra.tau, extra.entropy, extra.support_size])
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}[dtype]
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=tolerance, atol=tolerance)


def draw_pages(device, dtype=torch.bfloat16):
    """q, pages of keys and values, table and lengths of two sequences."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 4, 3, 32, generator=generator)
    k, v = torch.randn(2, 12, 16, 2, 32, generator=generator)
    table = torch.randperm(12, generator=generator).reshape(2, 6).int()
    lengths = torch.tensor([90, 41], dtype=torch.int32)
    return [*(x.to(dtype).to(device) for x in (q, k, v)), table.to(device), lengths.to(device)]


def test_traced_decoding_stays_on_its_device():
    with FakeTensorMode():
        arguments = draw_pages("cuda:0")
        out, extra = tsallis.decode_paged(*arguments, returns="tau")
        assert (out.device, out.dtype) == (arguments[0].device, torch.bfloat16)
        assert extra.tau.device == out.device


@needs_device
@pytest.mark.parametrize("settings", [{}, {"map": "softmax"}, {"alpha": 2.0, "window": 50}])
def test_decoding_on_pages(settings):
    here = tsallis.decode_paged(*draw_pages("cpu"), **settings)
    arguments = draw_pages("cuda:0")
    there = tsallis.decode_paged(*arguments, **settings)
    torch.testing.assert_close(there.cpu(), here, rtol=3e-2, atol=3e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = tsallis.decode_paged(*arguments, **settings)
    graph.replay()
    assert torch.equal(again, there)


@needs_device
def test_a_cache_on_the_device(tmp_path):
    results = []
    for device in ("cuda:0", "cpu"):
        q, k, v = (x.detach() for x in draw(device, length=90, batch=1))
        cache = tsallis.KVCache(1, 2, 32, device=device)
        prompt = cache.sequence()
        cache.append(0, [prompt], k[:, :, :80], v[:, :, :80])
        fork = prompt.fork(70)
        cache.append(0, [fork], k[:, :, 70:75], v[:, :, 70:75])
        out, found = tsallis.decode(
            q[:, :, -1:].expand(2, -1, -1, -1), cache, 0, [prompt, fork], returns="support_size"
        )
        cache.save(fork, tmp_path / "fork")
        again = cache.load(tmp_path / "fork")
        assert torch.equal(again.read(0)[0], fork.read(0)[0])
        results.append((out, found.support_size))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=3e-2, atol=3e-2)


@needs_device
def test_opcheck():
    q, k, v = draw("cuda:0")
    torch.library.opcheck(torch.ops.tsallis.attention.default, (q, k, v), {"causal": True})
    torch.library.opcheck(torch.ops.tsallis.attention_stats.default, (q, k, v), {"causal": True})


@needs_device
def test_compile_and_autocast():
    q, k, v = draw("cuda:0", torch.float32)

    def step(q, k, v):
        with torch.autocast("cuda", torch.bfloat16):
            return tsallis.attention(q, k, v, causal=True)

    out = step(q, k, v)
    assert out.dtype == torch.bfloat16
    compiled = torch.compile(step, fullgraph=True)(q, k, v)
    assert torch.equal(out, compiled)
    for x, y in zip(
        torch.autograd.grad(out.sum(), (q, k, v)),
        torch.autograd.grad(compiled.sum(), (q, k, v)),
        strict=True,
    ):
        assert torch.equal(x, y)


@needs_device
def test_streams_and_graphs():
    q, k, v = (x.detach() for x in draw("cuda:0"))
    expected = tsallis.attention(q, k, v, causal=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = tsallis.attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tsallis.attention(q, k, v, causal=True)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


@needs_device
def test_padded_and_packed_batches():
    q, k, v = (x.detach() for x in draw("cuda:0"))
    lengths = torch.tensor([7, 40])
    settings = {"causal": True, "padding": "left"}
    out = tsallis.attention(
        q, k, v, lengths=lengths.cuda(), query_lengths=lengths.cuda(), **settings
    )
    expected = tsallis.attention(
        q.cpu(), k.cpu(), v.cpu(), lengths=lengths, query_lengths=lengths, **settings
    )
    torch.testing.assert_close(out.cpu(), expected, rtol=3e-2, atol=3e-2)
    offsets = torch.tensor([2, 9, 9, 38])
    out = tsallis.attention(q[:1], k[:1], v[:1], causal=True, cu_seqlens_q=offsets.cuda())
    expected = tsallis.attention(
        q[:1].cpu(), k[:1].cpu(), v[:1].cpu(), causal=True, cu_seqlens_q=offsets
    )
    torch.testing.assert_close(out.cpu(), expected, rtol=3e-2, atol=3e-2)


@needs_device
def test_masks_biases_and_any_alpha():
    q, k, v = (x.detach() for x in draw("cuda:0", torch.float32))
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(2, 1, 40, 40, generator=generator) < 0.6
    bias = torch.randn(4, 40, 40, generator=generator)
    alpha = torch.tensor([0.7, 1.0, 1.5, 3.0])
    results = []
    for device in ("cuda:0", "cpu"):
        inputs = [x.to(device).requires_grad_() for x in (q, k, v, bias)]
        out, extra = tsallis.attention(
            *inputs[:3],
            bias=inputs[3],
            mask=mask.to(device),
            alpha=alpha.to(device),
            returns=("support_size", "weights"),
        )
        gradients = torch.autograd.grad(out.sum(), inputs)
        results.append([out, *gradients, extra.support_size, extra.weights.to_dense()])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-3, atol=1e-3)


@needs_device
def test_what_is_not_served_is_refused_by_name():
    q, k, v = draw("cuda:0")
    with pytest.raises(
        ValueError, match=r"^q: expected a tensor on the CPU, .*: sigmoid, got cuda"
    ):
        tsallis.attention(q, k, v, map="sigmoid")
    with pytest.raises(ValueError, match=r"alpha outside \[0, 4\]"):
        tsallis.attention(q, k, v, alpha=torch.tensor([1.5, 1.5, 1.5, 5.0], device="cuda:0"))


@needs_device
def test_modules():
    module = tsallis.nn.MultiheadAttention(64, 4, device="cuda:0", dtype=torch.bfloat16)
    x = torch.randn(2, 20, 64, device="cuda:0", dtype=torch.bfloat16, requires_grad=True)
    out, _ = module(x, x, x, need_weights=False)
    out.sum().backward()
    assert x.grad.device == x.device
    out = tsallis.sdpa_like(*draw("cuda:0", kv_heads=4), is_causal=True)
    assert out.is_cuda


def trained(folder, method, device, *settings):
    """What `tsallis train` writes of copy's small model: each logged loss, by step."""
    command = [sys.executable, "-m", "tsallis", "train", "copy", "--scale", "small", "--quiet"]
    command += ["--method", method, "--folder", str(folder), "--threads", "1"]
    command += ["steps=12", "train.warmup=3", "train.log_every=4", "train.validate_every=12"]
    command += ["train.validate_samples=40", "model.compute=float32", f"train.device={device}"]
    subprocess.run([*command, *settings], check=True)
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


# Maps that our kernels serve, and those that torch's operations compute on a device.
@needs_device
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("softmax-nape", []),
        ("softmax-nape", ["train.optimizer=muon"]),
        ("entmax-rope", []),
        ("asentmax-nape", []),
        ("entmax-sink-nape", []),
        ("top-k-nape", []),
        ("softpick-nape", []),
        ("stick-breaking", []),
    ],
)
def test_the_lab_trains_as_on_the_cpu(method, settings, tmp_path):
    here = trained(tmp_path / "cpu", method, "cpu", *settings)
    there = trained(tmp_path / "cuda", method, "cuda", *settings)
    assert list(here) == [4, 8, 12]
    assert there == pytest.approx(here, rel=1e-4)

    def evaluated(device):
        command = [sys.executable, "-m", "tsallis", "eval", str(tmp_path / "cuda"), "--json"]
        command += ["--lengths", "16,64", "--samples", "40", "--device", device]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        return [row["token_accuracy"] for row in json.loads(answer.stdout)["rows"]]

    assert evaluated("cuda") == pytest.approx(evaluated("cpu"), abs=0.5)
