"""What a bench works out once, within which memory, and how much of it is alive at the same time."""

import pytest
import torch
from live_bytes import LiveBytes
from metric_cases import network, problem_and_twin, samples
from torch import nn

from spherometer import Problem
from spherometer.estimators import eigenvalues, frobenius, trace
from spherometer.metrics import Bench
from spherometer.metrics.noise import descent_ratio
from spherometer.metrics.normalised_sharpness import normalised_sharpness
from spherometer.metrics.relative_flatness import relative_flatness
from spherometer.metrics.representations import corrected_ratio, naive_ratio


def spied(monkeypatch, module, name, function):
    """Options of every call of an estimator by a module of metrics."""
    calls = []

    def estimator(*arguments, **options):
        calls.append(options)
        return function(*arguments, **options)

    monkeypatch.setattr(f"spherometer.metrics.{module}.{name}", estimator)
    return calls


def test_a_tolerance_out_of_reach_is_tried_once(monkeypatch):
    bench = Bench(Problem(network("tanh").float(), nn.CrossEntropyLoss(), samples("tanh", dtype=torch.float32)))
    calls = spied(monkeypatch, "bench", "eigenvalues", eigenvalues)
    first = bench.extreme("hessian", num=2, rtol=1e-12)
    assert bool((first.error > 1e-12 * first.value.abs()).any())
    assert bench.extreme("hessian", num=2, rtol=1e-12) is first
    assert bench.extreme("hessian", num=2, rtol=1e-11) is first
    assert len(calls) == 1


def test_more_and_finer_eigenvalues_are_solved_for_and_remembered(monkeypatch):
    bench = Bench(problem_and_twin("tanh")[0])
    calls = spied(monkeypatch, "bench", "eigenvalues", eigenvalues)
    few = bench.extreme("hessian", num=2, rtol=1e-2)
    many = bench.extreme("hessian", num=4, rtol=0.5)
    fine = bench.extreme("hessian", num=2, rtol=1e-9)
    assert len(calls) == 1 + 1 + (fine is not few and fine is not many)
    assert bool((fine.error[:2] <= 1e-9 * fine.value[:2]).all())
    for num, rtol in ((2, 1e-2), (4, 0.5), (2, 1e-9), (3, 0.5)):
        assert len(bench.extreme("hessian", num=num, rtol=rtol).value) >= num
    assert len(calls) <= 3


@pytest.mark.parametrize(("name", "function"), [("trace", trace), ("frobenius", frobenius)])
def test_sums_are_estimated_within_the_memory_of_the_problem(name, function, monkeypatch):
    calls = spied(monkeypatch, "bench", name, function)
    bench = Bench(problem_and_twin("tanh", memory=1e5)[0])
    getattr(bench, name)("hessian", 0.02)
    assert [call["memory"] for call in calls] == [1e5]


def test_normalised_sharpness_is_estimated_within_the_memory_of_the_problem(monkeypatch):
    monkeypatch.setattr("spherometer.metrics.normalised_sharpness.READ_OFF", 0)
    calls = spied(monkeypatch, "normalised_sharpness", "trace", trace)
    normalised_sharpness(Bench(problem_and_twin("tanh", memory=1e5)[0]))
    assert [call["memory"] for call in calls] == [1e5]


def test_relative_flatness_is_estimated_within_the_memory_of_the_problem(monkeypatch):
    calls = spied(monkeypatch, "relative_flatness", "trace", trace)
    model = nn.Sequential(network("tanh"), nn.Tanh())
    relative_flatness(Bench(Problem(model, nn.CrossEntropyLoss(), samples("tanh"), memory=1e5)))
    assert [call["memory"] for call in calls] == [1e5]


def test_single_gradients_are_not_kept():
    model = nn.Sequential(nn.Linear(200, 50), nn.Tanh(), nn.Linear(50, 3)).double()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 200, generator=generator, dtype=torch.float64)
    problem = Problem(model, nn.CrossEntropyLoss(), (inputs, torch.randint(3, (40,), generator=generator)))
    with LiveBytes() as live:
        found = descent_ratio(Bench(problem), num=50)
    assert found.products == 41
    assert live.peak < 15 * 8 * problem.num_parameters


def test_live_bytes_count_what_is_alive_at_once():
    with LiveBytes() as live:
        kept = torch.zeros(100, dtype=torch.float64)
        for _ in range(3):
            torch.ones(50, dtype=torch.float64).add_(1).view(5, 10)
    assert (live.peak, live.now, live.made) == (1200, 800, 2000)
    assert len(kept) == 100


@pytest.mark.parametrize("ratio", [corrected_ratio, naive_ratio])
def test_dimensions_of_many_samples_make_few_copies(ratio):
    points = torch.randn(1000, 50, generator=torch.Generator().manual_seed(0))
    with LiveBytes() as live:
        assert ratio(points) > 1
    assert live.peak < 2.2 * 8 * len(points) ** 2
