"""Trace, Frobenius norm and diagonal: exact ways, stop rule, and error bars held against repeated runs."""

import pytest
import torch
from spectra import Diagonal, generator, uniform, with_spectrum

from assertions import assert_honest
from reference.agreement import assert_unbiased
from spherometer.estimators import diagonal, frobenius, trace
from spherometer.estimators.quadratic import MIN_SAMPLES, NUM_PILOT

SPECTRA = {
    "bulk": uniform(0, 1, 300),
    "outliers": torch.cat([torch.linspace(5, 50, 10), 0.3 * uniform(-1, 1, 290)]).double(),
    "harmonic": 1 / torch.arange(1, 301, dtype=torch.float64),
    "indefinite": 0.3 + torch.randn(300, generator=generator(5), dtype=torch.float64),
}
MATRICES = {name: with_spectrum(values) for name, values in SPECTRA.items()}
SUMS = {trace: lambda values: float(values.sum()), frobenius: lambda values: float(values.norm())}


@pytest.mark.parametrize("estimator", SUMS)
@pytest.mark.parametrize("name", SPECTRA)
def test_error_bars_are_honest(name, estimator):
    truth = SUMS[estimator](SPECTRA[name])
    estimates = [estimator(MATRICES[name], seed=seed) for seed in range(200)]
    assert_honest([(float(estimate) - truth) / estimate.error for estimate in estimates])
    assert all(estimate.status for estimate in estimates)
    assert all(estimate.error <= 0.02 * abs(estimate.value) for estimate in estimates)
    assert all(estimate.kind == "standard error" for estimate in estimates)


@pytest.mark.parametrize("estimator", SUMS)
@pytest.mark.parametrize("num_outliers", [1, 20])
def test_no_outlier_that_the_directions_half_caught_shortens_the_error_bar(num_outliers, estimator):
    """Samples of a constant and a single χ² to one side of it: a dozen of them seldom show the long tail."""
    values = torch.cat([torch.linspace(5, 50, num_outliers), torch.ones(400 - num_outliers)]).double()
    matrix = with_spectrum(values)
    estimates = [estimator(matrix, seed=seed) for seed in range(200)]
    scores = torch.tensor([(float(estimate) - SUMS[estimator](values)) / estimate.error for estimate in estimates])
    assert 0.75 < float(scores.std()) < 1.25
    assert float(scores.abs().max()) < 5  # without that thought it was 7.8; sixty such samples are still not normal


@pytest.mark.parametrize("estimator", SUMS)
def test_error_bars_are_never_below_the_rounding(estimator):
    values = torch.cat([torch.linspace(1, 2, 20), torch.zeros(380)]).double()  # the directions carry all of it
    for seed in range(20):
        estimate = estimator(with_spectrum(values), rtol=1e-3, seed=seed)
        assert abs(float(estimate) - SUMS[estimator](values)) <= 3 * estimate.error


def test_error_bars_of_the_diagonal_are_honest():
    matrix = MATRICES["indefinite"] + 2 * torch.eye(300)
    truth = matrix.diagonal()
    estimates = [diagonal(matrix, rtol=0.2, seed=seed) for seed in range(200)]
    scores = torch.stack([(estimate.value - truth) / estimate.error for estimate in estimates])
    for entry in (0, 100, 299):
        assert_honest(scores[:, entry].numpy())
    assert 0.9 < float(scores.std()) < 1.1
    for estimate in estimates:
        assert float(estimate.error.norm()) <= 0.2 * float(estimate.value.norm())
        assert float((estimate.value - truth).norm()) <= 2 * 0.2 * float(truth.norm())


@pytest.mark.slow
@pytest.mark.parametrize("rtol", [0.05, 0.01])
@pytest.mark.parametrize("estimator", SUMS)
@pytest.mark.parametrize("name", ["bulk", "outliers", "harmonic"])
def test_values_are_unbiased_and_error_bars_right_over_many_seeds(name, estimator, rtol):
    """Few samples of a skew quantity have z-scores with a mean, -skewness/2√N, though the values have no bias."""
    truth = SUMS[estimator](SPECTRA[name])
    estimates = [estimator(MATRICES[name], rtol=rtol, seed=seed) for seed in range(1000, 1400)]
    assert all(estimate.source == "random vectors" for estimate in estimates)
    off = torch.tensor([float(estimate) - truth for estimate in estimates])
    assert_unbiased(off, torch.tensor(0.0))
    spread = float((off / torch.tensor([estimate.error for estimate in estimates])).std())
    assert 0.8 < spread < 1.25, f"dishonest error bars: spread of z {spread:.2f}"


@pytest.mark.parametrize("estimator", SUMS)
@pytest.mark.parametrize("size", [1, 2, 64])
def test_small_matrices_are_summed_exactly(estimator, size):
    values = uniform(-1, 2, size)
    estimate = estimator(with_spectrum(values))
    assert float(estimate) == pytest.approx(SUMS[estimator](values), rel=1e-12)
    assert (estimate.source, estimate.error, estimate.products) == ("exact", 0, size)


@pytest.mark.parametrize("estimator", SUMS)
def test_summed_exactly_where_probes_would_be_more(estimator):
    values = SPECTRA["indefinite"]
    estimate = estimator(MATRICES["indefinite"], rtol=1e-4)
    assert float(estimate) == pytest.approx(SUMS[estimator](values), rel=1e-10)
    assert estimate.source == "exact"


def test_few_directions_that_carry_the_matrix_are_summed_exactly():
    """Plain probes would need (√(2Σλ²) / 0.005 Σλ)² ≈ 5,000 products here."""
    values = torch.cat([torch.linspace(5, 50, 10), 0.002 * uniform(-1, 1, 790)]).double()
    estimate = trace(with_spectrum(values), rtol=0.005)
    assert abs(float(estimate) - float(values.sum())) <= 5 * estimate.error
    assert estimate.products < 100


