"""The fit of adaptive temperature's polynomial, against the steps of the paper in numpy."""

import numpy as np
import pytest
import torch

import tsallis


def by_the_steps(scores: np.ndarray, targets: np.ndarray, degree: int) -> tuple[np.ndarray, int]:
    """Velickovic et al. 2024, appendix F: coefficients, lowest degree first, and samples."""
    entropies, inverses = [], []
    grid = np.arange(1, 101) / 10.0
    for row, target in zip(scores, targets, strict=True):
        if row[target] >= row.max():
            continue
        at = row[None, :] / grid[:, None]
        weights = np.exp(at - at.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        inverses.append(1.0 / grid[weights[:, target].argmax()])
        p = weights[9]  # theta = 1
        entropies.append(-(p[p > 0] * np.log(p[p > 0])).sum())
    return np.polyfit(entropies, inverses, degree)[::-1], len(entropies)


@pytest.mark.parametrize("degree", [0, 2, 4])
def test_it_is_the_papers_fit(degree):
    random = np.random.default_rng(3)
    scores = random.normal(size=(400, 24)) * random.uniform(0.3, 4.0, size=(400, 1))
    targets = scores.argsort(1)[:, -3]
    expected, samples = by_the_steps(scores, targets, degree)
    fit = tsallis.fit_adaptive_temperature(
        torch.from_numpy(scores), torch.from_numpy(targets), degree=degree
    )
    assert fit.samples == samples == 400
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-6, atol=1e-8)
    x = torch.from_numpy(scores)
    p = tsallis.adaptive_temperature_softmax(x, coefficients=fit.coefficients)
    assert torch.allclose(p.sum(-1), torch.ones(400, dtype=torch.float64))


def test_rows_whose_target_leads_do_not_count():
    scores = torch.tensor([[3.0, 1.0, 0.0], [3.0, 2.0, -torch.inf]])
    fit = tsallis.fit_adaptive_temperature(scores, torch.tensor([0, 1]), degree=0)
    assert fit.samples == 1
    assert fit.rms_error == pytest.approx(0.0, abs=1e-12)
    assert tsallis.fit_adaptive_temperature(scores, torch.tensor([0, 0])).coefficients == (0.0,) * 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"targets": torch.tensor([3])}, r"targets\[0\]: expected a class in \[0, 3\), got 3"),
        ({"targets": torch.tensor([0, 1])}, "targets: expected the shape of scores"),
        ({"targets": torch.tensor([0.0])}, "targets: expected an integer dtype"),
        ({"degree": 17}, "degree: expected 0 to 16, got 17"),
        ({"theta_step": 0.0}, "theta_step: expected a finite number > 0"),
        ({"theta_max": 0.01}, "theta_max: expected"),
    ],
)
def test_mistakes_are_named(changes, said):
    arguments = {"scores": torch.randn(1, 3), "targets": torch.tensor([1])} | changes
    with pytest.raises(ValueError, match=said):
        tsallis.fit_adaptive_temperature(**arguments)
