"""Every architecture of the papers has exactly the printed number of parameters, and can be differentiated twice."""

import inspect
import random

import numpy as np
import pytest
import torch
from torch import nn

from spherometer.zoo import (
    ARCHITECTURES,
    Linearised,
    ModelError,
    build_model,
    model_names,
    pretrain_on_sine,
    rescale_layers,
)

# The table of the papers (PAPERS section 4), written out once more: name, options, parameters.
PAPERS = [
    ("cnn6", {}, 511926),
    ("fcn3-cifar", {}, 656810),
    ("fcn3-mnist", {}, 199210),
    ("vgg11", {}, 9750922),
    ("vgg11", {"num_classes": 100}, 9797092),
    ("vgg11", {"num_classes": 2}, 9746818),
    ("vgg11-bn", {}, 9756426),
    ("vgg11-bn", {"num_classes": 100}, 9802596),
    ("resnet20-plain", {}, 268346),
    ("resnet20", {}, 269722),
    ("simple-cnn", {}, 361706),
    ("simple-cnn", {"bias": True}, 361898),
    ("wrn-28-2", {}, 1467610),
    ("wrn-28-2", {"num_classes": 100}, 1479220),
    ("wrn-28-10", {}, 36479194),
    ("wrn-28-10", {"num_classes": 100}, 36536884),
    ("wrn-34-10", {}, 46160474),
    ("preact-resnet18", {}, 11171146),
    ("resnet18", {}, 11173962),
    ("resnet18", {"num_classes": 100}, 11220132),
    ("resnet18-plain", {}, 11164362),
    ("resnet18", {"num_classes": 100, "batchnorm": False}, 11210532),
    ("softmax-regression", {}, 7850),
    ("mlp-100", {}, 79510),
    ("mlp-10-100", {}, 9960),
    ("all-cnn-c", {}, 1387108),
    ("preresnet164", {}, 1726388),
    ("wrn-28-10-bias", {}, 36546980),
    ("vgg16-bn", {}, 15253578),
    ("vgg16-bn", {"num_classes": 100}, 15299748),
    ("lenet", {}, 62006),
    ("digits-mlp", {}, 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10),
]
DIGITS_VARIANTS = [
    ("digits-linear", {}),
    ("digits-mlp", {}),
    ("digits-cnn", {}),
    ("digits-cnn", {"batchnorm": True}),
    ("digits-resnet8", {}),
    ("fcn3-mnist", {"width": 8, "depth": 4, "activation": "gelu"}),
    ("mlp4", {"width": 8, "bias": False}),
    ("mlp-10-100", {"width": 5}),
    ("cnn6", {"width": 4}),
    ("all-cnn-c", {"width": 4}),
    ("resnet20", {"width": 2}),
    ("resnet20-plain", {"width": 2, "depth": 8}),
    ("resnet18", {"width": 2}),
    ("preact-resnet18", {"width": 2}),
    ("preresnet164", {"width": 2, "depth": 11}),
    ("wrn-16-1", {"bias": True}),
]
DIGITS = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
CIFAR = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def build_shadow(name, **options):
    with torch.device("meta"):
        return build_model(name, **options)


@pytest.mark.parametrize(("name", "options", "expected"), PAPERS)
def test_parameter_counts_of_the_papers(name, options, expected):
    assert count(build_shadow(name, **options)) == expected


@pytest.mark.parametrize("name", model_names())
def test_catalogue_counts(name):
    assert count(build_shadow(name)) == ARCHITECTURES[name].num_parameters


@pytest.mark.parametrize(("classes", "expected"), [(10, 14728266), (100, 14774436)])
def test_vgg16_with_a_linear_head(classes, expected):
    from spherometer.zoo.models.vgg import vgg

    with torch.device("meta"):
        assert count(vgg(depth=16, batchnorm=True, head="linear", num_classes=classes)) == expected


@pytest.mark.parametrize("name", model_names())
def test_shapes_on_the_default_input(name):
    parameters = inspect.signature(ARCHITECTURES[name].build).parameters
    shape, classes = parameters["input_shape"].default, parameters["num_classes"].default
    model = build_shadow(name).eval()
    assert model(torch.empty(2, *shape, device="meta")).shape == (2, classes)


@pytest.mark.parametrize(("name", "options"), DIGITS_VARIANTS)
def test_small_variants_run_on_digits_and_have_a_hessian(name, options):
    model = build_model(name, input_shape=(1, 8, 8), num_classes=10, **options)
    loss = nn.functional.cross_entropy(model(DIGITS), torch.tensor([1, 2, 3]))
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    square = sum((entry**2).sum() for entry in gradient)
    product = torch.autograd.grad(square, parameters, allow_unused=True)
    assert all(torch.isfinite(entry).all() for entry in product if entry is not None)
    assert float(square.detach()) > 0


@pytest.mark.parametrize("name", ["vgg11", "vgg11-bn", "simple-cnn", "lenet"])
def test_narrow_variants_for_larger_images(name):
    options = {} if name == "lenet" else {"width": 4}
    assert build_model(name, num_classes=7, **options)(CIFAR).shape == (2, 7)


def test_no_module_is_in_place_and_none_has_dropout():
    for name in model_names():
        for module in build_shadow(name).modules():
            assert not getattr(module, "inplace", False), name
            assert not isinstance(module, nn.modules.dropout._DropoutNd), name


