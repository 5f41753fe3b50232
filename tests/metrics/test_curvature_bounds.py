"""B's Lemma B.1 and C's Theorem 5.1 as metrics, against dense twins (T9, T12, T13)."""

import pytest
import torch
from metric_cases import LOSSES, NETWORKS, SMOOTH, network, one, problem_and_twin, samples
from torch import nn

from assertions import assert_honest
from spherometer import GaussNewton, HalfSquaredError, Hessian, Problem, Tracker
from spherometer.metrics import Bench
from spherometer.metrics.curvature_bounds import residual_term


def dense_residual_term(problem):
    """n⁻¹ Σ_i Σ_j |s_i'∂²f_i/∂θ_j²| and P max‖∂²_j f_i‖ max‖s_i‖, one second derivative at a time."""
    model, (inputs, targets) = problem.model, problem.batches[0]
    start = problem.state().vector

    def output(vector, sample):
        return torch.func.functional_call(model, problem.split(vector), (sample[None],))[0]

    total, bend, slope = 0.0, 0.0, 0.0
    for i, sample in enumerate(inputs):
        outputs = output(start, sample).detach().requires_grad_()
        (steps,) = torch.autograd.grad(problem.loss(outputs[None], targets[i : i + 1]), outputs)
        slope = max(slope, float(steps.norm()))
        hessians = torch.func.hessian(output)(start, sample)  # (C, P, P)
        diagonals = hessians.diagonal(dim1=1, dim2=2)  # (C, P)
        bend = max(bend, float(diagonals.norm(dim=0).max()))
        total += float((steps @ diagonals).abs().sum())
    return total / len(inputs), len(start) * bend * slope


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", NETWORKS)
def test_T13_residual_term_against_single_second_derivatives(name, loss):
    problem, _ = problem_and_twin(name, loss)
    found = one(problem, "residual_term")
    gap = float(Hessian(problem).dense().trace() - GaussNewton(problem).dense().trace())
    middle, loosest = dense_residual_term(problem)
    torch.testing.assert_close(
        found.value, torch.tensor([abs(gap), middle, loosest], dtype=torch.float64), rtol=1e-8, atol=1e-12
    )
    assert bool((found.value.diff() >= -1e-12).all())  # the lemma
    assert (float(found.value[1]) > 1e-3) is (name in SMOOTH)  # T12


def test_T13_shrinks_with_the_residual():
    model, (inputs, _) = network("tanh"), samples("tanh")
    outputs = model(inputs).detach()
    terms = []
    for size in (1e-1, 1e-2):
        problem = Problem(model, HalfSquaredError(), (inputs, outputs + size))
        terms.append(one(problem, "residual_term").value)
    torch.testing.assert_close(terms[0], 10 * terms[1])


def test_a_part_of_the_weights_has_honest_bars():
    problem, _ = problem_and_twin("tanh", "half squared error")
    truth = one(problem, "residual_term").value
    scores = []
    for seed in range(250):
        found = one(problem, "residual_term:num=20", seed=seed)
        assert float(found.value[2]) <= float(truth[2]) * (1 + 1e-9)
        scores.append(float((found.value[1] - truth[1]) / found.error[1]))
    assert_honest(scores)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", NETWORKS)
def test_T9_gauss_newton_norm_is_the_weighted_mean(name, loss):
    """‖G‖ = ⟨λ*‖J‖²⟩ ≤ ⟨λ̃‖J‖²⟩ ≤ ⟨λ⁽¹⁾‖J‖²⟩, each from explicit Jacobians."""
    problem, twin = problem_and_twin(name, loss)
    values = one(problem, "gauss_newton_bound:rtol=1e-9").value
    dense = GaussNewton(problem).dense()
    top, vector = (part[..., -1] for part in torch.linalg.eigh(dense))
    jacobians = per_sample_jacobians(problem)
    outputs = problem.model(problem.batches[0][0]).detach()
    chances = outputs.softmax(1)
    middles = torch.diag_embed(chances) - chances[:, :, None] * chances[:, None, :]
    if loss != "cross-entropy":
        middles = torch.eye(outputs.shape[1], dtype=torch.float64).expand_as(middles)
    norms = torch.linalg.matrix_norm(jacobians, 2).square()
    change = jacobians @ vector
    curved = torch.einsum("nc,nck,nk->n", change, middles, change)
    tilde = curved / change.square().sum(1)
    impurity = torch.linalg.eigvalsh(middles)[:, -1]
    truth = torch.stack([top, curved.mean(), (tilde * norms).mean(), (impurity * norms).mean()])
    torch.testing.assert_close(values[:4].double(), truth, rtol=1e-5, atol=1e-9)
    assert float(values[0]) == pytest.approx(float(values[1]), rel=1e-6)
    assert bool((values[:4].diff() >= -1e-9).all())
    assert values[4:].tolist() == pytest.approx([float(top / truth[3]), 0])
    assert twin is not None


