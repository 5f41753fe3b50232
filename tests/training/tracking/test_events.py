"""Events are told when they happen, once, and not when they do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import spherometer as sm
from spherometer.training.tracking import Sketch, change_point
from spherometer.training.tracking.events import ActiveRegularisation, Catapult, Edge, Sharpening, trend
from spherometer.values import Estimate


def told(detector, values, error=0.01):
    return [event for step, value in enumerate(values) for event in detector.see(step, Estimate(value, error * value))]


def test_a_rise_is_progressive_sharpening_and_noise_is_not():
    assert [event.step for event in told(Sharpening(), [1 + 0.05 * k for k in range(20)])] == [7]
    noise = np.random.default_rng(0)
    false = sum(bool(told(Sharpening(), 1 + 0.02 * noise.standard_normal(50))) for _ in range(100))
    assert false == 0  # the rise must be a tenth
    wild = sum(bool(told(Sharpening(), list(1 + 0.2 * noise.standard_normal(8)))) for _ in range(500))
    assert wild / 500 < 0.03  # eight values without a trend: about one in a hundred
    assert told(Sharpening(), [1 + 0.02 * k for k in range(8)], error=0.2) == []  # within the error bars


def test_a_second_rise_is_told_again():
    wave = [1 + 0.1 * k for k in range(10)] + [1.9 - 0.1 * k for k in range(10)] + [1 + 0.1 * k for k in range(12)]
    assert len(told(Sharpening(), wave)) == 2


def test_trend_is_mann_and_kendalls():
    assert trend([1, 2, 3, 4, 5, 6, 7, 8]) == pytest.approx(28 / math.sqrt(8 * 7 * 21 / 18))
    assert trend([1, 2, 1, 2]) == pytest.approx(2 / math.sqrt(4 * 3 * 13 / 18))


def test_the_edge_is_told_at_each_arrival():
    events = told(Edge(), [0.5, 0.9, 1.01, 0.95, 1.05, 0.7, 0.9, 1.2])
    assert [event.step for event in events] == [2, 7]
    assert events[0].details["ratio"] == 1.01


def catapults(losses, sharpness):
    detector, events = Catapult(), []
    for step, (loss, sharp) in enumerate(zip(losses, sharpness, strict=True)):
        events += list(detector.see_loss(step, loss))
        detector.see_sharpness(sharp)
    return events


def test_a_catapult_goes_up_comes_back_and_lands_flatter():
    losses = [1.0] * 10 + [3.0, 9.0, 5.0, 2.0, 0.9, 0.8]
    (event,) = catapults(losses, [30.0] * 11 + [12.0] * 5)
    assert (event.step, event.details["began"], event.details["peak"]) == (14, 10, 9.0)
    assert (event.details["sharpness_before"], event.details["sharpness_after"]) == (30.0, 12.0)
    assert catapults(losses, [30.0] * 16) == []  # no flatter: a bad batch
    assert catapults([1.0] * 10 + [3.0, 9.0, 20.0], [30.0] * 11 + [12.0] * 2) == []  # it never came back
    assert catapults([1.0] * 10 + [float("nan")] * 3, [30.0] * 13) == []


def test_gradient_descent_with_too_large_a_step_is_a_catapult_in_a_real_loop():
    """½(uv − 1)²... the model of Lewkowycz et al.: f = u·v/√m, sharpness above 2/lr, below 4/lr."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.u, self.v = (nn.Parameter(torch.full((1, 1), value, dtype=torch.float64)) for value in (2.2, 0.05))

        def forward(self, inputs):
            return inputs @ self.u @ self.v

    model, pair = Product(), (torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    problem, optimizer = sm.Problem(model, sm.HalfSquaredError(), pair), torch.optim.SGD(model.parameters(), lr=0.5)
    tracker = sm.Tracker(problem, every=1)
    for _ in range(40):
        optimizer.zero_grad()
        loss = sm.HalfSquaredError()(model(pair[0]), pair[1])
        loss.backward()
        tracker.step(optimizer, loss.detach())
        optimizer.step()
    names = [event.name for event in tracker.events]
    assert "edge of stability" in names
    assert "catapult" in names


def regularised(values):
    detector = ActiveRegularisation()
    return [event for step, value in enumerate(values) for event in detector.see(10 * step, value)]


def test_the_end_of_active_regularisation_by_threshold_and_by_change_point():
    rng = np.random.default_rng(0)
    curve = [0.3] * 30 + [0.3 - 0.01 * k for k in range(1, 28)]
    events = regularised(np.array(curve) + 0.002 * rng.standard_normal(len(curve)))
    threshold, bend = sorted(events, key=lambda event: len(event.name))
    assert threshold.name == "end of active regularisation"
    assert abs(threshold.step - 350) <= 20
    assert bend.details["low"] - 20 <= 290 <= bend.details["high"] + 20
    low = [0.12] * 30 + [0.12 * 0.97**k for k in range(40)]  # many classes: never above .25
    assert [event.name for event in regularised(low)] == ["end of active regularisation (change point)"]
    assert regularised([0.3] * 50) == []
    assert regularised(0.3 + 0.01 * rng.standard_normal(80)) == []


def test_change_points_are_found_and_their_intervals_hold():
    assert change_point(range(20), [min(1.0, 1.0 - 0.1 * (t - 9)) for t in range(20)]).step == 9.0
    rng, hits, false = np.random.default_rng(1), 0, 0
    for _ in range(100):
        steps = np.arange(60.0)
        found = change_point(steps, -0.1 * np.maximum(0, steps - 35) + 0.2 * rng.standard_normal(60))
        hits += found is not None and found.low - 1 <= 35 <= found.high + 1
        flat = change_point(steps, 0.01 * steps + 0.2 * rng.standard_normal(60))
        false += flat is not None and flat.gain > 10
    assert hits >= 90
    assert false <= 2
    assert change_point([1, 2, 3], [1, 2, 3]) is None
    assert len({change_point(range(n), [min(0, n // 2 - t) for t in range(n)]).step / n for n in (200, 2000)}) <= 2
    with pytest.raises(ValueError, match="as many values as steps"):
        change_point([1, 2], [1])


def test_a_sketch_keeps_distances():
    problem = sm.Problem(nn.Linear(100, 50), sm.HalfSquaredError(), (torch.zeros(2, 100), torch.zeros(2, 50)))
    sketch = Sketch(problem, size=256, seed=0)
    stream = torch.Generator().manual_seed(0)
    points = torch.randn(20, problem.num_parameters, generator=stream)
    small = torch.stack([sketch(point) for point in points])
    ratios = torch.pdist(small) / torch.pdist(points.double())
    assert abs(float(ratios.mean()) - 1) < 0.03
    assert float(ratios.std()) < 0.08  # about 1/√(2·256) = 0.044
    squares = [float(Sketch(problem, size=64, seed=seed)(points[0]).square().sum()) for seed in range(200)]
    truth = float(points[0].double().square().sum())
    spread = np.std(squares) / np.sqrt(len(squares))
    assert abs(np.mean(squares) - truth) < 4 * spread
    with pytest.raises(ValueError, match="size of at least 4"):
        Sketch(problem, size=2)
