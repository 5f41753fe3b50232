"""Lipschitz bounds: exact cases, dense twins, and lower ≤ upper on random networks."""

import math

import pytest
import torch
from random_networks import assert_sandwiched, double, noise, random_branching, random_network
from torch import nn
from torch.nn import functional

from spherometer.theory import (
    activations,
    everywhere,
    jacobian_variation,
    layer_constants,
    lipschitz_bounds,
    slope_certificate,
)
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


def check_branching(seed):
    model, samples, radius = random_branching(seed)
    bounds = lipschitz_bounds(model, samples, radius, num_draws=1, num_steps=1, seed=seed)
    assert_sandwiched(bounds.lower.value, bounds.upper.value, f"branching network {seed}, whole space")
    if bounds.balls is not None:
        assert_sandwiched(bounds.climbed, bounds.balls, f"branching network {seed}, balls")


@pytest.fixture
def few_steps(monkeypatch):
    """Every step of the descent is a certificate: few are as good a test as many."""
    monkeypatch.setattr(slope_certificate, "NUM_STEPS", 4)


@pytest.mark.usefixtures("few_steps")
def test_certificates_are_above_all_that_is_met():
    for seed in range(100):
        check_network(seed)


@pytest.mark.usefixtures("few_steps")
def test_certificates_of_branching_networks_are_above_all_that_is_met():
    for seed in range(100):
        check_branching(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(20))
@pytest.mark.usefixtures("few_steps")
def test_certificates_are_above_all_that_is_met_in_ten_thousand_networks(block):
    for seed in range(1000 + 500 * block, 1000 + 500 * (block + 1)):
        (check_branching if seed % 4 == 0 else check_network)(seed)


@pytest.mark.parametrize("layer", [nn.Softplus(1.0, 3.0), nn.LayerNorm(4, eps=0.0)])
def test_maps_without_a_lipschitz_constant_have_no_certificate(layer):
    with pytest.raises(ReadingError):
        lipschitz_bounds(double(nn.Sequential(nn.Linear(3, 4), layer.double(), nn.Linear(4, 2))), noise(3, 3))


def test_a_slope_that_is_reached_far_away_counts():
    bounds = lipschitz_bounds(nn.Sequential(nn.Linear(1, 1), nn.Softplus(1e-6)).double(), noise(3, 1))
    assert bounds.upper.value >= (1 - 1e-9) * float(bounds.product)
    assert activations.activation_of(nn.Softplus(1e-6)).global_slopes() == (0.0, 1.0)


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


class Written(nn.Module):
    """A forward pass written as a function of two layers and the input."""

    def __init__(self, function, first=6, second=6):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(6, first), nn.Linear(6, second), function
        self.memory = nn.LSTM(6, 6, batch_first=True)
        self.register_buffer("state", torch.zeros(6))

    def forward(self, x):
        return self.function(self, x)


def norm_of(layer):
    return float(torch.linalg.matrix_norm(layer.weight.detach(), 2))


def test_sums_count_alpha_and_broadcasting():
    model = double(Written(lambda m, x: torch.add(m.a(x), m.b(x), alpha=5)))
    bounds = lipschitz_bounds(model, noise(20, 6))
    assert bounds.product == pytest.approx(norm_of(model.a) + 5 * norm_of(model.b))
    spread = double(Written(lambda m, x: m.a(x) * 5 + m.b(x) * 0.01, first=1))
    bounds = lipschitz_bounds(spread, noise(20, 6))
    assert bounds.product == pytest.approx(5 * 6**0.5 * norm_of(spread.a) + 0.01 * norm_of(spread.b))
    joined = double(Written(lambda m, x: torch.cat([m.a(x), m.b(x)], 1)))
    assert lipschitz_bounds(joined, noise(20, 6)).product == pytest.approx(
        math.hypot(*map(norm_of, (joined.a, joined.b)))
    )


def test_the_output_counts_and_not_the_last_step():
    model = double(Written(lambda m, x: (m.a(x) * 100, m.b(x))[0]))
    assert lipschitz_bounds(model, noise(5, 6)).product == pytest.approx(100 * norm_of(model.a))


def test_a_large_offset_costs_no_digits():
    model = double(Written(lambda m, x: m.a(x) + 1e12))
    bounds = lipschitz_bounds(model, noise(5, 6))
    assert bounds.product == pytest.approx(norm_of(model.a), rel=1e-8)
    assert bounds.slopes == pytest.approx(norm_of(model.a), rel=1e-8)


@pytest.mark.parametrize(
    ("function", "module"),
    [
        (functional.relu, nn.ReLU()),
        (lambda x: functional.relu(x, inplace=True), nn.ReLU()),
        (functional.silu, nn.SiLU()),
        (functional.gelu, nn.GELU()),
        (lambda x: functional.leaky_relu(x, 2.0), nn.LeakyReLU(2.0)),
        (lambda x: functional.softplus(x, beta=3), nn.Softplus(3)),
        (lambda x: functional.softmax(x, dim=-1), nn.Softmax(1)),
        (lambda x: torch.softmax(x, 1), nn.Softmax(1)),
        (lambda x: functional.layer_norm(x, [6], eps=0.1), nn.LayerNorm(6, eps=0.1, elementwise_affine=False)),
        (lambda x: functional.linear(x, torch.eye(6).double() * 3), nn.Identity()),
    ],
)
def test_functional_forms_are_read_like_modules(function, module):
    written = double(Written(lambda m, x: function(m.a(x))))
    found = lipschitz_bounds(written, noise(5, 6)).upper.value
    scale = 3 if isinstance(module, nn.Identity) else 1
    assert found == pytest.approx(scale * lipschitz_bounds(nn.Sequential(written.a, module), noise(5, 6)).upper.value)


