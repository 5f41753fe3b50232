"""The largest rise of the loss around the weights: never above the truth, and near it."""

import pytest
import torch
from metric_cases import one, problem_and_twin
from torch import nn

from spherometer import HalfSquaredError, Problem
from spherometer.metrics.ascent import Ball, loss_and_gradient


def regression(width=3, num=20, offset=0.0):
    """Linear regression `offset` away from its minimum, and its Hessian."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(num, width, generator=generator, dtype=torch.float64) * torch.tensor([3.0, 1, 0.3][:width])
    targets = torch.randn(num, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(width, 1, bias=False).double()
    model.weight.data = torch.linalg.lstsq(inputs, targets).solution.T + offset
    return Problem(model, HalfSquaredError(), (inputs, targets)), inputs.T @ inputs / num


def test_worst_adaptive_sharpness_at_a_minimum_is_the_top_eigenvalue():
    """There max L(θ+δ) − L = ρ²/2 λ₁(diag θ H diag θ)."""
    problem, matrix = regression()
    weights = problem.state().vector
    truth = 0.005 * float(torch.linalg.eigvalsh(weights[:, None] * matrix * weights)[-1])
    found = one(problem, "worst_adaptive_sharpness:rho=0.1:steps=40")
    assert 0.999 * truth <= found.value <= truth * (1 + 1e-9)
    assert "a lower bound of the maximum" in found.note


def test_worst_adaptive_sharpness_in_a_box_is_reached_in_a_corner():
    problem, matrix = regression(offset=0.5)
    weights, gradient = problem.state().vector, problem.gradient_at()
    corners = torch.cartesian_prod(*[torch.tensor([-0.2, 0.2], dtype=torch.float64)] * 3) * weights.abs()
    truth = float((corners @ gradient + ((corners @ matrix) * corners).sum(1) / 2).max())
    found = one(problem, "worst_adaptive_sharpness:rho=0.2:norm=linf:steps=30:restarts=4")
    assert found.value == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("name", ["relu", "tanh", "convolutional"])
def test_ascent_beats_random_search_and_stays_inside(name, norm):
    problem, twin = problem_and_twin(name)
    found = one(problem, f"worst_adaptive_sharpness:rho=0.5:norm={norm}")
    ball = Ball(twin.weights, twin.weights.abs(), 0.5, norm)
    stream, start = torch.Generator().manual_seed(0), float(twin.mean_loss(twin.weights))
    rises = [float(twin.mean_loss(ball.weights(ball.random(stream)))) - start for _ in range(200)]
    assert found.value > max(rises)
    assert 0 <= float(found.error) <= found.value


def test_first_order_part_rules_small_neighbourhoods():
    """max over ‖δ/|θ|‖ ≤ ρ of g'δ is ρ‖θ∘g‖₂ in l2 and ρ‖θ∘g‖₁ in l∞."""
    problem, _ = problem_and_twin("tanh")
    slope = problem.state().vector * problem.gradient_at()
    for norm, size in (("l2", slope.norm()), ("linf", slope.abs().sum())):
        found = one(problem, f"worst_adaptive_sharpness:rho=1e-5:norm={norm}")
        assert found.value == pytest.approx(1e-5 * float(size), rel=1e-3)


def test_ball_projects_onto_itself():
    centre = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    for norm, order in (("l2", 2), ("linf", float("inf"))):
        ball = Ball(centre, centre.abs(), 0.3, norm)
        far = ball.projected(torch.tensor([5.0, -4.0, 3.0], dtype=torch.float64))
        assert float(torch.linalg.vector_norm(far, order)) == pytest.approx(0.3)
        near = torch.tensor([0.1, -0.1, 0.05], dtype=torch.float64)
        assert torch.equal(ball.projected(near), near)
        assert float(ball.weights(far)[2]) == 0  # a weight that is zero stays so
        assert float(ball.steepest(torch.zeros(3, dtype=torch.float64)).norm()) == 0


def test_zero_weights_do_not_move():
    problem, _ = problem_and_twin("tanh")
    for parameter in problem.model.parameters():
        parameter.data.zero_()
    found = one(problem, "worst_adaptive_sharpness")
    assert found.value == 0
    assert "43 weights are zero" in found.note


def test_keskar_sharpness_is_the_corner_of_its_box():
    problem, matrix = regression(offset=0.5)
    weights, gradient, loss = problem.state().vector, problem.gradient_at(), problem.loss_at()
    corners = torch.cartesian_prod(*[torch.tensor([-1e-2, 1e-2], dtype=torch.float64)] * 3) * (weights.abs() + 1)
    truth = float((corners @ gradient + ((corners @ matrix) * corners).sum(1) / 2).max()) / (1 + loss)
    found = one(problem, "keskar_sharpness:epsilon=0.01:restarts=4")
    assert found.value == pytest.approx(truth, rel=1e-6)
    predicted = float(torch.linalg.eigvalsh(matrix)[-1]) * 1e-4 / (2 * (1 + loss))  # D-e3
    assert float(found.note.rsplit("= ", 1)[1]) == pytest.approx(predicted, rel=1e-3)


def test_keskar_sharpness_reaches_beyond_the_quadratic_prediction_of_a_ball():
    """At a minimum the box |z_j| ≤ ε(|θ_j|+1) holds the ball of radius ε, where D's prediction is reached."""
    problem, _ = regression()
    found = one(problem, "keskar_sharpness:epsilon=0.01")
    assert found.value >= float(found.note.rsplit("= ", 1)[1])


def test_loss_and_gradient_agree_with_the_problem():
    problem, _ = problem_and_twin("relu")
    vector = problem.state().vector + 0.1
    loss, gradient = loss_and_gradient(problem, vector)
    assert loss == pytest.approx(problem.loss_at(vector))
    assert torch.allclose(gradient, problem.gradient_at(vector))


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ("worst_adaptive_sharpness:rho=0.0", "expected rho > 0 and finite, got 0.0"),
        ("worst_adaptive_sharpness:norm=l1", "norm to be one of 'l2', 'linf', got 'l1'"),
        ("worst_adaptive_sharpness:steps=0", "steps as a whole number of at least 1, got 0"),
        ("worst_adaptive_sharpness:restarts=0", "restarts as a whole number of at least 1, got 0"),
        ("keskar_sharpness:epsilon=0.0", "expected epsilon > 0 and finite, got 0.0"),
        ("keskar_sharpness:epsilon=-1.0", "expected epsilon > 0"),
        ("keskar_sharpness:steps=0", "steps as a whole number"),
    ],
)
def test_options_are_refused_with_a_reason(request_, match):
    problem, _ = problem_and_twin("tanh")
    with pytest.raises(ValueError, match=match):
        one(problem, request_)
