"""Sharpness against the size of the weights, held against dense float64 twins."""

import pytest
import torch
from metric_cases import (
    LOSSES,
    NETWORKS,
    NUM_SAMPLES,
    SMOOTH,
    assert_exactly,
    assert_honest,
    assert_within,
    network,
    one,
    problem_and_twin,
    samples,
)
from torch import nn

from spherometer import HalfSquaredError, Problem
from spherometer.metrics import measure

every_network = pytest.mark.parametrize("name", NETWORKS)
every_loss = pytest.mark.parametrize("loss", LOSSES)


@every_network
@every_loss
def test_jacobian_sharpness_is_the_mean_squared_jacobian_whatever_the_loss(name, loss):
    problem, twin = problem_and_twin(name, loss)
    assert_exactly(one(problem, "jacobian_sharpness"), float(twin.jacobian().square().sum()) / NUM_SAMPLES)


@every_network
@every_loss
def test_adaptive_jacobian_sharpness_weighs_with_squared_weights(name, loss):
    problem, twin = problem_and_twin(name, loss)
    truth = float((twin.jacobian() * twin.weights).square().sum()) / NUM_SAMPLES
    assert_exactly(one(problem, "adaptive_jacobian_sharpness"), truth)


@every_network
@every_loss
def test_adaptive_sharpness_is_the_weighted_diagonal(name, loss):
    problem, twin = problem_and_twin(name, loss)
    truth = float(twin.hessian().diagonal() @ twin.weights.square())
    found = one(problem, "adaptive_sharpness")
    assert_within(found, truth)
    assert (found.source == "exact") or name in SMOOTH


@every_network
def test_half_squared_error_of_relu_networks_ties_hessian_and_jacobian(name):
    """T12 and its weighted form: Tr H = S and Σθ²H_jj = Q60 at any weights; not so for tanh."""
    problem, twin = problem_and_twin(name, "half squared error")
    found = measure(problem, ["jacobian_sharpness", "adaptive_jacobian_sharpness"])
    diagonal = twin.hessian().diagonal()
    agree = [
        found["jacobian_sharpness"].value == pytest.approx(float(diagonal.sum()), rel=1e-9),
        found["adaptive_jacobian_sharpness"].value == pytest.approx(float(diagonal @ twin.weights**2), rel=1e-9),
    ]
    assert agree == [name not in SMOOTH] * 2


def test_jacobian_sharpness_differs_from_the_trace_linearly_in_the_residual():
    """T13 (Lemma B.1): with targets moved towards the outputs by a factor, the difference shrinks by that factor."""
    model, (inputs, _) = network("tanh"), samples("tanh")
    outputs = model(inputs).detach()
    away = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gaps = []
    for size in (1e-1, 1e-2):
        problem = Problem(model, HalfSquaredError(), (inputs, outputs + size * away))
        trace = float(problem_hessian(problem).diagonal().sum())
        gaps.append(trace - one(problem, "jacobian_sharpness").value)
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=1e-6)


def problem_hessian(problem):
    from spherometer import Hessian

    return Hessian(problem).dense()


@every_network
def test_scaled_trace_and_shift_loss(name):
    problem, twin = problem_and_twin(name)
    hessian = twin.hessian()
    trace, top = float(hessian.trace()), float(torch.linalg.eigvalsh(hessian)[-1])
    assert_within(one(problem, "scaled_trace"), trace * float(twin.weights.square().sum()))
    found = one(problem, "shift_loss:distance=0.5")
    truth = torch.tensor([0.125 * trace / len(hessian), 0.125 * top], dtype=torch.float64)
    assert found.labels == ("expected", "worst")
    assert_within(found, truth, rtol=1e-6)


def test_shift_loss_is_what_a_quadratic_costs():
    """D Eq 1 with its ½ (D-e2): exact for a linear model at its minimum."""
    problem, weights, matrix = quadratic()
    top = torch.linalg.eigh(matrix)
    risen = problem.loss_at(weights + 0.3 * top.eigenvectors[:, -1]) - problem.loss_at(weights)
    truth = torch.tensor([0.045 * float(top.eigenvalues.mean()), risen], dtype=torch.float64)
    assert_within(one(problem, "shift_loss:distance=0.3"), truth)


def quadratic(num=30, width=4):
    """Linear regression at its minimum: the loss is ½(θ−θ*)'A(θ−θ*) + constant."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(num, width, generator=generator, dtype=torch.float64)
    targets = torch.randn(num, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(width, 1, bias=False).double()
    model.weight.data = torch.linalg.lstsq(inputs, targets).solution.T
    return (
        Problem(model, HalfSquaredError(), (inputs, targets)),
        model.weight.detach()[0].clone(),
        inputs.T @ inputs / num,
    )


def test_sampled_adaptive_sharpness_is_unbiased_with_honest_bars_on_a_quadratic():
    """There S_avg^ρ = Σθ²H_jj at any ρ (T42)."""
    problem, weights, matrix = quadratic()
    truth = float(matrix.diagonal() @ weights.square())
    assert_honest([one(problem, "sampled_adaptive_sharpness:num=32:rho=1.0", seed) for seed in range(32)], truth)


def test_sampled_adaptive_sharpness_tends_to_the_exact_one_quadratically():
    """T42, B-e18: with the same noise the differences shrink fourfold when ρ is halved."""
    problem, _ = problem_and_twin("tanh")
    values = [one(problem, f"sampled_adaptive_sharpness:num=50:rho={rho}").value for rho in (0.04, 0.02, 0.01)]
    assert (values[0] - values[1]) / (values[1] - values[2]) == pytest.approx(4, rel=0.05)


def test_printed_form_of_eq_46_is_half_rho_squared_of_it():
    """T42: .005 times S_adaptive at ρ² = .01 (B-e13)."""
    problem, _ = problem_and_twin("relu")
    found = one(problem, "sampled_adaptive_sharpness:num=10:rho=0.1")
    printed = float(found.note.rsplit(" ", 1)[1])
    assert printed == pytest.approx(0.005 * found.value, rel=1e-5)


def test_zero_weights_have_no_adaptive_sharpness():
    problem, _ = problem_and_twin("tanh")
    problem.model.requires_grad_(True)
    with torch.no_grad():
        for parameter in problem.model.parameters():
            parameter.zero_()
    found = measure(problem, ["adaptive_sharpness", "sampled_adaptive_sharpness:num=3", "scaled_trace"])
    assert [float(entry.value) for entry in found.values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ("sampled_adaptive_sharpness:rho=0.0", "expected rho > 0 and finite, got 0.0: it is the relative size"),
        ("sampled_adaptive_sharpness:rho=-1.0", "expected rho > 0"),
        ("sampled_adaptive_sharpness:num=1", "num as a whole number of at least 2, got 1"),
        ("shift_loss:distance=0.0", "expected distance > 0"),
    ],
)
def test_options_are_refused_with_a_reason(request_, match):
    problem, _ = problem_and_twin("tanh")
    with pytest.raises(ValueError, match=match):
        one(problem, request_)


def test_shift_loss_keeps_the_range_of_double_precision():
    problem, _, matrix = quadratic()
    large = Problem(problem.model, lambda outputs, targets: 1e42 * HalfSquaredError()(outputs, targets), problem.data)
    truth = torch.tensor([float(matrix.trace()) / 8, float(torch.linalg.eigvalsh(matrix)[-1]) / 2], dtype=torch.float64)
    assert_within(one(large, "shift_loss"), 1e42 * truth)