@pytest.mark.parametrize("estimator", SUMS)
def test_sums_of_a_diagonal_matrix_have_no_variance(estimator):
    values = uniform(0, 1, 500)
    estimate = estimator(Diagonal(values))
    assert float(estimate) == pytest.approx(SUMS[estimator](values), rel=1e-12)
    assert estimate.error < 1e-10
    assert estimate.products <= NUM_PILOT + MIN_SAMPLES


@pytest.mark.parametrize("estimator", [trace, frobenius, diagonal])
def test_zero_is_zero(estimator):
    estimate = estimator(torch.zeros(100, 100))
    assert not torch.as_tensor(estimate.value).any()
    assert not torch.as_tensor(estimate.error).any()
    assert estimate.status


def test_a_trace_that_cancels_says_what_was_reached():
    values = torch.randn(3000, generator=generator(3))
    values -= values.mean()
    householder = torch.randn(3000, generator=generator(4))
    householder /= householder.norm()
    matrix = torch.diag(values)
    matrix = matrix - 2 * householder.outer(householder @ matrix)
    matrix = matrix - 2 * (matrix @ householder).outer(householder)
    estimate = trace((matrix + matrix.T) / 2, max_products=60)
    assert not estimate.status
    assert estimate.products <= 60
    assert "asked for rtol=0.02, reached" in estimate.status.message
    assert abs(float(estimate)) <= 5 * estimate.error


def test_exact_answers_of_the_operator_come_first():
    operator = Diagonal(uniform(0, 1, 100), known_trace=12.5, known_diagonal=torch.arange(100.0))
    for estimate, value in ((trace(operator), 12.5), (diagonal(operator), torch.arange(100.0))):
        assert torch.equal(torch.as_tensor(estimate.value), torch.as_tensor(value))
        assert (estimate.source, estimate.products) == ("exact", 0)
    assert operator.asked == []


def test_diagonal_of_a_small_matrix_is_read_off():
    matrix = with_spectrum(uniform(-1, 1, 40))
    estimate = diagonal(matrix)
    assert torch.allclose(estimate.value, matrix.diagonal(), rtol=1e-12)
    assert (estimate.source, estimate.products) == ("exact", 40)


def test_diagonal_is_read_off_where_probes_would_be_more():
    matrix = MATRICES["outliers"]
    estimate = diagonal(matrix, rtol=0.01)
    assert torch.allclose(estimate.value, matrix.diagonal(), rtol=1e-12)
    assert estimate.source == "exact"


def test_diagonal_confesses_its_limit():
    estimate = diagonal(MATRICES["outliers"], rtol=0.01, max_products=50)
    assert estimate.products == 50
    assert "asked for rtol=0.01, reached" in estimate.status.message


@pytest.mark.parametrize("estimator", [trace, frobenius, diagonal])
def test_same_seed_same_number_and_no_global_randomness(estimator):
    state = torch.random.get_rng_state()
    first, second, other = (torch.as_tensor(estimator(MATRICES["bulk"], seed=seed).value) for seed in (7, 7, 8))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("estimator", [trace, frobenius, diagonal])
def test_wrong_options(estimator):
    with pytest.raises(ValueError, match=r"expected 0 < rtol < 1, got -0\.1"):
        estimator(torch.eye(5), rtol=-0.1)
    with pytest.raises(ValueError, match=r"expected max_products >= \d+, got 3"):
        estimator(torch.eye(5), max_products=3)


def test_memory_limits_the_directions():
    estimate = trace(MATRICES["outliers"], rtol=0.005, memory=0)
    assert abs(float(estimate) - float(SPECTRA["outliers"].sum())) <= 5 * max(estimate.error, 1e-9)


def test_float32_agrees_with_float64():
    assert float(trace(MATRICES["bulk"].float())) == pytest.approx(float(trace(MATRICES["bulk"])), rel=1e-5)


class BySamples:
    """A dense matrix that gives noisy samples of its trace, as a Hessian does."""

    knows_samples = True

    def __init__(self, matrix: torch.Tensor, spread: float) -> None:
        self.matrix, self.spread, self.shape, self.dtype = matrix, spread, matrix.shape, matrix.dtype

    def __matmul__(self, columns: torch.Tensor) -> torch.Tensor:
        return self.matrix @ columns

    def trace_samples(self, number: int, signs) -> torch.Tensor:
        return self.matrix.trace() + self.spread * signs((number, 3)).sum(1)


def test_samples_of_the_trace_give_way_to_the_exact_sum_where_that_is_cheaper():
    matrix = MATRICES["bulk"]
    size, truth = len(matrix), float(matrix.trace())
    noisy = trace(BySamples(matrix, spread=truth))
    assert noisy.status
    assert noisy.source == "exact"
    assert noisy.products == size + MIN_SAMPLES
    assert float(noisy) == pytest.approx(truth, rel=1e-12)
    quiet = trace(BySamples(matrix, spread=0.01 * truth))
    assert (quiet.source, bool(quiet.status)) == ("random vectors", True)
    assert not trace(BySamples(matrix, spread=truth), max_products=200).status


def test_diagonal_is_read_off_up_to_the_size_asked_for():
    matrix = MATRICES["bulk"]
    estimate = diagonal(matrix, small=300)
    assert (estimate.source, estimate.products) == ("exact", 300)
    assert torch.allclose(estimate.value, matrix.diagonal(), rtol=1e-12)
    assert diagonal(matrix, rtol=0.2).source == "random vectors"
