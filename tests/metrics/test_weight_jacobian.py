import itertools

import pytest
import torch
from hypothesis import given, settings
from logit_twin import NETWORKS, LogitTwin, assert_value, measured, networks, setting
from torch import nn

from reference.agreement import assert_unbiased
from reference.cases import BY_NAME
from spherometer import GaussNewton, HalfSquaredError, Problem
from spherometer.estimators import eigenvalues
from spherometer.metrics import measure, weight_jacobian
from spherometer.metrics.bench import Bench
from spherometer.metrics.impurity_weights import impurity_weights
from spherometer.operators import MeanJacobianGram, OutputJacobian, TangentKernel
from spherometer.operators.logit_hessian import logit_hessian

ALL = [
    "logit_jacobian_norms",
    "mean_logit_jacobian_norm",
    "mean_logit_jacobian_frobenius",
    "ones_logit_jacobian",
    "projected_mean_logit_jacobian_norm",
    "projected_mean_logit_jacobian_frobenius",
    "lambda_star",
    "lambda_tilde",
    "curvature_ratio",
    "gauss_newton_trace_approximation",
    "fisher_proxy",
    "squared_gradient_norm",
    "tangent_kernel_spectrum",
]


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2)


def projector(classes):
    return torch.eye(classes, dtype=torch.float64) - 1 / classes


def problem_of(network, loss=None):
    model, inputs, targets = network
    return Problem(model, loss or nn.CrossEntropyLoss(), (inputs, targets))


def twin_of(network, loss=None):
    model, inputs, targets = network
    return LogitTwin(model, loss or nn.CrossEntropyLoss(), inputs, targets)


@pytest.mark.parametrize("name", [*NETWORKS, "batch norm train", "lstm", "tied language model"])
def test_output_jacobian_acts_both_ways(name):
    case = BY_NAME[name]
    twin = case.twin()
    dense = twin.jacobian() if callable(twin.jacobian) else twin.jacobian
    J = OutputJacobian(case.problem())
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(J.shape[1], 2, generator=generator, dtype=torch.float64)
    cotangent = torch.randn(*J.outputs.shape, 2, generator=generator, dtype=torch.float64)
    assert torch.allclose(J @ direction, dense @ direction, atol=1e-12)
    assert torch.allclose(J.pull(cotangent), dense.T @ cotangent.flatten(0, 1), atol=1e-12)
    assert torch.allclose(J.pull(J.slopes) / len(J.outputs), case.problem().gradient_at(), atol=1e-12)


def test_output_jacobian_scales_slopes_by_the_terms_of_a_batch():
    problem, _ = setting("linear")
    batches = [(inputs, targets.clone()) for inputs, targets in problem.data]
    batches[0][1][:3] = -100
    problem = Problem(problem.model, nn.CrossEntropyLoss(), batches)
    J = OutputJacobian(problem)
    assert torch.allclose(J.pull(J.slopes) / len(J.outputs), problem.gradient_at(), atol=1e-12)
    change = J @ torch.ones(J.shape[1])
    product = J.pull(J.curved(change.view_as(J.outputs))) / len(J.outputs)
    assert torch.allclose(product, GaussNewton(problem) @ torch.ones(J.shape[1]), atol=1e-12)


def test_loss_curvature_of_saturated_outputs_keeps_its_digits():
    model = nn.Linear(1, 3, dtype=torch.float64)
    model.weight.data, model.bias.data = torch.zeros(3, 1).double(), torch.tensor([50.0, 1.0, 0.0]).double()
    problem = Problem(model, nn.CrossEntropyLoss(), (torch.ones(2, 1).double(), torch.tensor([0, 1])))
    tangents = torch.tensor([[3.0, -1.0, 2.0], [1.0, 1.0, 5.0]], dtype=torch.float64)
    truth = tangents @ logit_hessian(model.bias.detach().softmax(0))
    found = OutputJacobian(problem).curved(tangents)
    assert float((found - truth).norm() / truth.norm()) < 1e-12


