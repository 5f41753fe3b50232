"""A first layer in the coordinates of its inputs' span: the same matrix with fewer rows, and no other answers."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import spherometer as sm
from reference.agreement import assert_close
from spherometer.estimators.following import follow
from spherometer.estimators.nearby import Nearby
from spherometer.operators import span

KINDS = {"Hessian": sm.Hessian, "GaussNewton": sm.GaussNewton, "Fisher": sm.Fisher, "Empirical": sm.EmpiricalFisher}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture(autouse=True)
def small_matrices_too(monkeypatch):
    monkeypatch.setattr(span, "LEAST_SIZE", 0)


def network(seed=0, first=None):
    torch.manual_seed(seed)
    head = [nn.Flatten(), nn.Linear(60, 8)] if first is None else first
    return nn.Sequential(*head, nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


def samples(num=12, shape=(3, 4, 5), seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, *shape, generator=generator), torch.arange(num) % 3


def problem(model=None, data=None, **options):
    options = {"dtype": torch.float64} | options
    return sm.Problem(model or network(), nn.CrossEntropyLoss(), data or samples(), **options)


def whole_of(core):
    """U C U' and U."""
    lifted = core.lift(torch.eye(core.shape[0], dtype=core.dtype))
    return lifted @ core.dense() @ lifted.T, lifted


@every_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_core_is_the_matrix_in_other_coordinates(kind, dtype):
    matrix = kind(problem(dtype=dtype))
    core = matrix.core()
    assert core.shape[0] == matrix.shape[0] - 60 * 8 + 12 * 8
    again, lifted = whole_of(core)
    identity = torch.eye(core.shape[0], dtype=dtype)
    assert_close(again, matrix.dense())
    assert_close(lifted.T @ lifted, identity)
    assert_close(core.drop(lifted), identity)
    assert_close(core.lift(core.start()[:, None])[:, 0], matrix.gradient())
    assert core.positive == matrix.positive


def test_the_core_keeps_the_weights_it_was_made_at():
    model = network()
    matrix = sm.Hessian(problem(model))
    core = matrix.core()
    before = core.dense()
    with torch.no_grad():
        model[1].weight.add_(1.0)
    assert torch.equal(core.dense(), before)
    assert_close(whole_of(matrix.core())[0], matrix.dense())


def test_a_first_layer_without_bias_and_some_parameters_only():
    model = network(first=[nn.Flatten(), nn.Linear(60, 8, bias=False)])
    for chosen in ("*", "1", ["1", "5"]):
        matrix = sm.Hessian(problem(model, parameters=chosen))
        assert_close(whole_of(matrix.core())[0], matrix.dense())


def test_a_frozen_layer_in_front_and_pieces_of_data():
    model = network(first=[nn.Flatten(), nn.BatchNorm1d(60, affine=False), nn.Linear(60, 8)])
    model(samples()[0])
    matrix = sm.Hessian(problem(model))
    matrix.plan = type(matrix.plan)(matrix.plan.sample_bytes, piece_size=5)
    assert_close(whole_of(matrix.core())[0], matrix.dense())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_copies_of_samples(dtype):
    inputs, targets = samples()
    inputs = torch.cat([inputs, inputs[:5], torch.zeros(2, 3, 4, 5), inputs[:1] + inputs[1:2]])
    targets = torch.arange(len(inputs)) % 3
    matrix = sm.Hessian(problem(data=(inputs, targets), dtype=dtype))
    core = matrix.core()
    truth = torch.linalg.eigvalsh(matrix.dense().double())
    found = torch.linalg.eigvalsh(core.dense().double())
    assert_close(found[-20:], truth[-20:], 1e-10 if dtype == torch.float64 else 1e-5)
    assert_close(found[:10], truth[:10], 1e-10 if dtype == torch.float64 else 1e-5)
    top = sm.eigenvalues(matrix, rtol=1e-4, vectors=True)
    assert_close(matrix @ top.vectors[:, 0], top.value[0].to(dtype) * top.vectors[:, 0], 1e-2)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(60, 3, bias=False)

    def forward(self, inputs):
        code = self.encode(inputs.flatten(1)).tanh()
        return self.encode(functional.linear(code, self.encode.weight.T))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(60, 3)

    def forward(self, inputs):
        return self.layer(inputs.flatten(1)).tanh() + self.layer(inputs.flatten(1).sin())


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(60, 3)

    def forward(self, inputs):
        return self.layer(inputs.flatten(1)) / self.layer.weight.norm()


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(60, 3)

    def forward(self, inputs):
        return self.layer(inputs.flatten(2)).mean(1)


