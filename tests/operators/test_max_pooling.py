"""Max pooling of channels-last images has PyTorch's values and derivatives, and leaves images as they lie."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd import grad, gradgradcheck
from torch.nn import functional

import spherometer as sm
from spherometer.operators.double_backward import FastDoubleBackward

WINDOWS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},  # windows that overlap
    {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 1), "ceil_mode": True},
    {"kernel_size": [2], "stride": [3], "dilation": 2},
]


def images(*, dtype=torch.float64):
    x = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


def inside(function):
    def run(*given, **options):
        with FastDoubleBackward():
            return function(*given, **options)

    return run


def derivatives(function, x):
    """Value, gradient, second and third derivatives of a nonlinear function of the output."""
    y = function(x)
    first = grad(y.pow(4).sum(), x, create_graph=True)[0]
    second = grad(first.sin().sum(), x, create_graph=True)[0]
    return [y, first, second, *grad(second.square().sum(), x)]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("pool", [functional.max_pool2d, torch.max_pool2d])
def test_derivatives_are_those_of_torch(window, pool):
    x = images()
    ours = derivatives(lambda x: inside(pool)(x, **window), x)
    assert inside(pool)(x, **window).grad_fn.name() == "_MaxPoolBackward"
    for mine, theirs in zip(ours, derivatives(lambda x: pool(x, **window), x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        assert mine.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("relu", [functional.relu, torch.relu, nn.ReLU()])
@pytest.mark.parametrize("also_used", [True, False])
def test_a_relu_goes_behind_the_pooling(relu, window, also_used):
    x = images()

    def pooled(x):
        activated = relu(x)
        pool = functional.max_pool2d(activated, **window)
        return torch.cat([pool.flatten(), activated.sin().flatten()]) if also_used else pool

    ours = derivatives(inside(pooled), x)
    assert inside(lambda x: functional.max_pool2d(relu(x), **window))(x).grad_fn.name() == "_ReluBackward"
    for mine, theirs in zip(ours, derivatives(pooled, x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def changed_between(x, *, given):
    before = x.sin()
    activated = functional.relu(before)
    with torch.no_grad():
        (before if given else activated).neg_()
    return functional.max_pool2d(activated, 2)


def another_call_between(x):
    activated = functional.relu(x)
    x.square().detach()
    return functional.max_pool2d(activated, 2)


@pytest.mark.parametrize(
    "call",
    [
        partial(changed_between, given=True),
        partial(changed_between, given=False),
        another_call_between,
        lambda x: functional.max_pool2d(functional.relu(x.sin(), inplace=True), 2),
        lambda x: functional.max_pool2d(x.abs(), 2),
    ],
    ids=["its input changed", "its output changed", "another call", "in place", "another activation"],
)
def test_a_relu_stays_before_the_pooling_unless_nothing_happens_in_between(call):
    x = images()
    found = inside(call)(x)
    assert found.grad_fn.name() == "_MaxPoolBackward"
    assert torch.equal(found, call(x))


def test_numerical_derivatives():
    assert gradgradcheck(inside(lambda x: functional.max_pool2d(x, 3, 2).square()), (images(),))


def test_batched_gradients():
    x = images()
    y = inside(functional.max_pool2d)(x, 2)
    vectors = torch.randn(4, *y.shape, dtype=y.dtype)
    batched = grad(y, x, vectors, is_grads_batched=True, retain_graph=True)[0]
    one_by_one = torch.stack([grad(y, x, vector, retain_graph=True)[0] for vector in vectors])
    torch.testing.assert_close(batched, one_by_one)
    mapped = torch.func.vmap(lambda vector: grad(y, x, vector, retain_graph=True)[0])(vectors)
    torch.testing.assert_close(mapped, one_by_one)
    first = grad(y.pow(3).sum(), x, create_graph=True)[0]
    vectors = torch.randn(4, *x.shape, dtype=y.dtype)
    batched = grad(first, x, vectors, is_grads_batched=True, retain_graph=True)[0]
    one_by_one = torch.stack([grad(first, x, vector, retain_graph=True)[0] for vector in vectors])
    torch.testing.assert_close(batched, one_by_one)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.max_pool2d(x.detach().contiguous().requires_grad_(), 2),
        lambda x: functional.max_pool2d(x[0], 2),
        lambda x: functional.max_pool2d(x, 2, return_indices=True)[0],
    ],
    ids=["channels first", "no batch", "with indices"],
)
def test_what_is_not_covered_is_left_to_torch(call):
    x = images()
    assert inside(call)(x).grad_fn.name() != "_MaxPoolBackward"
    torch.testing.assert_close(inside(call)(x), call(x))


@pytest.mark.parametrize("kind", [sm.Hessian, sm.GaussNewton])
def test_products_through_pooling_are_those_in_double_precision(kind):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(64, 96, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96 * 4, 3),
    )
    problem = sm.Problem(model, nn.CrossEntropyLoss(), (torch.randn(6, 3, 8, 8), torch.arange(6) % 3))
    vector = torch.randn(problem.num_parameters)
    truth = kind(problem.in_dtype(torch.float64)) @ vector.double()
    product = kind(problem) @ vector
    assert float((product - truth).norm()) <= 2e-5 * float(truth.norm())


def test_a_call_by_keyword_is_understood():
    x = images()
    with FastDoubleBackward():
        found = torch.max_pool2d(input=x, kernel_size=2)
    assert torch.equal(found, functional.max_pool2d(x, 2))
