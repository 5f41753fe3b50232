"""What every operator promises: linearity, blocks, and the traits it declares."""

import inspect

import pytest
import torch

from reference.agreement import assert_close, assert_positive, assert_symmetric
from reference.battery import block_for, every_operator
from reference.cases import BY_NAME
from spherometer import operators
from spherometer.operators import Operator

NAMES = ["relu", "linear", "conv2d", "batch norm train", "group norm", "multihead attention", "gru", "embedding"]
every_network = pytest.mark.parametrize("name", NAMES)


def test_the_battery_holds_every_operator_of_the_package():
    exported = {thing for thing in vars(operators).values() if inspect.isclass(thing) and issubclass(thing, Operator)}
    concrete = {kind for kind in exported if not inspect.isabstract(kind)}
    tried = {type(operator) for operator in every_operator(BY_NAME["relu"].problem())}
    assert concrete <= tried


@every_network
def test_products_are_linear_and_blocks_are_columns(name):
    for operator in every_operator(BY_NAME[name].problem()):
        block = block_for(operator, 2)
        products = operator @ block
        assert products.shape == (operator.shape[0], 2)
        assert products.dtype == operator.dtype
        mixed = operator @ (2 * block[:, 0] - 3 * block[:, 1])
        assert_close(mixed, 2 * products[:, 0] - 3 * products[:, 1], 1e-9)
        assert torch.count_nonzero(operator @ torch.zeros_like(block[:, 0])) == 0
        assert torch.equal(operator @ block, products)  # the same product again, to the last bit


@every_network
def test_declared_traits_hold(name):
    for operator in every_operator(BY_NAME[name].problem()):
        if operator.symmetric:
            block = block_for(operator, min(6, operator.shape[1]))
            small = block.T @ (operator @ block)  # as symmetric and as positive as the whole, and cheaper
            assert_symmetric(small)
            if operator.positive:
                assert_positive(small)


@pytest.mark.parametrize("name", ["relu", "linear", "conv2d"])
def test_exact_answers_are_right_or_none(name):
    for operator in every_operator(BY_NAME[name].problem()):
        if operator.shape[0] != operator.shape[1]:
            continue
        trace, diagonal = operator.exact_trace(), operator.exact_diagonal()
        dense = operator.dense() if trace is not None or diagonal is not None else None
        if trace is not None:
            assert trace == pytest.approx(float(dense.trace()), rel=1e-9, abs=1e-12)
        if diagonal is not None:
            assert_close(diagonal + 1, dense.diagonal() + 1)


def test_float32_stays_float32():
    for operator in every_operator(BY_NAME["relu"].problem(dtype=torch.float32)):
        assert operator.dtype == torch.float32
        assert (operator @ block_for(operator)).dtype == torch.float32
