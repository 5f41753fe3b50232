"""Which layers the curvature sits in, held against dense twins."""

import pytest
import torch
from metric_cases import (
    LOSSES,
    NETWORKS,
    NUM_SAMPLES,
    SMOOTH,
    assert_exactly,
    assert_within,
    one,
    problem_and_twin,
)
from scipy.optimize import minimize
from torch import nn

from spherometer import HalfSquaredError, Hessian, Problem
from spherometer.metrics import Bench
from spherometer.metrics import blocks as blocks_module
from spherometer.metrics.blocks import block_traces
from spherometer.metrics.normalised_sharpness import rescaled_minimum

every_network = pytest.mark.parametrize("name", NETWORKS)
every_loss = pytest.mark.parametrize("loss", LOSSES)


def by_tensor(problem, vector):
    return torch.stack([part.sum() for part in problem.split(vector).values()])


@every_network
@every_loss
def test_layer_sharpness_is_the_squared_jacobian_by_parameter(name, loss):
    problem, twin = problem_and_twin(name, loss)
    found = one(problem, "layer_sharpness")
    assert found.labels == problem.names
    assert_exactly(found, by_tensor(problem, twin.jacobian().square().sum((0, 1))) / NUM_SAMPLES)


@every_network
@every_loss
def test_trace_shares_are_those_of_the_dense_diagonal(name, loss):
    problem, twin = problem_and_twin(name, loss)
    found = one(problem, "trace_shares")
    truth = by_tensor(problem, twin.hessian().diagonal())
    assert_within(found, truth / truth.sum())
    assert float(found.value.sum()) == pytest.approx(1)
    assert found.products == 0 or name in SMOOTH


def test_random_block_traces_have_honest_bars(monkeypatch):
    monkeypatch.setattr(blocks_module, "MAX_PROBES", 48)  # fewer than the 3 x 40 rows of the matrix: no exact way
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(120, 120, generator=generator, dtype=torch.float64)
    matrix = half @ half.T
    truth = torch.stack([part.sum() for part in matrix.diagonal().split(40)])
    scores, shares = [], []
    for seed in range(100):
        found = block_traces(
            Dense(matrix), {"a": 40, "b": 40, "c": 40}, rtol=1e-6, generator=torch.Generator().manual_seed(seed)
        )
        scores.append((found.values - truth) / found.errors)
        shares.append(float(found.values[0] / found.values.sum()))
        assert not found.status
        assert "raise rtol" in found.status.message
    scores = torch.stack(scores)
    assert float(scores.mean(0).abs().max()) < 0.4
    assert 0.75 < float(scores.std()) < 1.3


def test_shares_of_random_traces_have_honest_bars(monkeypatch):
    monkeypatch.setattr(blocks_module, "MAX_PROBES", 32)
    problem, twin = problem_and_twin("tanh")
    truth = by_tensor(problem, twin.hessian().diagonal())
    found = [one(problem, "trace_shares:rtol=0.001", seed) for seed in range(24)]
    scores = torch.stack([(entry.value - truth / truth.sum()) / entry.error for entry in found])
    assert all(entry.source == "random vectors" for entry in found)
    assert float(scores.mean(0).abs().max()) < 4 / 24**0.5
    assert 0.75 < float(scores.std()) < 1.35


class Dense:
    """A matrix with the face of an operator."""

    def __init__(self, matrix):
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, matrix.dtype, matrix.device

    def __matmul__(self, columns):
        return self.matrix @ columns

    def dense(self):
        return self.matrix


def test_block_traces_meet_their_tolerance():
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(300, 600, generator=generator, dtype=torch.float64)
    matrix = half @ half.T
    found = block_traces(Dense(matrix), {"a": 100, "b": 200}, rtol=0.02, generator=generator)
    truth = torch.stack([part.sum() for part in matrix.diagonal().split([100, 200])])
    assert found.status
    assert float(((found.values - truth).abs() / truth.sum()).max()) < 0.08


@every_network
def test_eigenvector_shares_are_those_of_the_dense_eigenvector(name):
    problem, twin = problem_and_twin(name)
    found = one(problem, "eigenvector_shares")
    top = torch.linalg.eigh(twin.hessian()).eigenvectors[:, -1]
    assert_within(found, by_tensor(problem, top.square()))
    assert float(found.value.sum()) == pytest.approx(1)
    assert found.labels == problem.names
    assert float(found.error.max()) < 0.1


