"""The bounds of paper B: each side by the slow way; no violation on dense networks, violations where none is proved."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from metrics.jacobian_cases import (
    dense_network,
    entries_of,
    gradients,
    input_jacobians,
    layer_jacobians,
    problem_of,
    residual_network,
    seeds,
)
from reference.naive_jacobians import singular_values
from spherometer.metrics import measure

BOUNDS = [
    "sample_bound", "sample_volume_bound", "mls_chain", "mls_bound", "nmls_bound", "volume_bound",
    "network_volume_bound", "adaptive_bound", "layer_bound", "normalised_sharpness_chain",
]  # fmt: skip
every_network = settings(max_examples=60, deadline=None)


def linear_layers(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def norm(matrix):
    return torch.linalg.matrix_norm(matrix.detach(), 2)


def entering(model, inputs):
    """What enters each dense layer of a chain."""
    found, current = {}, inputs
    for name, module in model.named_children():
        if isinstance(module, nn.Linear):
            found[name] = current.detach()
        current = module(current)
    return found


def squares(parts):
    return torch.stack([part.square().sum() for part in parts])


def tops(jacobians):
    return torch.stack([singular_values(jacobian)[0] for jacobian in jacobians])


def approximately(value):
    return pytest.approx(float(value), rel=1e-7, abs=1e-10)


class Sides:
    """Every side of every bound of a dense chain, written out."""

    def __init__(self, model, inputs):
        self.layers = linear_layers(model)
        self.norms = {name: norm(layer.weight) for name, layer in self.layers.items()}
        self.lengths = {name: x.norm(dim=1) for name, x in entering(model, inputs).items()}
        self.jacobians = {name: layer_jacobians(model, inputs, name) for name in self.layers}
        self.gradients = {name: squares(gradients(model, inputs, [f"{name}.weight"])).sqrt() for name in self.layers}
        self.sharpness = squares(gradients(model, inputs)).mean()
        self.first, self.size, self.num = next(iter(self.layers)), model(inputs).shape[1], len(inputs)

    def factors(self, name):
        return self.norms[name] / self.lengths[name]

    def volumes(self, name):
        return torch.stack([singular_values(jacobian).prod() for jacobian in self.jacobians[name]])


@pytest.mark.parametrize("seed", range(6))
def test_both_sides_of_every_bound(seed):
    model, inputs = dense_network(seed, nn.Tanh)
    problem, sides = problem_of(model, inputs), Sides(model, inputs)
    first, size, num, layers = sides.first, sides.size, sides.num, sides.layers
    mls, factor = tops(sides.jacobians[first]).mean(), sides.factors(first)
    chain = entries_of(problem, "mls_chain")
    assert chain["A"] == approximately(mls)
    assert chain["B"] == approximately((factor * sides.gradients[first]).mean())
    root = factor.square().mean().sqrt()
    assert chain["C"] == approximately(root * sides.gradients[first].square().mean().sqrt())
    assert chain["D"] == approximately(root * sides.sharpness.sqrt())
    assert entries_of(problem, "mls_bound")["right"] == approximately(chain["D"])
    nmls = entries_of(problem, "nmls_bound")
    assert nmls["left"] == approximately(sum(tops(sides.jacobians[name]).mean() for name in layers))
    total = sum(sides.factors(name).square().mean() for name in layers)
    assert nmls["right"] == approximately((total * sides.sharpness).sqrt())
    volume = entries_of(problem, "volume_bound")
    growth = (num * sides.sharpness / size) ** (size / 2)
    frobenius = squares(sides.jacobians[first]).sqrt()
    assert volume["log left"] == approximately(sides.volumes(first).mean().log())
    assert volume["log middle"] == approximately((size ** (-size / 2) * frobenius**size).mean().log())
    assert volume["log right"] == approximately((factor.pow(2 * size).sum().sqrt() / num * growth).log())
    network = entries_of(problem, "network_volume_bound")
    assert network["log left"] == approximately(sum(sides.volumes(name).mean() for name in layers).log())
    powers = sum(sides.factors(name).pow(2 * size).sum() for name in layers)
    assert network["log right"] == approximately((powers.sqrt() / num * growth).log())
    layer = entries_of(problem, "layer_bound")
    assert layer["left"] == approximately(
        sum(sides.lengths[name].pow(-2).mean().rsqrt() * tops(sides.jacobians[name]).mean() for name in layers)
    )
    assert layer["right"] == approximately(
        sum(sides.norms[name] * sides.gradients[name].square().mean().sqrt() for name in layers)
    )


@pytest.mark.parametrize("seed", range(4))
def test_both_sides_of_the_adaptive_bound_and_of_the_normalised_chain(seed):
    model, inputs = dense_network(seed, nn.Tanh)
    problem, jacobians = problem_of(model, inputs), input_jacobians(model, inputs)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    adaptive = torch.stack([(g.square() * weights.square()).sum() for g in gradients(model, inputs)]).mean()
    invariant = torch.stack([(j.square() * x.square()).sum() for j, x in zip(jacobians, inputs, strict=True)]).mean()
    found = entries_of(problem, "adaptive_bound")
    assert found["left"] == approximately(invariant / model[0].out_features)
    assert found["right"] == approximately(adaptive)
    first = model[0].weight.detach()
    curvature = torch.stack([g.square().sum(0) for g in gradients(model, inputs, ["0.weight"])]).mean(0)
    chain = entries_of(problem, "normalised_sharpness_chain")
    assert chain["lines 2 and 3"] == approximately((first.abs().flatten() * curvature.sqrt()).sum())
    columns = torch.stack([j.square().sum(0) * x.square() for j, x in zip(jacobians, inputs, strict=True)])
    assert chain["line 4"] == approximately(columns.mean(0).sqrt().sum())


@every_network
@given(seeds)
def test_no_dense_network_violates_a_bound(seed):
    """T29-T37."""
    found = measure(problem_of(*dense_network(seed)), BOUNDS)
    for name, entry in found.items():
        violations = dict(zip(entry.estimate.labels, entry.value.tolist(), strict=True))["violations"]
        assert violations == 0, f"{name}: {entry}"


@every_network
@given(seeds)
def test_no_residual_network_violates_its_bound(seed):
    """T38, sample by sample and on the mean."""
    model, inputs = residual_network(seed)
    found = entries_of(problem_of(model, inputs), "residual_bound")
    assert found["violations"] == 0
    assert found["ratio"] <= 1
    assert found["left"] == approximately(tops(input_jacobians(model, inputs)).mean())


def test_volume_bound_is_tight_for_equal_singular_values():
    """T30."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False)).double()
    model[0].weight.data = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0] * 1.7
    problem = problem_of(model, torch.randn(4, 3, dtype=torch.float64))
    assert entries_of(problem, "sample_volume_bound")["log ratio"] == pytest.approx(0, abs=1e-9)


