"""Compiled models: the same measurements, penalties and steps as those of the model as it is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reference.agreement import assert_close
from spherometer.metrics import measure
from spherometer.problems import Problem
from spherometer.training import GradientNormPenalty, Penalised, Plain, Training, optim

LOSS = nn.CrossEntropyLoss()
DATA = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(12) % 3


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()


def compiled(kind):
    model = network()
    if kind == "whole":
        return torch.compile(model, backend="aot_eager")
    if kind == "in place":
        model.compile(backend="aot_eager")
    else:
        model[0] = torch.compile(model[0], backend="aot_eager")
    return model


every_kind = pytest.mark.parametrize("kind", ["whole", "in place", "a part"])


@pytest.fixture(autouse=True)
def _forget():
    yield
    torch._dynamo.reset()


@every_kind
def test_a_compiled_model_is_measured_as_it_is_written(kind):
    names = ["sharpness", "hessian_trace", "input_jacobian_norm"]
    expected, found = (measure(Problem(model, LOSS, DATA), names) for model in (network(), compiled(kind)))
    for name in names:
        assert float(found[name].value) == pytest.approx(float(expected[name].value), rel=1e-9)


def test_parameters_have_the_names_of_the_model_as_it_is_written():
    problem = Problem(compiled("whole"), LOSS, DATA, parameters="0")
    assert problem.names == ("0.weight", "0.bias")


@pytest.mark.parametrize(
    ("kind", "optimizer", "ghost_size"),
    [("whole", "SGD", 6), ("in place", "SGD", None), ("a part", "EJR", None), ("whole", "EJRv2", 6)],
)
def test_a_compiled_model_takes_the_same_steps(kind, optimizer, ghost_size):
    ends = []
    for model in (network(), compiled(kind)):
        if optimizer == "SGD":
            chosen = torch.optim.SGD(model.parameters(), lr=0.1)
            objective = Penalised(LOSS, [GradientNormPenalty(1.0, loss=LOSS)])
        else:
            chosen = getattr(optim, optimizer)(model.parameters(), torch.optim.SGD, rho=0.5, lr=0.1)
            objective = Plain(LOSS)
        list(Training(model, chosen, DATA, objective, ghost_size=ghost_size).run(2))
        ends.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert_close(ends[1], ends[0])
