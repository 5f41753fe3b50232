"""Products at places are the same by either library."""

import pytest
import torch

from spherometer.operators import places, products
from spherometer.operators.minimal_filtering import tiling_of
from spherometer.operators.workspace import Workspace


@pytest.fixture
def convolved(monkeypatch):
    """The products that became convolutions, on a processor with wide vectors."""
    monkeypatch.setattr(products, "WIDE_VECTORS", True)
    way, seen = places._convolved, []
    monkeypatch.setattr(places, "_convolved", lambda *given, **how: seen.append(how) or way(*given, **how))
    return seen


def tensor(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def laid(images, order):
    """The same images with their tiles or their places first in memory."""
    return images.transpose(0, 1).contiguous().transpose(0, 1) if order == "tiles" else images


@pytest.mark.parametrize("order", ["tiles", "places"])
def test_convolutions_are_products(convolved, order):
    x, other = (laid(tensor(9, 64, 5, seed=seed), order) for seed in (0, 1))
    w, change, g = tensor(9, 7, 5, seed=2), tensor(9, 7, 5, seed=3), laid(tensor(9, 64, 7, seed=4), order)
    torch.testing.assert_close(places.to_outputs([(x, change), (other, w)]), x @ change.mT + other @ w.mT)
    torch.testing.assert_close(places.to_inputs(g, w), g @ w)
    assert [how["transposed"] for how in convolved] == [False, False, True]


def test_pieces_of_images_will_do(convolved):
    x, w = laid(tensor(9, 200, 5), "tiles"), tensor(9, 7, 5, seed=1)
    torch.testing.assert_close(places.to_outputs([(x[:, 50:130], w)]), x[:, 50:130] @ w.mT)
    assert len(convolved) == 1


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (tensor(9, 63, 5), tensor(9, 7, 5)),
        (tensor(1, 64, 5), tensor(1, 2**20 + 1, 5)),
        (tensor(9, 64, 5, dtype=torch.float64), tensor(9, 7, 5, dtype=torch.float64)),
    ],
)
def test_few_tiles_large_weights_and_double_precision_are_multiplied(convolved, x, w):
    torch.testing.assert_close(places.to_outputs([(x, w)]), x @ w.mT)
    assert not convolved


@pytest.mark.parametrize("order", ["tiles", "places"])
def test_large_weights_are_multiplied_one_by_one(convolved, monkeypatch, order):
    monkeypatch.setattr(places, "LARGE_WEIGHT", 5 * 7)
    way, seen = products.product, []
    monkeypatch.setattr(products, "product", lambda *pair: seen.append(pair) or way(*pair))
    x, other = (laid(tensor(9, 64, 5, seed=seed), order) for seed in (0, 1))
    w, change, g = tensor(9, 7, 5, seed=2), tensor(9, 7, 5, seed=3), laid(tensor(9, 64, 7, seed=4), order)
    torch.testing.assert_close(places.to_outputs([(x, change), (other, w)]), x @ change.mT + other @ w.mT)
    torch.testing.assert_close(places.to_inputs(g, w), g @ w)
    total = torch.full((9, 7, 5), torch.nan)
    places.add_to_weight(total, g, x, fresh=True)
    torch.testing.assert_close(total, g.mT @ x)
    places.add_to_weight(total, g, other, fresh=False)
    torch.testing.assert_close(total, g.mT @ x + g.mT @ other)
    assert len(seen) == 5 * 9
    assert not convolved


def test_narrow_vectors_multiply(convolved, monkeypatch):
    monkeypatch.setattr(products, "WIDE_VECTORS", False)
    x, w = tensor(9, 64, 5), tensor(9, 7, 5)
    assert torch.equal(places.to_outputs([(x, w)]), x @ w.mT)
    assert torch.equal(places.to_inputs(x @ w.mT, w), (x @ w.mT) @ w)
    assert not convolved


@pytest.mark.parametrize(("num", "size"), [(64, (4, 4)), (32, (8, 8)), (70, (2, 2))])
def test_derivatives_of_convolutions_are_those_of_torch(convolved, num, size):
    tiling = tiling_of(4, *size)
    x, vx, g = (
        tensor(num, channels, *size, seed=seed).contiguous(memory_format=torch.channels_last)
        for seed, channels in enumerate((5, 5, 6))
    )
    w, vw = (tensor(6, 5, 3, 3, seed=seed) for seed in (3, 4))
    plain = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    truth = torch.ops.aten.convolution(vx, w, None, *plain) + torch.ops.aten.convolution(x, vw, None, *plain)
    pulled = torch.ops.aten.convolution_backward(g, x, vw, None, *plain, [True, False, False])[0]
    weights = tiling.lift_weight(w), tiling.lift_weight(vw)
    images = tiling.whole(tiling.lift_output, g), tiling.whole(tiling.lift_input, x)
    for slopes, inputs in ((g, x), images):
        dg, dx, _ = tiling.second(slopes, inputs, vx, *weights, Workspace())
        torch.testing.assert_close(dg, truth, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dx, pulled, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(tiling.gradients(slopes, inputs, weights[1], Workspace())[0], dx)
    assert len(convolved) == 8