def test_c_equals_d_when_the_first_weight_is_all_there_is():
    """T31."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    chain = entries_of(problem_of(model, torch.randn(4, 3, dtype=torch.float64)), "mls_chain")
    assert chain["C"] == approximately(chain["D"])


class Difference(nn.Module):
    """f = w x_1 − w x_2 with one weight for both places (B-e8)."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(1, 1, 1, bias=False)

    def forward(self, x):
        y = self.convolution(x)
        return y[:, :, 0] - y[:, :, 1]


@pytest.mark.parametrize("kernel", ["unrolled", "reshaped"])
def test_one_shared_weight_violates_every_bound(kernel):
    model, inputs = Difference().double(), torch.ones(3, 1, 2, dtype=torch.float64)
    problem, weight = problem_of(model, inputs), float(model.convolution.weight.detach().abs())
    found = measure(
        problem, [f"{name}:kernel={kernel}" for name in ("sample_bound", "mls_bound", "nmls_bound", "layer_bound")]
    )
    for name, entry in found.items():
        sides = dict(zip(entry.estimate.labels, entry.value.tolist(), strict=True))
        assert sides["right"] == pytest.approx(0, abs=1e-12), name
        assert sides["left"] > 0
        assert sides["violations"] == (3 if name.startswith("sample") else 1)
        assert "no theorem: 1 layers use one weight at many places (B-e8): convolution" in entry.estimate.note
    assert entries_of(problem, "mls_bound")["left"] == approximately(2**0.5 * weight)


def test_both_readings_of_a_convolution():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2)).double()
    problem = problem_of(model, torch.randn(3, 1, 4, 4, dtype=torch.float64))
    columns = model[0](torch.eye(16, dtype=torch.float64).reshape(16, 1, 4, 4)) - model[0](
        torch.zeros(1, 1, 4, 4).double()
    )
    unrolled, reshaped = norm(columns.flatten(1)), norm(model[0].weight.flatten(1))
    sides = {kernel: entries_of(problem, f"mls_bound:kernel={kernel}")["right"] for kernel in ("unrolled", "reshaped")}
    assert sides["unrolled"] / sides["reshaped"] == pytest.approx(float(unrolled / reshaped), rel=2e-4)
    with pytest.raises(ValueError, match="expected kernel to be one of 'unrolled', 'reshaped'"):
        entries_of(problem, "mls_bound:kernel=both")


