"""Stochastic Lanczos quadrature: the laws T21, T22, T23, and the band."""

from dataclasses import replace

import pytest
import torch
from spectra import Diagonal, outliers_and_bulk, uniform, with_spectrum

from assertions import assert_honest
from spherometer.estimators import frobenius, spectral_density, trace
from spherometer.estimators.randomness import child_stream, rademacher

VALUES = uniform(-1, 2, 120)
MATRIX = with_spectrum(VALUES)


def test_moments_up_to_twice_the_steps_less_one_are_exact():
    """T21, D-e15: m steps reproduce v'A^k v for k ≤ 2m − 1, and not for k = 2m."""
    density = spectral_density(MATRIX, num_vectors=1, num_steps=5, seed=3)
    probe = rademacher(120, 1, dtype=torch.float64, stream=child_stream(3, "spectral density"))[:, 0] / 120**0.5
    image = probe
    for power in range(11):
        truth, quadrature = float(probe @ image), float((density.weights * density.nodes**power).sum())
        exact = quadrature == pytest.approx(truth, rel=1e-10)
        assert exact == (power <= 9), f"power {power}: {quadrature} against {truth}"
        image = MATRIX @ image


def test_weights_sum_to_one_and_nodes_lie_inside_the_spectrum():
    """T22, and the largest node grows with the number of steps."""
    tops = []
    for num_steps in (1, 5, 20, 60):
        density = spectral_density(MATRIX, num_vectors=3, num_steps=num_steps)
        assert torch.allclose(density.weights.sum(1), torch.ones(3, dtype=torch.float64))
        assert bool((density.weights >= 0).all())
        assert float(VALUES.min()) - 1e-12 <= density.limits[0]
        assert density.limits[1] <= float(VALUES.max()) + 1e-12
        tops.append(density.limits[1])
    assert tops == sorted(tops)


@pytest.fixture(scope="module")
def runs():
    """200 independent densities of 16 probes each, from one call: a run is a slice of the probes."""
    everything = spectral_density(MATRIX, num_vectors=16 * 200, num_steps=8)
    slices = [slice(16 * index, 16 * index + 16) for index in range(200)]
    return [replace(everything, nodes=everything.nodes[s], weights=everything.weights[s]) for s in slices]


@pytest.mark.parametrize("power", [1, 2, 3])
def test_error_bars_of_the_moments_are_honest(runs, power):
    """T23: the mean over probes is tr A^k."""
    truth = float((VALUES**power).sum())
    moments = [density.moment(power) for density in runs]
    assert_honest([(float(moment) - truth) / moment.error for moment in moments])


def test_band_covers_the_smoothed_truth(runs):
    width, grid = 0.6, torch.linspace(-1, 2, 5, dtype=torch.float64)
    kernel = torch.exp(-0.5 * ((grid[:, None] - VALUES) / width) ** 2) / (width * (2 * torch.pi) ** 0.5)
    truth = kernel.mean(1)
    curves = [density.on(grid, width=width) for density in runs]
    for point in range(len(grid)):
        assert_honest([float((curve.value - truth)[point] / curve.error[point]) for curve in curves])


def test_moments_agree_with_trace_and_frobenius():
    """T14: Σλ = tr A, Σλ² = ‖A‖_F², λ₁ ≤ ‖A‖_F."""
    density = spectral_density(MATRIX, num_vectors=50, num_steps=20)
    first, second = density.moment(1), density.moment(2)
    total, norm = trace(MATRIX), frobenius(MATRIX)
    assert abs(float(first) - float(total)) <= 4 * (first.error + total.error)
    assert abs(float(second) - float(norm) ** 2) <= 4 * (second.error + 2 * float(norm) * norm.error)
    assert density.moment(0).value == pytest.approx(120)
    assert float(VALUES.max()) <= float(frobenius(MATRIX)) * 1.05


def test_density_integrates_to_one_and_has_its_mass_in_the_right_place():
    values = torch.cat([torch.zeros(90), torch.ones(30)])
    density = spectral_density(with_spectrum(values), num_vectors=30, num_steps=10)
    grid = density.grid(1000)
    curve = density.on(grid)
    assert float(torch.trapezoid(curve.value, grid)) == pytest.approx(1, abs=0.01)
    upper = grid > 0.5
    assert float(torch.trapezoid(curve.value[upper], grid[upper])) == pytest.approx(0.25, abs=0.03)
    assert curve.error.shape == curve.value.shape == (1000,)
    assert float(density.on(torch.tensor([0.5]), width=0.01).value) < 1e-6


@pytest.mark.parametrize(
    "values", [torch.ones(30), torch.zeros(30), torch.tensor([2.0]), torch.cat([torch.ones(3), torch.zeros(50)])]
)
def test_early_end_of_a_chain(values):
    density = spectral_density(with_spectrum(values), num_vectors=3, num_steps=20)
    assert density.nodes.shape == (3, min(20, len(values)))
    assert torch.allclose(density.weights.sum(1), torch.ones(3, dtype=torch.float64))
    assert float(density.moment(1)) == pytest.approx(float(values.sum()), abs=5 * density.moment(1).error + 1e-9)
    assert bool(torch.isfinite(density.on(density.grid()).value).all())


def test_full_reorthogonalisation_in_float32():
    """Without it, copies of the outliers would appear among the nodes."""
    values = outliers_and_bulk(3000).float()
    density = spectral_density(Diagonal(values), num_vectors=1, num_steps=80)
    assert int((density.nodes > 0.9).sum()) == 1
    assert int(((density.nodes > 0.55) & (density.nodes < 0.65)).sum()) == 1


def test_one_probe_has_no_error_bar():
    assert spectral_density(MATRIX, num_vectors=1, num_steps=5).moment(1).error == float("inf")


def test_memory_changes_the_blocks_but_not_the_numbers():
    together = spectral_density(MATRIX, num_vectors=4, num_steps=10)
    apart = spectral_density(MATRIX, num_vectors=4, num_steps=10, memory=10 * 120 * 8)
    assert torch.allclose(together.nodes, apart.nodes)
    assert together.products == apart.products == 40


def test_wrong_options():
    with pytest.raises(ValueError, match="expected num_vectors >= 1 and num_steps >= 1, got 0 and 80"):
        spectral_density(MATRIX, num_vectors=0)
    with pytest.raises(ValueError, match="use num_steps=5 or raise memory"):
        spectral_density(MATRIX, num_steps=10, memory=5 * 120 * 8)
    with pytest.raises(ValueError, match="expected a positive width"):
        spectral_density(MATRIX, num_steps=4).on(torch.zeros(1), width=0.0)


def test_no_global_randomness():
    state = torch.random.get_rng_state()
    first, second = (spectral_density(MATRIX, num_steps=5, seed=1).nodes for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.random.get_rng_state())
