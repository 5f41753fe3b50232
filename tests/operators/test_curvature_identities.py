"""Identities of the papers (docs/numbers.md) that tie the operators to each other."""

import math

import pytest
import torch
from torch import Tensor, nn

from reference.agreement import assert_close, assert_symmetric, assert_unbiased
from reference.cases import BY_NAME, Case
from reference.twins import Twin
from spherometer import EmpiricalFisher, Fisher, GaussNewton, HalfSquaredError, Hessian, Problem

NETWORKS = [BY_NAME[name] for name in ("linear", "relu", "conv2d", "layer norm", "batch norm eval", "attention")]
every_network = pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)


def square_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T


@every_network
def test_t6_the_rest_of_the_hessian_is_the_residual_times_the_bending_of_the_logits(case: Case):
    """H − G = ⟨Σ_c ∇²z_c (p − t)_c⟩."""
    problem, twin = case.problem(), case.twin()
    rest = (Hessian(problem) - GaussNewton(problem)).dense()
    outputs = twin.outputs(twin.weights)
    residual = outputs.softmax(1) - nn.functional.one_hot(twin.targets, 3)

    def weighted_logits(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs * targets).sum() / len(targets)

    bending = Twin(case.model(), weighted_logits, twin.inputs, residual.detach()).hessian
    assert_close(rest, bending)
    assert_symmetric(rest)


@every_network
def test_t7_gauss_newton_has_the_spectrum_of_its_conjugate_kernel(case: Case):
    """nC x nC matrix with blocks n⁻¹ M_i^½ K_ij M_j^½ (A Eq 4)."""
    twin = case.twin()
    outputs = twin.outputs(twin.weights).detach()
    n, C = outputs.shape
    blocks = twin.jacobian.reshape(n, C, -1)
    roots = [square_root(torch.diag(p) - torch.outer(p, p)) for p in outputs.softmax(1)]
    rows = [[roots[i] @ blocks[i] @ blocks[j].T @ roots[j] / n for j in range(n)] for i in range(n)]
    kernel = torch.cat([torch.cat(row, 1) for row in rows])
    truth = torch.linalg.eigvalsh(kernel).sort(descending=True).values
    found = torch.linalg.eigvalsh(GaussNewton(case.problem()).dense()).sort(descending=True).values
    rank = min(len(found), len(truth), n * (C - 1))
    assert_close(found[:rank], truth[:rank])
    assert float(found[rank:].abs().max()) < 1e-12 * float(found[0])


@every_network
def test_t9_gauss_newton_norm_as_a_mean_over_samples(case: Case):
    """‖G‖ = ⟨λ*‖J‖²⟩ with 0 ≤ λ* ≤ λ̃ ≤ λ⁽¹⁾ (C Thm 5.1, Q47)."""
    twin = case.twin()
    values, vectors = torch.linalg.eigh(GaussNewton(case.problem()).dense())
    norm, top = values[-1], vectors[:, -1]
    outputs = twin.outputs(twin.weights).detach()
    terms = []
    for jacobian, p in zip(twin.jacobian.reshape(*outputs.shape, -1), outputs.softmax(1), strict=True):
        M = torch.diag(p) - torch.outer(p, p)
        v = jacobian @ top
        mean = v @ M @ v / (v @ v)
        size = torch.linalg.matrix_norm(jacobian, 2) ** 2
        star = mean * (v @ v) / size
        largest = torch.linalg.eigvalsh(M)[-1]
        assert -1e-15 <= float(star) <= float(mean) * (1 + 1e-12) <= float(largest) * (1 + 1e-9)
        terms.append((star * size, largest * size))
    exact, bound = torch.tensor(terms, dtype=torch.float64).mean(0)
    assert float(exact) == pytest.approx(float(norm), rel=1e-10)
    assert float(norm) <= float(bound)


@every_network
def test_t10_gauss_newton_of_squared_error_lies_between_norms_of_jacobians(case: Case):
    problem, twin = case.problem(HalfSquaredError()), case.twin()
    G = GaussNewton(problem)
    dense = G.dense()
    blocks = twin.jacobian.reshape(5, 3, -1)
    assert_close(dense, sum(block.T @ block for block in blocks) / 5)
    norm = float(torch.linalg.matrix_norm(dense, 2))
    mean_jacobian = float(torch.linalg.matrix_norm(blocks.mean(0), 2) ** 2)
    mean_norm = float((torch.linalg.matrix_norm(blocks, 2) ** 2).mean())
    assert mean_jacobian <= norm * (1 + 1e-12)
    assert norm <= mean_norm * (1 + 1e-12)
    assert mean_norm <= float(dense.trace()) * (1 + 1e-12)
    assert G.exact_trace() == pytest.approx(float(twin.jacobian.square().sum() / 5), rel=1e-10)  # S of paper B