class TestDegenerate:
    """B-e19."""

    def test_dead_layers_are_left_out_and_counted(self):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        model[0].weight.data.abs_()
        inputs = torch.randn(5, 3, dtype=torch.float64).abs()
        inputs[0] = -100  # nothing passes the first ReLU
        inputs[1] = 0  # nothing enters at all
        found = measure(problem_of(model, inputs), [*BOUNDS, "residual_bound"])
        for name, entry in found.items():
            sides = dict(zip(entry.estimate.labels, entry.value.tolist(), strict=True))
            assert sides["violations"] == 0, name
            assert not any(math.isnan(side) for side in sides.values()), name
        assert "pairs of sample and layer left out: nothing enters (B-e19)" in found["nmls_bound"].estimate.note
        assert "1 of 5 pairs of sample and layer left out" in found["mls_bound"].estimate.note

    def test_a_network_that_is_dead_throughout(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
        model[0].bias.data.fill_(-1e3)
        found = measure(problem_of(model, torch.randn(4, 3).double()), BOUNDS)
        for name, entry in found.items():
            sides = dict(zip(entry.estimate.labels, entry.value.tolist(), strict=True))
            assert sides["violations"] == 0, name
            assert not any(math.isnan(side) for side in sides.values()), name

    def test_unknown_weight_gradients_are_refused_with_a_way_out(self):
        model, inputs = dense_network(3)
        with pytest.raises(ValueError, match=r"choose all parameters with Problem\(..., parameters='\*'\)"):
            entries_of(
                problem_of(model, inputs, parameters="0.weight"), "nmls_bound" if len(model) > 1 else "mls_bound"
            )

    def test_a_shared_layer_counts_per_use_and_says_so(self):
        layer = nn.Linear(3, 3)
        model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(3, 2)).double()
        found = measure(problem_of(model, torch.randn(4, 3).double()), ["nmls_bound"])["nmls_bound"]
        assert "used more than once, each use counts: 0" in found.estimate.note

    def test_no_dense_first_layer_no_normalised_chain(self):
        model = nn.Sequential(nn.Conv1d(1, 1, 2), nn.Flatten()).double()
        with pytest.raises(ValueError, match="dense first layer"):
            entries_of(problem_of(model, torch.randn(2, 1, 3).double()), "normalised_sharpness_chain")


@pytest.fixture(scope="module")
def pair():
    """A ReLU network before and after rescaling its first two layers against each other."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)).double()
        inputs = torch.randn(8, 5, dtype=torch.float64)
    rescaled = copy.deepcopy(model)
    rescaled[0].weight.data *= 3
    rescaled[0].bias.data *= 3
    rescaled[2].weight.data /= 3
    return problem_of(model, inputs), problem_of(rescaled, inputs)


class TestRescaling:
    """T41, row by row: W_1, b_1 → α·, W_2 → ·/α leaves a ReLU network's function as it is."""

    INVARIANT = (
        "loss", "mls", "input_jacobian_norm", "log_volume", "participation_ratio", "input_invariant_mls",
        "normalised_mls", "adaptive_jacobian_sharpness", "relative_flatness", "matrix_normalised_sharpness",
    )  # fmt: skip
    CHANGING = (
        "hessian_trace", "sharpness", "hessian_frobenius", "jacobian_sharpness", "nmls", "network_log_volume",
    )  # fmt: skip

    @pytest.mark.parametrize("name", INVARIANT)
    def test_invariant(self, pair, name):
        before, after = (float(measure(problem, [name])[name]) for problem in pair)
        assert after == pytest.approx(before, rel=1e-8)

    @pytest.mark.parametrize("name", CHANGING)
    def test_not_invariant(self, pair, name):
        before, after = (float(measure(problem, [name])[name]) for problem in pair)
        assert abs(after / before - 1) > 1e-3  # what does not change agrees to 1e-8

    @pytest.mark.parametrize(
        ("name", "side", "invariant"),
        [
            ("mls_chain", "A", True), ("mls_chain", "B", True), ("mls_chain", "C", True), ("mls_chain", "D", False),
            ("layer_bound", "left", True), ("layer_bound", "right", True), ("adaptive_bound", "left", True),
            ("adaptive_bound", "right", True), ("volume_bound", "log right", False), ("mls_bound", "right", False),
            ("nmls_bound", "right", False), ("nmls_bound", "left", False),
            ("normalised_sharpness_chain", "line 1", True),
        ],
    )  # fmt: skip
    def test_sides_of_bounds(self, pair, name, side, invariant):
        before, after = (entries_of(problem, name)[side] for problem in pair)
        assert (after == pytest.approx(before, rel=1e-6)) == invariant


def test_skip_connections_are_named_where_the_theorem_needs_a_chain():
    model, inputs = residual_network(1)
    found = measure(problem_of(model, inputs), ["nmls_bound", "mls_bound", "residual_bound"])
    inner = len(model.inner)
    assert f"no theorem: skip connections pass {inner} layers, see residual_bound" in found["nmls_bound"].estimate.note
    assert "skip connections pass 1 layers" in found["mls_bound"].estimate.note
    assert "skip connections" not in found["residual_bound"].estimate.note
    chain = measure(problem_of(*dense_network(0)), ["nmls_bound"])["nmls_bound"]
    assert "skip connections" not in chain.estimate.note
