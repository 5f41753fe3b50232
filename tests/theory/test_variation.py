"""The local variation of the Jacobian: grids in one and two dimensions, identities, certificates of every part."""

import math

import pytest
import torch
from random_networks import ACTIVATIONS, assert_sandwiched, double, generator, noise
from torch import nn

from spherometer.theory import jacobian_variation, lipschitz_bounds
from spherometer.theory.activations import activation_of
from spherometer.theory.ball_certificate import SOFTMAX_BEND
from spherometer.theory.chain import ENTRIES, whole_chain
from spherometer.theory.reading import ReadingError, double_twin, read
from spherometer.theory.relaxation import neuron_ranges
from spherometer.theory.search import jacobians
from spherometer.zoo.models.parts import Gaussian


def on_a_grid(model, centre, radius, side):
    """V of one ball by all pairs of a grid: no lower bound may be above by more than the grid leaves out."""
    line = torch.linspace(-1, 1, side, dtype=torch.float64)
    cells = torch.cartesian_prod(*[line] * len(centre)).reshape(-1, len(centre))
    points = centre + radius * cells[cells.norm(dim=1) <= 1]
    found = jacobians(model, points)
    return max(float(torch.linalg.matrix_norm(found - one, 2).max()) for one in found)


@pytest.mark.parametrize(
    ("activation", "tightness"), [(nn.ReLU, 6), (nn.Tanh, 4), (nn.GELU, 6), (lambda: Gaussian(0.8), 15)]
)
@pytest.mark.parametrize(("inputs", "side"), [(1, 201), (2, 17)])
def test_both_sides_enclose_the_variation_on_a_grid(activation, tightness, inputs, side):
    model = double(
        nn.Sequential(nn.Linear(inputs, 6), activation(), nn.Linear(6, 5), activation(), nn.Linear(5, 2)), seed=2
    )
    points = noise(3, inputs, seed=3)
    found = jacobian_variation(model, points, 0.4, num_draws=8, num_steps=20)
    truth = torch.tensor([on_a_grid(model, point, 0.4, side) for point in points], dtype=torch.float64)
    assert_sandwiched(truth, found.upper, "grid")
    assert bool((found.lower >= 0.9 * truth).all()), (found.lower, truth)
    assert bool((found.upper <= tightness * truth + 1e-9).all()), (found.upper, truth)


def test_one_hidden_layer_on_a_line_is_exact():
    """f = v'φ(wx + b) with vw of one sign: V is the range of φ' over the ball, and relaxation finds it."""
    model = double(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)))
    with torch.no_grad():
        model[0].bias.zero_()
    weight, last = (model[k].weight.item() for k in (0, 2))
    point, radius = torch.tensor([[0.9]], dtype=torch.float64), 0.4
    slopes = [1 / math.cosh(weight * (0.9 + end)) ** 2 for end in (-radius, radius)]
    truth = abs(weight * last) * abs(slopes[0] - slopes[1])
    found = jacobian_variation(model, point, radius, num_steps=30)
    assert float(found.upper) == pytest.approx(truth, rel=1e-8)
    assert float(found.lower) == pytest.approx(truth, rel=1e-6)


def test_linear_networks_do_not_vary():
    model = double(nn.Sequential(nn.Linear(5, 4), nn.Identity(), nn.Linear(4, 3)))
    found = jacobian_variation(model, noise(3, 5), 10.0)
    assert float(found.lower.max()) == 0
    assert float(found.upper.max()) < 1e-10
    assert float(found.smooth.max()) < 1e-10


def test_a_ball_without_a_kink_does_not_vary():
    model = double(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)))
    points = noise(3, 4)
    near = jacobian_variation(model, points, 1e-9)
    assert float(near.upper.max()) < 1e-10
    assert near.smooth is None
    far = jacobian_variation(model, points, 3.0)
    assert float(far.lower.min()) > 0


def test_smooth_networks_vary_in_proportion_to_small_radii():
    """V / 2δ tends to the norm of the derivative of J, below Lip(J), as δ shrinks."""
    model, points = double(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))), noise(4, 3)
    wide, narrow = (jacobian_variation(model, points, radius, num_draws=20, num_steps=40) for radius in (1e-3, 1e-4))
    torch.testing.assert_close(wide.lower / 1e-3, narrow.lower / 1e-4, rtol=0.02, atol=0)
    torch.testing.assert_close(wide.upper / 1e-3, narrow.upper / 1e-4, rtol=0.02, atol=0)
    torch.testing.assert_close(wide.smooth / 1e-3, narrow.smooth / 1e-4, rtol=0.02, atol=0)


def test_theorem_of_convex_supports():
    """T46: on an interval ‖f‖_Lip ≤ max_i (‖J(x_i)‖ + V_i) when the balls cover it."""
    model = double(nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1)), seed=5)
    points = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    found = jacobian_variation(model, points, 0.25)
    line = torch.linspace(-2, 2, 2001, dtype=torch.float64)[:, None]
    steepest = lipschitz_bounds(model, line).lower.value
    assert steepest <= float((found.jacobians + found.upper).max())
    assert float((found.jacobians + found.lower).max()) <= lipschitz_bounds(model, points, 0.25).upper.value * 3


