"""Norms in plain arithmetic: the values of PyTorch, the running statistics of PyTorch, and right third derivatives."""

import copy

import pytest
import torch
from optimiser_cases import assert_slopes, batch, flat
from torch import nn
from torch.nn import functional

from reference.agreement import assert_close
from spherometer.training.objectives import Penalised
from spherometer.training.penalties import DecomposedNorms, Penalty

LAYERS = {
    "batch": lambda: nn.BatchNorm1d(4),
    "batch, cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
    "batch, untracked and not affine": lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
    "instance": lambda: nn.InstanceNorm1d(4),
    "instance, tracked": lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
    "layer": lambda: nn.LayerNorm((4, 3)),
    "layer, last axis": lambda: nn.LayerNorm(3, eps=1e-2),
    "layer, bare": lambda: nn.LayerNorm((4, 3), elementwise_affine=False),
}


def network(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = LAYERS[name]()
        parts = [nn.Unflatten(1, (4, 1)), nn.Linear(1, 3), layer, nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)]
        model = nn.Sequential(*parts).double()
        for weight in layer.parameters():
            weight.data.add_(0.3 * torch.randn_like(weight))
    return model


@pytest.mark.parametrize("name", LAYERS)
def test_values_statistics_and_gradients_are_those_of_torch(name):
    model, data = network(name), batch(5)
    twin = copy.deepcopy(model)
    for training in (True, True, False):
        with DecomposedNorms():
            ours = functional.cross_entropy(model.train(training)(data[0]), data[1])
        theirs = functional.cross_entropy(twin.train(training)(data[0]), data[1])
        assert_close(ours.detach(), theirs.detach())
        slopes = [flat(torch.autograd.grad(v, list(m.parameters()))) for v, m in ((ours, model), (theirs, twin))]
        assert_close(*slopes)
        for buffer, expected in zip(model.buffers(), twin.buffers(), strict=True):
            assert_close(buffer.double(), expected.double())


def curvature(model, data, direction):
    """v'Hv of the loss, with a graph."""
    weights = list(model.parameters())
    loss = functional.cross_entropy(model(data[0]), data[1])
    slope = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, weights, create_graph=True)])
    product = torch.autograd.grad(slope @ direction, weights, create_graph=True, materialize_grads=True)
    return torch.cat([p.reshape(-1) for p in product]) @ direction


class CurvaturePenalty(Penalty):
    """v'Hv for one fixed v: its gradient needs third derivatives."""

    num_derivatives = 3

    def __init__(self, direction):
        self.direction = direction

    def __call__(self, model, inputs, targets, outputs):
        weights = list(model.parameters())
        loss = functional.cross_entropy(outputs, targets)
        slope = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, weights, create_graph=True)])
        product = torch.autograd.grad(slope @ self.direction, weights, create_graph=True, materialize_grads=True)
        return torch.cat([p.reshape(-1) for p in product]) @ self.direction

    def over(self, model, batches):
        raise NotImplementedError


@pytest.mark.parametrize("name", ["batch", "layer", "instance"])
def test_third_derivatives_are_right_where_those_of_torch_are_not(name):
    model, data = network(name).train(), batch(5)
    weights = list(model.parameters())
    direction = torch.randn(flat(weights).numel(), generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    def gradient():
        value = curvature(model, data, direction)
        return flat(torch.autograd.grad(value, weights, materialize_grads=True))

    def value():
        return curvature(model, data, direction).detach()

    with DecomposedNorms():
        plain = gradient()
        assert_slopes(plain, value, model, 1e-6)
    fused = gradient()
    assert float((fused - plain).norm() / plain.norm()) > 1e-3, "torch has repaired its third derivatives: say so"
    objective = Penalised(lambda outputs, targets: 0.0 * outputs.sum(), [CurvaturePenalty(direction)])
    asked = flat(torch.autograd.grad(objective(model, *data), weights, materialize_grads=True))
    assert_close(asked, plain)


def test_one_value_per_channel_is_refused_as_in_torch():
    with DecomposedNorms(), pytest.raises(ValueError, match="more than one value per channel"):
        nn.BatchNorm1d(4)(torch.ones(1, 4))
