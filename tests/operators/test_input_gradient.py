"""The quick input gradients of convolutions are PyTorch's up to rounding, and only where they were meant to be."""

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.nn import functional

import spherometer as sm
from spherometer.operators import input_gradient
from spherometer.operators.input_gradient import QuickInputGradient
from spherometer.operators.minimal_filtering import Tiling
from spherometer.operators.sensitivity import sensitivity

WIDE = 256


def images(num=64, channels=WIDE, height=4, width=4, dtype=torch.float32, layout=torch.channels_last):
    values = torch.randn(num, channels, height, width, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return values.contiguous(memory_format=layout).requires_grad_()


def weights(outputs=WIDE, inputs=WIDE, size=3, dtype=torch.float32):
    return torch.randn(outputs, inputs, size, size, generator=torch.Generator().manual_seed(1), dtype=dtype) / 48


def is_quick(x, w, **options):
    with QuickInputGradient():
        output = functional.conv2d(x, w, **{"padding": 1} | options)
    return output.grad_fn.name() == "_ConvolutionBackward"


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("num", "size", "outputs"),
    [
        (64, (4, 4), 256),
        (16, (8, 8), 300),
        (64, (3, 3), 256),
        (20, (7, 7), 256),
        (8, (14, 11), 256),
        (5, (2, 2), 300),
    ],
)
def test_values_and_gradients_are_those_of_torch(num, size, outputs, has_bias):
    x, w = images(num, WIDE, *size), weights(outputs)
    b = torch.linspace(-1, 1, outputs) if has_bias else None
    assert is_quick(x, w)
    assert is_quick(x, w, padding="same")
    with QuickInputGradient():
        output = functional.conv2d(x, w, b, padding=1)
    assert torch.equal(output, functional.conv2d(x, w, b, padding=1))
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    (found,) = grad(output, x, cotangent)
    truth = functional.conv_transpose2d(cotangent.double(), w.double(), padding=1)
    assert float((found - truth).norm() / truth.norm()) < 5e-6
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        (images(channels=96), weights(inputs=96), {}),
        (images(), weights(outputs=96), {}),
        (images(dtype=torch.float64), weights(dtype=torch.float64), {}),
        (images(layout=torch.contiguous_format), weights(), {}),
        (images().detach(), weights().requires_grad_(), {}),
        (images(), weights(), {"stride": 2}),
        (images(), weights(), {"padding": 0}),
        (images(), weights(), {"padding": 2, "dilation": 2}),
        (images(channels=2 * WIDE), weights(2 * WIDE), {"groups": 2}),
        (images(), weights(size=1), {"padding": 0}),
        (images(num=63), weights(), {}),
        (images(height=5, width=5), weights(), {}),
        (images(height=1, width=1), weights(), {}),
        (images(height=1, width=2), weights(), {}),
        (images(height=2, width=1), weights(), {}),
    ],
)
def test_everything_else_is_left_to_torch(x, w, options):
    assert not is_quick(x, w, **options)


@pytest.mark.parametrize("size", [(4, 4), (2, 2)])
def test_second_derivatives_in_the_input_are_those_of_torch(size):
    x, w = images(64, WIDE, *size), weights()

    def second():
        (slope,) = grad(functional.conv2d(x, w, padding=1).sin().sum(), x, create_graph=True)
        return grad(slope.square().sum(), x)[0]

    with QuickInputGradient():
        found = second()
    truth = second()
    assert float((found - truth).norm() / truth.norm()) < 2e-5