def test_output_jacobian_forgets_graphs_beyond_the_memory_limit():
    problem, twin = setting("conv2d")
    tight = Problem(problem.model, problem.loss, problem.data, memory=2_000)
    J = OutputJacobian(tight)
    assert J.piece_size is not None
    assert J.piece_size < 4
    vector = torch.ones(J.shape[1], dtype=torch.float64)
    assert torch.allclose(J @ vector, twin.jacobians.flatten(0, 1) @ vector, atol=1e-12)
    with pytest.raises(MemoryError, match="raise Problem"):
        J.pull(torch.ones(*J.outputs.shape, 1000))


@pytest.mark.parametrize("name", NETWORKS)
def test_norms_against_explicit_jacobians(name):
    problem, twin = setting(name)
    norms = torch.stack([norm(J) for J in twin.jacobians])
    mean, ones = twin.mean_jacobian, torch.ones(3, dtype=torch.float64) / 3**0.5
    assert_value(measured(problem, "logit_jacobian_norms"), torch.stack([norms.mean(), norms.max(), (norms**2).mean()]))
    assert_value(measured(problem, "mean_logit_jacobian_norm"), norm(mean))
    assert_value(measured(problem, "mean_logit_jacobian_frobenius"), mean.norm())
    assert_value(measured(problem, "ones_logit_jacobian"), (ones @ mean).norm())
    assert_value(measured(problem, "projected_mean_logit_jacobian_norm"), norm(projector(3) @ mean))
    assert_value(measured(problem, "projected_mean_logit_jacobian_frobenius"), (projector(3) @ mean).norm())


@pytest.mark.parametrize("name", NETWORKS)
def test_traces_and_ratio_against_explicit_matrices(name):
    problem, twin = setting(name)
    G, H = twin.gauss_newton(), twin.hessian()
    pairs = list(zip(twin.jacobians, twin.hessians, strict=True))
    product = torch.stack([M.trace() * J.square().sum() / 3 for J, M in pairs]).mean()
    truth = torch.stack([G.trace(), product, product / G.trace()])
    assert_value(measured(problem, "gauss_newton_trace_approximation"), truth)
    ratio = measured(problem, "curvature_ratio")
    truth = torch.linalg.eigvalsh(H)[-1] / norm(twin.mean_jacobian) ** 2
    assert abs(float(ratio.value) - float(truth)) <= float(ratio.error) <= 3e-3 * float(truth)
    assert_value(measured(problem, "squared_gradient_norm"), twin.gradients.mean(0).square().sum())


@pytest.mark.parametrize("name", NETWORKS)
def test_T9_lambda_star_against_explicit_eigenvectors(name):
    problem, twin = setting(name)
    values, vectors = torch.linalg.eigh(twin.gauss_newton())
    starred, tilde, tops = [], [], []
    for J, M in zip(twin.jacobians, twin.hessians, strict=True):
        v = J @ vectors[:, -1]
        tilde.append(v @ M @ v / (v @ v))
        starred.append(tilde[-1] * (v @ v) / norm(J) ** 2)
        tops.append(torch.linalg.eigvalsh(M)[-1])
    found = impurity_weights(Bench(problem), rtol=1e-9)
    assert torch.allclose(found.starred, torch.stack(starred), atol=1e-7)
    assert torch.allclose(found.tilde, torch.stack(tilde), atol=1e-7)
    assert float((found.starred * found.norms).mean()) == pytest.approx(float(values[-1]), rel=1e-8)
    assert bool((found.starred <= found.tilde + 1e-12).all())
    assert bool((found.tilde <= torch.stack(tops) + 1e-12).all())
    loose = measured(problem, "lambda_star")
    assert float((torch.stack(starred).mean() - loose.value[0]).abs()) <= float(loose.error[0]) + 1e-12