def test_eigenvector_shares_of_a_double_eigenvalue_are_flagged():
    inputs = torch.eye(2, dtype=torch.float64)  # H = I/2 exactly
    problem = Problem(nn.Linear(2, 1, bias=False).double(), HalfSquaredError(), (inputs, inputs[:, :1]))
    assert "no single top direction" in one(problem, "eigenvector_shares").status.message


def test_one_parameter_has_the_whole_share():
    problem = Problem(nn.Linear(1, 1, bias=False).double(), HalfSquaredError(), (torch.ones(3, 1).double(),) * 2)
    for name in ("eigenvector_shares", "trace_shares"):
        assert one(problem, name).value.tolist() == pytest.approx([1])


@every_network
@every_loss
@pytest.mark.parametrize("norm", ["spectral", "frobenius"])
def test_matrix_normalised_sharpness_is_its_formula(name, loss, norm):
    problem, twin = problem_and_twin(name, loss)
    diagonal = problem.split(twin.hessian().diagonal())
    weights = {key: value for key, value in problem.split(twin.weights).items() if value.ndim > 1}
    truth = sum(
        float(torch.linalg.matrix_norm(weight.flatten(1), 2 if norm == "spectral" else "fro"))
        * max(0.0, float(diagonal[key].sum())) ** 0.5
        for key, weight in weights.items()
    )
    assert_within(one(problem, f"matrix_normalised_sharpness:norm={norm}"), truth)


@every_network
def test_normalised_sharpness_is_the_minimum_found_by_a_general_minimiser(name):
    problem, twin = problem_and_twin(name, "half squared error")
    diagonal = problem.split(twin.hessian().diagonal().clamp(min=0))
    truth = 0.0
    for key, weight in problem.split(twin.weights).items():
        if weight.ndim > 1:
            truth += minimised(weight.square().reshape(*weight.shape[:2], -1), diagonal[key])
    found = one(problem, "normalised_sharpness:steps=1000")
    assert found.source == "exact"
    assert (1 - 1e-4) * truth <= found.value <= (1 + 1e-9) * truth  # where units are dead it lies at infinity
    dense = problem.split(twin.hessian().diagonal())
    negative = sum(
        int((dense[key] < 0).sum()) for key, weight in problem.split(twin.weights).items() if weight.ndim > 1
    )
    assert (f"{negative} H_ij are negative" in found.note) == (negative > 0)
    halved = one(problem, "normalised_sharpness:steps=1000:scale=2.0")
    assert halved.value == pytest.approx(found.value / 2)


