"""Sums, scalings, shifts, preconditioners, blocks, patterns and borders to other libraries."""

import copy

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from reference.agreement import assert_close
from reference.cases import BY_NAME, random_block
from spherometer import EmpiricalFisher, Fisher, GaussNewton, Hessian, Operator, Preconditioned, Problem, eigenvalues

CASE = BY_NAME["relu"]
KINDS = [Hessian, GaussNewton, Fisher, EmpiricalFisher]


def positive_diagonal(size: int) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1


def test_sums_differences_and_scalings():
    problem = CASE.problem()
    H, G = Hessian(problem), GaussNewton(problem)
    dense_H, dense_G = CASE.twin().hessian, CASE.twin().gauss_newton
    assert_close((H + G).dense(), dense_H + dense_G)
    assert_close((H - G).dense(), dense_H - dense_G)
    assert_close((2.5 * H).dense(), 2.5 * dense_H)
    assert_close((H * 3).dense(), 3 * dense_H)
    assert_close((-H).dense(), -dense_H)
    assert_close((H / 4).dense(), dense_H / 4)
    assert_close((0.5 * (H + G).shifted(1.0) - H).dense(), 0.5 * (dense_G - dense_H + torch.eye(len(dense_H))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_difference_of_equal_matrices_is_zero_within_their_rounding(dtype):
    """What is left of H − G where the model is linear in its weights has no eigenvalues, and is not symmetric."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = nn.Linear(6, 3).to(dtype), torch.randn(40, 6, dtype=dtype)
    problem = Problem(model, nn.CrossEntropyLoss(), (inputs, torch.arange(40) % 3))
    H = Hessian(problem)
    found = eigenvalues(H - GaussNewton(problem), which="magnitude")
    size = float(eigenvalues(H).value[0])
    assert found.status
    assert abs(float(found.value[0])) <= float(found.error[0]) <= 2e2 * torch.finfo(dtype).eps * size


def test_t15_weight_decay_shifts_the_hessian():
    """H(l + γ/2 ‖w‖²) = H + γ I, the left side by a loss that has the penalty in it."""
    decay, model = 0.3, CASE.model()

    def with_penalty(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs[:, :3], targets) + outputs[:, 3].mean()

    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, inputs: Tensor) -> Tensor:
            size = sum(weight.square().sum() for weight in self.inner.parameters())
            return torch.cat([self.inner(inputs), (decay / 2 * size).expand(len(inputs), 1)], 1)

    penalised = Hessian(Problem(Penalised(), with_penalty, CASE.data()))
    assert_close(Hessian(CASE.problem()).shifted(decay).dense(), penalised.dense())


def test_traits_of_the_algebra():
    problem = CASE.problem()
    H, G, F = Hessian(problem), GaussNewton(problem), Fisher(problem)
    assert not H.positive
    assert G.positive
    assert (G + F).positive
    assert not (G + H).positive
    assert not (G - F).positive
    assert (2 * G).positive
    assert not (-G).positive
    assert G.shifted(0.1).positive
    assert not G.shifted(-0.1).positive
    assert all(operator.symmetric for operator in (H, G + H, 2 * G, -H, H.shifted(1.0)))


def test_exact_answers_of_the_algebra():
    problem = CASE.problem()
    H, G = Hessian(problem), GaussNewton(problem)
    scaled = Preconditioned(G, positive_diagonal(G.shape[0]))
    for operator in (H, G, H + G, H - G, 2.0 * H, G.shifted(0.3), scaled, -scaled + H):
        dense = operator.dense()
        assert operator.exact_trace() == pytest.approx(float(dense.trace()), abs=1e-12)
        assert_close(operator.exact_diagonal() + 1, dense.diagonal() + 1)
    bent = Hessian(BY_NAME["linear"].problem())
    for operator in (bent, bent + bent, 2 * bent, bent.shifted(1.0), Preconditioned(bent, torch.ones(bent.shape[0]))):
        assert operator.exact_trace() is None
        assert operator.exact_diagonal() is None


def test_preconditioned():
    operator, diagonal = Hessian(CASE.problem()), positive_diagonal(CASE.twin().hessian.shape[0])
    root = diagonal.rsqrt()
    scaled = Preconditioned(operator, diagonal)
    assert_close(scaled.dense(), root[:, None] * CASE.twin().hessian * root)
    values = torch.linalg.eigvals(CASE.twin().hessian / diagonal[:, None]).real.sort().values
    assert_close(torch.linalg.eigvalsh(scaled.dense()), values)  # those of D⁻¹ H, which decide stability
    assert_close(scaled.start(), root * operator.gradient())


def test_shapes_that_do_not_fit_are_refused():
    H = Hessian(CASE.problem())
    with pytest.raises(ValueError, match="operators of one shape"):
        _ = H + Hessian(BY_NAME["conv2d"].problem())
    with pytest.raises(TypeError):
        _ = H + 3
    with pytest.raises(TypeError):
        _ = H * "2"


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_blocks_and_numpy(kind):
    operator = kind(CASE.problem())
    vectors = random_block(operator.shape[1])
    block = operator @ vectors
    assert block.shape == vectors.shape
    for k in range(vectors.shape[1]):
        assert_close(operator @ vectors[:, k], block[:, k])
    array = operator @ vectors.numpy()
    assert isinstance(array, np.ndarray)
    assert_close(torch.from_numpy(array), block)
    assert_close(torch.from_numpy(operator @ vectors[:, 0].numpy()), block[:, 0])
    assert_close(operator @ vectors.float(), block, 1e-6)
    assert not (operator @ vectors.clone().requires_grad_()).requires_grad
    assert operator.dense().shape == operator.shape
    assert (operator @ vectors[:, :0]).shape == (operator.shape[0], 0)


def test_scipy_finds_the_eigenvalues():
    operator = Hessian(CASE.problem())
    found = eigsh(operator.to_scipy(), k=3, which="LA", return_eigenvectors=False, v0=np.ones(operator.shape[0]))
    truth = torch.linalg.eigvalsh(CASE.twin().hessian)[-3:]
    assert_close(torch.from_numpy(found), truth)
    assert operator.to_scipy().dtype == np.float64
    assert_close(torch.from_numpy(operator.to_scipy().T @ np.eye(operator.shape[0])), operator.dense())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*", ["0.weight", "0.bias", "2.weight", "2.bias"]),
        ("0", ["0.weight", "0.bias"]),
        ("0.*", ["0.weight", "0.bias"]),
        ("*.weight", ["0.weight", "2.weight"]),
        (["2.bias", "0.weight"], ["0.weight", "2.bias"]),
        ("?.bias", ["0.bias", "2.bias"]),
    ],
    ids=str,
)
def test_patterns_choose_blocks(kind, pattern, names):
    full = kind(CASE.problem())
    chosen = kind(CASE.problem(parameters=pattern))
    assert list(chosen.problem.names) == names
    numbers = full.problem.split(torch.arange(full.shape[0]))
    kept = torch.cat([numbers[name].reshape(-1) for name in names])
    truth = full.dense()[kept][:, kept]
    assert_close(chosen.dense(), truth)
    assert_close(full.block(pattern).dense(), truth)
    assert_close(chosen.gradient(), full.gradient()[kept])


def test_frozen_parameters_are_left_out():
    model = CASE.model()
    model[0].requires_grad_(False)
    problem = Problem(model, nn.CrossEntropyLoss(), CASE.data())
    assert list(problem.names) == ["2.weight", "2.bias"]
    kept = torch.arange(20, 38)
    assert_close(Hessian(problem).dense(), CASE.twin().hessian[kept][:, kept])
    assert not model[0].weight.requires_grad


def test_parameters_that_nothing_uses_have_zero_rows():
    model = CASE.model()
    model.register_parameter("idle", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    problem = Problem(model, nn.CrossEntropyLoss(), CASE.data())
    where = problem.names.index("idle") * 0  # `idle` is the model's own and comes first
    kept = [k for k in range(problem.num_parameters) if k not in (where, where + 1)]
    for kind in KINDS:
        dense = kind(problem).dense()
        assert dense[:2].abs().sum() == dense[:, :2].abs().sum() == 0
        assert_close(dense[kept][:, kept], kind(CASE.problem()).dense())
    assert GaussNewton(problem).exact_trace() == pytest.approx(float(CASE.twin().gauss_newton.trace()))
    with pytest.raises(ValueError, match="does not depend on the chosen parameters"):
        Problem(model, nn.CrossEntropyLoss(), CASE.data(), parameters="idle")


def test_tied_weights_are_one_parameter():
    case = BY_NAME["tied language model"]
    problem = case.problem()
    assert list(problem.names) == ["table.weight", "mixing.weight", "mixing.bias"]
    assert_close(Hessian(problem).dense(), case.twin().hessian)
    with pytest.raises(ValueError, match=r"no parameter of the model matches 'head.weight'"):
        case.problem(parameters="head.weight")


@pytest.mark.parametrize("kind", KINDS)
def test_at_other_weights(kind):
    problem = CASE.problem()
    vector = problem.state().vector + 0.1 * random_block(problem.num_parameters, 1)[:, 0]
    moved = CASE.model()
    nn.utils.vector_to_parameters(vector, moved.parameters())
    there = Problem(moved, nn.CrossEntropyLoss(), CASE.data())
    assert_close(kind(problem, at=vector).dense(), kind(there).dense())
    assert problem.loss_at(vector) == pytest.approx(there.loss_at(), rel=1e-13)
    assert_close(problem.gradient_at(vector), there.gradient_at())
    assert_close(kind(problem).dense(), kind(CASE.problem()).dense())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [4e9, 1.0], ids=["kept", "rebuilt"])
def test_training_may_go_on_beside_an_operator(kind, memory):
    """Weights, frozen weights and buffers are those of the moment the operator was made, for whatever it answers."""
    case = BY_NAME["batch norm eval relu"]
    problem = case.problem(memory=memory)
    operator, vectors = kind(problem), random_block(case.problem().num_parameters)
    truth = kind(case.problem())
    expected = {"product": truth @ vectors, "block": truth.block("5").dense(), "trace": truth.exact_trace()}
    with torch.no_grad():
        for tensor in (*problem.model.parameters(), *problem.model.buffers()):
            tensor.copy_(torch.rand_like(tensor.double()) + 1)
    assert_close(operator @ vectors, expected["product"])
    assert_close(operator.block("5").dense(), expected["block"])
    assert operator.exact_trace() == pytest.approx(expected["trace"], rel=1e-12)
    assert_close(operator.gradient(), truth.gradient())
    assert not torch.allclose(kind(problem) @ vectors, expected["product"])  # a new one follows the model


def test_dropout_is_off_or_replayed():
    def build() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3)).double()

    inputs, targets = CASE.data(num=12)
    batches = [(inputs[:6], targets[:6]), (inputs[6:], targets[6:])]
    model = build().train()
    off = Hessian(Problem(model, nn.CrossEntropyLoss(), batches))
    without = copy.deepcopy(model)
    without[1] = nn.Identity()
    assert_close(off.dense(), Hessian(Problem(without, nn.CrossEntropyLoss(), batches)).dense())
    first = Problem(model, nn.CrossEntropyLoss(), batches, dropout=1)
    again = Problem(model, nn.CrossEntropyLoss(), batches, dropout=1)
    other = Problem(model, nn.CrossEntropyLoss(), batches, dropout=2)
    matrix = Hessian(first).dense()
    assert torch.equal(matrix, Hessian(first).dense())
    assert torch.equal(matrix, Hessian(again).dense())
    assert not torch.allclose(matrix, Hessian(other).dense())
    assert not torch.allclose(matrix, off.dense())
    assert model.training


def test_an_operator_of_ones_own():
    """A subclass writes one product."""

    class Ones(Operator):
        def _apply(self, columns: Tensor) -> Tensor:
            return columns.sum(0).expand(self.shape[0], -1)

    ones = Ones((4, 4), torch.float64, torch.device("cpu"))
    assert_close(ones.shifted(2.0).dense(), torch.ones(4, 4) + 2 * torch.eye(4))
    assert ones.start() is None
    assert ones.rounding(torch.ones(4, 1)) is None
    assert ones.exact_trace() is None