@given(networks())
@settings(max_examples=25, deadline=None)
def test_T7_tangent_kernel_has_the_spectrum_of_gauss_newton(network):
    twin, kernel = twin_of(network), TangentKernel(problem_of(network))
    blocks = kernel.dense()
    p, num = twin.probabilities, len(twin.probabilities)
    roots = [torch.diag(q.sqrt()) - torch.outer(q, q.sqrt()) for q in p]
    stacked = torch.cat([L.T @ J for L, J in zip(roots, twin.jacobians, strict=True)])
    assert torch.allclose(blocks, stacked @ stacked.T / num, atol=1e-10 * (1 + float(blocks.abs().max())))
    size = min(len(blocks), len(twin.weights))
    ours = torch.linalg.eigvalsh(blocks).flip(0)[:size]
    truth = torch.linalg.eigvalsh(twin.gauss_newton()).flip(0)[:size]
    assert torch.allclose(ours, truth, atol=1e-10 * (1 + float(truth[0])))


def test_T7_for_squared_errors_and_through_the_eigenvalue_solver():
    for loss, precision in ((HalfSquaredError(), 1.0), (nn.MSELoss(), 2 / 3)):
        case, twin = BY_NAME["linear"], setting("linear")[1]
        inputs, _ = case.data(num=11)
        targets = torch.randn(11, 3, generator=torch.Generator().manual_seed(0)).double()
        problem = Problem(case.model(), loss, (inputs, targets))
        middles = [precision * torch.eye(3, dtype=torch.float64)] * 11
        truth = torch.linalg.eigvalsh(twin.gauss_newton(middles)).flip(0)[:4]
        found = eigenvalues(TangentKernel(problem), num=4, rtol=1e-6)
        assert torch.allclose(found.value, truth, rtol=1e-5)
        assert_value(measured(problem, "tangent_kernel_spectrum:num=4:rtol=1e-6"), truth, 1e-5)
        assert TangentKernel(problem).exact_trace() == pytest.approx(float(twin.gauss_newton(middles).trace()))


@given(networks())
@settings(max_examples=25, deadline=None)
def test_T10_half_squared_error_orders_the_norms(network):
    model, inputs, _ = network
    classes = model(inputs).shape[1]
    targets = torch.zeros(len(inputs), classes, dtype=torch.float64)
    found = measure(
        Problem(model, HalfSquaredError(), (inputs, targets)),
        ["mean_logit_jacobian_norm", "gauss_newton_norm:rtol=1e-8", "logit_jacobian_norms", "lambda_star:rtol=1e-8"],
    )
    mean, top = float(found["mean_logit_jacobian_norm"]), float(found["gauss_newton_norm:rtol=1e-8"])
    square = float(found["logit_jacobian_norms"].value[2])
    trace = float(torch.stack([J.square().sum() for J in twin_of(network).jacobians]).mean())
    slack = 1e-8 * (1 + trace)
    assert mean**2 <= top + slack
    assert top <= square + slack
    assert square <= trace + slack
    assert float(found["lambda_star:rtol=1e-8"].value[4]) * square == pytest.approx(top, rel=1e-6)


@given(networks())
@settings(max_examples=25, deadline=None)
def test_T9_and_T11_for_cross_entropy(network):
    names = [
        "mean_logit_jacobian_norm",
        "mean_logit_jacobian_frobenius",
        "logit_jacobian_norms",
        "lambda_star:rtol=1e-8",
    ]
    found = measure(problem_of(network), names)
    spectral, frobenius = float(found[names[0]]), float(found[names[1]])
    classes, square = network[0][-1].out_features, float(found[names[2]].value[2])
    slack = 1e-9 * (1 + frobenius**2)
    assert spectral**2 <= square + slack
    assert spectral**2 <= frobenius**2 + slack <= classes * spectral**2 + 2 * slack
    top = float(torch.linalg.eigvalsh(twin_of(network).gauss_newton())[-1])
    assert float(found[names[3]].value[4]) * square == pytest.approx(top, rel=1e-6, abs=1e-12)