def per_sample_jacobians(problem):
    start = problem.state().vector
    rows = [
        torch.autograd.functional.jacobian(
            lambda v, s=sample: torch.func.functional_call(problem.model, problem.split(v), (s[None],))[0], start
        )
        for sample in problem.batches[0][0]
    ]
    return torch.stack(rows)


def test_the_bounds_are_probes():
    model, data = network("tanh"), samples("tanh")
    problem = Problem(model, nn.CrossEntropyLoss(), data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    names = ["sharpening_bound", "residual_term", "gauss_newton_bound", "descent_ratio", "gradient_ratio"]
    with Tracker(problem, names, every=100, on_error="raise") as tracker:
        for _ in range(300):
            optimizer.zero_grad()
            problem.loss(model(data[0]), data[1]).backward()
            optimizer.step()
            tracker.step(optimizer)
    rows = [row.value for row in tracker.series("sharpening_bound") if row.part == "printed"]
    goal = tracker.series("sharpening_bound")[-1].value
    assert rows[0] < 0 < rows[-1] < goal  # it climbs as the loss falls
    assert {row.name for row in tracker.rows} >= set(names)


@pytest.mark.parametrize("weight", [0.1, 5.0])
def test_T13_equal_class_weights_change_nothing(weight):
    plain, other = (
        one(Problem(network("tanh"), nn.CrossEntropyLoss(weight=weights), samples("tanh")), "residual_term").value
        for weights in (None, torch.full((3,), weight, dtype=torch.float64))
    )
    assert other.tolist() == pytest.approx(plain.tolist(), rel=1e-10)


def test_T13_mean_squared_error_is_a_multiple_of_the_half():
    targets = nn.functional.one_hot(samples("tanh")[1], 3).double()
    half, mean = (
        one(Problem(network("tanh"), loss, (samples("tanh")[0], targets)), "residual_term").value
        for loss in (HalfSquaredError(), nn.MSELoss())
    )
    assert mean.tolist() == pytest.approx((half * 2 / 3).tolist(), rel=1e-10)


def test_T13_needs_samples_that_do_not_see_each_other():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 3)).double()
    problem = Problem(model, nn.CrossEntropyLoss(), samples("tanh"), batchnorm="train")
    with pytest.raises(ValueError, match=r"got batchnorm='train': .* need Problem\(..., batchnorm='eval'\)"):
        one(problem, "residual_term")


def test_fewer_weights_than_eigenvalues_asked_for():
    problem = Problem(network("tanh"), nn.CrossEntropyLoss(), samples("tanh"), parameters="2.bias")
    values = torch.linalg.eigvalsh(Hessian(problem).dense()).flip(0)
    found = one(problem, "top_eigenvalues")
    assert found.labels == ("λ1", "λ2", "λ3")
    assert found.value.tolist() == pytest.approx(values.tolist(), abs=1e-9)
    assert one(problem, "log_determinant").value == pytest.approx(float(values[values > 1e-9].log().sum()), abs=1e-6)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_a_full_memory_is_told_as_such(error, monkeypatch):
    def full(*_):
        raise error

    monkeypatch.setattr("spherometer.metrics.curvature_bounds.jvp", full)
    with pytest.raises(RuntimeError, match="memory") as caught:
        residual_term(Bench(problem_and_twin("tanh")[0]))
    assert caught.value is error
