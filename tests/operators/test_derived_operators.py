"""Matrices made of others: rescaled, mixed by rows, Gram of the Jacobian, variance of Hessians, random gradients."""

import pytest
import torch
from torch import nn

from reference.agreement import assert_close, assert_unbiased
from reference.cases import BY_NAME
from spherometer import EmpiricalFisher, GaussNewton, Hessian, Problem
from spherometer.operators import HessianVariance, JacobianGram, Rescaled, RowMixed, random_gradient

CASE = BY_NAME["linear"]


def test_rescaled():
    twin, problem = CASE.twin(), CASE.problem()
    scaled = Rescaled(Hessian(problem), twin.weights)
    assert_close(scaled.dense(), twin.weights[:, None] * twin.hessian * twin.weights)
    exact = Rescaled(GaussNewton(problem), twin.weights)
    assert exact.exact_trace() == pytest.approx(float(twin.weights.square() @ twin.gauss_newton.diagonal()))
    with pytest.raises(ValueError, match=r"a scale of length 38, got shape \(37,\)"):
        Rescaled(Hessian(problem), torch.ones(37))


def test_row_mixed_has_the_trace_of_relative_flatness():
    """Σ_{s,s'} ⟨w_s, w_s'⟩ Tr H_{s,s'} over the rows of the last layer (Q61)."""
    problem = CASE.problem(parameters="2.weight")
    weight = problem.model.get_parameter("2.weight").detach()
    H = Hessian(problem).dense().reshape(3, 5, 3, 5)
    truth = sum(float(weight[s] @ weight[t]) * float(H[s, :, t, :].trace()) for s in range(3) for t in range(3))
    assert float(RowMixed(Hessian(problem), weight).dense().trace()) == pytest.approx(truth)
    with pytest.raises(ValueError, match="a matrix of 15 entries"):
        RowMixed(Hessian(problem), weight[:2])


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MSELoss()], ids=["cross-entropy", "squared"])
def test_jacobian_gram_does_not_depend_on_the_loss(loss):
    inputs, targets = CASE.data()
    targets = targets if isinstance(loss, nn.CrossEntropyLoss) else nn.functional.one_hot(targets, 3).double()
    operator = JacobianGram(Problem(CASE.model(), loss, (inputs, targets)))
    truth = CASE.twin().gaussian_fisher(1.0)
    assert_close(operator.dense(), truth)
    assert operator.exact_trace() == pytest.approx(float(truth.trace()))


def test_jacobian_gram_sees_samples_whose_labels_are_ignored():
    inputs, targets = CASE.data()
    targets = targets.clone()
    targets[2:] = -100
    batches = [(inputs[:2], targets[:2]), (inputs[2:], targets[2:])]
    assert_close(
        JacobianGram(Problem(CASE.model(), nn.CrossEntropyLoss(), batches)).dense(), CASE.twin().gaussian_fisher(1.0)
    )


def test_variance_of_batch_hessians():
    inputs, targets = CASE.data()
    batches = [(inputs[:1], targets[:1]), (inputs[1:3], targets[1:3]), (inputs[3:], targets[3:])]
    parts = [Hessian(Problem(CASE.model(), nn.CrossEntropyLoss(), [batch])).dense() for batch in batches]
    shares = [0.2, 0.4, 0.4]
    H = CASE.twin().hessian
    truth = sum(share * (part - H) @ (part - H) for share, part in zip(shares, parts, strict=True))
    assert_close(HessianVariance(CASE.problem(), batches).dense(), truth)


def test_batches_keep_their_dropout_masks_in_the_variance():
    inputs, targets = CASE.data()
    batches = [(inputs[:2], targets[:2]), (inputs[2:4], targets[2:4]), (inputs[4:], targets[4:])]
    model = nn.Sequential(nn.Dropout(0.5), CASE.model())
    problem = Problem(model, nn.CrossEntropyLoss(), batches, dropout=7)
    variance = HessianVariance(problem, batches)
    mean = sum(share * part.dense() for share, part in zip(variance.shares, variance.hessians, strict=True))
    assert_close(mean, Hessian(problem).dense())


@pytest.mark.parametrize(
    "weight", [None, torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)], ids=["plain", "weighted"]
)
def test_random_gradients_have_the_empirical_fisher_for_covariance(weight):
    inputs, targets = CASE.data()
    problem = Problem(
        CASE.model(), nn.CrossEntropyLoss(weight=weight), [(inputs[:2], targets[:2]), (inputs[2:], targets[2:])]
    )
    fisher = EmpiricalFisher(problem)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([random_gradient(fisher, generator) for _ in range(150)])
    truth = fisher.dense()
    columns = slice(None, None, 9)
    squares = draws[:, :, None] * draws[:, None, columns]
    varied = squares.std(0) > 1e-12
    assert_unbiased(squares[:, varied], truth[:, columns][varied], limit=4.5)