def test_two_clusters_with_a_step_between():
    """A-e6: near the clusters nothing is steep, between them the model is: only the whole space bounds the secant."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid()).double()
    with torch.no_grad():
        model[0].weight.fill_(40.0)
        model[0].bias.zero_()
    points = torch.tensor([[-0.45], [-0.44], [0.44], [0.45]]).double()
    bounds = lipschitz_bounds(model, points, 0.02)
    assert bounds.secant > 1.1
    assert bounds.upper_in_balls.value < 1e-5
    assert_sandwiched(bounds.lower.value, bounds.upper.value, "clusters")


@pytest.mark.parametrize("make", ACTIVATIONS)
def test_the_calculus_of_activations(make):
    """Values, slopes, curvatures and bands on random intervals against many points inside."""
    module = make()
    activation = activation_of(module)
    stream = generator(0)
    ends = (3 * torch.randn(2, 200, generator=stream, dtype=torch.float64)).sort(0).values
    low, high = ends[0], torch.where(torch.arange(200) % 4 == 0, ends[0] + 1e-3 * (ends[1] - ends[0]), ends[1])
    inside = low + (high - low) * torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    inside = inside.requires_grad_()
    values = module(inside)
    (slopes,) = torch.autograd.grad(values.sum(), inside, create_graph=True)
    ranges = [(values, activation.values(low, high)), (slopes, activation.slopes(low, high))]
    if activation.smooth:
        (curvatures,) = torch.autograd.grad(slopes.sum(), inside)
        steep = activation.steepness(low, high)
        assert bool((curvatures.abs() <= steep + 1e-9).all())
        assert bool((curvatures.abs().amax(0) >= 0.9 * steep - 1e-6).all())
    for met, (least, most) in ranges:
        assert bool(((met >= least - 1e-12) & (met <= most + 1e-12)).all())
        assert bool(((met.amin(0) - least) < 0.02).all())
        assert bool(((most - met.amax(0)) < 0.02).all())
    slope, offset, radius = activation.band(low, high)
    gap = (values - slope * inside - offset).abs().amax(0)
    assert bool((gap <= radius + 1e-12).all())
    assert float((gap / radius)[radius > 1e-9].mean()) > 0.5


def test_ranges_of_neurons_hold_every_sample_of_the_ball():
    model = double(
        nn.Sequential(
            nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)
        )
    )
    points, radius = noise(3, 6), 0.4
    chain = whole_chain(read(double_twin(model), points[:1]), 6)
    ranges = neuron_ranges(chain, points, radius)
    directions = noise(5000, 1, 6, seed=1)
    moved = (points + radius * directions / directions.norm(dim=2, keepdim=True)).flatten(0, 1)
    for place, (low, high) in zip((1, 3, 5), ranges, strict=True):
        entering = model[:place](moved).detach().reshape(5000, 3, -1)
        assert bool(((entering >= low) & (entering <= high)).all())
        used = (entering.amax(0) - entering.amin(0)) / (high - low)
        assert float(used.mean()) > 0.15


def test_the_bend_of_the_softmax():
    """‖M(z) − M(z')‖ ≤ 1.5 ‖z − z'‖ and ≤ ½."""
    first, shift = 3 * noise(2000, 4), noise(2000, 4, seed=1) * torch.logspace(-3, 0, 2000).double()[:, None]

    def middle(z):
        p = z.softmax(1)
        return torch.diag_embed(p) - p[:, :, None] * p[:, None]

    change = torch.linalg.matrix_norm(middle(first) - middle(first + shift), 2)
    assert bool((change <= SOFTMAX_BEND * shift.norm(dim=1)).all())
    assert float(change.max()) <= 0.5


class Written(nn.Module):
    """Standardises with buffers, calls functions, and squeezes its outputs to (n,)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 1)
        self.register_buffer("mean", torch.tensor([0.3, -1.0, 2.0]))
        self.register_buffer("std", torch.tensor([0.5, 2.0, 1.0]))

    def forward(self, x):
        return self.last(torch.tanh(self.first((x - self.mean) / self.std))).squeeze(-1)


def test_written_out_models_are_read_like_sequential_ones():
    written = double(Written())
    first = nn.Linear(3, 5)
    with torch.no_grad():
        first.double().weight.copy_(written.first.weight / written.std)
        first.bias.copy_(written.first.bias - first.weight @ written.mean)
    twin = nn.Sequential(first, nn.Tanh(), written.last)
    found = [vars(jacobian_variation(model, noise(4, 3), 0.3)).values() for model in (written, twin)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-6, atol=1e-12)


def test_what_is_no_chain_is_named():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2))
    with pytest.raises(ReadingError, match=r"2 \(MaxPool2d\).*certified=False"):
        jacobian_variation(model, noise(2, 1, 4, 4), 0.1)
    assert jacobian_variation(model, noise(2, 1, 4, 4), 0.1, certified=False).upper is None


def test_what_is_too_large_is_named():
    wide = nn.Sequential(nn.Linear(2, ENTRIES // 2 + 1), nn.ReLU(), nn.Linear(ENTRIES // 2 + 1, 1))
    with pytest.raises(ReadingError, match=r"0 \(Linear\).*smaller network"):
        jacobian_variation(wide, noise(2, 2), 0.1)
