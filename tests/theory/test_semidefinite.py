"""The best certificate by slopes: against another solver and another form, exact cases, and random networks."""

import sys
from itertools import pairwise

import cvxpy
import numpy as np
import pytest
import torch
from random_networks import assert_sandwiched, double, noise, random_network
from torch import nn

from spherometer.cli import main
from spherometer.theory import lipschitz_bounds, semidefinite
from spherometer.theory.reading import ReadingError


def dense(*sizes, activation=nn.ReLU):
    layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), activation())]
    return double(nn.Sequential(*layers[:-1]))


def optimum(model, low, high):
    """LipSDP as printed, with the block matrix of slopes around what enters and leaves activations; interior points."""
    weights = [layer.weight.detach().numpy() for layer in model if isinstance(layer, nn.Linear)]
    hidden = sum(len(weight) for weight in weights[:-1])
    num_inputs, num_last = weights[0].shape[1], weights[-1].shape[1]
    enters, row, column = np.zeros((hidden, num_inputs + hidden)), 0, 0
    for weight in weights[:-1]:
        enters[row : row + len(weight), column : column + weight.shape[1]] = weight
        row, column = row + len(weight), column + weight.shape[1]
    leaves = np.eye(num_inputs + hidden)[num_inputs:]
    first, last = np.eye(num_inputs + hidden)[:num_inputs], weights[-1] @ np.eye(num_inputs + hidden)[-num_last:]
    square, multiplier = cvxpy.Variable(), cvxpy.Variable(hidden, nonneg=True)
    stacked = np.vstack([enters, leaves])
    diagonal = cvxpy.diag(multiplier)
    middle = cvxpy.bmat(
        [[-2 * low * high * diagonal, (low + high) * diagonal], [(low + high) * diagonal, -2 * diagonal]]
    )
    form = stacked.T @ middle @ stacked + last.T @ last - square * first.T @ first
    cvxpy.Problem(cvxpy.Minimize(square), [form << 0]).solve(solver=cvxpy.CLARABEL)
    return float(square.value) ** 0.5


@pytest.mark.parametrize("sizes", [(3, 8, 2), (4, 12, 10, 3), (2, 6, 6, 6, 1)])
@pytest.mark.parametrize(
    ("activation", "low", "high"), [(nn.ReLU, 0, 1), (nn.Sigmoid, 0, 0.25), (lambda: nn.LeakyReLU(-0.5), -0.5, 1)]
)
def test_it_is_the_optimum_of_the_printed_program(sizes, activation, low, high):
    model = dense(*sizes, activation=activation)
    truth = optimum(model, low, high)
    found = lipschitz_bounds(model, noise(5, sizes[0]), semidefinite=True)
    assert truth * (1 - 1e-6) < found.semidefinite < truth * (1 + 2e-3)
    assert found.semidefinite <= found.slopes * (1 + 1e-3)


def test_weights_of_any_size_have_the_same_certificate():
    model = dense(4, 12, 10, 3)
    plain = lipschitz_bounds(model, noise(5, 4), semidefinite=True)
    with torch.no_grad():
        model[0].weight.mul_(1e4)
        model[2].weight.mul_(1e-5)
    scaled = lipschitz_bounds(model, noise(5, 4), semidefinite=True)
    assert scaled.semidefinite == pytest.approx(plain.semidefinite / 10, rel=1e-3)


@pytest.mark.parametrize("scale", [1e3, 1e5])
def test_neurons_of_any_size_have_the_same_certificates(scale):
    plain, uneven = dense(2, 4, 3, 2), dense(2, 4, 3, 2)
    with torch.no_grad():
        uneven[0].weight[0] *= scale
        uneven[0].bias[0] *= scale
        uneven[2].weight[:, 0] /= scale
    before, after = (lipschitz_bounds(model, noise(5, 2), semidefinite=True) for model in (plain, uneven))
    assert after.slopes == pytest.approx(before.slopes, rel=1e-3)
    assert after.semidefinite == pytest.approx(before.semidefinite, rel=1e-3)


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_a_layer_of_zeros_makes_a_constant(layer):
    model = dense(2, 5, 4, 2)
    nn.init.zeros_(model[layer].weight)
    bounds = lipschitz_bounds(model, noise(5, 2), semidefinite=True)
    assert bounds.slopes == bounds.semidefinite == 0


