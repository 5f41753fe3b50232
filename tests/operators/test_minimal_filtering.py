"""Lifted convolutions are convolutions, lowering is the transpose of lifting, products of wide networks are right."""

import gc

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.nn import functional

import spherometer as sm
from spherometer.operators import products
from spherometer.operators.double_backward import FastDoubleBackward
from spherometer.operators.memory import saved_bytes
from spherometer.operators.minimal_filtering import Lifts, SingleTile, Tiling, tiling_for, tiling_of
from spherometer.operators.workspace import Workspace


@pytest.fixture(autouse=True)
def narrow_vectors(monkeypatch):
    """Small networks take the same ways on every machine."""
    monkeypatch.setattr(products, "WIDE_VECTORS", False)


SIZES = [(4, 4), (8, 8), (2, 2), (5, 7), (9, 6), (12, 3)]
TILINGS = [Tiling(edge, *size, torch.float64) for edge in (2, 4) for size in SIZES]
TILINGS += [SingleTile(4, *size, torch.float64) for size in [(4, 4), (2, 2), (3, 3), (2, 4), (3, 2), (1, 4)]]
every_tiling = pytest.mark.parametrize(
    "tiling", TILINGS, ids=[f"{type(one).__name__}, {one.edge}, {one.size}" for one in TILINGS]
)


def tensor(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def images(num=3, channels=5, size=(8, 8), seed=0, dtype=torch.float64):
    return tensor(num, channels, *size, seed=seed, dtype=dtype).contiguous(memory_format=torch.channels_last)


def assert_near(found, truth, tolerance=1e-12):
    assert float((found - truth).norm()) <= tolerance * float(truth.norm())


def test_the_comparison_sees_a_difference():
    with pytest.raises(AssertionError):
        assert_near(torch.ones(3) + 1e-6, torch.ones(3))


@every_tiling
def test_lowering_is_the_transpose_of_lifting(tiling):
    size = tiling.size
    pairs = [
        (images(size=size), tiling.lift_input, tiling.lower_input),
        (images(size=size), tiling.lift_output, tiling.lower_output),
        (tensor(4, 5, 3, 3), tiling.lift_weight, tiling.lower_weight),
    ]
    for value, lift, lower in pairs:
        lifted = lift(value)
        other = tensor(*lifted.shape, seed=1)
        assert float((lifted * other).sum()) == pytest.approx(float((value * lower(other)).sum()), rel=1e-11)


@every_tiling
def test_convolutions_and_gradients_are_those_of_torch(tiling):
    size = tiling.size
    x, other, g = images(size=size), images(size=size, seed=1), images(channels=4, size=size, seed=2)
    w, change = tensor(4, 5, 3, 3, seed=3), tensor(4, 5, 3, 3, seed=4)
    lifted = [tiling.lift_weight(weight) for weight in (w, change)]
    truth = functional.conv2d(x, change, padding=1) + functional.conv2d(other, w, padding=1)
    assert_near(tiling.convolved([(x, lifted[1]), (other, lifted[0])]), truth)
    slopes = torch.ops.aten.convolution_backward(
        g, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    dx, dw = tiling.gradients(g, x, lifted[0], Workspace())
    assert_near(dx, slopes[0])
    assert_near(dw, slopes[1])
    inputs, slopes = tiling.whole(tiling.lift_input, x), tiling.whole(tiling.lift_output, g)
    assert_near(tiling.convolved([(inputs, lifted[0])]), functional.conv2d(x, w, padding=1))
    for found, given in zip(tiling.gradients(slopes, inputs, lifted[0], Workspace()), (dx, dw), strict=True):
        assert_near(found, given)
    assert tiling.gradients(g, None, lifted[0], Workspace())[1] is None
    assert tiling.gradients(g, x, None, Workspace())[0] is None
    assert tiling.gradients(g, None, None, Workspace()) == (None, None)
    for given in ((g, x), (slopes, inputs)):
        dg, dx, dw = tiling.second(*given, other, *lifted, Workspace())
        assert_near(dg, truth)
        assert_near(dx, tiling.gradients(g, None, lifted[1], Workspace())[0])
        assert_near(dw, tiling.gradients(g, other, None, Workspace())[1])


def test_pieces_of_the_samples_add_up(monkeypatch):
    tiling = Tiling(4, 8, 8, torch.float64)
    x, g, w = images(7), images(7, channels=4, seed=1), tensor(4, 5, 3, 3, seed=2)
    lifted = tiling.lift_weight(w)
    whole = (tiling.convolved([(x, lifted)]), *tiling.gradients(g, x, lifted, Workspace()))
    monkeypatch.setattr("spherometer.operators.minimal_filtering.PIECE", 2 * 36 * 4 * 5)
    assert len(list(tiling._pieces(7, 4, 5))) == 4
    inputs, slopes = tiling.whole(tiling.lift_input, x), tiling.whole(tiling.lift_output, g)
    for images_, slopes_ in ((x, g), (inputs, slopes), (x, slopes), (inputs, g)):
        pieces = (tiling.convolved([(images_, lifted)]), *tiling.gradients(slopes_, images_, lifted, Workspace()))
        for found, truth in zip(pieces, whole, strict=True):
            assert_near(found, truth)


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (images(channels=32, dtype=torch.float32), tensor(32, 32, 3, 3)),
        (images(channels=16, dtype=torch.float32), tensor(256, 16, 3, 3)),
        (images(channels=256, dtype=torch.float32), tensor(16, 256, 3, 3)),
        (images(channels=64), tensor(64, 64, 3, 3)),
        (images(channels=64, dtype=torch.float32).contiguous(), tensor(64, 64, 3, 3)),
        (images(channels=64, dtype=torch.float32), tensor(64, 64, 5, 5)),
        (images(channels=64, size=(8, 1), dtype=torch.float32), tensor(64, 64, 3, 3)),
        (images(channels=64, size=(5, 3), dtype=torch.float32), tensor(64, 64, 3, 3)),
        (images(channels=64, size=(1, 1), dtype=torch.float32), tensor(64, 64, 3, 3)),
    ],
)
def test_what_would_not_be_quicker_is_left_alone(x, w):
    for lifts in (Lifts(), Lifts(images=True)):
        assert tiling_for(x, w, lifts) is None