class Shifted(nn.Module):
    """z + a(θ) 1 with a a quadratic function of the weights: a gauge the loss cannot see."""

    def __init__(self, inner, strength):
        super().__init__()
        self.inner, self.strength = inner, strength

    def forward(self, inputs):
        return self.inner(inputs) + self.strength * sum(w.square().sum() for w in self.inner.parameters())


@given(networks())
@settings(max_examples=15, deadline=None)
def test_T19_shifting_logits_changes_the_norms_but_not_the_projected_ones(network):
    model, inputs, targets = network
    names = [f"{kind}mean_logit_jacobian_{norm}" for kind in ("", "projected_") for norm in ("norm", "frobenius")]
    before = measure(Problem(model, nn.CrossEntropyLoss(), (inputs, targets)), [*names, "impurity"])
    shifted = Problem(Shifted(model, 3.0), nn.CrossEntropyLoss(), (inputs, targets))
    after = measure(shifted, [*names, "impurity"])
    scale = max(float(after[names[1]]), 1.0)
    for name in names[2:]:
        assert float(after[name]) == pytest.approx(float(before[name]), abs=1e-7 * scale)
    assert float(after[names[1]]) ** 2 == pytest.approx(_shifted_frobenius_square(shifted, before), abs=1e-7 * scale**2)
    assert float(after["impurity"]) == pytest.approx(float(before["impurity"]), abs=1e-9)
    v = torch.ones(shifted.num_parameters)
    assert torch.allclose(GaussNewton(shifted) @ v, GaussNewton(problem_of(network)) @ v, atol=1e-6 * scale)


def _shifted_frobenius_square(shifted, before):
    """‖P⟨J⟩‖² + C ‖∇ mean_c ⟨z_c⟩ + ∇a‖²: what is off the ones vector stays, what is along it is moved by ∇a."""
    outputs = shifted.model(shifted.data[0])
    along = torch.autograd.grad(outputs.mean(), list(shifted.model.parameters()))
    projected = float(before["projected_mean_logit_jacobian_frobenius"])
    return projected**2 + outputs.shape[1] * sum(float(g.square().sum()) for g in along)


def test_T24_frobenius_from_random_directions():
    gram = MeanJacobianGram(OutputJacobian(setting("relu")[0])).exact()
    u = torch.randn(4000, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True)
    draws = 3 * torch.einsum("kc,cd,kd->k", u, gram, u)
    assert_unbiased(draws[:, None], gram.trace()[None])
    assert float((draws / 3).sqrt().mean()) <= float(gram.trace() / 3) ** 0.5