@pytest.mark.parametrize("window", [(2,), (3, 2, 1), (2, 1), (2, 2, 0, 1, True)])
@pytest.mark.parametrize("also_used", [True, False])
def test_a_pooled_relu_is_that_of_torch(window, also_used):
    x = images(3, 5, 9, 8, dtype=torch.float64)

    def pooled():
        activated = functional.relu(x)
        pool = functional.max_pool2d(activated, *window)
        return pool, pool.square().sum() + (activated.sin().sum() if also_used else 0.0)

    with QuickInputGradient():
        found, total = pooled()
    truth, plain = pooled()
    assert found.grad_fn.name() == "_PooledReluBackward"
    assert torch.equal(found, truth)
    slopes, truths = (grad(value, x, create_graph=True)[0] for value in (total, plain))
    torch.testing.assert_close(slopes, truths, rtol=1e-14, atol=0)
    torch.testing.assert_close(grad(slopes.sum(), x), grad(truths.sum(), x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("also_used", [True, False])
@pytest.mark.parametrize(
    ("channels", "outputs", "options"),
    [(WIDE, WIDE, {"padding": 1}), (6, 8, {"padding": 1}), (6, 9, {"stride": 2, "groups": 3})],
)
def test_a_convolution_is_skipped_where_a_relu_and_a_pooling_follow(monkeypatch, channels, outputs, options, also_used):
    """A few samples at a time; what else becomes of the convolution's output takes the plain way."""
    monkeypatch.setattr(input_gradient, "PIECE", 3 * outputs * 64)
    x = images(13, channels, 12, 12)
    w, b = weights(outputs, channels // options.get("groups", 1)), torch.linspace(-1, 1, outputs)

    def pooled(x, w, b):
        convolved = functional.conv2d(x, w, b, **options)
        pool = functional.max_pool2d(functional.relu(convolved), 2)
        return pool, pool.square().sum() + (convolved.sin().sum() if also_used else 0.0)

    mode = QuickInputGradient(skipping=True)
    with mode:
        found, total = pooled(x, w, b)
    truth, _ = pooled(x, w, b)
    assert found.grad_fn.name() == "_PooledConvolutionBackward"
    assert [node.name().removeprefix("_") for node in mode.skipped] == ["ConvolutionBackward" + "0" * (channels < WIDE)]
    assert torch.equal(found, truth)
    double = x.detach().double().requires_grad_()
    (slope,), (right,) = grad(total, x), grad(pooled(double, w.double(), b.double())[1], double)
    assert float((slope - right).norm() / right.norm()) < 5e-6
    assert slope.is_contiguous(memory_format=torch.channels_last)


def test_convolutions_without_a_differentiable_input_are_not_skipped():
    with QuickInputGradient(skipping=True):
        result = functional.conv2d(images(3, 5).detach(), weights(6, 5).requires_grad_())
        pooled = functional.max_pool2d(functional.relu(result), 2)
    assert pooled.grad_fn.name() == "_PooledReluBackward"


def test_what_is_added_to_a_convolution_in_place_keeps_its_gradient():
    x, w, b = images(3, 5, 8, 8), weights(6, 5), images(3, 6, 8, 8)

    def pooled():
        total = functional.conv2d(x, w, padding=1)
        total += b
        return functional.max_pool2d(functional.relu(total), 2)

    with QuickInputGradient(skipping=True):
        found = pooled()
    assert found.grad_fn.name() == "_PooledReluBackward"
    for slope, truth in zip(grad(found.sum(), (x, b)), grad(pooled().sum(), (x, b)), strict=True):
        torch.testing.assert_close(slope, truth)


class Fork(nn.Module):
    """The output of a convolution enters the next one, and goes past it through a relu and a max pooling."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 2, stride=2)
        self.last = nn.Linear(4 * 16, 3)

    def forward(self, images):
        entering = self.first(images)
        past = functional.max_pool2d(functional.relu(entering), 2)
        return self.last((past + self.second(entering)).flatten(1))


def test_jacobians_at_the_output_of_a_convolution_count_the_way_past_the_next_layer():
    torch.manual_seed(3)
    model, images = Fork(), torch.randn(5, 2, 8, 8)
    found = sensitivity(
        sm.Problem(model, nn.CrossEntropyLoss(), (images, torch.zeros(5, dtype=torch.long))),
        frozenset({"input", "layer_inputs"}),
    )
    entering = model.first(images)[:1].detach()

    def rest(entering):
        past = functional.max_pool2d(functional.relu(entering), 2)
        return model.last((past + model.second(entering)).flatten(1))[0]

    jacobian = torch.autograd.functional.jacobian(rest, entering).flatten(1).double()
    (layer,) = (layer for layer in found.layers if layer.name == "second")
    torch.testing.assert_close(layer.gram[0], jacobian @ jacobian.T, rtol=1e-5, atol=1e-7)


def test_other_poolings_are_left_to_torch():
    x = images(3, 5)
    with QuickInputGradient():
        kept = functional.relu(x)
        results = [
            functional.max_pool2d(functional.relu(x) + 1, 2),
            functional.max_pool2d(functional.relu(x.detach()), 2) + x.sum(),
            functional.max_pool2d(functional.relu(x.sin(), inplace=True), 2),
            functional.max_pool2d(functional.relu(x.contiguous()), 2),
            functional.max_pool2d(functional.relu(x), 2, return_indices=True)[0],
            functional.max_pool2d(kept, 2),  # not right after it
        ]
    assert all("PooledRelu" not in name for result in results for name in names_before(result))


def test_calls_by_keyword_are_understood():
    x = images(3, 5)
    with QuickInputGradient():
        found = torch.max_pool2d(input=torch.relu(input=x), kernel_size=2)
    assert torch.equal(found, functional.max_pool2d(functional.relu(x), 2))


def names_before(tensor):
    """Of all nodes of the graph that made it."""
    left, names = [tensor.grad_fn], []
    while left:
        node = left.pop()
        names.append(node.name())
        left += [before for before, _ in node.next_functions if before is not None]
    return names


def test_a_weight_is_lifted_once_for_all_passes(monkeypatch):
    x, w, lifted = images(), weights().requires_grad_(), []
    lift = Tiling.lift_weight
    monkeypatch.setattr(Tiling, "lift_weight", lambda tiling, weight: lifted.append(weight) or lift(tiling, weight))
    mode = QuickInputGradient()
    for _ in range(2):
        with mode:
            grad(functional.conv2d(x, w, padding=1).sum(), x)
    assert len(lifted) == 1


def test_jacobians_of_a_wide_network_are_those_in_double_precision():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, WIDE, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(WIDE, WIDE, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Conv2d(WIDE, WIDE, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * WIDE, 3)),
    )
    data = (torch.randn(16, 3, 16, 16), torch.randint(3, (16,)))
    single, double = (
        sensitivity(sm.Problem(model, nn.CrossEntropyLoss(), data, dtype=dtype), frozenset({"input", "layers"}))
        for dtype in (torch.float32, torch.float64)
    )
    pairs = [(single.input_gram, double.input_gram)]
    pairs += [(one.gram, other.gram) for one, other in zip(single.layers, double.layers, strict=True)]
    pairs += [(one.weight_norms, other.weight_norms) for one, other in zip(single.layers, double.layers, strict=True)]
    assert len(pairs) == 9
    for found, truth in pairs:
        assert float((found - truth).norm() / truth.norm()) < 1e-5