def test_t13_traces_differ_in_proportion_to_the_residual():
    """Tanh: |Tr H − Tr G| shrinks linearly as the targets move onto the outputs."""
    model, (inputs, targets) = BY_NAME["linear"].model(), BY_NAME["linear"].data()
    outputs = model(inputs).detach()
    far = nn.functional.one_hot(targets, 3).double() - outputs
    differences, bounds = [], []
    for size in (1.0, 0.1, 0.01, 0.0):
        data = (inputs, outputs + size * far)
        problem = Problem(model, HalfSquaredError(), data)
        differences.append(Hessian(problem).dense().trace() - GaussNewton(problem).dense().trace())
        twin = Twin(model, HalfSquaredError(), *data)
        bounds.append(_bending_bound(twin, -size * far))
    slopes = torch.stack(differences[:3]) / torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)
    assert abs(float(slopes[0])) > 1e-3
    assert_close(slopes, slopes[:1].expand(3), 1e-8)
    assert abs(float(differences[3])) < 1e-13
    assert all(abs(float(d)) <= float(b) * (1 + 1e-10) + 1e-13 for d, b in zip(differences, bounds, strict=True))


def _bending_bound(twin: Twin, residuals: Tensor) -> Tensor:
    """n⁻¹ Σ_i Σ_j |(f_i − y_i)' ∂²_j f_i|."""
    total = torch.zeros((), dtype=torch.float64)
    for i, residual in enumerate(residuals):

        def weighted(outputs: Tensor, targets: Tensor, residual: Tensor = residual) -> Tensor:
            return (outputs * residual).sum() + 0 * targets.sum()

        alone = Twin(twin.model, weighted, twin.inputs[i : i + 1], twin.targets[i : i + 1])
        total = total + alone.hessian.diagonal().abs().sum()
    return total / len(residuals)


@every_network
def test_t14_moments_of_the_spectrum(case: Case):
    H, G = Hessian(case.problem()).dense(), GaussNewton(case.problem()).dense()
    values = torch.linalg.eigvalsh(H)
    assert float(values.sum()) == pytest.approx(float(H.trace()))
    assert float(values.square().sum()) == pytest.approx(float(H.square().sum()))
    assert float(values[-1]) <= float(H.norm())
    top = float(torch.linalg.eigvalsh(G)[-1])
    assert top <= float(G.trace()) <= len(G) * top


def test_t16_second_derivatives_of_log_one_plus_a_sum_of_exponentials():
    """D Eq 9: for the margins u_k = z_k − z_c of the other classes, ∂²_lm log(1 + Σ e^u) = p_l δ_lm − p_l p_m."""
    bias = nn.Linear(1, 3, bias=True).double()
    nn.init.zeros_(bias.weight)
    problem = Problem(bias, nn.CrossEntropyLoss(), (torch.ones(1, 1).double(), torch.tensor([2])), parameters="bias")
    margins = bias.bias.detach() - bias.bias.detach()[2]
    total = 1 + margins[:2].exp().sum()
    truth = torch.diag(margins[:2].exp() / total) - torch.outer(margins[:2].exp(), margins[:2].exp()) / total**2
    assert_close(Hessian(problem).dense()[:2, :2], truth, 1e-14)


