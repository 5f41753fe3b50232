"""Eigenvalues against dense truths: spectra that trap Lanczos, options, warm starts, limits."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spectra import Diagonal, descending, outliers_and_bulk, uniform, with_spectrum

from assertions import assert_bounded, assert_converged
from spherometer.estimators import eigenvalues

BULK = uniform(0, 0.5, 150)
SPECTRA = {
    "outliers and bulk": outliers_and_bulk(),
    "triple": torch.cat([torch.ones(3), BULK]),
    "cluster": torch.cat([1 - 1e-6 * torch.arange(5), BULK]),
    "pairs": torch.tensor([1.0, 1.0, 0.9, 0.9, 0.8, 0.8] + [0.1] * 30),
    "three percent": torch.cat([torch.tensor([1.0, 0.97, 0.95]), BULK]),
    "identity": torch.ones(40),
    "zero": torch.zeros(40),
    "low rank": torch.cat([torch.tensor([3.0, 2.0, -2.5]), torch.zeros(60)]),
    "mirrored": torch.cat([torch.tensor([1.0, -1.0]), uniform(-0.5, 0.5, 100)]),
    "negative": -1 - BULK,
    "graded": 10.0 ** -torch.arange(12, dtype=torch.float64),
    "tiny": torch.tensor([2.0, -1.0, 0.5]),
}


def ends(values, num, which):
    ordered = descending(values)
    by_size = ordered[ordered.abs().argsort(descending=True, stable=True)]
    return {
        "largest": ordered[:num],
        "smallest": ordered[-num:],
        "both": torch.cat([ordered[:num], ordered[-num:]]),
        "magnitude": by_size[:num],
    }[which]


@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("name", SPECTRA)
def test_ends_of_hard_spectra(name, num, which):
    values = SPECTRA[name]
    if 2 * num > len(values) and which == "both":
        return
    estimate = eigenvalues(with_spectrum(values), num=num, which=which, rtol=1e-4, max_products=600, seed=3)
    assert_bounded(estimate, ends(values, num, which))
    scale = float(values.abs().max())
    assert bool((estimate.error <= 1e-4 * estimate.value.abs() + 1e-11 * scale).all())
    assert estimate.status
    assert (estimate.kind, estimate.source) == ("bound", "solver")
    assert estimate.value.dtype == torch.float64
    assert bool((estimate.value.diff() <= 1e-12 * scale).all()), "in descending order"


@pytest.mark.parametrize("name", ["outliers and bulk", "low rank", "graded", "tiny"])
def test_magnitude_orders_by_size(name):
    values = SPECTRA[name]
    assert_bounded(
        eigenvalues(with_spectrum(values), num=3, which="magnitude", rtol=1e-4), ends(values, 3, "magnitude")
    )


def test_magnitude_of_a_mirrored_pair_is_either_of_them():
    estimate = eigenvalues(with_spectrum(SPECTRA["mirrored"]), which="magnitude")
    assert abs(abs(float(estimate)) - 1) <= float(estimate.error)


@pytest.mark.parametrize("seed", range(10))
def test_all_copies_of_a_triple_eigenvalue_are_found(seed):
    estimate = eigenvalues(with_spectrum(SPECTRA["triple"]), num=4, seed=seed, max_products=300)
    assert_bounded(estimate, ends(SPECTRA["triple"], 4, "largest"))
    assert_converged(estimate, rtol=1e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_whole_spectrum_of_small_matrices(size):
    values = uniform(-1, 1, size)
    estimate = eigenvalues(with_spectrum(values), num=size, vectors=True)
    assert_bounded(estimate, descending(values))
    assert estimate.products == size
    assert estimate.vectors.shape == (size, size)


def test_vectors_are_eigenvectors():
    matrix = with_spectrum(outliers_and_bulk())
    estimate = eigenvalues(matrix, num=3, rtol=1e-9, vectors=True)
    residual = matrix @ estimate.vectors - estimate.vectors * estimate.value
    assert float(residual.norm()) < 1e-4
    assert torch.allclose(estimate.vectors.T @ estimate.vectors, torch.eye(3, dtype=torch.float64), atol=1e-10)
    assert eigenvalues(matrix).vectors is None
    assert eigenvalues(matrix, vectors=2).vectors.shape == (400, 2)


def without_underflow(value: float) -> float:
    """Squares of numbers below 1e-150 are zero in float64, and so are lengths of vectors of them."""
    return value if abs(value) > 1e-100 else 0.0


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    values=st.lists(st.floats(-10, 10).map(without_underflow), min_size=1, max_size=30),
    which=st.sampled_from(["largest", "smallest", "both"]),
    num=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_bounds_hold_on_any_spectrum(values, which, num, seed):
    spectrum = torch.tensor(values, dtype=torch.float64)
    num = min(num, len(values) // 2 if which == "both" else len(values))
    if num == 0:
        return
    estimate = eigenvalues(with_spectrum(spectrum, seed), num=num, which=which, rtol=1e-6, seed=seed)
    # The dense matrix itself has these eigenvalues only to rounding.
    rounding = 1e-14 * float(spectrum.abs().max())
    assert bool(((estimate.value - ends(spectrum, num, which)).abs() <= estimate.error + rounding).all())


def test_bounds_are_broken_in_at_most_three_percent_of_runs_on_a_close_pair():
    """A certificate cannot be had from a few products; how often it fails on a pair three percent apart is measured."""
    values = torch.cat([torch.tensor([1.0, 0.97, 0.87, 0.73, 0.64]), 0.02 * uniform(-1, 1, 4995)])
    estimates = [eigenvalues(Diagonal(values.double()), seed=seed) for seed in range(200)]
    assert sum(abs(float(estimate) - 1) > float(estimate.error) for estimate in estimates) <= 6
    assert all(estimate.status for estimate in estimates)


def test_products_are_few_on_spectra_of_hessians():
    values = outliers_and_bulk(20_000, bulk=0.005)
    estimates = [eigenvalues(Diagonal(values), seed=seed) for seed in range(20)]
    for estimate in estimates:
        assert_bounded(estimate, torch.tensor([1.0]))
        assert_converged(estimate, rtol=1e-3)
    assert sum(estimate.products for estimate in estimates) / 20 <= 7


@pytest.mark.parametrize("num", [1, 4])
@pytest.mark.parametrize("name", ["outliers and bulk", "triple", "three percent"])
def test_restarts_keep_to_the_memory(name, num):
    values = SPECTRA[name]
    estimate = eigenvalues(with_spectrum(values), num=num, memory=0, max_products=500)
    assert_bounded(estimate, ends(values, num, "largest"))
    assert_converged(estimate, rtol=1e-3)


def test_float32_knows_its_arithmetic():
    values = outliers_and_bulk(20_000).float()
    estimate = eigenvalues(Diagonal(values), rtol=1e-3)
    assert_bounded(estimate, torch.tensor([1.0]))
    assert_converged(estimate, rtol=1e-3)
    too_much = eigenvalues(Diagonal(values), rtol=1e-7)
    assert not too_much.status or float(too_much.error) > 1e-6
    assert_bounded(too_much, torch.tensor([1.0]))


def test_rounding_of_the_operator_enters_the_error():
    values = outliers_and_bulk()
    estimate = eigenvalues(Diagonal(values, rounding_error=4e-4), rtol=1e-3)
    assert 4e-4 <= float(estimate.error) <= 1e-3
    assert estimate.status
    coarse = eigenvalues(Diagonal(values, rounding_error=5e-3), rtol=1e-3)
    assert float(coarse.error) >= 5e-3
    assert not coarse.status
    assert "float64" in coarse.status.message


def test_an_eigenvalue_of_zero_needs_no_relative_precision():
    estimate = eigenvalues(with_spectrum(torch.cat([torch.zeros(30), -torch.ones(3)])), num=2)
    assert_bounded(estimate, torch.zeros(2))
    assert estimate.status


def test_limit_of_products_is_kept_and_confessed():
    estimate = eigenvalues(with_spectrum(uniform(-1, 1, 300)), rtol=1e-8, max_products=12)
    assert estimate.products == 12
    assert not estimate.status
    assert "asked for rtol=1e-08, reached" in estimate.status.message
    assert "raise max_products above 12" in estimate.status.message
    several = eigenvalues(with_spectrum(SPECTRA["outliers and bulk"]), num=3, max_products=11)
    assert several.products <= 11
    assert not several.status


def test_wrong_suggestion_does_not_mislead():
    """The operator's own start vector is exactly the second eigenvector, so the first must come from chance."""
    values = outliers_and_bulk(5000)
    second = torch.zeros(5000, dtype=torch.float64)
    second[1] = 1
    for seed in range(20):
        assert_bounded(eigenvalues(Diagonal(values, suggestion=second), seed=seed), torch.tensor([1.0]))


