"""The helpers fail on wrong answers, and the twins agree with closed forms."""

import pytest
import torch
from torch import nn

from reference.agreement import TOLERANCES, assert_close, assert_positive, assert_symmetric, assert_unbiased
from reference.cases import BY_NAME, CASES
from reference.twins import Twin
from spherometer import HalfSquaredError


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_assert_close_notices_an_error_just_above_the_tolerance(dtype):
    truth = torch.ones(100, dtype=torch.float64)
    assert_close((truth * (1 + 0.3 * TOLERANCES[dtype])).to(dtype), truth)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close((truth * (1 + 3 * TOLERANCES[dtype])).to(dtype), truth)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(truth * (1 + 1e-3), truth, 1e-4)
    with pytest.raises(AssertionError, match="expected shape"):
        assert_close(truth[:1], truth)
    with pytest.raises(AssertionError):
        assert_close(truth * torch.nan, truth)


def test_assert_symmetric_and_positive_notice_a_wrong_entry():
    matrix = torch.eye(5, dtype=torch.float64)
    assert_symmetric(matrix)
    assert_positive(matrix)
    matrix[0, 1] = 1e-6
    with pytest.raises(AssertionError, match="relative error"):
        assert_symmetric(matrix)
    with pytest.raises(AssertionError, match="eigenvalue"):
        assert_positive(torch.diag(torch.tensor([1.0, -1e-6], dtype=torch.float64)))


def test_assert_unbiased_notices_a_small_bias():
    draws = torch.randn(400, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_unbiased(draws, torch.zeros(20, dtype=torch.float64))
    with pytest.raises(AssertionError, match="z-score"):
        assert_unbiased(draws + 0.3, torch.zeros(20, dtype=torch.float64))


def test_twins_of_linear_regression_are_known_in_closed_form():
    inputs = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = nn.Linear(2, 3, bias=False).double()
    twin = Twin(model, HalfSquaredError(), inputs, targets)
    truth = torch.kron(torch.eye(3, dtype=torch.float64), inputs.T @ inputs / 7)
    for matrix in (twin.hessian, twin.gauss_newton, twin.gaussian_fisher(1.0)):
        assert_close(matrix, truth, 1e-13)
    residual = model(inputs).detach() - targets
    gradients = torch.stack([torch.outer(r, x).reshape(-1) for r, x in zip(residual, inputs, strict=True)])
    assert_close(twin.sample_gradients, gradients, 1e-13)
    assert_close(twin.gradient(), gradients.mean(0), 1e-13)
    vector = torch.ones(6, dtype=torch.float64)
    assert_close(twin.finite_difference_product(vector), truth @ vector, 1e-9)


def test_twins_of_softmax_regression_are_known_in_closed_form():
    inputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = nn.Linear(2, 3, bias=False).double()
    twin = Twin(model, nn.CrossEntropyLoss(), inputs, torch.tensor([0, 1, 2, 0]))
    parts = [
        torch.kron(torch.diag(p) - torch.outer(p, p), torch.outer(x, x))
        for p, x in zip(model(inputs).detach().softmax(1), inputs, strict=True)
    ]
    for matrix in (twin.hessian, twin.gauss_newton, twin.categorical_fisher):
        assert_close(matrix, sum(parts) / 4, 1e-13)


def test_a_wrong_derivative_would_be_noticed():
    """The finite-difference tolerance separates a right product from one that is wrong in the sixth digit."""
    twin = BY_NAME["layer norm"].twin()
    vector = torch.ones_like(twin.weights)
    product = twin.hessian @ vector
    assert_close(product, twin.finite_difference_product(vector), 1e-6)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(product * (1 + 1e-5), twin.finite_difference_product(vector), 1e-6)


def test_every_case_bends_and_has_its_own_name():
    assert len(BY_NAME) == len(CASES)
    for case in CASES:
        assert float(case.twin().gauss_newton.norm()) > 1e-4, case.name