def test_fewer_channels_do_where_images_are_saved_lifted():
    x, w = images(channels=32, dtype=torch.float32), tensor(64, 32, 3, 3)
    assert tiling_for(x, w, Lifts()) is None
    assert tiling_for(x, w, Lifts(images=True)).edge == 4


@pytest.mark.parametrize("saved", [True, False])
def test_with_wide_vectors_images_of_several_tiles_need_more_channels(monkeypatch, saved):
    """Where oneDNN is that quick."""
    monkeypatch.setattr(products, "WIDE_VECTORS", True)
    found = {
        (channels, size): tiling_for(
            images(1, channels=channels, size=(size, size), dtype=torch.float32),
            tensor(channels, channels, 3, 3),
            Lifts(images=saved),
        )
        for channels in (64, 128, 256)
        for size in (4, 8)
    }
    assert {key for key, tiling in found.items() if tiling is None} == {(64, 8), (128, 8)}


def test_small_images_have_small_tiles():
    w = tensor(64, 64, 3, 3)
    found = [
        tiling_for(images(channels=64, size=(size, size), dtype=torch.float32), w, Lifts()) for size in (2, 3, 4, 6, 7)
    ]
    assert [(type(tiling), tiling.edge, tiling.num_places) for tiling in found] == [
        (SingleTile, 4, 9), (SingleTile, 4, 36), (SingleTile, 4, 36), (Tiling, 2, 16), (Tiling, 4, 36),
    ]  # fmt: skip


def test_a_weight_is_lifted_once_anew_when_it_changed_and_forgotten_with_it():
    lifts, tiling, w = Lifts(), Tiling(4, 8, 8), tensor(4, 5, 3, 3, dtype=torch.float32)
    first = lifts.of(w, tiling)
    assert lifts.of(w, tiling) is first
    assert lifts.num_bytes == first.nbytes == 36 * 4 * 5 * 4
    w.mul_(2)
    torch.testing.assert_close(lifts.of(w, tiling), 2 * first)
    assert lifts.of(w, Tiling(2, 4, 4)).shape[0] == 16
    for size in ((2, 4), (4, 2)):  # as many places, but others
        assert_near(lifts.of(w, tiling_of(4, *size)), tiling_of(4, *size).lift_weight(w))
    del w
    gc.collect()
    assert lifts.num_bytes == 0