def test_a_start_left_more_to_chance_shows_sooner_that_nothing_was_missed(monkeypatch):
    values = 0.55 * torch.arange(0.5, 5e5, 0.5, dtype=torch.float64) ** -0.7
    values[0], values[5000:] = 1.0, 1e-3
    suggestion = values.clone()
    found = eigenvalues(Diagonal(values, suggestion=suggestion))
    monkeypatch.setattr("spherometer.estimators.extremes.ABOVE_CHANCE", torch.inf)  # as much chance as suggestion
    half = eigenvalues(Diagonal(values, suggestion=suggestion))
    for estimate in (found, half):
        assert_bounded(estimate, torch.tensor([1.0]))
    assert found.products < half.products


def test_a_zero_or_broken_suggestion_is_ignored():
    values = outliers_and_bulk()
    for suggestion in (torch.zeros(400, dtype=torch.float64), torch.full((400,), torch.nan, dtype=torch.float64)):
        assert_bounded(eigenvalues(Diagonal(values, suggestion=suggestion)), torch.tensor([1.0]))


def test_warm_block_costs_at_most_three_products_at_one_percent():
    values = outliers_and_bulk(5000)
    last = eigenvalues(Diagonal(values), rtol=0.01, vectors=2)
    for step in range(1, 10):
        values = values * (1 + 0.01 * torch.randn(5000, generator=torch.Generator().manual_seed(step)))
        last = eigenvalues(Diagonal(values), rtol=0.01, start=last.vectors, vectors=2, seed=step)
        assert_bounded(last, values.max()[None])
        assert last.products <= 3