def test_the_seed_decides_the_weights_and_the_global_state_stays():
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.random.get_rng_state()
    one, same, other = (build_model("digits-mlp", seed=seed) for seed in (1, 1, 2))
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.random.get_rng_state(), states[2])
    assert torch.equal(one[1].weight, same[1].weight)
    assert not torch.equal(one[1].weight, other[1].weight)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("resnet21", {}, "no model called 'resnet21'; did you mean 'resnet20'"),
        ("zzzz", {}, "known: all-cnn-c"),
        ("", {}, "no model called ''"),
        ("my.models", {}, "expected package.module:function for a model of your own, got 'my.models'"),
        ("lenet", {"depth": 3}, "lenet has no option depth; it has activation, bias, input_shape, num_classes"),
        ("resnet20", {"depth": 21}, "expected a depth of 8, 14, 20"),
        ("wrn-28-2", {"depth": 27}, "expected a depth of 10, 16"),
        ("preresnet164", {"depth": 12}, "expected a depth of 11"),
        ("vgg11", {"depth": 12}, "expected a VGG depth of 11, 13, 16, 19, got 12"),
        ("vgg11", {"input_shape": (1, 8, 8)}, "images of 8x8 are too small"),
        ("lenet", {"input_shape": (64,)}, "expected images of shape .channels, height, width., got .64,."),
        ("digits-mlp", {"activation": "rellu"}, "no activation called 'rellu'; did you mean 'relu'"),
        ("digits-mlp", {"width": 0}, "expected width of at least 1, got 0"),
        ("digits-mlp", {"num_classes": 0}, "expected num_classes of at least 1, got 0"),
        ("cnn6", {"width": -1}, "expected width of at least 1"),
    ],
)
def test_wrong_requests_get_one_line(name, options, match):
    with pytest.raises(ModelError, match=match) as caught:
        build_model(name, **options)
    assert "\n" not in str(caught.value)


def test_underscores_and_capitals_are_forgiven():
    assert count(build_shadow("ResNet20")) == count(build_shadow("resnet20"))
    assert count(build_shadow("digits_mlp")) == 8970


def test_coordinate_networks_start_as_the_paper_says():
    high, low = build_model("coordinate-gaussian"), build_model("coordinate-gaussian-low")
    assert abs(high[1].weight.norm().item() - 9.24) < 0.7  # A-T1: 9.09 ± 0.34
    assert abs(low[1].weight.norm().item() - 0.56) < 0.06  # A-T1: 0.56 ± 0.02
    model = build_model("coordinate-relu", width=16)
    first, last = pretrain_on_sine(model, num_steps=1), pretrain_on_sine(model, num_steps=200, learning_rate=1e-2)
    assert last < first
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dinh_rescaling_keeps_the_function_and_moves_the_weights():
    model = build_model("fcn3-mnist", width=8, input_shape=(1, 8, 8)).double()
    scaled = rescale_layers(model, "1", "3", 10.0)
    assert torch.allclose(scaled(DIGITS.double()), model(DIGITS.double()))
    assert torch.allclose(scaled[1].weight, 10 * model[1].weight)
    assert torch.allclose(scaled[3].bias, model[3].bias)
    with pytest.raises(ModelError, match="linear or convolutional layer, got '2'"):
        rescale_layers(model, "1", "2", 10.0)
    with pytest.raises(ModelError, match="positive finite factor"):
        rescale_layers(model, "1", "3", 0.0)


def test_a_linearised_network_is_the_tangent_of_the_original():
    model = build_model("digits-mlp", width=8).double()
    tangent, inputs = Linearised(model), DIGITS.double()
    assert torch.allclose(tangent(inputs), model(inputs))
    moved = torch.func.functional_call
    weights = {name: value + 0.1 * torch.sin(value * 50) for name, value in tangent.named_parameters()}
    steps = [weights[name] - value for name, value in tangent.named_parameters()]
    half = {name: value + 0.5 * step for (name, value), step in zip(tangent.named_parameters(), steps, strict=True)}
    outputs = [moved(tangent, values, (inputs,)) for values in (dict(tangent.named_parameters()), half, weights)]
    assert torch.allclose(outputs[1] - outputs[0], outputs[2] - outputs[1])  # exactly linear
    small = 1e-6
    near = {n: v + small * s for (n, v), s in zip(model.named_parameters(), steps, strict=True)}
    slope = (moved(model, near, (inputs,)) - model(inputs)) / small
    assert torch.allclose(outputs[2] - outputs[0], slope, atol=1e-4)


def test_option_a_shortcut_subsamples_and_pads_on_both_sides():
    from spherometer.zoo.models.resnet import PadShortcut

    inputs = torch.rand(2, 4, 6, 6)
    outputs = PadShortcut(4, 8, 2)(inputs)
    assert torch.equal(outputs[:, 2:6], inputs[:, :, ::2, ::2])
    assert not outputs[:, :2].any()
    assert not outputs[:, 6:].any()


@pytest.mark.parametrize("shared", [True, False])
def test_preactivation_block_by_hand(shared):
    from spherometer.zoo.models.preactivation import Plan, PreActivationBlock

    block = PreActivationBlock(3, 5, 2, Plan((1,), 3, (5,), shared_activation=shared)).double().eval()
    inputs = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    first, second = (norm.eval() for norm in block.norms)
    one, two = block.convolutions
    activated = torch.relu(first(inputs))
    by_hand = two(torch.relu(second(one(activated)))) + block.shortcut(activated if shared else inputs)
    assert torch.allclose(block(inputs), by_hand)


def test_basic_block_by_hand():
    block = build_model("resnet18", width=2).double().eval().layer2[0]
    inputs = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    inner = torch.relu(block.bn1(block.conv1(inputs)))
    assert torch.allclose(block(inputs), torch.relu(block.bn2(block.conv2(inner)) + block.shortcut(inputs)))
