"""Products by oneDNN are products in every layout, and linear maps and relus keep PyTorch's derivatives."""

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.nn import functional

from spherometer.operators import products
from spherometer.operators.double_backward import FastDoubleBackward
from spherometer.operators.products import product

needs_one_dnn = pytest.mark.skipif(products._one_dnn is None, reason="this PyTorch comes without oneDNN")


@pytest.fixture
def quick(monkeypatch):
    """The products that oneDNN took, on a processor with wide vectors, however small they are."""
    monkeypatch.setattr(products, "WIDE_VECTORS", True)
    monkeypatch.setattr(products, "MIN_WORK", 0)
    way, seen = products._one_dnn, []
    monkeypatch.setattr(products, "_one_dnn", lambda *given: seen.append(given) or way(*given))
    return seen


def tensor(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


LAYOUTS = {
    "by rows": lambda rows, columns, seed: tensor(rows, columns, seed=seed),
    "by columns": lambda rows, columns, seed: tensor(columns, rows, seed=seed).T,
    "rows with gaps": lambda rows, columns, seed: tensor(rows, 3, columns, seed=seed)[:, 1],
    "columns with gaps": lambda rows, columns, seed: tensor(columns, 3, rows, seed=seed)[:, 1].T,
}


@needs_one_dnn
@pytest.mark.parametrize("left", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_is_multiplied(quick, left, right):
    a, b = left(17, 33, 0), right(33, 9, 1)
    torch.testing.assert_close(product(a, b), a @ b)
    assert len(quick) == 1
    weight = quick[0][1]  # with gaps it would take a thousand times as long
    assert weight.is_contiguous() or weight.T.is_contiguous()


@needs_one_dnn
def test_large_products_only(quick, monkeypatch):
    monkeypatch.setattr(products, "MIN_WORK", 4 * 5 * 6)
    a, b = tensor(4, 5), tensor(5, 6, seed=1)
    assert torch.equal(product(a[:3], b), a[:3] @ b)
    assert not quick
    torch.testing.assert_close(product(a, b), a @ b)
    assert len(quick) == 1


@needs_one_dnn
def test_double_precision_narrow_vectors_and_vmap_are_left_to_torch(quick, monkeypatch):
    a, b = tensor(4, 5), tensor(5, 6, seed=1)
    assert torch.equal(product(a.double(), b.double()), a.double() @ b.double())
    torch.testing.assert_close(torch.func.vmap(product, in_dims=(0, None))(torch.stack([a, -a]), b)[1], -(a @ b))
    monkeypatch.setattr(products, "WIDE_VECTORS", False)
    assert torch.equal(product(a, b), a @ b)
    assert not quick


@needs_one_dnn
def test_a_product_can_be_differentiated(quick):
    a, b = tensor(4, 5).requires_grad_(), tensor(5, 6, seed=1)
    (slope,) = grad(product(a, b).sum(), a)
    torch.testing.assert_close(slope, b.sum(1).expand_as(a))
    with torch.no_grad():
        product(a, b)
    assert len(quick) == 1


def derivatives(function, given):
    """Value, gradient, second and third derivatives of a nonlinear function of the output, in all that is given."""
    y = function(*given)
    first = grad(y.pow(3).sum(), given, create_graph=True)
    second = grad(sum(entry.sin().sum() for entry in first), given, create_graph=True)
    return [y, *first, *second, *grad(sum(entry.square().sum() for entry in second), given)]


def assert_same_derivatives(function, given, tolerance):
    with FastDoubleBackward():
        ours = derivatives(function, given)
    for mine, theirs in zip(ours, derivatives(function, given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * float(theirs.detach().abs().max()))


@needs_one_dnn
def test_the_comparison_sees_a_difference(quick, monkeypatch):
    way = products._one_dnn
    monkeypatch.setattr(products, "_one_dnn", lambda *given: 1.001 * way(*given))
    with pytest.raises(AssertionError):
        assert_same_derivatives(functional.linear, [tensor(7, 5).requires_grad_(), tensor(6, 5).requires_grad_()], 2e-4)


@needs_one_dnn
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_maps_have_the_derivatives_of_torch(quick, shape, bias):
    given = [tensor(*shape), tensor(6, 5, seed=1), tensor(6, seed=2)][: 3 if bias else 2]
    assert_same_derivatives(functional.linear, [entry.requires_grad_() for entry in given], 2e-4)
    assert quick


@needs_one_dnn
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_what_is_not_asked_for_is_left_out(quick, frozen):
    given = [tensor(7, 5), tensor(6, 5, seed=1), tensor(6, seed=2)]
    free = [entry.requires_grad_() for place, entry in enumerate(given) if place != frozen]

    def function(*_):
        return functional.linear(given[0].sin(), given[1].sin(), given[2].sin())

    assert_same_derivatives(function, free, 2e-4)


@needs_one_dnn
def test_linear_maps_of_single_vectors_and_by_vectors_are_left_to_torch(quick):
    x, w = tensor(5).requires_grad_(), tensor(6, 5, seed=1)
    with FastDoubleBackward():
        assert torch.equal(functional.linear(x, w), w @ x)
        functional.linear(tensor(4, 5).requires_grad_(), w[0])
    assert not quick


@pytest.mark.parametrize("relu", [functional.relu, torch.relu, nn.ReLU()])
def test_relus_have_the_derivatives_of_torch(relu):
    x = tensor(5, 7, dtype=torch.float64).requires_grad_()
    assert_same_derivatives(lambda x: relu(x.sin()) * x, [x], 1e-12)


def test_a_relu_has_no_second_derivative_to_add():
    def second(x):
        y = functional.relu(x)
        slope = torch.ones_like(y).requires_grad_()
        return grad(grad(y, x, slope, create_graph=True)[0].sum(), y, allow_unused=True)[0]

    x = tensor(5, 7).requires_grad_()
    assert torch.equal(second(x), torch.zeros(5, 7))
    with FastDoubleBackward():
        assert second(x) is None


def test_a_relu_in_place_stays_in_place():
    x = tensor(5, 7).requires_grad_()
    with FastDoubleBackward():
        y = x.sin()
        assert functional.relu(y, inplace=True) is y
    assert float(y.detach().min()) == 0


def test_relus_under_vmap():
    x, slopes = tensor(5, 7).requires_grad_(), tensor(3, 5, 7, seed=1)
    with FastDoubleBackward():
        y = functional.relu(x)
    found = grad(y, x, slopes, is_grads_batched=True)[0]
    torch.testing.assert_close(found, slopes * (x > 0))
