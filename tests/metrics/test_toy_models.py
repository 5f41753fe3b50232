"""Paper D's toy models, corrected, as tests of the instrument (T15-T18, D-e1, D-e4)."""

import pytest
import torch
from metric_cases import network, one, samples
from torch import nn

from spherometer import Hessian, Problem
from spherometer.metrics import measure


class Product(nn.Module):
    """z = Π w_k · x."""

    def __init__(self, *factors):
        super().__init__()
        self.factors = nn.ParameterList([torch.tensor(float(factor), dtype=torch.float64) for factor in factors])

    def forward(self, inputs):
        result = inputs
        for factor in self.factors:
            result = result * factor
        return result


def exponential(outputs, targets):
    """D Sec 3: L = exp(z)."""
    return outputs.exp().mean()


def toy(*factors, inputs=0.7):
    return Problem(Product(*factors), exponential, (torch.full((4, 1), inputs, dtype=torch.float64), torch.zeros(4)))


@pytest.mark.parametrize(("size", "ratio"), [(1, 0.476), (2, 0.881), (3, 0.965), (4, 0.985)])
def test_T17_hessian_of_the_three_weight_model(size, ratio):
    """H = L(X²vv' + XE): Tr H = X²L‖v‖² exactly; λ₁/Tr → 1 only for large weights (D-e1)."""
    w1, w2, w3, X = size, -size, size, 0.7
    problem = toy(w1, w2, w3)
    loss = torch.tensor(w1 * w2 * w3 * X, dtype=torch.float64).exp()
    v = torch.tensor([w2 * w3, w1 * w3, w1 * w2], dtype=torch.float64)
    edges = torch.tensor([[0, w3, w2], [w3, 0, w1], [w2, w1, 0]], dtype=torch.float64)
    truth = loss * (X**2 * torch.outer(v, v) + X * edges)
    assert torch.allclose(Hessian(problem).dense(), truth, rtol=1e-10)
    found = measure(problem, ["hessian_trace", "sharpness", "top_eigenvalues:num=3"])
    assert found["hessian_trace"].value == pytest.approx(float(loss * X**2 * v.square().sum()), rel=1e-10)
    assert found["sharpness"].value / found["hessian_trace"].value == pytest.approx(ratio, abs=2e-3)


def test_T17_equal_weights_have_the_eigenvalues_of_the_paper():
    """L(3X²w⁴ + 2Xw) once and −LXw twice."""
    weight, X = -1.3, 0.7
    problem = toy(weight, weight, weight)
    loss = float(torch.tensor(weight**3 * X, dtype=torch.float64).exp())
    truth = sorted([loss * (3 * X**2 * weight**4 + 2 * X * weight)] + [-loss * X * weight] * 2, reverse=True)
    assert one(problem, "top_eigenvalues:num=3").value.tolist() == pytest.approx(truth, rel=1e-6)


def test_T18_sharpness_rises_then_falls_as_the_last_layer_grows():
    """Growing weights on separable data: λ₁ → 0 with the loss, but not monotonically."""
    model = network("relu")
    inputs, _ = samples("relu")
    classes = model(inputs).argmax(1)  # separable by construction
    base = model[4].weight.data.clone(), model[4].bias.data.clone()
    tops, losses = [], []
    for factor in (1, 10, 100):
        model[4].weight.data, model[4].bias.data = (factor * part for part in base)
        found = measure(Problem(model, nn.CrossEntropyLoss(), (inputs, classes)), ["sharpness", "loss"])
        tops.append(float(found["sharpness"].value))
        losses.append(float(found["loss"].value))
    assert losses == sorted(losses, reverse=True)
    assert tops[0] < tops[1] > tops[2]
    assert tops[2] < 1e-6


@pytest.mark.parametrize("balanced", [True, False])
def test_De4_low_loss_does_not_bound_the_sharpness(balanced):
    """z = w₁w₂ with w₁ = e^K, w₂ = Ke^(−K), K = 20: loss 2e-9 and λ₁ = 4.9e8; balanced weights: 8e-8."""
    K = torch.tensor(20.0, dtype=torch.float64)
    factors = (K.sqrt(), K.sqrt()) if balanced else (K.exp(), K * (-K).exp())
    problem = Problem(Product(*factors), logistic, (torch.ones(4, 1, dtype=torch.float64), torch.zeros(4)))
    found = measure(problem, ["loss", "sharpness", "adaptive_sharpness"])
    assert found["loss"].value == pytest.approx(2.06e-9, rel=1e-2)
    assert found["sharpness"].value == pytest.approx(8e-8 if balanced else 4.9e8, rel=0.05)
    assert found["adaptive_sharpness"].value == pytest.approx(1.6e-6, rel=0.05)  # blind to the difference


def logistic(outputs, targets):
    return nn.functional.softplus(-outputs).mean()


def test_T14_orders_the_norms():
    """λ₁ ≤ ‖H‖_F, and Σλ_i = Tr H."""
    problem = Problem(network("relu"), nn.CrossEntropyLoss(), samples("relu"))
    found = measure(problem, ["sharpness", "hessian_frobenius:rtol=0.001", "hessian_trace", "mean_eigenvalue"])
    assert found["sharpness"].value <= found["hessian_frobenius:rtol=0.001"].value
    assert found["mean_eigenvalue"].value * problem.num_parameters == pytest.approx(found["hessian_trace"].value)


def test_T15_weight_decay_shifts_every_eigenvalue():
    problem = Problem(network("tanh"), nn.CrossEntropyLoss(), samples("tanh"))
    hessian = Hessian(problem)
    shifted = hessian.shifted(0.3).dense()
    assert torch.allclose(torch.linalg.eigvalsh(shifted), torch.linalg.eigvalsh(hessian.dense()) + 0.3)
