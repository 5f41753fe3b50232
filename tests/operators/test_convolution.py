"""The quick convolutions and batch norms give PyTorch's values and derivatives, and nothing changes outside."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

from spherometer.operators import convolution
from spherometer.operators.double_backward import FastDoubleBackward

CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


def case(function, num_axes, *, transposed=False, groups=1, has_bias=True, dtype=torch.float64, **options):
    """A function of (x, w[, b]) and values for them."""
    generator = torch.Generator().manual_seed(0)
    sides = [5, 6, 4][:num_axes]
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    shapes = [(2, 4, *sides), (*channels, *[3, 2, 3][:num_axes])] + ([(6,)] if has_bias else [])
    tensors = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    return lambda *given: function(*given, groups=groups, **options), tensors


def every_case():
    for num_axes, groups, has_bias in product((1, 2, 3), (1, 2), (True, False)):
        shared = {"groups": groups, "has_bias": has_bias}
        for geometry in (
            {},
            {"stride": 2, "padding": 1},
            {"stride": (2,), "dilation": 2, "padding": 2},
            {"padding": "same", "dilation": 2},
            {"padding": "same"},
            {"padding": "valid"},
        ):
            yield case(CONVOLUTIONS[num_axes], num_axes, **shared, **geometry)
        for geometry in ({}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": 3, "dilation": 2}):
            yield case(TRANSPOSED[num_axes], num_axes, transposed=True, **shared, **geometry)


def derivatives(function, tensors, *, with_input=True, vectors_dtype=None):
    """Value, gradients, and second derivatives in random directions of a nonlinear function of the output."""
    tensors = [tensor.clone().requires_grad_(k > 0 or with_input) for k, tensor in enumerate(tensors)]
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    output = function(*tensors)
    first = grad(output.sin().sum(), wanted, create_graph=True)
    generator = torch.Generator().manual_seed(1)
    vectors = [
        torch.randn(entry.shape, generator=generator, dtype=vectors_dtype or entry.dtype).to(entry) for entry in first
    ]
    return [output.detach(), *first, *grad(first, wanted, vectors)]


def inside(function):
    def run(*tensors):
        with FastDoubleBackward():
            return function(*tensors)

    return run


def assert_same(ours, theirs, tolerance=1e-11):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance * float(other.detach().abs().max() + 1))


def is_replaced(output):
    return output.grad_fn.name() in ("_ConvolutionBackward", "_BatchNormBackward", "_FixedNormBackward")


@pytest.mark.parametrize("with_input", [True, False])
def test_all_convolutions_have_torchs_derivatives(with_input):
    num_replaced = 0
    for function, tensors in every_case():
        theirs = derivatives(function, tensors, with_input=with_input)
        assert_same(derivatives(inside(function), tensors, with_input=with_input), theirs)
        num_replaced += is_replaced(inside(function)(tensors[0], tensors[1].clone().requires_grad_(), *tensors[2:]))
    # all but the 'same' paddings of even kernels without dilation, which torch pads on one side (two- and three-d)
    assert num_replaced == 3 * 4 * 9 - 2 * 4


def test_float32_agrees_to_rounding():
    function, tensors = case(torch.conv2d, 2, stride=2, padding=1, dtype=torch.float32)
    assert_same(derivatives(inside(function), tensors), derivatives(function, tensors), tolerance=1e-5)


@pytest.mark.parametrize("num_axes", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_many_channels_on_small_images(num_axes, dilation, monkeypatch):  # the gradients have another way there
    swapped = []
    way = convolution._swapped_weight_gradient
    monkeypatch.setattr(convolution, "_swapped_weight_gradient", lambda *given: swapped.append(1) or way(*given))
    torch.manual_seed(4)
    tensors = [torch.randn(3, 32, *[2] * num_axes), torch.randn(40, 32, *[3] * num_axes) / 9, torch.randn(40)]

    def function(*given):
        return CONVOLUTIONS[num_axes](*given, padding=dilation, dilation=dilation)

    truth = derivatives(function, [tensor.double() for tensor in tensors])
    ours = derivatives(inside(function), tensors, vectors_dtype=torch.float64)
    assert_same([entry.double() for entry in ours], truth, tolerance=1e-5)
    assert len(swapped) == 3  # the gradient, the second derivative in w, and the gradient again with its own g


@pytest.mark.parametrize("transposed", [False, True])
def test_numerical_derivatives(transposed):
    table = TRANSPOSED if transposed else CONVOLUTIONS
    function, tensors = case(table[1], 1, transposed=transposed, groups=2, stride=2, padding=1)
    leaves = tuple(tensor.requires_grad_() for tensor in tensors)
    assert gradcheck(inside(function), leaves)
    assert gradgradcheck(inside(function), leaves)


def third(function, leaves):
    """The gradient of a nonlinear scalar of the gradient of a nonlinear scalar's gradient: three orders deep."""
    first = grad(function(*leaves).sin().sum(), leaves, create_graph=True)
    second = grad(sum(entry.pow(3).sum() for entry in first), leaves, create_graph=True)
    return grad(sum(entry.square().sum() for entry in second), leaves)


