"""Warm bounds held against cold searches where eigenvalues crowd and cross: at the edge of stability."""

import pytest
import torch
from torch import nn

import spherometer as sm
from spherometer.training import gradient_descent
from spherometer.zoo import load_data


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2, 3, 4])
def test_no_tracked_bound_is_broken_over_the_edge(seed):
    learning_rate = 0.2
    digits = load_data("digits", num=500)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 10)
    problem = sm.Problem(nn.Sequential(nn.Flatten(), *layers), sm.HalfSquaredError(), digits.tensors)
    tracker, broken, reached = sm.Tracker(problem, every=1, rtol=0.01), [], 0.0
    for step in gradient_descent(problem, learning_rate=learning_rate, num_steps=600):
        if step.number % 6 == 0:
            tracker.step(loss=step.loss)
            row = tracker.series("sharpness")[-1]
            truth = float(sm.eigenvalues(sm.Hessian(problem), num=2, rtol=1e-4, seed=99).value[0])
            reached = max(reached, truth * learning_rate / 2)
            if abs(row.value - truth) > row.error:
                broken.append((step.number, row.value, row.error, truth))
    assert reached > 1, "the run never came to the edge"
    assert not broken, broken
    assert len(tracker.series("sharpness")) == 101
