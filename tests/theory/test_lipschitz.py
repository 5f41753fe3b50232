"""Lipschitz bounds: exact cases, dense twins, and lower ≤ upper on random networks."""

import math

import pytest
import torch
from random_networks import assert_sandwiched, double, noise, random_network
from torch import nn

from spherometer.theory import jacobian_variation, layer_constants, lipschitz_bounds, slope_certificate
from spherometer.theory.reading import ReadingError, double_twin, read
from spherometer.zoo import build_model


def check_network(seed):
    model, samples, radius = random_network(seed)
    bounds = lipschitz_bounds(model, samples, radius, num_draws=1, num_steps=2, seed=seed)
    assert_sandwiched(bounds.lower.value, bounds.upper.value, f"network {seed}, whole space")
    assert_sandwiched(bounds.climbed, bounds.balls, f"network {seed}, balls")
    assert_sandwiched(bounds.jacobians, bounds.climbed * (1 + 1e-12), f"network {seed}, ascent below its start")
    variation = jacobian_variation(model, samples, radius, num_draws=1, num_steps=2, seed=seed)
    assert_sandwiched(variation.lower, variation.upper, f"network {seed}, variation")
    if variation.smooth is not None:
        assert_sandwiched(variation.upper, variation.smooth, f"network {seed}, smooth")


@pytest.fixture
def few_steps(monkeypatch):
    """Every step of the descent is a certificate: few are as good a test as many."""
    monkeypatch.setattr(slope_certificate, "NUM_STEPS", 4)


@pytest.mark.usefixtures("few_steps")
def test_certificates_are_above_all_that_is_met():
    for seed in range(100):
        check_network(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(20))
@pytest.mark.usefixtures("few_steps")
def test_certificates_are_above_all_that_is_met_in_ten_thousand_networks(block):
    for seed in range(1000 + 500 * block, 1000 + 500 * (block + 1)):
        check_network(seed)


def test_the_sandwich_notices_a_broken_certificate():
    with pytest.raises(AssertionError, match="met"):
        assert_sandwiched(torch.tensor([1.0, 1.0 + 1e-15], dtype=torch.float64), torch.ones(2), "broken")
    with pytest.raises(AssertionError, match="nan"):
        assert_sandwiched(1.0, math.nan, "broken")


def test_a_linear_network_has_one_constant():
    model = double(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Linear(4, 3)))
    matrix = model[2].weight @ model[1].weight
    truth = float(torch.linalg.matrix_norm(matrix.detach(), 2))
    bounds = lipschitz_bounds(model, noise(5, 2, 3), 0.5)
    for value in (bounds.slopes, *bounds.jacobians.tolist(), *bounds.climbed.tolist(), *bounds.balls.tolist()):
        assert value == pytest.approx(truth, rel=1e-8)
    assert bounds.product == pytest.approx(
        math.prod(float(torch.linalg.matrix_norm(model[k].weight, 2)) for k in (1, 2))
    )


def test_secants_and_jacobians_are_those_of_all_pairs():
    model, points = double(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))), noise(7, 3)
    bounds = lipschitz_bounds(model, points)
    outputs = model(points).detach()
    slopes = [
        float((outputs[i] - outputs[j]).norm() / (points[i] - points[j]).norm()) for i in range(7) for j in range(i)
    ]
    dense = [torch.linalg.matrix_norm(torch.func.jacrev(model)(point), 2) for point in points]
    assert bounds.secant == pytest.approx(max(slopes), rel=1e-9)
    torch.testing.assert_close(bounds.jacobians, torch.stack(dense).detach())
    assert bounds.climbed is None
    assert bounds.balls is None
    assert bounds.upper_in_balls is None
    assert bounds.lower.kind == "lower"
    assert bounds.upper.kind == "certified upper"


def test_wide_outputs_take_the_columns_of_the_jacobian():
    generating = double(nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 12), nn.Unflatten(1, (3, 2, 2))))
    points = noise(4, 2)
    dense = torch.stack([torch.func.jacrev(generating)(point[None]).reshape(12, 2) for point in points]).detach()
    bounds = lipschitz_bounds(generating, points, 0.2)
    torch.testing.assert_close(bounds.jacobians, torch.linalg.matrix_norm(dense, 2))
    assert_sandwiched(bounds.climbed, bounds.balls, "generator")
    assert bounds.upper.source == "slopes of activations"


def test_ascent_finds_the_steepest_place():
    """One tanh neuron is steepest where its input is 0, and 0 lies inside the ball."""
    model = double(nn.Sequential(nn.Linear(3, 1), nn.Tanh()))
    weight, offset = model[0].weight.detach()[0], model[0].bias.detach()
    root = (-offset * weight / weight.square().sum())[None]
    truth = float(weight.norm())
    bounds = lipschitz_bounds(
        model, root + 0.3 * noise(4, 3) / noise(4, 3).norm(dim=1, keepdim=True), 0.5, num_steps=40
    )
    assert float(bounds.jacobians.max()) < 0.999 * truth
    assert bounds.climbed.tolist() == pytest.approx([truth] * 4, rel=1e-3)
    assert bounds.balls.tolist() == pytest.approx([truth] * 4, rel=1e-8)