def assert_third_matches_differences(function, leaves):
    torch.manual_seed(3)
    directions = [torch.randn_like(leaf) for leaf in leaves]

    def second_order(shift):
        moved = [(leaf + shift * v).detach().requires_grad_() for leaf, v in zip(leaves, directions, strict=True)]
        first = grad(function(*moved).sin().sum(), moved, create_graph=True)
        second = grad(sum(entry.pow(3).sum() for entry in first), moved)
        return float(sum(entry.square().sum() for entry in second))

    slope = sum(float((entry * v).sum()) for entry, v in zip(third(function, leaves), directions, strict=True))
    assert slope == pytest.approx((second_order(1e-5) - second_order(-1e-5)) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_third_derivatives_of_convolutions_match_differences(transposed):
    table = TRANSPOSED if transposed else CONVOLUTIONS
    function, tensors = case(table[1], 1, transposed=transposed, stride=2, padding=1)
    leaves = [(tensor / 3).requires_grad_() for tensor in tensors]
    assert_same(third(inside(function), leaves), third(function, leaves))
    assert_third_matches_differences(inside(function), leaves)


STATISTICS = pytest.mark.parametrize("training", [True, False], ids=["of the batch", "given"])
NORM_SHAPES = [(6, 3), (4, 3, 5), (3, 4, 3, 2), (2, 3, 2, 3, 2)]


def norm_case(shape, dtype=torch.float64, *, training=True):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(shape, generator=generator, dtype=dtype) * 2 + 1
    weight, bias = torch.randn(2, shape[1], generator=generator, dtype=dtype)
    running = (None, None) if training else torch.rand(2, shape[1], generator=generator, dtype=dtype) + 0.5
    return lambda *given: functional.batch_norm(given[0], *running, *given[1:], training=training), [x, weight, bias]


@pytest.mark.parametrize("shape", NORM_SHAPES, ids=str)
@pytest.mark.parametrize("with_input", [True, False])
@STATISTICS
def test_batch_norm_has_torchs_derivatives(shape, with_input, training):
    function, tensors = norm_case(shape, training=training)
    ours = derivatives(inside(function), tensors, with_input=with_input)
    assert_same(ours, derivatives(function, tensors, with_input=with_input), tolerance=1e-10)
    assert is_replaced(inside(function)(tensors[0], tensors[1].requires_grad_(), tensors[2]))


@STATISTICS
def test_batch_norm_numerical_derivatives(training):
    function, tensors = norm_case((3, 2, 2, 2), training=training)
    leaves = tuple(tensor.requires_grad_() for tensor in tensors)
    assert gradcheck(inside(function), leaves)
    assert gradgradcheck(inside(function), leaves)


@STATISTICS
def test_batch_norm_with_some_directions_missing(training):
    function, tensors = norm_case((4, 3, 5), training=training)
    for order in ([0], [1], [2], [0, 2], [1, 2]):
        results = []
        for way in (function, inside(function)):
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            first = grad(way(*leaves).sin().sum(), [leaves[k] for k in order], create_graph=True)
            results.append(grad([entry.sin().sum() for entry in first], leaves))
        assert_same(results[1], results[0], tolerance=1e-10)


@pytest.mark.parametrize("shape", NORM_SHAPES, ids=str)
@STATISTICS
def test_third_derivatives_of_batch_norm_match_differences(shape, training):  # torch's own do not on batch statistics
    function, tensors = norm_case(shape, training=training)
    assert_third_matches_differences(inside(function), [tensor.requires_grad_() for tensor in tensors])


@STATISTICS
def test_second_derivatives_of_batch_norm_with_and_without_a_further_graph_agree(training):
    function, tensors = norm_case((4, 3, 5), training=training)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    first = grad(inside(function)(*leaves).sin().sum(), leaves, create_graph=True)
    vectors = [torch.randn_like(leaf) for leaf in leaves]
    quick = grad(first, leaves, vectors, retain_graph=True)
    assert_same(quick, grad(first, leaves, vectors, create_graph=True))


def test_running_statistics_move_as_ever_and_momentum_is_kept():
    x = torch.randn(4, 3, 5)
    norms = [nn.BatchNorm1d(3, momentum=0.3) for _ in range(2)]
    norms[0](x)
    with FastDoubleBackward():
        assert is_replaced(norms[1](x))
    for name, buffer in norms[0].named_buffers():
        torch.testing.assert_close(norms[1].get_buffer(name), buffer)


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.Tanh(),
        nn.Conv2d(4, 4, 2, stride=2, bias=False),
        nn.Tanh(),
        nn.ConvTranspose2d(4, 2, 2),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).to(dtype)


