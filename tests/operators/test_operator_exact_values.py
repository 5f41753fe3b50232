"""Exact traces, norms and diagonals: right where there is a closed form, None where there is not."""

import pytest
import torch

from reference.agreement import assert_close
from reference.cases import BY_NAME, CASES, Case
from spherometer import EmpiricalFisher, Fisher, GaussNewton, HalfSquaredError, Hessian, Problem

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


def test_exact_means_exact_over_many_batches_in_single_precision():
    inputs = torch.randn(3000, 1, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(3000).reshape(-1, 1) % 3
    problem = Problem(torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss(), list(zip(inputs, targets, strict=True)))
    truth = GaussNewton(problem.in_dtype(torch.float64)).exact_trace()
    assert GaussNewton(problem).exact_trace() == pytest.approx(truth, rel=1e-7)


def test_a_mean_over_nothing_is_refused():
    model, inputs = torch.nn.Linear(4, 3), torch.zeros(2, 4)
    problem = Problem(model, torch.nn.CrossEntropyLoss(), (inputs, torch.tensor([-100, -100])))
    with pytest.raises(ValueError, match="at least one loss term"):
        EmpiricalFisher(problem).exact_trace()


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