def test_slopes_are_certified_and_below_the_product():
    """Two ReLU layers on a grid of all slopes in {0, 1}: the constant of the worst pattern is never above."""
    model = double(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    first, second, third = (model[k].weight.detach() for k in (0, 2, 4))
    patterns = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
    worst = max(
        float(torch.linalg.matrix_norm((third * one) @ (second * other) @ first, 2))
        for one in patterns
        for other in patterns
    )
    bounds = lipschitz_bounds(model, noise(2, 3))
    assert worst <= bounds.slopes < 0.9 * bounds.product
    assert bounds.slopes < 1.5 * worst


CONVOLUTIONS = [
    nn.Conv2d(4, 6, 3, padding=1),
    nn.Conv2d(4, 6, 3, stride=2, padding=1),
    nn.Conv2d(4, 6, 3, stride=3, dilation=2, padding=2),
    nn.Conv2d(4, 6, 3, groups=2, padding="same"),
    nn.Conv2d(4, 6, 3, padding=2, padding_mode="circular"),
    nn.Conv2d(4, 6, (1, 5), stride=(2, 1), padding=(0, 2), padding_mode="reflect"),
    nn.ConvTranspose2d(4, 6, 3, padding=1),
    nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, output_padding=1, groups=2),
]


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
def test_norms_of_convolutions_by_frequency_are_above_the_unrolled_ones_and_near(layer):
    layer, shape = double(layer), (4, 11, 9)
    matrix = torch.stack(
        [
            (layer(unit[None]) - layer(0 * unit[None])).detach().flatten()
            for unit in torch.eye(396).double().reshape(-1, *shape)
        ],
        1,
    )
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    (step,) = read(double_twin(layer), noise(1, *shape))
    assert step.rule.constant == pytest.approx(truth)
    found = layer_constants.convolution_norm(layer, shape)
    padded = getattr(layer, "padding_mode", "zeros") != "zeros"
    assert truth * (1 - 1e-12) <= found <= (1.6 if padded else 1.12) * truth


@pytest.mark.parametrize(
    ("layer", "constant"),
    [
        (nn.MaxPool2d(2), 1.0),
        (nn.MaxPool2d(3, stride=2), 2.0),
        (nn.MaxPool2d(3, stride=3, dilation=2), 1.0),
        (nn.AvgPool2d(2), 0.5),
        (nn.AdaptiveAvgPool2d(1), 1 / 6),
        (nn.Upsample(scale_factor=2), 2.0),
        (nn.GELU(), 1.1289041),
        (nn.Sigmoid(), 0.25),
        (nn.LeakyReLU(2.0), 2.0),
        (nn.GroupNorm(1, 2, eps=0.01), 10.0),
        (nn.Dropout(), 1.0),
    ],
    ids=str,
)
def test_constants_of_single_layers(monkeypatch, layer, constant):
    points = noise(30, 2, 6, 6)
    for dense in (layer_constants.DENSE, 0):
        monkeypatch.setattr(layer_constants, "DENSE", dense)
        bounds = lipschitz_bounds(layer, points)
        assert bounds.product == pytest.approx(constant, rel=1e-6)
        assert_sandwiched(bounds.lower.value, bounds.product, str(layer))


def test_batch_norm_stretches_by_its_running_statistics():
    layer = nn.BatchNorm1d(2).double()
    layer.running_var.copy_(torch.tensor([0.25, 4.0]))
    layer.weight.data.copy_(torch.tensor([-3.0, 1.0]))
    assert lipschitz_bounds(layer, noise(4, 2)).product == pytest.approx(6.0, rel=1e-4)
    assert layer.training


def test_branches_add_up():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            return (x + torch.relu(self.inner(x))).flatten(1) * 2 - 1

    model = double(Residual())
    norm = float(torch.linalg.matrix_norm(model.inner.weight, 2))
    bounds = lipschitz_bounds(model, noise(20, 3), 0.5)
    assert bounds.product == pytest.approx(2 * (1 + norm))
    assert bounds.slopes is None
    assert bounds.balls is None
    assert_sandwiched(bounds.lower.value, bounds.upper.value, "residual")


@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_networks_of_the_zoo(name):
    model = build_model(name, seed=0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    bounds = lipschitz_bounds(model, noise(2, 3, 32, 32).float(), 0.1, num_draws=0, num_steps=1)
    assert_sandwiched(bounds.lower.value, bounds.upper.value, name)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(parameter.requires_grad for parameter in model.parameters())


class Squared(nn.Module):
    def forward(self, x):
        return x * x


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.TransformerEncoderLayer(3, 1)), r"1 \(TransformerEncoderLayer\)"),
        (nn.Sequential(nn.Linear(3, 3), nn.GELU("tanh")), r"1 \(GELU\)"),
        (Squared(), "mul"),
    ],
)
def test_a_module_without_a_certificate_is_named(model, named):
    with pytest.raises(ReadingError, match=named) as caught:
        lipschitz_bounds(model, noise(4, 3))
    assert "certified=False" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert lipschitz_bounds(model, noise(4, 3), 0.1, certified=False).upper is None


def test_batch_norm_without_running_statistics_is_named():
    with pytest.raises(ReadingError, match=r"0 \(BatchNorm1d\)"):
        lipschitz_bounds(nn.BatchNorm1d(3, track_running_stats=False), noise(4, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0.0}, "radius must be positive"),
        ({"radius": math.inf}, "radius must be positive"),
        ({"inputs": torch.zeros(0, 2)}, "inputs must hold at least 1"),
        ({"inputs": torch.tensor([[math.nan, 0.0]])}, "inputs must be finite"),
        ({"num_steps": -1}, "num_steps must be at least 0"),
    ],
)
def test_bad_arguments_get_one_line(options, message):
    given = {"inputs": torch.zeros(2, 2), "radius": 1.0} | options
    for function in (lipschitz_bounds, jacobian_variation):
        with pytest.raises(ValueError, match=message):
            function(nn.Linear(2, 1), **given)


def test_the_same_seed_gives_the_same_numbers_and_the_global_state_stays():
    model, points = double(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))), noise(4, 3)
    state = torch.get_rng_state()
    first, second = (lipschitz_bounds(model, points, 1.0, seed=3) for _ in range(2))
    assert torch.equal(first.climbed, second.climbed)
    assert torch.equal(torch.get_rng_state(), state)
