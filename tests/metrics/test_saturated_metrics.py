"""Outputs so sure of themselves that 1 − p is lost in the arithmetic: metrics against sixty digits."""

from decimal import Decimal, localcontext

import pytest
import torch
from metric_cases import one
from torch import nn

from spherometer import Problem
from spherometer.operators import sensitivity

WEIGHT = torch.tensor([[1.0, 0.5], [0.25, -1.0], [-0.5, 0.75]], dtype=torch.float64)
INPUTS = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
MARGINS = [5.0, 36.0, 45.0, 100.0]


def saturated(margin):
    """A linear model with logits (margin, 0, −1) at its one sample."""
    model = nn.Linear(2, 3).double()
    with torch.no_grad():
        model.weight.copy_(WEIGHT)
        model.bias.copy_(torch.tensor([margin, 0.0, -1.0], dtype=torch.float64) - WEIGHT @ INPUTS[0])
    logits = model(INPUTS)[0].detach()
    return Problem(model, nn.CrossEntropyLoss(), (INPUTS, torch.tensor([0]))), [Decimal(float(z)) for z in logits]


def sixty_digits(logits):
    """diag(p) − pp' of exact logits, and p, each entry rounded once."""
    with localcontext() as context:
        context.prec = 60
        powers = [z.exp() for z in logits]
        p = [power / sum(powers) for power in powers]
        middle = [[float((a if i == j else 0) - a * b) for j, b in enumerate(p)] for i, a in enumerate(p)]
        gini, binary = 1 - sum(a * a for a in p), 2 * max(p) * (1 - max(p))
    return torch.tensor(middle, dtype=torch.float64), float(gini), float(binary)


@pytest.mark.parametrize("margin", MARGINS)
def test_gini_keeps_its_digits(margin):
    problem, logits = saturated(margin)
    _, gini, binary = sixty_digits(logits)
    assert one(problem, "gini").value == pytest.approx(gini, rel=1e-13, abs=0)
    assert one(problem, "binary_gini").value == pytest.approx(binary, rel=1e-13, abs=0)


@pytest.mark.parametrize("margin", MARGINS)
def test_the_trace_of_gauss_newton_keeps_its_digits(margin):
    problem, logits = saturated(margin)
    middle, gini, _ = sixty_digits(logits)
    scale = 1 + float(INPUTS.square().sum())  # ∂z/∂θ ∂z/∂θ' = (1 + ‖x‖²) I
    exact, approximation, _ = one(problem, "gauss_newton_trace_approximation").value.tolist()
    assert exact == pytest.approx(scale * float(middle.trace()), rel=1e-12, abs=0)
    assert approximation == pytest.approx(scale * gini, rel=1e-12, abs=0)


@pytest.mark.parametrize("many", [32, 0], ids=["by Gram matrices", "by Lanczos"])
@pytest.mark.parametrize("margin", MARGINS)
def test_the_softmaxed_jacobian_keeps_its_digits(margin, many, monkeypatch):
    monkeypatch.setattr(sensitivity, "MANY_OUTPUTS", many)
    problem, logits = saturated(margin)
    truth = float(torch.linalg.matrix_norm(sixty_digits(logits)[0] @ WEIGHT, 2))
    assert one(problem, "softmax_mls").value == pytest.approx(truth, rel=1e-10 if many else 2e-3, abs=0)