def test_T25_block_diagonal_input_jacobian():
    case = BY_NAME["relu"]
    inputs, _ = case.data()
    J = torch.autograd.functional.jacobian(case.model(), inputs).flatten(2).flatten(0, 1)  # (N·C, N·d)
    u = torch.randn(4000, len(J), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    u = u / u.norm(dim=1, keepdim=True)
    assert_unbiased((u @ J).square().sum(1)[:, None], (J.square().sum() / len(J))[None])


def test_T28_expectation_of_the_proxy_by_all_labels():
    """E‖⟨J'(p − e^ŷ)⟩‖² over all 3⁴ label combinations is tr(F)/B exactly, and zero inside the norm (C-e6)."""
    _, twin = setting("linear", num=4)
    expectation, inside = 0.0, torch.zeros_like(twin.weights)
    for labels in itertools.product(range(3), repeat=4):
        chance = torch.stack([twin.probabilities[i, label] for i, label in enumerate(labels)]).prod()
        scores = twin.probabilities - nn.functional.one_hot(torch.tensor(labels), 3)
        gradient = torch.einsum("ncp,nc->p", twin.jacobians, scores) / 4
        expectation += float(chance * gradient.square().sum())
        inside += chance * gradient
    assert expectation == pytest.approx(float(twin.gauss_newton().trace()) / 4)
    assert float(inside.norm()) < 1e-14


def test_T28_proxy_is_unbiased_with_honest_error_bars():
    problem, twin = setting("linear")
    runs = [measured(problem, "fisher_proxy:num_draws=32", seed=seed) for seed in range(40)]
    truth = float(twin.gauss_newton().trace()) / len(twin.outputs)
    scores = torch.tensor([(float(run.value) - truth) / float(run.error) for run in runs])
    assert abs(float(scores.mean())) < 4 / len(runs) ** 0.5 + 0.2  # a skewed law: small means come with small errors
    assert 0.7 < float(scores.std()) < 1.5
    assert_unbiased(torch.tensor([[float(run.value)] for run in runs]), torch.tensor([truth]))
    with pytest.raises(ValueError, match="num_draws of at least 2"):
        measured(problem, "fisher_proxy:num_draws=1")


def test_many_outputs_go_through_lanczos(monkeypatch):
    problem, twin = setting("conv2d")
    monkeypatch.setattr(weight_jacobian, "MANY_OUTPUTS", 2)
    for name, truth in (
        ("mean_logit_jacobian_norm", norm(twin.mean_jacobian)),
        ("projected_mean_logit_jacobian_norm", norm(projector(3) @ twin.mean_jacobian)),
    ):
        found = measured(problem, name)
        assert found.source == "solver"
        assert found.products > 0
        assert abs(float(found.value) - float(truth)) <= max(float(found.error), 1e-12) <= 1e-3 * float(truth)


def test_lanczos_does_not_take_a_near_tie_for_its_lower_half(monkeypatch):
    """z = diag(s) θ with s₂ = 0.996 s₁: one eigenvalue alone was found to be the wrong one of the two, certified."""
    monkeypatch.setattr(weight_jacobian, "MANY_OUTPUTS", 2)
    scales = torch.cat([torch.tensor([10.0, 9.96, 9.3, 8.6]), torch.linspace(6, 0.1, 30)]).double()

    class Diagonal(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(len(scales), dtype=torch.float64))

        def forward(self, inputs):
            return inputs * self.weight

    problem = Problem(Diagonal(), nn.CrossEntropyLoss(), (scales.expand(2, -1), torch.tensor([0, 1])))
    for seed in range(40):
        found = measured(problem, "mean_logit_jacobian_norm", seed=seed)
        assert abs(float(found.value) - 10.0) <= max(float(found.error), 1e-9), seed


def test_frobenius_norm_in_blocks_when_memory_is_short():
    problem, twin = setting("linear")
    tight = Problem(problem.model, problem.loss, problem.data, memory=16 * problem.num_parameters)
    assert not MeanJacobianGram(OutputJacobian(tight)).fits
    assert_value(measured(tight, "mean_logit_jacobian_frobenius"), twin.mean_jacobian.norm())
    truth = (projector(3) @ twin.mean_jacobian).norm()
    assert_value(measured(tight, "projected_mean_logit_jacobian_frobenius"), truth)


def test_dead_network_gives_answers():
    """All weights zero but the last bias: J is zero except in that bias, and along the way nothing divides by zero."""
    problem, _ = setting("relu")
    for weight in problem.model.parameters():
        weight.data.zero_()
    frozen = problem.select("0")  # the first layer's weights do not reach the outputs at all
    found = measure(frozen, ["logit_jacobian_norms", "mean_logit_jacobian_norm", "lambda_star", "lambda_tilde"])
    assert bool((found["logit_jacobian_norms"].value == 0).all())
    assert float(found["mean_logit_jacobian_norm"]) == 0
    assert bool((found["lambda_star"].value == 0).all())
    assert "11 of 11 samples left out" in found["lambda_tilde"].estimate.note
    ratio = measured(frozen, "curvature_ratio")
    assert torch.isnan(torch.tensor(ratio.value))
    assert "vanishes" in ratio.note


def test_same_seed_same_number_and_no_side_effects():
    problem, _ = setting("batch norm eval")
    problem.model.train()
    weights = [tensor.clone() for tensor in problem.model.state_dict().values()]
    state = torch.get_rng_state()
    first, second = measure(problem, ALL, seed=3), measure(problem, ALL, seed=3)
    for name in ALL:
        one, two = torch.as_tensor(first[name].value), torch.as_tensor(second[name].value)
        assert torch.equal(one, two), name
    assert torch.equal(state, torch.get_rng_state())
    assert all(m.training for m in problem.model.modules())
    assert all(torch.equal(a, b) for a, b in zip(weights, problem.model.state_dict().values(), strict=True))
    assert all(parameter.grad is None for parameter in problem.model.parameters())


@pytest.mark.parametrize("name", ["mean_logit_jacobian_norm", "impurity", "ones_logit_jacobian"])
def test_batch_norm_in_train_mode_where_no_single_sample_is_needed(name):
    problem = BY_NAME["batch norm train"].problem()
    assert float(measured(problem, name).value) > 0


def test_batch_norm_in_train_mode_is_refused_for_single_samples():
    with pytest.raises(ValueError, match="samples that do not see each other"):
        measured(BY_NAME["batch norm train"].problem(), "logit_jacobian_norms")


def test_float32_agrees_with_float64():
    case = BY_NAME["conv residual"]
    single, double = case.problem(dtype=torch.float32), case.problem()
    for name in ("mean_logit_jacobian_norm", "projected_mean_logit_jacobian_frobenius", "impurity", "lambda_star"):
        assert_value(measured(single, name), measured(double, name).value, 2e-3)


def test_outputs_of_other_shapes_are_refused():
    model = nn.Linear(3, 3)
    data = (torch.randn(2, 4, 3), torch.randint(3, (2, 3)))
    with pytest.raises(ValueError, match="outputs of shape"):
        measured(Problem(model, nn.CrossEntropyLoss(), data), "impurity")


class TokenModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner, self.last = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, tokens):
        return self.last(torch.tanh(self.inner(self.words(tokens))))


