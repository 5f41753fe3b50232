"""Thresholds and the critical step."""

import pytest
import torch
from metric_cases import assert_within, network, one, problem_and_twin, samples
from torch import nn

from spherometer import HalfSquaredError, Problem
from spherometer.metrics.stability import _first_rise


def quadratic(curvatures=(3.0, 1.0, 0.2), start=1.0):
    """L = ½ Σ a_j θ_j², as a regression on scaled unit vectors."""
    num = len(curvatures)
    inputs = torch.diag(torch.tensor(curvatures, dtype=torch.float64).mul(num).sqrt())
    model = nn.Linear(num, 1, bias=False).double()
    model.weight.data.fill_(start)
    return Problem(model, HalfSquaredError(), (inputs, torch.zeros(num, 1, dtype=torch.float64)))


def test_threshold_is_two_over_lr_with_momentum_and_batches():
    problem, _ = problem_and_twin("tanh")
    assert one(problem, "stability_threshold:lr=0.5").value == 4
    assert one(problem, "stability_threshold:lr=0.5:momentum=0.9").value == pytest.approx(7.6)
    ratio = float(one(problem, "gradient_ratio:batch_size=3").value)
    found = one(problem, "stability_threshold:lr=0.5:batch_size=3")
    assert found.value == pytest.approx(4 * ratio)
    assert "rule of thumb" in one(problem, "stability_threshold:batch_size=3:momentum=0.5").note


@pytest.mark.parametrize("rtol", [0.1, 0.01, 1e-4])
def test_critical_sharpness_of_a_quadratic_is_the_curvature_along_the_gradient(rtol):
    problem = quadratic()
    curvatures = torch.tensor([3.0, 1.0, 0.2], dtype=torch.float64)
    truth = float((curvatures**3).sum() / (curvatures**2).sum())  # g'Hg / ‖g‖² with g = aθ
    found = one(problem, f"critical_sharpness:rtol={rtol}")
    assert_within(found, truth)
    assert float(found.error) <= 2 * rtol * truth


@pytest.mark.parametrize("name", ["relu", "tanh", "convolutional", "residual"])
@pytest.mark.parametrize("loss", ["cross-entropy", "half squared error"])
def test_critical_step_is_where_a_fine_scan_first_sees_a_rise(name, loss):
    problem, twin = problem_and_twin(name, loss)
    found = one(problem, "critical_sharpness:rtol=0.001")
    gradient = problem.gradient_at()
    steps = torch.linspace(0, 3 * 2 / float(found.value), 3001, dtype=torch.float64)[1:]
    start = float(twin.mean_loss(twin.weights))
    first = next(float(step) for step in steps if float(twin.mean_loss(twin.weights - step * gradient)) > start)
    assert 2 / first == pytest.approx(float(found.value), rel=3e-3)


def test_critical_sharpness_in_float32_knows_its_rounding():
    model = network("tanh", torch.float32)
    data = samples("tanh", dtype=torch.float32)
    found = one(Problem(model, nn.CrossEntropyLoss(), data), "critical_sharpness:rtol=1e-05")
    truth = one(Problem(model, nn.CrossEntropyLoss(), data, dtype=torch.float64), "critical_sharpness:rtol=1e-07")
    assert_within(found, float(truth.value), rtol=1e-7)


def test_critical_sharpness_at_a_stationary_point_says_so():
    found = one(quadratic(start=0.0), "critical_sharpness")
    assert found.value == 0
    assert "the gradient is zero" in found.status.message


def test_loss_that_never_rises_has_no_critical_sharpness():
    problem = Problem(nn.Linear(2, 2).double(), falling, (torch.ones(4, 2).double(), torch.zeros(4)))
    found = one(problem, "critical_sharpness")
    assert found.value == 0
    assert "no rise of the loss up to step" in found.note


def falling(outputs, targets):
    return outputs.mean()


def test_loss_that_rises_at_every_step_is_flagged():
    """|θ| at its kink: autograd gives a slope, yet no step descends."""
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.zero_()
    problem = Problem(model, kinked, (torch.ones(4, 1).double(), torch.zeros(4)))
    found = one(problem, "critical_sharpness")
    assert "rises at every step" in found.status.message


def kinked(outputs, targets):
    return torch.where(outputs > 0, 2 * outputs, -outputs).mean()


def test_overflow_counts_as_a_rise():
    problem = quadratic(curvatures=(1e-3,), start=1.0)
    problem = Problem(problem.model, exploding, problem.data)
    assert float(one(problem, "critical_sharpness").value) > 0


def exploding(outputs, targets):
    return torch.where(outputs < -1e3, torch.inf, outputs).mean()


def test_search_brackets_the_first_rise_from_any_start():
    for start in (1e-6, 1.0, 1e6):
        low, high, trials = _first_rise(lambda step: step > 3.7, start=start, rtol=0.01)
        assert low <= 3.7 < high <= 1.01 * low
        assert trials < 40


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ("stability_threshold:lr=0.0", "expected lr > 0 and finite, got 0.0"),
        ("stability_threshold:lr=-0.1", "expected lr > 0"),
        ("stability_threshold:momentum=1.0", "expected 0 <= momentum < 1, got 1.0"),
        ("stability_threshold:batch_size=100", "batch_size from 1 to the 7 samples"),
        ("stability_threshold:batch_size=2.5", "batch_size from 1 to the 7 samples of the problem, got 2.5"),
        ("critical_sharpness:rtol=0.0", "expected 0 < rtol < 1, got 0.0"),
    ],
)
def test_options_are_refused_with_a_reason(request_, match):
    problem, _ = problem_and_twin("tanh")
    with pytest.raises(ValueError, match=match):
        one(problem, request_)
