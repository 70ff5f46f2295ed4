"""The operators as torch sees them: opcheck, torch.compile, autocast, mistakes, loading."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attention_by_definition import baseline
from torch.library import opcheck

import tsallis
from tsallis._ops import MAPS

OPS = torch.ops.tsallis
BASELINES = (
    (tsallis.top_k_softmax, {"top_k": 2}),
    (tsallis.top_k_softmax, {"top_k": 1, "top_k_fraction": 0.5}),
    (tsallis.sigmoid, {}),
    (tsallis.sigmoid, {"sigmoid_bias": 0.5}),
    (tsallis.softpick, {}),
    (tsallis.stick_breaking, {}),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [-1, 0])
def test_opcheck_maps(dtype, dim):
    x = torch.randn(5, 4, dtype=dtype)
    a = torch.full((5, 1) if dim == -1 else (1, 4), 1.4)
    for operator in (OPS.row_map, OPS.row_map_stats):
        opcheck(operator, (x,), {"map": MAPS.index("softmax"), "dim": dim})
        opcheck(operator, (x,), {"alpha": 1.5, "dim": dim})
        opcheck(operator, (x, a), {"dim": dim})


@pytest.mark.parametrize(("apply", "settings"), BASELINES)
def test_baselines_follow_their_definition(apply, settings):
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 7, dtype=torch.float64)
    named = {"map": apply.__name__} | settings
    results = []
    for p in (apply(x, **settings), baseline(x, **named)):
        results.append((p, *torch.autograd.grad((p * weight).sum(), x)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)
    opcheck(OPS.row_map, (x.detach(),), settings | {"map": MAPS.index(apply.__name__)})


def test_opcheck_backward_and_losses():
    x, g = torch.randn(5, 4), torch.randn(5, 4)
    p = tsallis.entmax(x)
    opcheck(OPS.row_map_backward, (g, x, p))
    a = torch.full((5, 1), 1.5)
    opcheck(OPS.row_map_backward, (g, x, p, a))
    opcheck(OPS.row_map_backward_alpha, (g, x, p, a))
    target = torch.tensor([0, 1, 2, 3, -100])
    opcheck(OPS.fenchel_young_loss, (x, target))
    opcheck(OPS.fenchel_young_loss, (x, target), {"alpha": 2.0})
    opcheck(OPS.fenchel_young_loss_forward, (x, target))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_maps(dynamic):
    def f(x, a):
        p, stats = tsallis.row_stats(tsallis.entmax, x * 2, a)
        q = tsallis.adaptive_temperature_softmax(x, dim=0, coefficients=[1.0, 0.5])
        return (p.square() + q + tsallis.sparsemax(x, dim=1)).sum() + stats.entropy.sum()

    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (3, 8):
        x = torch.randn(rows, 2, 6)
        results = []
        for run in (f, compiled):
            y = x.clone().requires_grad_()
            a = torch.full((2, 1), 1.4, requires_grad=True)
            loss = run(y, a)
            loss.backward()
            results.append((loss.detach(), y.grad, a.grad))
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected)


@pytest.mark.slow  # compiles C++
def test_compile_inductor():
    def f(x, y):
        return tsallis.entmax_loss(tsallis.entmax(x) @ x.t(), y, alpha=2.0, ignore_index=1)

    x, y = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 5])
    results = []
    for run in (f, torch.compile(f, fullgraph=True)):
        z = x.clone().requires_grad_()
        run(z, y).backward()
        results.append(z.grad)
    torch.testing.assert_close(*results)


def test_meta_tensors():
    x = torch.empty(2, 3, 4, device="meta")
    p, stats = tsallis.row_stats(tsallis.entmax, x, dim=1)
    assert p.shape == (2, 3, 4)
    assert stats.tau.shape == (2, 4)
    assert p.device.type == stats.entropy.device.type == "meta"


def test_autocast_computes_in_float32():
    x = torch.randn(4, 8).bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = tsallis.entmax(x)
        _, stats = tsallis.row_stats(tsallis.entmax, x)
        loss = tsallis.entmax_loss(x, torch.tensor([0, 1, 2, 3]))
        double = tsallis.entmax(x.double())
    assert p.dtype == stats.tau.dtype == loss.dtype == torch.float32
    assert double.dtype == torch.float64
    assert p.detach().equal(tsallis.entmax(x.detach().float()))
    p.square().sum().backward()
    assert x.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: tsallis.entmax(x, -0.9), ValueError, "alpha.*-0.9"),
        (lambda x: tsallis.entmax(x, float("nan")), ValueError, "alpha.*nan"),
        (lambda x: tsallis.entmax(x, torch.tensor(0.0)), ValueError, "alpha.*0.0"),
        (lambda x: tsallis.normmax(x, 1.0), ValueError, "alpha.*1"),
        (lambda x: tsallis.budget(x, 0.0), ValueError, "budget.*0"),
        (lambda x: tsallis.softmax(x, temperature=0.0), ValueError, "temperature.*0"),
        (lambda x: tsallis.softmax(x, dim=2), IndexError, r"dim.*\[-2, 1\].*2"),
        (lambda x: tsallis.softmax(x, dim=-3), IndexError, r"dim.*\[-2, 1\].*-3"),
        (lambda x: tsallis.softmax(torch.tensor(1.0)), ValueError, "^x: .*dimension.*0-d"),
        (lambda x: tsallis.softmax(x.long()), ValueError, "^x: .*float32.*Long"),
        (lambda x: tsallis.softmax(x.to_sparse()), ValueError, "^x: .*dense.*Sparse"),
        (lambda x: tsallis.entmax(x, torch.ones(3)), ValueError, r"alpha.*\[4, 5\].*\[3\]"),
        (lambda x: tsallis.entmax(x, torch.ones(4, 5)), ValueError, "alpha.*size 1 in dimension 1"),
        (lambda x: tsallis.entmax(x, torch.ones(2, 1, 1)), ValueError, "alpha.*shape"),
        (lambda x: tsallis.entmax(x, torch.tensor(2)), ValueError, "alpha.*float32.*Long"),
        (
            lambda x: tsallis.normmax(x, torch.tensor(2.0, requires_grad=True)),
            ValueError,
            "alpha.*gradient.*normmax",
        ),
        # torch 2.15 makes a RuntimeError of every error of an operator.
        (
            lambda x: OPS.row_map(x.detach(), map=99),
            (ValueError, RuntimeError),
            "map: expected an integer.*99",
        ),
        (lambda x: tsallis.entmax(x.tolist()), TypeError, "x: expected a tensor, got list"),
        (lambda x: tsallis.entmax(x, "1.5"), TypeError, "alpha: expected a number, got '1.5'"),
        (lambda x: tsallis.entmax(x, 1.5, None), TypeError, "dim: expected an integer"),
        (lambda x: tsallis.budget(x, None), TypeError, "budget: expected a number, got None"),
        (lambda x: tsallis.top_k_softmax(x, 1.5), TypeError, "top_k: expected an integer"),
        (lambda x: tsallis.sparsemax_loss(x, [0, 1]), TypeError, "target: expected a tensor"),
        (
            lambda x: tsallis.sparsemax_loss(x, torch.zeros(4, dtype=torch.long), 1.5),
            TypeError,
            "ignore_index: expected an integer, got float",
        ),
        (lambda x: tsallis.top_k_softmax(x, 0), ValueError, "top_k.*>= 1.*0"),
        (lambda x: tsallis.top_k_softmax(x, 1, top_k_fraction=2.0), ValueError, "fraction.*2"),
        (lambda x: tsallis.sigmoid(x, sigmoid_bias=math.nan), ValueError, "sigmoid_bias.*nan"),
    ],
)
def test_mistakes(call, error, message):
    for x in (torch.randn(4, 5), torch.randn(4, 5, requires_grad=True)):
        with pytest.raises(error, match=message):
            call(x)


def test_missing_library_says_what_to_do(tmp_path):
    target = tmp_path / "a" / "b" / "tsallis"
    shutil.copytree(Path(tsallis.__file__).parent, target, ignore=shutil.ignore_patterns("*.so"))

    def run(**extra):
        environment = {k: v for k, v in os.environ.items() if k != "TSALLIS_LIBRARY"} | extra
        command = [sys.executable, "-c", "import tsallis; print(tsallis.library_path)"]
        return subprocess.run(
            command, cwd=tmp_path / "a" / "b", env=environment, capture_output=True, text=True
        )

    missing = run()
    assert missing.returncode == 1
    assert "pip install ." in missing.stderr
    assert "ImportError" in missing.stderr
    wrong = run(TSALLIS_LIBRARY="/nowhere.so")
    assert "/nowhere.so" in wrong.stderr
    named = run(TSALLIS_LIBRARY=str(tsallis.library_path))
    assert named.stdout.strip() == str(tsallis.library_path)


# A build in another folder, and an installed package: the program is that of the named library.
@pytest.mark.parametrize("folder", ["lib", "."])
def test_the_program_is_that_of_the_named_library(folder, tmp_path):
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / tsallis.library_path.name
    path.symlink_to(tsallis.library_path)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "tsallis"
    script.write_text('#!/bin/sh\necho "this one: $@"\n')
    script.chmod(0o755)
    answer = subprocess.run(
        [sys.executable, "-m", "tsallis", "list"],
        env=os.environ | {"TSALLIS_LIBRARY": str(path)},
        capture_output=True,
        text=True,
    )
    assert answer.stdout == "this one: list\n", answer.stderr


def test_reports():
    assert tsallis.__version__.count(".") == 2
    assert tsallis.cpu_target()
