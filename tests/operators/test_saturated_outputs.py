"""Outputs so sure of themselves that 1 − p is lost in the arithmetic: the curvature keeps its digits."""

import torch
from torch import nn

import spherometer as sm


def test_gauss_newton_of_saturated_softmax_keeps_its_digits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        model[2].weight.mul_(200)
    inputs = torch.randn(6, 4, dtype=torch.float64)
    targets = model(inputs).argmax(1)
    problem = sm.Problem(model, nn.CrossEntropyLoss(), (inputs, targets))
    for operator in (sm.GaussNewton(problem), sm.Fisher(problem)):
        dense = operator.dense()
        assert float(dense.norm()) > 0
        assert float((dense - dense.T).norm()) < 1e-10 * float(dense.norm())
        assert float(torch.linalg.eigvalsh((dense + dense.T) / 2).min()) > -1e-10 * float(dense.norm())


def test_a_single_sample_has_jacobians_too():
    problem = sm.Problem(nn.Linear(4, 3), nn.CrossEntropyLoss(), (torch.randn(1, 4), torch.tensor([1])))
    assert problem.splittable
    assert float(sm.measure(problem, ["input_jacobian_norm"])["input_jacobian_norm"].value) > 0
