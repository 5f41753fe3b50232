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


class Called(nn.Module):
    """A norm as a function of torch, below torch.nn.functional."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, inputs):
        found = self.function(self, inputs)
        return found if isinstance(found, torch.Tensor) else found[0]


def _batch(function, *rest):
    return lambda: Called(
        lambda own, x: function(x, own.weight, own.bias, own.mean, own.var, own.training, 0.1, 1e-5, *rest)
    )


def _layer(function):
    return lambda: Called(
        lambda own, x: function(x, (4, 3), own.weight[:, None].expand(4, 3), own.bias[:, None].expand(4, 3), 1e-5)
    )


CALLED = {
    "torch.batch_norm": _batch(torch.batch_norm, True),
    "torch.native_batch_norm": _batch(torch.native_batch_norm),
    "aten.native_batch_norm": _batch(torch.ops.aten.native_batch_norm),
    "aten.native_batch_norm.default": _batch(torch.ops.aten.native_batch_norm.default),
    "torch.instance_norm": lambda: Called(
        lambda own, x: torch.instance_norm(x, own.weight, own.bias, own.mean, own.var, own.training, 0.1, 1e-5, True)
    ),
    "torch.layer_norm": _layer(torch.layer_norm),
    "torch.native_layer_norm": _layer(torch.native_layer_norm),
    "aten.layer_norm.default": _layer(torch.ops.aten.layer_norm.default),
    "aten.native_layer_norm": _layer(torch.ops.aten.native_layer_norm),
}
LAYERS |= CALLED


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


@pytest.mark.parametrize("name", ["batch", "layer", "instance", *CALLED])
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


def test_what_a_native_norm_gives_beside_its_values():
    inputs, (weight, bias) = torch.randn(5, 4, 3, dtype=torch.float64), torch.ones(2, 4, dtype=torch.float64)
    for function, given in (
        (torch.native_batch_norm, (inputs, weight, bias, None, None, True, 0.1, 1e-5)),
        (torch.native_batch_norm, (inputs, weight, bias, bias, weight, False, 0.1, 1e-5)),
        (torch.native_layer_norm, (inputs, (3,), None, None, 1e-5)),
    ):
        with DecomposedNorms():
            ours = function(*given)
        for found, expected in zip(ours, function(*given), strict=True):
            assert_close(found, expected)


def test_one_value_per_channel_is_refused_as_in_torch():
    with DecomposedNorms(), pytest.raises(ValueError, match="more than one value per channel"):
        nn.BatchNorm1d(4)(torch.ones(1, 4))
