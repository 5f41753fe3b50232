"""T41: what Dinh's rescaling of layers changes, and what it does not."""

import pytest
import torch
from metric_cases import network, one, samples
from torch import nn

from spherometer import HalfSquaredError, Problem
from spherometer.metrics import measure
from spherometer.zoo.models.rescaling import rescale_layers

INVARIANT = [
    "loss",
    "adaptive_sharpness",
    "adaptive_jacobian_sharpness",
    "relative_flatness",
    "matrix_normalised_sharpness",
    "matrix_normalised_sharpness:norm=frobenius",
    "normalised_sharpness:steps=500",
    "sampled_adaptive_sharpness:num=10",
    "worst_adaptive_sharpness:steps=5",
    "worst_adaptive_sharpness:steps=5:norm=linf",
]
CHANGED = [
    "hessian_trace",
    "sharpness",
    "hessian_frobenius",
    "jacobian_sharpness",
    "layer_sharpness",
    "trace_shares",
    "eigenvector_shares",
    "scaled_trace",
    "shift_loss",
    "keskar_sharpness:steps=5",
    "gradient_norm",
    "critical_sharpness",
    "descent_ratio",
]


def both(name, loss, factor=3.0):
    model = network(name)
    first, second = ("0", "2") if name == "relu" else ("0", "3")
    return [Problem(m, loss, samples(name)) for m in (model, rescale_layers(model, first, second, factor))]


@pytest.mark.parametrize("name", ["relu", "convolutional"])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), HalfSquaredError()], ids=["cross-entropy", "half squared"])
@pytest.mark.parametrize("request_", INVARIANT)
def test_invariant_under_rescaling(name, loss, request_):
    before, after = (float(one(problem, request_).value) for problem in both(name, loss))
    assert after == pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize("name", ["relu", "convolutional"])
@pytest.mark.parametrize("request_", CHANGED)
def test_not_invariant_under_rescaling(name, request_):
    before, after = (torch.as_tensor(one(problem, request_).value) for problem in both(name, nn.CrossEntropyLoss()))
    assert float((before - after).abs().max() / before.abs().max()) > 0.02


def test_scaled_trace_does_not_feel_the_length_of_normalised_weights():
    """Batch norm after a layer without bias: H(αw) = H(w)/α²."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, eps=1e-12), nn.Tanh(), nn.Linear(5, 3)
        ).double()
    values = []
    for factor in (1.0, 2.0):
        model[0].weight.data.mul_(factor)
        problem = Problem(model, nn.CrossEntropyLoss(), samples("tanh"), batchnorm="train", parameters="0.weight")
        found = measure(problem, ["scaled_trace", "hessian_trace"])
        values.append([float(entry.value) for entry in found.values()])
    assert values[1][0] == pytest.approx(values[0][0], rel=1e-6)
    assert values[1][1] == pytest.approx(values[0][1] / 4, rel=1e-6)