def test_tiny_weights_do_not_vanish():
    model = dense(2, 5, 4, 2)
    whole = lipschitz_bounds(model, noise(5, 2), semidefinite=True)
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.mul_(1e-60)
            layer.bias.zero_()
    tiny = lipschitz_bounds(model, noise(5, 2), semidefinite=True)
    assert tiny.semidefinite == pytest.approx(whole.semidefinite * 1e-180, rel=1e-3)
    assert tiny.slopes == pytest.approx(whole.slopes * 1e-180, rel=1e-3)


def test_an_activation_that_is_a_line_is_a_factor():
    model = double(nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(1.0), nn.Linear(4, 3)))
    truth = float(torch.linalg.matrix_norm((model[2].weight @ model[0].weight).detach(), 2))
    bounds = lipschitz_bounds(model, noise(5, 2), semidefinite=True)
    assert bounds.slopes == pytest.approx(truth)
    assert bounds.semidefinite == pytest.approx(truth)


def test_one_hidden_neuron_and_networks_without_activations_are_exact():
    bounds = lipschitz_bounds(dense(3, 1, 1), noise(50, 3), semidefinite=True)
    assert bounds.upper.value == pytest.approx(bounds.lower.value, rel=1e-4)
    linear = double(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)))
    truth = float(torch.linalg.matrix_norm((linear[1].weight @ linear[0].weight).detach(), 2))
    assert lipschitz_bounds(linear, noise(2, 6), semidefinite=True).semidefinite == pytest.approx(truth)


def test_no_secant_is_above_it():
    for seed in range(10):
        model, samples, _ = random_network(seed)
        bounds = lipschitz_bounds(model, samples, semidefinite=True)
        assert_sandwiched(bounds.lower.value, bounds.semidefinite, f"network {seed}")


def test_any_answer_of_the_solver_is_made_a_certificate(monkeypatch):
    model = dense(4, 12, 10, 3)
    truth = optimum(model, 0, 1)
    honest = semidefinite._solved

    def careless(*arguments):
        square, multipliers = honest(*arguments)
        return square / 100, [found * (torch.rand(len(found)) > 0.2) for found in multipliers]

    monkeypatch.setattr(semidefinite, "_solved", careless)
    assert lipschitz_bounds(model, noise(5, 4), semidefinite=True).semidefinite >= truth * (1 - 1e-6)


def test_what_cannot_be_had_is_said(monkeypatch):
    with pytest.raises(ReadingError, match="at most 512 inputs and neurons, and this network 1010"):
        lipschitz_bounds(dense(10, 500, 500, 2), noise(2, 10), semidefinite=True)

    with pytest.raises(ValueError, match="leave one of them out"):
        lipschitz_bounds(dense(3, 4, 2), noise(2, 3), certified=False, semidefinite=True)

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, inputs):
            return inputs + torch.relu(self.inner(inputs))

    with pytest.raises(ReadingError, match="without branches"):
        lipschitz_bounds(Branching(), noise(2, 3), semidefinite=True)
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ImportError, match=r"pip install 'spherometer\[sdp\]'"):
        lipschitz_bounds(dense(3, 4, 2), noise(2, 3), semidefinite=True)


def test_the_command_line_shows_it(capsys):
    arguments = ["bound", "cube", "--num", "30", "--held-out", "20", "--steps", "5"]
    assert main([*arguments, "--semidefinite"]) in (0, 1)
    assert "semidefinite program" in capsys.readouterr().out
