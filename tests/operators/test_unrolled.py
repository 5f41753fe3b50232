"""Small images in double precision: the same convolutions and derivatives of every order as PyTorch's."""

import pytest
import torch
from torch.autograd import grad
from torch.nn import functional

from spherometer.operators import unrolled
from spherometer.operators.convolution import PLAIN, Geometry
from spherometer.operators.double_backward import FastDoubleBackward

GEOMETRIES = {
    "plain": (PLAIN, (3, 3)),
    "valid": (PLAIN._replace(padding=[0, 0]), (2, 2)),
    "strided": (PLAIN._replace(stride=[2, 1]), (3, 3)),
    "dilated": (PLAIN._replace(padding=[2, 2], dilation=[2, 2]), (3, 3)),
    "oblong": (Geometry([1, 2], [0, 2], [1, 1], transposed=False, output_padding=[0, 0], groups=1), (1, 4)),
}
every_geometry = pytest.mark.parametrize(("geometry", "kernel"), GEOMETRIES.values(), ids=GEOMETRIES)


def tensor(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@every_geometry
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_are_those_of_torch(geometry, kernel, order):
    x = tensor(3, 64, 2, 4).contiguous(memory_format=order)
    w, b = tensor(70, 64, *kernel, seed=1), tensor(70, seed=2)
    truth = torch.ops.aten.convolution(x, w, b, *geometry)
    found = unrolled.convolved(x, w, b, geometry)
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(unrolled.convolved(x, w, None, geometry), truth - b.view(-1, 1, 1))
    g = tensor(*truth.shape, seed=3)
    pulled = torch.ops.aten.convolution_backward(g, x, w, None, *geometry, [True, False, False])[0]
    torch.testing.assert_close(unrolled.input_gradient(g, x, w, geometry), pulled)
    assert found.is_contiguous(memory_format=order)


@pytest.mark.parametrize(
    ("x", "w", "geometry"),
    [
        (tensor(3, 64, 2, 4, dtype=torch.float32), tensor(64, 64, 3, 3, dtype=torch.float32), PLAIN),
        (tensor(3, 64, 3, 3), tensor(64, 64, 3, 3), PLAIN),
        (tensor(3, 64, 2, 4), tensor(63, 64, 3, 3), PLAIN),
        (tensor(3, 64, 2, 4), tensor(64, 64, 1, 1), PLAIN),
        (tensor(3, 64, 2, 4), tensor(64, 32, 3, 3), PLAIN._replace(groups=2)),
        (tensor(3, 64, 2, 4), tensor(64, 64, 3, 3), PLAIN._replace(transposed=True)),
        (tensor(0, 64, 2, 4), tensor(64, 64, 3, 3), PLAIN),
    ],
)
def test_all_else_is_left_to_torch(x, w, geometry):
    assert unrolled.input_gradient(x, x, w, geometry) is None
    assert torch.equal(unrolled.convolved(x, w, None, geometry), torch.ops.aten.convolution(x, w, None, *geometry))


@pytest.mark.parametrize("stride", [1, 2])
def test_second_derivatives_are_those_of_torch(monkeypatch, stride):
    x, w, b = tensor(2, 64, 2, 4), tensor(64, 64, 3, 3, seed=1) / 20, tensor(64, seed=2)
    leaves = [entry.requires_grad_() for entry in (x, w, b)]
    vectors = [tensor(*entry.shape, seed=3) for entry in leaves]

    def products():
        images = functional.conv2d(x, w, b, padding=1, stride=stride).tanh()
        first = grad(functional.conv2d(images, w, padding=1).square().sum(), leaves, create_graph=True)
        return [*first, *grad(first, leaves, vectors)]

    seen, way = [], unrolled._is_small
    monkeypatch.setattr(unrolled, "_is_small", lambda *given: seen.append(way(*given)) or seen[-1])
    with FastDoubleBackward():
        found = products()
    assert all(seen)
    assert len(seen) > 8
    for one, other in zip(found, products(), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_for_many_slopes_at_once_are_those_of_each():
    x, w = tensor(2, 64, 2, 4).requires_grad_(), tensor(64, 64, 3, 3, seed=1).requires_grad_()
    with FastDoubleBackward():
        images = functional.conv2d(x, w, padding=1)
    slopes = tensor(3, *images.shape, seed=2)
    found = torch.func.vmap(lambda slope: grad(images, (x, w), slope, retain_graph=True))(slopes)
    for number, slope in enumerate(slopes):
        for one, each in zip(found, grad(images, (x, w), slope, retain_graph=True), strict=True):
            torch.testing.assert_close(one[number], each)
