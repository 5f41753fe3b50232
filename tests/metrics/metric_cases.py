"""Small float64 networks and their dense twins, and the few helpers that every metric test uses."""

from __future__ import annotations

from typing import Any

import torch
from metric_twin import Twin
from torch import Tensor, nn

from spherometer import HalfSquaredError, Problem
from spherometer.metrics import measure
from spherometer.values import Estimate

NUM_SAMPLES, NUM_CLASSES = 7, 3


class Residual(nn.Module):
    """x + W₂ relu(W₁ x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.second(torch.relu(self.first(inputs)))


def _relu() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, NUM_CLASSES))


def _tanh() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, NUM_CLASSES))


def _convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, NUM_CLASSES))


def _residual() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Residual(4), nn.ReLU(), nn.Linear(4, NUM_CLASSES))


BUILDERS = {"relu": _relu, "tanh": _tanh, "convolutional": _convolutional, "residual": _residual}
LOSSES = {"cross-entropy": nn.CrossEntropyLoss(), "half squared error": HalfSquaredError()}
NETWORKS = list(BUILDERS)
SMOOTH = ["tanh"]  # where T12 does not hold


def network(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return BUILDERS[name]().to(dtype)


def samples(name: str, num: int = NUM_SAMPLES, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (1, 4, 4) if name == "convolutional" else (4,)
    inputs = torch.randn(num, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(NUM_CLASSES, (num,), generator=generator)


def problem_and_twin(name: str, loss: str = "cross-entropy", **options: Any) -> tuple[Problem, Twin]:
    model, data = network(name), samples(name)
    return Problem(model, LOSSES[loss], data, **options), Twin(model, LOSSES[loss], *data)


def one(problem: Problem, request: str, seed: int = 0) -> Estimate:
    """One metric of a problem."""
    return measure(problem, [request], seed=seed)[request].estimate


def assert_within(estimate: Estimate, truth: float | Tensor, limit: float = 4.0, rtol: float = 1e-9) -> None:
    """The truth lies within the certified bound, or within `limit` standard errors; rounding is forgiven."""
    reach = 1.0 if estimate.kind == "bound" else limit
    value, error, truth = (torch.as_tensor(entry).double() for entry in (estimate.value, estimate.error, truth))
    assert value.shape == truth.shape, f"shape {tuple(value.shape)}, expected {tuple(truth.shape)}"
    excess = (value - truth).abs() - reach * error - rtol * truth.abs().max()
    assert float(excess.max()) <= 0, f"{estimate!r} is not {truth}"


def assert_exactly(estimate: Estimate, truth: float | Tensor, rtol: float = 1e-9) -> None:
    """The estimate calls itself exact, and is."""
    assert estimate.source == "exact"
    assert float(torch.as_tensor(estimate.error).abs().max()) == 0
    assert_within(estimate, truth, rtol=rtol)


def assert_honest(estimates: list[Estimate], truth: float) -> None:
    """z-scores of repeated runs have mean 0 and spread 1."""
    scores = torch.tensor([(float(e.value) - truth) / float(e.error) for e in estimates], dtype=torch.float64)
    assert abs(float(scores.mean())) < 4 / len(scores) ** 0.5, f"mean z-score {float(scores.mean()):.2f}"
    assert 0.75 < float(scores.std()) < 1.3, f"spread of z-scores {float(scores.std()):.2f}"
