"""curvlinops as an independent oracle, where it is right."""

import pytest
from torch import nn

from reference.agreement import assert_close
from reference.cases import BY_NAME, Case, random_block
from spherometer import EmpiricalFisher, GaussNewton, Hessian, Problem

curvlinops = pytest.importorskip("curvlinops")

PLAIN = ["linear", "relu", "conv2d", "conv2d grouped", "transposed conv2d", "max pool", "conv residual"]
NORMALISED = ["layer norm", "group norm", "batch norm eval"]


def oracle(kind, case: Case, data):
    model = case.model().eval()
    return kind(model, nn.CrossEntropyLoss(), list(model.parameters()), data)


def ragged(case: Case):
    inputs, targets = case.data(num=7)
    return [(inputs[:3], targets[:3]), (inputs[3:], targets[3:])]


@pytest.mark.parametrize("name", PLAIN)
def test_hessian(name):
    case = BY_NAME[name]
    problem = Problem(case.model(), nn.CrossEntropyLoss(), ragged(case))
    vectors = random_block(problem.num_parameters)
    truth = oracle(curvlinops.HessianLinearOperator, case, ragged(case)) @ vectors
    assert_close(Hessian(problem) @ vectors, truth)


@pytest.mark.parametrize("name", [*PLAIN, *NORMALISED])
def test_gauss_newton_and_empirical_fisher(name):
    case = BY_NAME[name]
    problem = Problem(case.model(), nn.CrossEntropyLoss(), ragged(case))
    vectors = random_block(problem.num_parameters)
    assert_close(GaussNewton(problem) @ vectors, oracle(curvlinops.GGNLinearOperator, case, ragged(case)) @ vectors)
    assert_close(EmpiricalFisher(problem) @ vectors, oracle(curvlinops.EFLinearOperator, case, ragged(case)) @ vectors)


def test_squared_error():
    case = BY_NAME["linear"]
    inputs, targets = case.data()
    data, model = (inputs, nn.functional.one_hot(targets, 3).double()), case.model()
    problem = Problem(model, nn.MSELoss(), data)
    vectors = random_block(problem.num_parameters)
    parameters = list(model.parameters())
    for ours, theirs in ((Hessian, curvlinops.HessianLinearOperator), (GaussNewton, curvlinops.GGNLinearOperator)):
        assert_close(ours(problem) @ vectors, theirs(model, nn.MSELoss(), parameters, [data]) @ vectors)