def tanh_network(width: int, *, scale: float, steps: int) -> Problem:
    """6-width-width-3, its weights scaled, then trained by gradient descent."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)]
        model, inputs, targets = nn.Sequential(*layers).double(), torch.randn(24, 6).double(), torch.randint(3, (24,))
    problem = Problem(model, nn.CrossEntropyLoss(), (inputs, targets))
    for weight in model.parameters():
        weight.data *= scale
    for _ in range(steps):
        gradient = problem.gradient_at().split([weight.numel() for weight in model.parameters()])
        for weight, part in zip(model.parameters(), gradient, strict=True):
            weight.data -= 0.3 * part.view_as(weight)
    return problem


def dense_minimum(problem: Problem) -> tuple[float, int]:
    """Eq 36 for the dense diagonal with negative entries as zero, by L-BFGS, and how many of these there are."""
    diagonal = problem.split(Hessian(problem).dense().diagonal())
    weights = {name: weight for name, weight in problem.split(problem.state().vector).items() if weight.ndim > 1}
    negative = sum(int((diagonal[name] < 0).sum()) for name in weights)
    return sum(
        minimised(weight.square()[..., None], diagonal[name].clamp(min=0)) for name, weight in weights.items()
    ), negative


@pytest.mark.parametrize(("scale", "steps"), [(2.0, 0), (1.0, 0), (1.0, 400)])
def test_normalised_sharpness_of_a_smooth_network_is_exact_up_to_a_thousand_weights(scale, steps):
    problem = tanh_network(10, scale=scale, steps=steps)
    truth, negative = dense_minimum(problem)
    found = one(problem, "normalised_sharpness:steps=1000")
    assert problem.num_parameters == 213
    assert (found.source, found.error) == ("exact", 0)
    assert found.value == pytest.approx(truth, rel=1e-4)
    assert ("are negative" in found.note) == (negative > 0)
    assert not negative or f"{negative} H_ij are negative" in found.note


@pytest.mark.parametrize(("scale", "steps", "reached"), [(2.0, 0, False), (1.0, 0, False), (1.0, 300, True)])
def test_normalised_sharpness_from_random_vectors_has_a_bar_for_its_scales_too(scale, steps, reached):
    problem = tanh_network(30, scale=scale, steps=steps)
    truth, _ = dense_minimum(problem)
    assert problem.num_parameters > 1000
    for seed in range(4):
        found = one(problem, "normalised_sharpness", seed)
        assert found.source == "random vectors"
        assert_within(found, truth, limit=3)
        assert bool(found.status) == reached
        assert (float(found.error) <= 0.02 * truth) == reached
        assert float(found.error) <= 0.4 * truth
        assert "random vectors" in found.note


def minimised(squares, curvature):
    """min over log a, log b of Σ_ijk [H_ijk a_i b_j + W_ijk² / (4 a_i b_j)], by L-BFGS."""
    curvature = curvature.reshape(squares.shape)
    rows, columns = squares.shape[:2]

    def cost(flat):
        point = torch.tensor(flat, requires_grad=True)
        products = (point[:rows, None] + point[None, rows:]).exp()[..., None]
        total = (curvature * products + squares / (4 * products)).sum()
        total.backward()
        return total.item(), point.grad.numpy()

    return minimize(
        cost, [0.0] * (rows + columns), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15}
    ).fun


def test_rows_that_are_dead_cost_nothing_and_pull_on_nothing():
    """A row without weight or without curvature can be scaled away, whatever it holds otherwise."""
    generator = torch.Generator().manual_seed(1)
    weight, curvature = torch.rand(2, 3, 4, generator=generator, dtype=torch.float64)
    alone, *_ = rescaled_minimum(weight[:1], curvature[:1], 200)
    weight[1:] = 0
    assert rescaled_minimum(weight, curvature, 200)[0] == pytest.approx(alone)
    weight[1], curvature[1:] = 5, 0
    assert rescaled_minimum(weight, curvature, 200)[0] == pytest.approx(alone)


def test_a_minimum_that_is_not_reached_is_flagged():
    problem, _ = problem_and_twin("relu")
    assert "raise steps" in one(problem, "normalised_sharpness:steps=2").status.message
    assert one(problem, "normalised_sharpness:steps=1000").status


def test_dead_layers_are_answers():
    """ReLU cut off by a bias of −100: no curvature before it, none in the weights after it."""
    problem, _ = problem_and_twin("relu")
    problem.model[0].bias.data.fill_(-100)
    shares = dict(zip(problem.names, one(problem, "trace_shares").value.tolist(), strict=True))
    assert shares["0.weight"] == shares["0.bias"] == shares["2.weight"] == 0
    for name in ("matrix_normalised_sharpness", "normalised_sharpness", "layer_sharpness"):
        assert torch.isfinite(torch.as_tensor(one(problem, name).value)).all()


def test_no_curvature_at_all_is_an_answer():
    problem = Problem(nn.Linear(2, 2).double(), linear_loss, (torch.randn(4, 2).double(), torch.zeros(4)))
    shares = one(problem, "trace_shares")
    assert shares.value.tolist() == [0, 0]
    assert "trace is zero" in shares.note
    assert one(problem, "normalised_sharpness").value == 0


def linear_loss(outputs, targets):
    return outputs.mean()


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ("matrix_normalised_sharpness:norm=nuclear", "norm to be one of 'spectral', 'frobenius', got 'nuclear'"),
        ("normalised_sharpness:scale=0.0", "expected scale > 0"),
        ("normalised_sharpness:steps=0", "steps as a whole number of at least 1"),
    ],
)
def test_options_are_refused_with_a_reason(request_, match):
    problem, _ = problem_and_twin("relu")
    with pytest.raises(ValueError, match=match):
        one(problem, request_)


def test_block_traces_refuse_a_wrong_tolerance():
    problem, _ = problem_and_twin("tanh")
    with pytest.raises(ValueError, match="expected 0 < rtol < 1, got 0"):
        Bench(problem).block_traces("hessian", 0)
