"""``tsallis eval --scores``: what trained heads' scores do."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import tsallis
from tsallis_report import scores


def write(folder, q, k, alpha=None, slopes=None, map_name="softmax", c=None, length=None):
    tensors = {"layers.0.q": q, "layers.0.k": k, "layers.0.v": k}
    if alpha is not None:
        tensors["layers.0.alpha"] = np.asarray(alpha, dtype=np.float64)
    if slopes is not None:
        tensors["layers.0.slopes"] = np.asarray(slopes, dtype=np.float32)
    if c is not None:
        tensors["layers.0.c"] = np.asarray(c, dtype=np.float32)
    about = {"layers.0.map": map_name}
    if length is not None:
        about["layers.0.scale_invariant"] = str(length)
    path = folder / "inputs.safetensors"
    save_file(tensors, str(path), metadata=about)
    return path


def drawn(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_normal_scores_have_the_entropy_and_the_weights_of_the_paper():
    """Anson et al. 2025, figure 1: none, LogN and scale-invariant at 100 and 1 000 keys."""
    random = np.random.default_rng(5)
    found = scores.invariance(lambda n: random.standard_normal((2000, n)), [100, 1000])
    for name, wanted in {
        "none": (4.11, 6.41),
        "LogN": (3.28, 3.59),
        "scale-invariant": (3.08, 3.56),
    }.items():
        # The targets are means of 200 draws or fewer.
        tolerance = 0.02 if name == "none" else 0.2
        assert found["entropy"][name] == pytest.approx(wanted, abs=tolerance), name
    assert [found["last"][name][1] for name in scores.SCALINGS] == pytest.approx(
        [0.100, 0.100, 0.53], abs=0.02
    )


def test_normal_scores_have_the_entropy_within_ranges_of_the_paper():
    """Anson et al. 2025, figures 2 and 6: entropy at distances 10 to 100 and 100 to 1 000."""
    random = np.random.default_rng(6)
    found = scores.invariance(lambda n: random.standard_normal((500, n)), [1000])["ranges"]
    for name, wanted in {"none": (4.02, 6.30), "scale-invariant": (2.82, 3.45)}.items():
        parts = found[name]
        assert [(part["begin"], part["end"]) for part in parts] == [(10, 100), (100, 1000)]
        tolerance = 0.02 if name == "none" else 0.12
        assert [part["entropy"] for part in parts] == pytest.approx(wanted, abs=tolerance), name


def test_the_divergence_of_heads_is_that_of_their_weights(tmp_path):
    q, k = drawn(3, 40, 8), drawn(3, 40, 8)
    found = scores.measure(write(tmp_path, q, k))["divergence"]
    z = torch.from_numpy(q @ k.transpose(0, 2, 1) / np.sqrt(8.0))
    visible = torch.ones(40, 40, dtype=torch.bool).tril()
    p = torch.softmax(z.masked_fill(~visible, -torch.inf), -1)
    wanted = torch.special.entr(p.mean(0)).sum(-1) - torch.special.entr(p).sum(-1).mean(0)
    assert found == pytest.approx([float(wanted.mean())], abs=1e-6)
    assert scores.measure(write(tmp_path, q[[0, 0]], k[[0, 0]]))["divergence"] == pytest.approx(
        [0.0], abs=1e-6
    )


def test_scale_invariant_scores_are_those_of_the_package(tmp_path):
    q, k = 3.0 * drawn(2, 64, 8), drawn(2, 64, 8)
    found = scores.measure(write(tmp_path, q, k, length=10.0))["heads"][1]
    v = torch.eye(64).expand(1, 2, 64, 64)
    query, key = torch.from_numpy(q)[None], torch.from_numpy(k)[None]
    p = tsallis.attention(query, key, v, map="softmax", causal=True, scale_invariant=10.0)
    entropies = torch.special.entr(p[0, 1].double()).sum(-1)
    assert found["keys"][-1] == 64
    assert found["entropy"][-1] == pytest.approx(float(entropies[32:].mean()), abs=1e-4)


def test_learned_length_scales_are_fitted(tmp_path):
    n = np.arange(1.0, 301.0)
    curves = [1.0 + 0.5 * np.log(n) ** 1.7, 0.3 * np.log(n), np.ones(300), 2.0 - 0.004 * n]
    path = write(tmp_path, drawn(4, 300, 8), drawn(4, 300, 8), c=curves)
    found = scores.measure(path)["length_scales"]
    # The third head does not scale.
    assert [head["head"] for head in found["heads"]] == [0, 1, 3]
    power, log, linear = (head["fits"] for head in found["heads"])
    assert [power["d + power"][key] for key in "dbg"] == pytest.approx([1.0, 0.5, 1.7], abs=0.01)
    assert power["d + power"]["r2"] > 0.99999
    assert power["linear"]["r2"] < power["d + linear"]["r2"] < power["d + log"]["r2"] < 0.999
    assert log["log"]["b"] == pytest.approx(0.3)
    assert log["power"]["g"] == pytest.approx(1.0, abs=0.01)
    assert [linear["d + linear"][key] for key in "db"] == pytest.approx([2.0, -0.004])
    # A falling curve is no multiple of ln n: the fit is worse than the curve's own mean.
    assert linear["log"]["r2"] < 0.0
    assert found["overall"]["d + power"] > found["overall"]["log"]
    assert scores.main([str(tmp_path)]) == 0
    assert (tmp_path / "length-scales.png").stat().st_size > 10_000
    # Another model in the same folder leaves no picture of the first.
    write(tmp_path, drawn(1, 300, 8), drawn(1, 300, 8))
    assert scores.main([str(tmp_path)]) == 0
    assert not (tmp_path / "length-scales.png").exists()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_weights_are_those_of_the_package(alpha):
    z = scores.causal(np.random.default_rng(1).standard_normal((40, 40)) * 3.0)
    wanted = tsallis.entmax(torch.from_numpy(np.where(np.isfinite(z), z, -1e9)), alpha=alpha)
    assert np.allclose(scores.entmax(z, alpha), wanted.numpy(), atol=1e-6)


def test_heads_are_measured_one_by_one(tmp_path):
    n = 256
    q, k = drawn(2, n, 16), drawn(2, n, 16)
    path = write(tmp_path, q, k, alpha=[1.5, 2.0], slopes=[0.0, 4.0], map_name="entmax")
    found = scores.measure(path)
    plain, near = found["heads"]
    assert [plain["head"], near["head"]] == [0, 1]
    product = np.tril(q[0] @ k[0].T / 4.0, -1)
    rows = [product[i, : i + 1] for i in range(n)]
    assert plain["spread"]["max"] >= max(np.ptp(row[:i]) for i, row in enumerate(rows) if i)
    # A slope of 4 leaves the nearest keys: a diagonal of blocks.
    assert near["density"]["1"] < 4.0 / n
    assert near["density"]["16"] < 2.0 / 16.0 + 0.15
    assert near["density"]["1"] < near["density"]["16"] < near["density"]["64"]
    assert plain["density"]["1"] < 1.0
    # Products of normal vectors are nearly normal; an exponential's are not.
    normal = np.quantile(np.random.default_rng(0).standard_normal(400_000), [0.05, 0.5, 0.95])
    assert np.interp([0.05, 0.5, 0.95], np.linspace(0.005, 0.995, 99), plain["quantiles"]) == (
        pytest.approx(normal, abs=0.1)
    )
    assert plain["keys"] == [2, 4, 8, 16, 32, 64, 128, 256]
    assert all(e <= np.log(keys) for e, keys in zip(plain["entropy"], plain["keys"], strict=True))


def test_the_page_is_written_and_what_is_no_input_is_named(tmp_path, capsys):
    write(tmp_path, drawn(2, 300, 8), drawn(2, 300, 8))
    assert scores.main([str(tmp_path)]) == 0
    assert (tmp_path / "scores.png").stat().st_size > 10_000
    numbers = json.loads((tmp_path / "scores.json").read_text())
    assert set(numbers["trained"]["entropy"]) == set(scores.SCALINGS)
    # A short sample has its page, too.
    write(tmp_path, drawn(1, scores.LEAST, 8), drawn(1, scores.LEAST, 8))
    assert scores.main([str(tmp_path)]) == 0
    write(tmp_path, drawn(1, scores.LEAST - 1, 8), drawn(1, scores.LEAST - 1, 8))
    assert scores.main([str(tmp_path)]) == 1
    assert "expected a sample of at least 8 tokens, got 7" in capsys.readouterr().err
    write(tmp_path, drawn(1, 64, 8), drawn(1, 64, 8), map_name="adaptive-temperature")
    assert scores.main([str(tmp_path)]) == 1
    assert "expected softmax or entmax, got ['adaptive-temperature']" in capsys.readouterr().err
    (tmp_path / "inputs.safetensors").write_text("nothing")
    assert scores.main([str(tmp_path)]) == 1
    assert "inputs.safetensors: cannot be read" in capsys.readouterr().err