TRAINED_NORM = [nn.Flatten(), nn.LayerNorm(60), nn.Linear(60, 8)]
IMAGES = [nn.Conv2d(3, 3, 3, padding=1), nn.Flatten(), nn.Linear(60, 8)]
LOADER = DataLoader(TensorDataset(*samples()), batch_size=12)
REFUSED = {
    "tied weights": lambda: problem(Tied()),
    "a layer that is used twice": lambda: problem(Twice()),
    "a weight that is also divided by its norm": lambda: problem(Norm()),
    "several rows for a sample": lambda: problem(Tokens(), (torch.randn(6, 2, 60), torch.arange(6) % 3)),
    "a layer in front that is measured too": lambda: problem(network(first=TRAINED_NORM)),
    "a convolution in front": lambda: problem(network(first=IMAGES)),
    "too many samples": lambda: problem(data=samples(31)),
    "a narrow layer": lambda: problem(nn.Sequential(nn.Flatten(), nn.Linear(60, 3)), samples(16)),
    "several batches": lambda: problem(data=[samples(6), samples(6)]),
    "a loader": lambda: problem(data=LOADER),
    "dropout masks": lambda: problem(dropout=0),
    "no room for both graphs": lambda: problem(memory=1.0),
    "another part of the weights": lambda: problem(parameters="5"),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_where_there_is_no_core(make):
    matrix = sm.Hessian(make())
    assert matrix.core() is None
    assert_close(sm.eigenvalues(matrix, rtol=1e-8).value, torch.linalg.eigvalsh(matrix.dense())[-1:], 1e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_switched_off_hide_nothing(mode):
    hidden, matrix = sm.Hessian(REFUSED["a layer in front that is measured too"]()), sm.Hessian(problem())
    with mode():
        assert hidden.core() is None
        assert_close(whole_of(matrix.core())[0], matrix.dense())


def test_batches_that_see_themselves_have_no_core():
    model = network(first=[nn.Flatten(), nn.Linear(60, 8), nn.BatchNorm1d(8)])
    assert sm.Hessian(problem(model, batchnorm="train")).core() is None


def test_small_matrices_have_none(monkeypatch):
    monkeypatch.setattr(span, "LEAST_SIZE", 552)
    assert sm.Hessian(problem()).core() is None


@every_kind
@pytest.mark.parametrize("which", ["largest", "smallest", "both", "magnitude"])
def test_eigenvalues_are_those_of_the_whole(kind, which):
    matrix = kind(problem())
    truth = torch.linalg.eigvalsh(matrix.dense()).flip(0)
    if which == "magnitude":
        truth = truth[truth.abs().argsort(descending=True)]
    wanted = {"largest": truth[:3], "smallest": truth[-3:], "both": torch.cat([truth[:3], truth[-3:]])}
    found = sm.eigenvalues(matrix, num=3, which=which, rtol=1e-7, vectors=True)
    assert float((found.value - wanted.get(which, truth[:3])).abs().max()) < 1e-6 * float(truth.abs().max())
    assert found.vectors.shape == (matrix.shape[0], len(found.value))
    residuals = matrix @ found.vectors - found.vectors * found.value
    assert float(residuals.norm()) < 1e-3 * float(truth.abs().max())


class Whole:
    """A matrix that keeps its core to itself."""

    def __init__(self, matrix):
        self.shape, self.dtype, self.symmetric = matrix.shape, matrix.dtype, True
        self.start, self.rounding, self._matrix = matrix.start, matrix.rounding, matrix

    def __matmul__(self, columns):
        return self._matrix @ columns


def test_the_zeros_left_out_are_found_where_nothing_is_above_them():
    def upside_down(outputs, targets):
        return -functional.mse_loss(outputs, functional.one_hot(targets, 3).to(outputs))

    model = nn.Sequential(nn.Flatten(), nn.Linear(60, 3, bias=False))
    matrix = sm.Hessian(sm.Problem(model, upside_down, samples(), dtype=torch.float64))
    assert float(torch.linalg.eigvalsh(matrix.core().dense())[-1]) < -1e-3
    assert abs(float(sm.eigenvalues(matrix).value[0])) < 1e-10
    found, known = follow(matrix)
    assert abs(float(found.value[0])) < 1e-10
    assert len(known.vectors) == matrix.shape[0]
    assert float(sm.eigenvalues(matrix, which="smallest").value[0]) < -1e-3
    spent = sm.eigenvalues(matrix.core()).products + sm.eigenvalues(Whole(matrix)).products
    assert sm.eigenvalues(matrix).products == spent
    assert found.products == follow(matrix.core())[0].products + follow(Whole(matrix))[0].products


def test_a_start_is_given_in_weights():
    matrix = sm.Hessian(problem())
    top = sm.eigenvalues(matrix, rtol=1e-10, vectors=True)
    again = sm.eigenvalues(matrix, rtol=1e-6, start=top.vectors)
    assert_close(again.value, top.value)
    with pytest.raises(ValueError, match=r"expected start of shape \(551,\)"):
        sm.eigenvalues(matrix, start=torch.ones(matrix.core().shape[0]))


def test_density_counts_the_zeros():
    matrix = sm.Hessian(problem())
    dense = matrix.dense()
    density = sm.spectral_density(matrix, num_vectors=64, num_steps=20)
    assert density.num_rows == matrix.shape[0]
    assert_close(density.weights.sum(1), torch.ones(64, dtype=torch.float64))
    assert bool((density.nodes.diff(dim=1) >= 0).all())
    assert bool((density.weights[density.nodes == 0] > 0.6).all())
    for power in (1, 2, 3):
        moment = density.moment(power)
        truth = float(torch.linalg.matrix_power(dense, power).trace())
        assert abs(float(moment) - truth) < 4 * float(moment.error)


def test_following_through_training():
    model = network()
    task, optimizer = problem(model), torch.optim.SGD(model.parameters(), lr=0.3)
    nearby = None
    for _ in range(12):
        matrix = sm.Hessian(task)
        found, nearby = follow(matrix, nearby)
        truth = float(torch.linalg.eigvalsh(matrix.dense())[-1])
        assert abs(float(found.value[0]) - truth) <= float(found.error[0])
        assert len(nearby.vectors) == matrix.core().shape[0]
        assert found.vectors.shape == (matrix.shape[0], 1)
        optimizer.zero_grad()
        functional.cross_entropy(model(samples()[0]), samples()[1]).backward()
        optimizer.step()


def test_what_is_known_in_other_coordinates_is_not_used():
    matrix, other = sm.Hessian(problem()), sm.Hessian(problem(data=samples(seed=5)))
    known = follow(matrix)[1]
    found, after = follow(other, known)
    assert after.frame == other.core().frame != known.frame
    truth = float(torch.linalg.eigvalsh(other.dense())[-1])
    assert abs(float(found.value[0]) - truth) <= float(found.error[0])


def test_vectors_of_the_whole_are_a_start():
    matrix = sm.Hessian(problem())
    top = sm.eigenvalues(matrix, rtol=1e-6, vectors=True)
    found, after = follow(matrix, Nearby.unknown(top.vectors))
    assert abs(float(found.value[0] - top.value[0])) <= float(found.error[0])
    assert after.frame == matrix.core().frame


def test_inputs_that_change_are_seen_anew():
    norm = nn.BatchNorm1d(60, affine=False)
    model = network(first=[nn.Flatten(), norm, nn.Linear(60, 8)])
    task = problem(model)
    first = sm.Hessian(task).core()
    assert sm.Hessian(task).core().frame == first.frame
    norm.running_var.mul_(torch.linspace(0.5, 2, 60))
    matrix = sm.Hessian(task)
    assert matrix.core().frame != first.frame
    assert_close(whole_of(matrix.core())[0], matrix.dense())


def test_measuring_through_the_span_leaves_everything_as_it_was():
    model, random = network().train(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sm.measure(problem(model), ["sharpness", "top_eigenvalues", "hessian_trace"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)


def test_more_eigenvalues_than_the_core_has():
    matrix = sm.Hessian(problem(nn.Sequential(nn.Flatten(), nn.Linear(60, 3, bias=False)), samples(2)))
    assert matrix.core().shape[0] == 6
    found = sm.eigenvalues(matrix, num=8, rtol=1e-6)
    assert_close(found.value, torch.linalg.eigvalsh(matrix.dense()).flip(0)[:8], 1e-6)
