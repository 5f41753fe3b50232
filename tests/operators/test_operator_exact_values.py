"""Exact traces, norms and diagonals: right where there is a closed form, None where there is not."""

import pytest
import torch

from reference.agreement import assert_close
from reference.cases import BY_NAME, CASES, Case
from spherometer import EmpiricalFisher, Fisher, GaussNewton, HalfSquaredError, Hessian

every_layer = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
LOSSES = [torch.nn.CrossEntropyLoss(), HalfSquaredError(), torch.nn.MSELoss()]


def assert_exact(operator, truth):
    assert operator.exact_trace() == pytest.approx(float(truth.trace()), rel=1e-10)
    assert_close(operator.exact_diagonal(), truth.diagonal().contiguous())
    norms = operator.exact_norms()
    sizes = [shape.numel() for shape in operator.problem.shapes.values()]
    shares = torch.stack([part.sum() for part in truth.diagonal().split(sizes)])
    assert list(norms) == list(operator.problem.names)
    assert_close(torch.tensor(list(norms.values()), dtype=torch.float64), shares)


def assert_unknown(operator):
    assert operator.exact_trace() is None
    assert operator.exact_diagonal() is None
    assert operator.exact_norms() is None


@every_layer
def test_gauss_newton(case: Case):
    operator = GaussNewton(case.problem())
    if case.closed:
        assert_exact(operator, case.twin().gauss_newton)
    else:
        assert_unknown(operator)


@every_layer
def test_hessian_trace_is_exact_where_the_network_is_multilinear(case: Case):
    operator = Hessian(case.problem())
    assert operator.multilinear() == case.multilinear
    if case.multilinear and case.closed:
        truth = case.twin().hessian
        assert operator.exact_trace() == pytest.approx(float(truth.trace()), rel=1e-10)
        assert_close(operator.exact_diagonal(), truth.diagonal().contiguous())
    else:
        assert operator.exact_trace() is None
        assert operator.exact_diagonal() is None


@pytest.mark.parametrize("loss", [HalfSquaredError(), torch.nn.MSELoss()], ids=["half", "mean"])
@pytest.mark.parametrize("name", ["relu", "linear on sequences", "conv2d", "batch norm eval", "embedding"])
def test_squared_error(name: str, loss):
    case = BY_NAME[name]
    inputs, targets = case.data()
    targets = torch.nn.functional.one_hot(targets, 3).double()
    problem = type(case.problem())(case.model(), loss, (inputs, targets))
    precision = 1.0 if isinstance(loss, HalfSquaredError) else 2 / 3
    assert_exact(GaussNewton(problem), case.twin().gaussian_fisher(precision))


OTHERS = [
    "relu in place",
    "linear on sequences",
    "conv2d",
    "transposed conv2d grouped",
    "layer norm",
    "group norm",
    "embedding",
]


@pytest.mark.parametrize("case", [BY_NAME[name] for name in OTHERS], ids=lambda case: case.name)
def test_the_other_matrices(case: Case):
    twin, problem = case.twin(), case.problem()
    assert_exact(EmpiricalFisher(problem), twin.empirical_fisher)
    assert_exact(Fisher(problem), twin.categorical_fisher)
    drawn = Fisher(problem, samples=3, seed=2)
    assert_exact(drawn, drawn.dense())