def hooked():
    layer = nn.Linear(6, 6)
    layer.register_forward_hook(lambda module, inputs, output: 10 * output)
    return nn.Sequential(layer)


def hooked_outside():
    model = nn.Sequential(nn.Linear(6, 6))
    model.register_forward_hook(lambda module, inputs, output: 10 * output)
    return model


def silent(module, inputs):
    if not isinstance(inputs, torch.Tensor):
        raise ValueError
    return module.a(inputs)


REFUSED = {  # name -> what the message must name
    "a product of branches": (Written(lambda m, x: m.a(x) * m.b(x)), r"mul \(mul\)"),
    "a square by name": (Written(lambda m, x: torch.mul(x, other=x)), r"mul \(mul\)"),
    "a division by a branch": (Written(lambda m, x: 1 / m.a(x)), r"truediv \(truediv\)"),
    "rounding": (Written(lambda m, x: torch.div(m.a(x), 2, rounding_mode="floor")), r"div \(div\)"),
    "chunks": (Written(lambda m, x: x.chunk(2, 1)[0] * 100 + m.a(x)[:, :3]), r"chunk \(chunk\)"),
    "maxima": (Written(lambda m, x: torch.max(x, 1, keepdim=True)[0] * 100 + m.a(x)), r"max_1 \(max\)"),
    "several outputs": (Written(lambda m, x: m.memory(x[:, None])[0] * 100 + m.a(x)[:, None]), r"memory \(LSTM\)"),
    "a number of the sample": (Written(lambda m, x: m.a(x) * x[:1].tolist()[0][0]), "has no certified upper bound"),
    "used after a change": (Written(lambda m, x: (lambda y: (y.mul_(10), y * 1)[1])(m.a(x))), "changes a in place"),
    "a change through a view": (Written(lambda m, x: (lambda y: (y[:, :2].mul_(10), y * 1)[1])(m.a(x))), "in place"),
    "a changed buffer": (Written(lambda m, x: m.a(x) + m.state.add_(1)), "other outputs"),
    "the mean of a batch": (Written(lambda m, x: m.a(x) - m.a(x).mean(0, keepdim=True)), r"mean \(mean\)"),
    "samples that meet": (Written(lambda m, x: (m.a(x) + m.b(x)[:, None]).flatten(1)), r"add \(add\)"),
    "a sample taken out": (Written(lambda m, x: m.a(x) + m.b(x)[0]), r"getitem \(getitem\)"),
    "an error without a word": (Written(silent), r"\(ValueError\); ask"),
    "chance": (Written(lambda m, x: m.a(x) * torch.rand(6)), "other outputs"),
    "dropout that is on": (Written(lambda m, x: functional.dropout(m.a(x))), r"dropout \(dropout\)"),
    "an unknown function": (Written(lambda m, x: torch.exp(m.a(x))), r"exp \(exp\)"),
    "a hook": (hooked(), r"0 \(Linear\)"),
    "a hook of the whole": (hooked_outside(), "other outputs"),
    "no input": (Written(lambda m, x: m.a(torch.ones(2, 6).double())), "does not depend on its input"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_certified_is_refused_in_one_line(name):
    model, message = REFUSED[name]
    with pytest.raises(ReadingError, match=message) as caught:
        read(double_twin(model), noise(1, 6))
    assert "certified=False" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_certificate_below_what_was_met_is_an_error_and_not_an_answer(monkeypatch):
    monkeypatch.setattr(everywhere, "product_constant", lambda steps: 1e-3)
    with pytest.raises(RuntimeError, match=r"lies below what was met.*please report it"):
        lipschitz_bounds(double(nn.Sequential(nn.Linear(6, 6))), noise(5, 6))
    with pytest.raises(RuntimeError, match="please report it"):
        jacobian_variation(double(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))), noise(5, 6), 1.0)


def test_secants_of_samples_that_nearly_agree_hold_no_rounding():
    model, points = double(Written(lambda m, x: m.a(x) + 1e3)), noise(40, 6)
    bounds = lipschitz_bounds(model, torch.cat([points, points + 1e-15]))
    assert bounds.secant <= bounds.upper.value


@pytest.mark.parametrize("inputs", [noise(4, 5), noise(4, 6, 2)], ids=["narrow", "deep"])
def test_inputs_that_the_model_does_not_take_get_one_line(inputs):
    model = nn.Sequential(nn.Linear(6, 6))
    for call in (lambda: lipschitz_bounds(model, inputs), lambda: jacobian_variation(model, inputs, 0.1)):
        with pytest.raises(ValueError, match=r"Sequential cannot be .* at inputs of shape \((5,|6, 2)\)") as caught:
            call()
        assert "\n" not in str(caught.value)


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