@pytest.fixture
def problem():
    model = network()
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    model(x)
    names = [name for name, _ in model.named_parameters()]

    def outputs(*weights):
        return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x,))

    return outputs, [weight.detach().clone().requires_grad_() for weight in model.parameters()]


def hessian_product(outputs, weights, vectors):
    gradient = grad(outputs(*weights).square().mean(), weights, create_graph=True)
    return grad(gradient, weights, vectors, retain_graph=True)


def test_hessian_product_of_a_functional_network_matches_differences(problem):
    outputs, weights = problem
    vectors = [torch.randn_like(weight) for weight in weights]
    ours = hessian_product(inside(outputs), weights, vectors)
    assert_same(ours, hessian_product(outputs, weights, vectors), tolerance=1e-10)

    def gradient(shift):
        moved = [(w + shift * v).detach().requires_grad_() for w, v in zip(weights, vectors, strict=True)]
        return grad(outputs(*moved).square().mean(), moved)

    differences = [(up - down) / 2e-5 for up, down in zip(gradient(1e-5), gradient(-1e-5), strict=True)]
    assert_same(ours, differences, tolerance=1e-6)


def pushed(outputs, weights, vectors):
    """Jv as the derivative of u -> J'u."""
    values = outputs(*weights)
    direction = torch.zeros_like(values, requires_grad=True)
    pulled = grad(values, weights, direction, create_graph=True)
    return grad(pulled, direction, vectors)


def test_jacobian_product_by_two_backward_passes(problem):
    outputs, weights = problem
    vectors = [torch.randn_like(weight) for weight in weights]
    _, truth = torch.func.jvp(lambda *given: outputs(*given), tuple(weights), tuple(vectors))
    assert_same(pushed(inside(outputs), weights, vectors), [truth], tolerance=1e-10)


def test_batched_gradients(problem):
    outputs, weights = problem
    for way in (outputs, inside(outputs)):
        values = way(*weights)
        basis = torch.eye(values.numel(), dtype=values.dtype).view(-1, *values.shape)[:4]
        rows = grad(values, weights, basis, is_grads_batched=True, retain_graph=True)
        singly = [grad(values, weights, row, retain_graph=True) for row in basis]
        assert_same(rows, [torch.stack(parts) for parts in zip(*singly, strict=True)])
        mapped = torch.func.vmap(lambda row: grad(values, weights, row, retain_graph=True))(basis)  # noqa: B023
        assert_same(mapped, rows)


def test_batched_hessian_products():
    function, tensors = case(torch.conv2d, 2, stride=2, padding=1)
    results = []
    for way in (function, inside(function)):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        gradient = grad(way(*leaves).sin().sum(), leaves, create_graph=True)
        vectors = [torch.arange(3.0 * leaf.numel(), dtype=leaf.dtype).view(3, *leaf.shape).cos() for leaf in leaves]
        results.append(grad(gradient, leaves, vectors, is_grads_batched=True))
    assert_same(results[1], results[0])


def num_calls(name, work):
    with profile(activities=[ProfilerActivity.CPU]) as record:
        work()
    return sum(event.count for event in record.key_averages() if event.key == name)


def test_nothing_unwanted_is_computed():
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 3, bias=False))
    weights = list(layers.parameters())
    x = torch.randn(2, 2, 7, 7, requires_grad=True)
    with FastDoubleBackward():
        values = layers(x)
    vectors = [torch.randn_like(weight) for weight in weights]
    gradient = grad(values.square().sum(), weights, create_graph=True)
    # the first layer (its x is not asked for): x * vw and one weight gradient; the last: two of each, in one call
    assert num_calls("aten::convolution_backward", lambda: grad(gradient, weights, vectors, retain_graph=True)) == 3
    assert num_calls("aten::convolution", lambda: grad(gradient, weights, vectors, retain_graph=True)) == 3
    direction = torch.zeros_like(values, requires_grad=True)
    pulled = grad(values, weights, direction, create_graph=True)
    assert num_calls("aten::convolution_backward", lambda: grad(pulled, direction, vectors)) == 0


