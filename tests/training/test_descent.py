"""Full-batch gradient descent on a Problem."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spherometer.problems import HalfSquaredError, NonFiniteError, Problem
from spherometer.training import gradient_descent
from spherometer.zoo import build_model, load_data


def make_problem(**options) -> Problem:
    inputs, targets = load_data("digits", num=30).tensors
    batches = [(inputs[:20], targets[:20]), (inputs[20:], targets[20:])]
    return Problem(build_model("digits-mlp", seed=3), HalfSquaredError(), batches, **options)


def test_it_is_plain_gradient_descent_on_all_the_data():
    problem = make_problem()
    twin, inputs, targets = build_model("digits-mlp", seed=3), *load_data("digits", num=30).tensors
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.2)
    losses = []
    for _ in range(5):
        loss = HalfSquaredError()(twin(inputs), targets)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    steps = list(gradient_descent(problem, learning_rate=0.2, num_steps=5))
    assert [step.number for step in steps] == [0, 1, 2, 3, 4, 5]
    assert [step.loss for step in steps[:5]] == pytest.approx(losses, rel=1e-5)
    for mine, theirs in zip(problem.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_model_holds_the_weights_of_the_loss_that_was_told():
    problem = make_problem()
    for step in gradient_descent(problem, learning_rate=0.2, num_steps=3):
        assert problem.loss_at() == pytest.approx(step.loss, rel=1e-6)


def test_only_the_chosen_parameters_move():
    problem = make_problem(parameters="5.*")
    before = {name: tensor.clone() for name, tensor in problem.model.named_parameters()}
    list(gradient_descent(problem, learning_rate=0.2, num_steps=2))
    moved = {name for name, tensor in problem.model.named_parameters() if not torch.equal(tensor, before[name])}
    assert moved == {"5.weight", "5.bias"}


@pytest.mark.parametrize("options", [{"learning_rate": 0.0, "num_steps": 1}, {"learning_rate": 0.1, "num_steps": -1}])
def test_impossible_options(options):
    with pytest.raises(ValueError, match="expected"):
        list(gradient_descent(make_problem(), **options))


def test_divergence_is_told_with_its_step():
    problem = Problem(nn.Linear(1, 1), HalfSquaredError(), (torch.full((2, 1), 1e10), torch.zeros(2, 1)))
    with pytest.raises(NonFiniteError, match="training diverged at step"):
        list(gradient_descent(problem, learning_rate=1e10, num_steps=20))
