"""Every operator on every layer type, against finite differences and dense twins."""

import copy

import pytest
import torch

from reference.agreement import FINITE_DIFFERENCES, assert_close
from reference.cases import BY_NAME, CASES, PADDED, Case, random_block
from reference.twins import Twin
from spherometer import EmpiricalFisher, Fisher, GaussNewton, HalfSquaredError, Hessian, Problem

every_layer = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_layer
def test_hessian_product_agrees_with_finite_differences_and_the_dense_twin(case: Case):
    twin, problem = case.twin(), case.problem()
    vectors = random_block(problem.num_parameters)
    if case is PADDED:
        vectors[2 * 4 : 3 * 4] = 0  # torch gives the padding row no gradient, so it must not be moved either
    products = Hessian(problem) @ vectors
    assert_close(products[:, 0], twin.finite_difference_product(vectors[:, 0]), FINITE_DIFFERENCES)
    assert_close(products, twin.hessian @ vectors)


@every_layer
def test_gradient_is_a_by_product(case: Case):
    problem, truth = case.problem(), case.twin().gradient()
    assert_close(Hessian(problem).gradient(), truth)
    assert_close(GaussNewton(problem).gradient(), truth)
    assert_close(problem.gradient_at(), truth)


@every_layer
def test_gauss_newton_and_fisher_agree_with_the_dense_twins(case: Case):
    twin, problem = case.twin(), case.problem()
    vectors = random_block(problem.num_parameters)
    truth = twin.gauss_newton
    assert_close(GaussNewton(problem) @ vectors, truth @ vectors)
    assert_close(Fisher(problem) @ vectors, truth @ vectors)
    assert_close(twin.categorical_fisher, truth)  # C Sec 5.3: the same matrix


@every_layer
def test_empirical_fisher_agrees_with_the_dense_twin(case: Case):
    twin, problem = case.twin(), case.problem()
    vectors = random_block(problem.num_parameters)
    assert_close(EmpiricalFisher(problem) @ vectors, twin.empirical_fisher @ vectors)


@every_layer
def test_gauss_newton_of_squared_error_is_the_mean_of_squared_jacobians(case: Case):
    problem = case.problem(HalfSquaredError())
    vectors = random_block(problem.num_parameters)
    truth = case.twin().gaussian_fisher(1.0) @ vectors
    assert_close(GaussNewton(problem) @ vectors, truth)
    assert_close(Fisher(problem) @ vectors, truth)


@every_layer
def test_float32_products_agree_with_the_float64_truth(case: Case):
    twin, problem = case.twin(), case.problem(dtype=torch.float32)
    vectors = random_block(problem.num_parameters)
    products = Hessian(problem) @ vectors.float()
    assert products.dtype == torch.float32
    assert_close(products, twin.hessian @ vectors)


@pytest.mark.parametrize("name", ["linear", "conv2d", "batch norm train", "layer norm", "lstm", "tied language model"])
def test_float32_model_measured_in_float64(name: str):
    case = BY_NAME[name]
    model = case.model(torch.float32)
    inputs, targets = case.data()
    loss = torch.nn.CrossEntropyLoss()
    truth = Twin(copy.deepcopy(model).double(), loss, inputs, targets, batchnorm=case.batchnorm)
    doubled = Problem(model, loss, (inputs, targets), batchnorm=case.batchnorm, dtype=torch.float64)
    vectors = random_block(doubled.num_parameters)
    assert_close(Hessian(doubled) @ vectors, truth.hessian @ vectors)
    assert next(model.parameters()).dtype == torch.float32