def test_gradients_of_captured_activations_and_by_backward():
    layers = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Conv1d(3, 3, 3)).double()
    x = torch.randn(2, 2, 7, dtype=torch.float64)
    with FastDoubleBackward():
        middle = layers[0](x)
        loss = layers[1](middle).square().sum()
    plain = layers[0](x)
    assert_same(
        grad(loss, [middle, layers[1].weight], retain_graph=True),
        grad(layers[1](plain).square().sum(), [plain, layers[1].weight]),
    )
    loss.backward()
    ours = [weight.grad for weight in layers.parameters()]
    assert_same(ours, grad(layers(x).square().sum(), list(layers.parameters())))


def test_changing_a_weight_before_the_backward_pass_is_noticed():
    layer = nn.Conv1d(2, 3, 3)
    with FastDoubleBackward():
        loss = layer(torch.randn(2, 2, 7, requires_grad=True)).sum()
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_not_covered_is_left_to_torch():
    layer = nn.Conv2d(2, 3, 2, padding="same")
    x = torch.randn(4, 2, 5, 5)
    with FastDoubleBackward():
        assert not is_replaced(layer(x))  # uneven
        layer.padding = (1, 1)
        assert is_replaced(layer(x))
        assert not is_replaced(layer(x[0]))  # no batch
        assert not is_replaced(nn.Conv2d(2, 3, 2, dtype=torch.complex64)(x.to(torch.complex64)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        with torch.no_grad():
            assert layer(x).grad_fn is None
        assert not is_replaced(nn.BatchNorm2d(2, affine=False).eval()(x.clone().requires_grad_()))
        assert not is_replaced(nn.BatchNorm1d(2).eval()(x[:1, :, 0, 0]))  # one number per channel
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            nn.BatchNorm1d(2)(x[:1, :, 0, 0])
        with pytest.raises(RuntimeError, match="same"):
            functional.conv2d(x, layer.weight, stride=2, padding="same")


def test_torch_func_works_inside(problem):
    outputs, weights = problem
    loss = lambda *given: outputs(*given).square().mean()  # noqa: E731
    with FastDoubleBackward():
        ours = torch.func.grad(loss, argnums=tuple(range(len(weights))))(*weights)
        _, slope = torch.func.jvp(loss, tuple(weights), tuple(ours))
    theirs = grad(loss(*weights), weights)
    assert_same(ours, theirs)
    assert float(slope) == pytest.approx(sum(float(entry.square().sum()) for entry in theirs))


def test_forward_mode_works_inside(problem):
    outputs, weights = problem
    vectors = [torch.randn_like(weight) for weight in weights]
    with FastDoubleBackward(), forward_ad.dual_level():
        pairs = zip(weights, vectors, strict=True)
        tangent = forward_ad.unpack_dual(outputs(*[forward_ad.make_dual(w, v) for w, v in pairs])).tangent
        assert_same([tangent], pushed(outputs, weights, vectors), tolerance=1e-10)


def test_channels_last_is_kept():
    layer = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    with FastDoubleBackward():
        output = layer(x)
    assert output.is_contiguous(memory_format=torch.channels_last)
    gradient = grad(output.square().sum(), layer.weight, create_graph=True)[0]
    assert grad(gradient, layer.weight, torch.ones_like(gradient))[0].is_contiguous(memory_format=torch.channels_last)


class Names(TorchFunctionMode):
    """Writes down what it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, arguments=(), options=None):
        self.seen.append(function)
        return function(*arguments, **(options or {}))


def test_nothing_changes_outside_and_an_inner_mode_still_sees_the_calls():
    layer, x = nn.Conv1d(2, 3, 3), torch.randn(2, 2, 7)
    functions = (torch.conv1d, functional.conv1d, functional.batch_norm)
    random_state = torch.get_rng_state()
    with FastDoubleBackward(), FastDoubleBackward(), Names() as names:
        assert is_replaced(layer(x))
    with pytest.raises(KeyError), FastDoubleBackward():
        raise KeyError
    assert torch.conv1d in names.seen
    assert not is_replaced(layer(x))
    assert functions == (torch.conv1d, functional.conv1d, functional.batch_norm)
    assert torch.equal(random_state, torch.get_rng_state())
