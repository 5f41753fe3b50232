"""Every kind of matrix an estimator may be given, and the ones it must refuse."""

import curvlinops
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from spectra import Diagonal, outliers_and_bulk, with_spectrum

from assertions import assert_bounded
from spherometer.estimators import diagonal, eigenvalues, frobenius, spectral_density, trace
from spherometer.estimators.matrices import SymmetricMatrix

VALUES = outliers_and_bulk(100)
DENSE = with_spectrum(VALUES)
SHIFT = 0.1


class OnlyShapeAndProduct:
    shape = (100, 100)

    def __matmul__(self, columns):
        return DENSE @ columns


def linear_regression_hessian():
    """‖Rx‖² with 2R'R = DENSE + c: curvlinops' own operator, with the spectrum shifted."""
    root = torch.linalg.cholesky((DENSE + SHIFT * torch.eye(100, dtype=torch.float64)) / 2).T
    model = torch.nn.Linear(100, 1, bias=False, dtype=torch.float64)
    loss = torch.nn.MSELoss(reduction="sum")
    data = [(root, torch.zeros(100, 1, dtype=torch.float64))]
    return curvlinops.HessianLinearOperator(model, loss, list(model.parameters()), data)


KINDS = {
    "tensor": DENSE,
    "tensor that wants gradients": DENSE.clone().requires_grad_(),
    "float32": DENSE.float(),
    "array": DENSE.numpy(),
    "float32 array": DENSE.numpy().astype(np.float32),
    "linear operator": scipy.sparse.linalg.aslinearoperator(DENSE.numpy()),
    "sparse": scipy.sparse.csr_array(DENSE.numpy()),
    "duck": OnlyShapeAndProduct(),
    "curvlinops": linear_regression_hessian(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_matrix_gives_the_same_numbers(kind):
    operator, values = KINDS[kind], VALUES + SHIFT if kind == "curvlinops" else VALUES
    assert_bounded(eigenvalues(operator), values.max()[None])
    assert float(trace(operator)) == pytest.approx(float(values.sum()), rel=0.1)
    assert float(frobenius(operator)) == pytest.approx(float(values.norm()), rel=0.1)
    assert diagonal(operator, rtol=0.3).value.shape == (100,)
    assert spectral_density(operator, num_vectors=2, num_steps=10).nodes.shape == (2, 10)


def test_products_are_counted_by_column():
    matrix = SymmetricMatrix(DENSE)
    matrix.apply(torch.ones(100, 3, dtype=torch.float64))
    matrix.apply(torch.ones(100, dtype=torch.float64))
    assert matrix.products == 4


def test_integer_arrays_are_measured_in_float64():
    assert_bounded(eigenvalues(np.diag([3, 2, 1])), torch.tensor([3.0]))


ESTIMATORS = [eigenvalues, trace, frobenius, diagonal, spectral_density]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_refuses_what_is_not_square(estimator):
    with pytest.raises(ValueError, match=r"expected a square matrix, got shape \(3, 4\)"):
        estimator(torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"got shape \(0, 0\)"):
        estimator(torch.ones(0, 0))
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        estimator(torch.ones(3))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_refuses_what_is_not_symmetric(estimator):
    with pytest.raises(ValueError, match="expected a symmetric matrix"):
        estimator(torch.triu(torch.ones(5, 5)))
    with pytest.raises(ValueError, match="expected a symmetric matrix"):
        estimator(Diagonal(VALUES, symmetric=False))
    with pytest.raises(ValueError, match="expected a real symmetric matrix"):
        estimator(torch.eye(3, dtype=torch.complex64))


def test_finds_out_an_operator_that_only_claims_to_be_symmetric():
    lopsided = scipy.sparse.linalg.aslinearoperator(np.triu(np.ones((50, 50))))
    with pytest.raises(ValueError, match="got products that are not those of one"):
        eigenvalues(lopsided)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_products_that_are_not_finite_stop_it(estimator, poison):
    values = VALUES.clone()
    values[5] = poison
    with pytest.raises(FloatingPointError, match="product with inf or nan"):
        estimator(Diagonal(values))


def test_products_of_a_wrong_shape_stop_it():
    class Wrong(OnlyShapeAndProduct):
        def __matmul__(self, columns):
            return columns[:-1]

    with pytest.raises(ValueError, match=r"expected a product of shape \(100,\), got \(99,\)"):
        eigenvalues(Wrong())