def tokens_one_below_the_other():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, words, targets = TokenModel().double(), torch.randint(9, (5, 7)), torch.randint(4, (5, 7))
    return Problem(
        model, nn.CrossEntropyLoss(), (words, targets), forward=lambda m, b: (m(b[0]).flatten(0, 1), b[1].flatten())
    )


def test_every_token_has_a_jacobian_of_its_own():
    problem = tokens_one_below_the_other()
    words = problem.data[0].flatten()

    def outputs(vector):
        return torch.func.functional_call(problem.model, problem.split(vector), (words,))

    weights = torch.cat([weight.detach().flatten() for weight in problem.model.parameters()])
    jacobians = torch.autograd.functional.jacobian(outputs, weights)
    norms = torch.linalg.matrix_norm(jacobians, 2)
    found = measure(problem, ["logit_jacobian_norms", "lambda_star:rtol=1e-8", "gauss_newton_norm:rtol=1e-8"])
    truth = torch.stack([norms.mean(), norms.max(), norms.square().mean()])
    torch.testing.assert_close(found["logit_jacobian_norms"].value, truth)
    rebuilt = float(found["lambda_star:rtol=1e-8"].value[4]) * float(truth[2])
    assert rebuilt == pytest.approx(float(found["gauss_newton_norm:rtol=1e-8"]), rel=1e-6)


@pytest.mark.parametrize("name", ["nmls", "layer_mls", "feature_norms"])
def test_layers_of_flattened_tokens_are_refused(name):
    with pytest.raises(ValueError, match=r"needs one row of outputs for each of the 2 samples, got shape \(14, 4\)"):
        measure(tokens_one_below_the_other(), name)