def test_a_single_warm_vector_is_not_trusted_through_a_crossing():
    """The old first eigenvector is still an eigenvector, with a perfect residual, and no longer the first."""
    values = torch.cat([torch.tensor([1.0, 0.9]), outliers_and_bulk(5000)[2:]]).double()
    last = eigenvalues(Diagonal(values), rtol=1e-6, vectors=True)
    crossed = torch.cat([torch.tensor([0.9, 1.0]), values[2:]])
    for seed in range(20):
        assert_bounded(eigenvalues(Diagonal(crossed), rtol=0.01, start=last.vectors, seed=seed), torch.tensor([1.0]))


def test_two_warm_vectors_see_a_crossing():
    """Two eigenvalues change places between two steps; a tracker that keeps the second vector sees the new first."""
    before = torch.cat([torch.tensor([1.0, 0.95]), outliers_and_bulk(5000)[2:]]).double()
    after = torch.cat([torch.tensor([0.95, 1.0]), before[2:]])
    last = eigenvalues(Diagonal(before), num=2, rtol=1e-4, vectors=True)
    for seed in range(20):
        estimate = eigenvalues(Diagonal(after), rtol=0.01, start=last.vectors, seed=seed)
        assert_bounded(estimate, torch.tensor([1.0]))
        assert estimate.products <= 4


def test_warm_block_is_cheaper_than_a_cold_start():
    values = outliers_and_bulk(5000)
    cold = eigenvalues(Diagonal(values), num=5, rtol=0.01, vectors=True)
    warm = eigenvalues(Diagonal(1.001 * values), num=5, rtol=0.01, start=cold.vectors)
    assert_bounded(warm, 1.001 * descending(values)[:5])
    assert warm.products < cold.products


def test_warm_block_of_wrong_eigenvectors_is_found_out():
    matrix = torch.diag(outliers_and_bulk().double())
    wrong = torch.eye(400, dtype=torch.float64)[:, 2:5]
    for num in (1, 3):
        assert_bounded(eigenvalues(matrix, num=num, start=wrong), descending(outliers_and_bulk())[:num])


def test_dependent_and_zero_columns_of_a_start_are_harmless():
    matrix = with_spectrum(outliers_and_bulk())
    column = torch.ones(400, 1, dtype=torch.float64)
    for start in (torch.cat([column, column, 0 * column], 1), 0 * column):
        assert_bounded(eigenvalues(matrix, start=start), torch.tensor([1.0]))


def test_same_seed_same_number_and_no_global_randomness():
    matrix = with_spectrum(outliers_and_bulk())
    state = torch.random.get_rng_state()
    first, second = (eigenvalues(matrix, num=2, seed=7) for _ in range(2))
    assert torch.equal(first.value, second.value)
    assert torch.equal(first.error, second.error)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num": 0}, "expected 1 <= num"),
        ({"num": 11}, "no more eigenvalues than the 10 there are"),
        ({"num": 6, "which": "both"}, "at each end"),
        ({"which": "top"}, "expected which to be one of largest, smallest, both, magnitude, got 'top'"),
        ({"rtol": 0.0}, "expected 0 < rtol < 1"),
        ({"rtol": -1.0}, "expected 0 < rtol < 1"),
        ({"num": 3, "max_products": 2}, "expected max_products >= 3"),
        ({"start": torch.ones(9)}, r"expected start of shape \(10,\) or \(10, k\), got \(9,\)"),
        ({"start": torch.full((10,), torch.inf)}, "expected a finite start"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        eigenvalues(torch.eye(10, dtype=torch.float64), **options)