class Product(nn.Module):
    """The toy of paper D: z = w₁ w₂ w₃ X."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.weights.prod() * inputs).exp()


def toy(weights: list[float], X: float) -> Problem:
    data = (torch.tensor([[X]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    return Problem(Product(weights), lambda outputs, targets: (outputs - targets).mean(), data)


@pytest.mark.parametrize("weights", [[1.0, -1.0, 1.0], [2.0, -2.0, 2.0], [0.3, 0.7, -1.1]])
def test_t17_the_toy_network(weights):
    """L = e^{w₁w₂w₃X}: H = L (X² vv' + X E), Tr H = X² L ‖v‖²."""
    X = 0.7
    a, b, c = weights
    L = math.exp(a * b * c * X)
    v = torch.tensor([b * c, a * c, a * b], dtype=torch.float64)
    E = torch.tensor([[0, c, b], [c, 0, a], [b, a, 0]], dtype=torch.float64)
    H = Hessian(toy(weights, X)).dense()
    assert_close(H, L * (X**2 * torch.outer(v, v) + X * E), 1e-13)
    assert float(H.trace()) == pytest.approx(X**2 * L * float(v @ v))


def test_t17_the_top_eigenvalue_takes_over_the_trace_only_in_the_limit():
    shares = []
    for scale in (1.0, 2.0, 3.0, 4.0):
        H = Hessian(toy([scale, -scale, scale], 0.7)).dense()
        shares.append(float(torch.linalg.eigvalsh(H)[-1] / H.trace()))
    assert shares == sorted(shares)
    assert shares[0] < 0.9
    assert shares[-1] > 0.95


def test_t17_equal_weights():
    w, X = 0.8, 0.7
    L = math.exp(w**3 * X)
    values = torch.linalg.eigvalsh(Hessian(toy([w, w, w], X)).dense())
    truth = torch.tensor([-L * X * w, -L * X * w, L * (3 * X**2 * w**4 + 2 * X * w)], dtype=torch.float64)
    assert_close(values, truth, 1e-12)


def test_t18_curvature_vanishes_at_very_low_loss():
    model, (inputs, _) = BY_NAME["relu"].model(), BY_NAME["relu"].data()
    targets = model(inputs).argmax(1)
    data, tops = (inputs, targets), []
    with torch.no_grad():
        for factor in (1.0, 100.0, 10.0):
            model[2].weight.mul_(factor)
            model[2].bias.mul_(factor)
            problem = Problem(model, nn.CrossEntropyLoss(), data)
            tops.append((problem.loss_at(), float(torch.linalg.eigvalsh(Hessian(problem).dense())[-1])))
    assert tops[-1][0] < 1e-8
    assert tops[-1][1] < 1e-3 * tops[0][1]


@pytest.mark.parametrize(
    ("loss", "samples"),
    [(nn.CrossEntropyLoss(), 1), (nn.CrossEntropyLoss(), 4), (HalfSquaredError(), 1), (nn.MSELoss(), 2)],
)
def test_fisher_of_drawn_labels_is_unbiased(loss, samples):
    case = BY_NAME["linear"]
    inputs, targets = case.data()
    data = (inputs, nn.functional.one_hot(targets, 3).double()) if isinstance(loss, nn.MSELoss) else (inputs, targets)
    problem = Problem(case.model(), loss, data)
    probe = torch.eye(problem.num_parameters, dtype=torch.float64)[:, ::13]
    truth = Fisher(problem) @ probe
    draws = torch.stack([Fisher(problem, samples=samples, seed=seed) @ probe for seed in range(64)])
    varied = draws.std(0) > 1e-12
    assert varied.any()
    assert_unbiased(draws[:, varied], truth[varied], limit=4.5)


def test_fisher_of_drawn_labels_for_positions_and_ignored_tokens():
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = BY_NAME["linear"].model()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(inputs).movedim(-1, 1)

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (4, 3), generator=generator)
    targets[0, 1] = targets[2, 0] = -100
    problem = Problem(Positions(), nn.CrossEntropyLoss(), (inputs, targets))
    probe = torch.eye(problem.num_parameters, dtype=torch.float64)[:, ::13]
    draws = torch.stack([Fisher(problem, samples=2, seed=seed) @ probe for seed in range(64)])
    truth, varied = Fisher(problem) @ probe, draws.std(0) > 1e-12
    assert_unbiased(draws[:, varied], truth[varied], limit=4.5)


def test_many_drawn_labels_come_close_and_seeds_decide():
    problem = BY_NAME["linear"].problem()
    exact, drawn = Fisher(problem).dense(), Fisher(problem, samples=1000).dense()
    assert_close(drawn, exact, 0.1)
    assert torch.equal(Fisher(problem, samples=2, seed=3).dense(), Fisher(problem, samples=2, seed=3).dense())
    assert not torch.equal(Fisher(problem, samples=2, seed=3).dense(), Fisher(problem, samples=2, seed=4).dense())


def test_t28_gradients_of_drawn_labels_measure_the_fisher_trace():
    """E‖⟨g(ŷ)⟩_B‖² = tr F / B, the left side by enumerating all labels of a small batch."""
    case = BY_NAME["linear"]
    model, (inputs, _) = case.model(), case.data(num=3)
    problem = Problem(model, nn.CrossEntropyLoss(), (inputs, torch.zeros(3, dtype=torch.long)))
    chances = model(inputs).detach().softmax(1)
    expectation = 0.0
    for labels in torch.cartesian_prod(*[torch.arange(3)] * 3):
        chance = float(chances[torch.arange(3), labels].prod())
        gradient = Problem(model, nn.CrossEntropyLoss(), (inputs, labels)).gradient_at()
        expectation += chance * float(gradient.square().sum())
    assert expectation == pytest.approx(Fisher(problem).exact_trace() / 3, rel=1e-10)


@every_network
def test_empirical_fisher_measures_the_variance_of_gradients(case: Case):
    """tr E − ‖⟨g⟩‖² = E‖g − ⟨g⟩‖²."""
    operator, gradients = EmpiricalFisher(case.problem()), case.twin().sample_gradients
    variance = float((gradients - gradients.mean(0)).square().sum(1).mean())
    assert operator.exact_trace() - float(operator.gradient().square().sum()) == pytest.approx(variance, rel=1e-9)