def wide_network(norm):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(64, 96, 3, padding=1, bias=not norm),
        nn.BatchNorm2d(96) if norm else nn.Identity(),
        nn.Tanh(),
        nn.Conv2d(96, 96, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Conv2d(96, 100, 3, padding="same"),
        nn.Flatten(),
        nn.Linear(400, 3),
    )


@pytest.mark.parametrize("kind", [sm.Hessian, sm.GaussNewton])
@pytest.mark.parametrize("norm", ["", "eval", "train"])
def test_products_of_wide_networks_are_those_in_double_precision(kind, norm):
    model, x = wide_network(norm), tensor(4, 3, 9, 9, dtype=torch.float32)
    problem = sm.Problem(model, nn.CrossEntropyLoss(), (x, torch.arange(4) % 3), batchnorm=norm or "eval")
    matrix = kind(problem)
    vector = tensor(problem.num_parameters, dtype=torch.float32)
    product = matrix @ vector
    assert matrix._mode.lifts.num_bytes > 0
    assert_near(product, kind(problem.in_dtype(torch.float64)) @ vector.double(), 2e-5)
    with torch.inference_mode():
        assert_near(matrix @ vector.clone(), product, 1e-6)
    assert float(matrix.rounding(vector[:, None] / vector.norm())) < 1e-4 * float(product.norm() / vector.norm())


def test_the_check_of_the_rounding_lifts_its_vector_only(monkeypatch):
    model, x = wide_network(""), tensor(6, 3, 9, 9, dtype=torch.float32)
    matrix = sm.Hessian(sm.Problem(model, nn.CrossEntropyLoss(), (x, torch.arange(6) % 3)))
    vector = tensor(matrix.shape[0], dtype=torch.float32)
    matrix @ vector
    lift, lifted = Tiling.lift_weight, []
    monkeypatch.setattr(Tiling, "lift_weight", lambda self, w, out=None: lifted.append(w) or lift(self, w, out))
    matrix.rounding(vector[:, None] / vector.norm())
    assert len(lifted) == 3  # wide convolutions


def test_third_derivatives_are_left_to_torch():
    model, x = wide_network(""), images(2, 3, (4, 4), dtype=torch.float32)
    weight = model[5].weight
    with FastDoubleBackward():
        first = grad(model(x).square().sum(), weight, create_graph=True)[0]
    second = grad(first.square().sum(), weight, create_graph=True)[0]
    third = grad(second.sum(), weight)[0]
    plain = grad(model(x).square().sum(), weight, create_graph=True)[0]
    truth = grad(grad(plain.square().sum(), weight, create_graph=True)[0].sum(), weight)[0]
    assert_near(third, truth, 1e-4)


def test_lifted_images_are_saved_for_many_products_only_and_weighed():
    model, x = wide_network(""), images(6, 3, (8, 8), dtype=torch.float32)

    def saved(mode):
        def build():
            with mode:
                return grad(model(x).square().sum(), list(model.parameters()), create_graph=True)

        return saved_bytes(build, [x, *model.parameters()])

    per_pixel = 4 * 36 / 16
    wide = (64 + 96) + (96 + 96)  # channels of the inputs, and of the gradients, of two convolutions of 8 x 8 pixels
    small = 4 * 9 * (96 + 100)  # of 2 x 2 pixels
    lifted = saved(FastDoubleBackward(many_products=True)) - saved(FastDoubleBackward())
    assert lifted == 6 * (64 * per_pixel * wide + small)


def test_kept_graphs_leave_room_for_lifted_weights():
    model, x = wide_network(""), tensor(6, 3, 9, 9, dtype=torch.float32)
    data = [(x[k : k + 2], torch.arange(2)) for k in (0, 2, 4)]
    matrix = sm.Hessian(sm.Problem(model, nn.CrossEntropyLoss(), data))
    vector = tensor(matrix.shape[0], dtype=torch.float32)
    truth = matrix @ vector
    assert len(matrix._kept) == 3
    needed = matrix._kept_bytes + matrix._mode.lifts.num_bytes
    tight = sm.Hessian(sm.Problem(model, nn.CrossEntropyLoss(), data, memory=needed - 1))
    product = tight @ vector
    assert len(tight._kept) < 3
    assert_near(product, truth, 1e-5)
