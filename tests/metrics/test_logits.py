import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logit_twin import NETWORKS, assert_value, explicit_eigenpairs, explicit_logit_hessian, measured, setting
from torch import nn

from spherometer import HalfSquaredError, Problem
from spherometer.metrics.logits import (
    gini_bounds,
    logit_hessian_eigenpairs,
    secular_function,
    sorted_roots,
)
from spherometer.operators.logit_hessian import logit_hessian, root_adjoint, root_product, top_logit_eigenpair

UNIFORM, ONE_HOT, TWO = [0.25] * 4, [0.0, 1.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]
EDGES = [UNIFORM, ONE_HOT, TWO, [0.4, 0.4, 0.2, 0.0], [0.2, 0.6, 0.1, 0.1]]


def probabilities():
    """Any point of a simplex, with ties and zeros on purpose: small integers over their sum."""
    counts = st.lists(st.integers(0, 6), min_size=2, max_size=7).filter(any)
    free = st.lists(st.floats(1e-12, 1.0), min_size=2, max_size=7)
    return st.one_of(counts, free).map(lambda entries: torch.tensor(entries, dtype=torch.float64) / sum(entries))


def dirichlet(num, classes, concentration=0.5):
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(num, classes, generator=generator, dtype=torch.float64) / concentration
    return logits.softmax(1)


@given(probabilities())
@settings(max_examples=200, deadline=None)
def test_eigenpairs_solve_the_eigenproblem(p):
    values, vectors = logit_hessian_eigenpairs(p)
    M = explicit_logit_hessian(p)
    assert torch.allclose(logit_hessian(p), M, atol=1e-15)
    assert torch.allclose(M @ vectors, vectors * values, atol=1e-13)
    assert torch.allclose(vectors.T @ vectors, torch.eye(len(p), dtype=torch.float64), atol=1e-12)
    assert bool((values[:-1] >= values[1:]).all())


@given(probabilities())
@settings(max_examples=200, deadline=None)
def test_top_pair_by_bisection_agrees_with_the_dense_solver(p):
    value, vector = top_logit_eigenpair(p)
    truth = torch.linalg.eigvalsh(explicit_logit_hessian(p))[-1]
    assert abs(float(value - truth)) < 1e-14
    assert abs(float(vector.norm()) - 1) < 1e-12
    assert torch.allclose(explicit_logit_hessian(p) @ vector, value * vector, atol=1e-12)


@given(probabilities())
@settings(max_examples=200, deadline=None)
def test_T1_null_vector_trace_and_positivity(p):
    M = logit_hessian(p)
    assert float((M @ torch.ones(len(p), dtype=torch.float64)).abs().max()) < 1e-15
    values = logit_hessian_eigenpairs(p)[0]
    assert float(values[-1]) == 0
    assert bool((values >= 0).all())
    assert float(values.sum()) == pytest.approx(float(1 - p.square().sum()), abs=1e-14)


@given(probabilities())
@settings(max_examples=300, deadline=None)
def test_T2_interlacing_and_gini_bounds(p):
    ordered = p.sort(descending=True).values
    values = logit_hessian_eigenpairs(p)[0]
    assert bool((values <= ordered + 1e-14).all())
    assert bool((values[:-1] >= ordered[1:] - 1e-14).all())
    lower, upper = gini_bounds(p)
    top = top_logit_eigenpair(p)[0]
    assert float(lower) - 1e-14 <= float(top) <= float(upper) + 1e-14
    assert float(top) <= 0.5 + 1e-14


def test_T3_secular_roots_are_the_eigenvalues_of_distinct_probabilities():
    for p in dirichlet(20, 5):
        values, vectors = logit_hessian_eigenpairs(p)
        assert float(secular_function(p, values[:-1]).abs().max()) < 1e-6  # steep between close poles
        for k in range(4):
            printed = p / (p - values[k])  # C Eq 45
            printed = printed / printed.norm()
            assert float((printed - vectors[:, k]).norm()) < 1e-8  # positive factor: the signs agree too


def test_T3_uniform_probabilities_have_eigenvalues_that_are_no_secular_root():
    p = torch.full((4,), 0.25, dtype=torch.float64)
    assert torch.allclose(logit_hessian_eigenpairs(p)[0], torch.tensor([0.25, 0.25, 0.25, 0.0], dtype=torch.float64))
    grid = torch.linspace(0.01, 0.9, 50, dtype=torch.float64)
    assert bool((secular_function(p, grid).abs() > 1e-3).all())
    assert float(secular_function(p, torch.zeros(1))) == 0


def test_secular_function_is_nan_at_poles_and_blind_to_zero_probabilities():
    p = torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64)
    found = secular_function(p, torch.tensor([0.25, 0.0, 0.5, 0.249999, 0.250001]))
    assert bool(found[0].isnan())
    assert float(found[1]) == 0
    assert float(found[2]) == pytest.approx(1 - 0.75**2 / 0.25 - 0.25**2 / -0.25)
    assert float(found[3]) < -1e3
    assert float(found[4]) > 1e3


def test_T4_uniform_start():
    for classes in (2, 3, 10):
        p = torch.full((1, classes), 1 / classes, dtype=torch.float64)
        assert float(top_logit_eigenpair(p)[0]) == pytest.approx(1 / classes)
        assert float(gini_bounds(p)[0]) == pytest.approx((classes - 1) / classes**2)


def test_T5_largest_entries_stand_at_neighbouring_classes_typically():
    p = dirichlet(2000, 10).sort(dim=1, descending=True).values
    vectors = logit_hessian_eigenpairs(p)[1]
    hits = []
    for k in range(9):
        two = vectors[:, :, k].abs().topk(2, dim=1).indices.sort(dim=1).values
        hits.append((two == torch.tensor([k, k + 1])).all(1).double().mean())
        assert bool((vectors[:, k, k] > 0).all())
        assert bool((vectors[:, k + 1, k] < 0).all())
    assert float(torch.stack(hits).mean()) > 0.8


@given(st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_T20_two_classes(share):
    p = torch.tensor([share, 1 - share], dtype=torch.float64)
    assert float(top_logit_eigenpair(p)[0]) == pytest.approx(2 * share * (1 - share), abs=1e-15)


@pytest.mark.parametrize("entries", EDGES)
def test_edges_of_the_simplex(entries):
    p = torch.tensor(entries, dtype=torch.float64)
    value, vector = top_logit_eigenpair(p)
    assert bool(torch.isfinite(vector).all())
    assert float(value) == pytest.approx(float(torch.linalg.eigvalsh(explicit_logit_hessian(p))[-1]), abs=1e-15)
    first, second = p.argsort(descending=True, stable=True)[:2]
    assert vector[first] > 0 > vector[second]


def test_saturated_outputs_keep_their_digits():
    """λ⁽¹⁾ of order 1e-30, where 1 − p is zero in double precision: against the 2 x 2 closed form p₁p₂ · 2."""
    logits = torch.tensor([[70.0, 0.0]], dtype=torch.float64)
    p = logits.softmax(1)
    small = torch.exp(torch.tensor(-70.0, dtype=torch.float64))
    assert float(top_logit_eigenpair(p)[0]) == pytest.approx(float(2 * small), rel=1e-10)
    assert float(logit_hessian_eigenpairs(p)[0][0, 0]) == pytest.approx(float(2 * small), rel=1e-10)


@given(probabilities())
@settings(max_examples=100, deadline=None)
def test_closed_form_root(p):
    unit = torch.eye(len(p), dtype=torch.float64)
    L = root_product(p, unit).T  # rows are L e_k
    assert torch.allclose(L @ L.T, explicit_logit_hessian(p), atol=1e-14)
    assert torch.allclose(root_adjoint(p, unit), L, atol=1e-15)  # rows are L'e_k: L transposed, transposed


def test_root_of_saturated_outputs_keeps_its_digits():
    p = torch.tensor([50.0, 1.0, 0.0], dtype=torch.float64).softmax(0)
    M = logit_hessian(p)
    L = root_product(p, torch.eye(3, dtype=torch.float64)).T
    assert float((L @ L.T - M).norm() / M.norm()) < 1e-12
    tangent = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
    assert torch.allclose(root_product(p, root_adjoint(p, tangent)), M @ tangent, rtol=1e-12, atol=0)


def test_probabilities_are_checked():
    with pytest.raises(ValueError, match="sum one along the last axis"):
        logit_hessian(torch.tensor([0.7, 0.7]))


@pytest.mark.parametrize("name", NETWORKS)
def test_logit_metrics_against_loops(name):
    problem, twin = setting(name)
    spectra = torch.stack([values for values, _ in twin.eigenpairs()])
    top, largest = spectra[:, 0], twin.probabilities.amax(1)
    ginis = 2 * largest * (1 - largest)
    assert_value(measured(problem, "impurity"), top.mean())
    assert_value(measured(problem, "impurity_quantiles"), top.quantile(torch.tensor([0.25, 0.5, 0.75]).double()))
    bounds = [ginis.mean() / 2, top.mean(), largest.minimum(ginis).mean(), torch.tensor(0.0)]
    assert_value(measured(problem, "impurity_bounds"), torch.stack(bounds))
    assert_value(measured(problem, "gini"), torch.stack([M.trace() for M in twin.hessians]).mean())
    assert_value(measured(problem, "binary_gini"), ginis.mean())
    assert_value(measured(problem, "inverse_impurity"), 1 / top.mean())
    assert_value(measured(problem, "logit_hessian_spectrum"), spectra.mean(0))
    rows = []
    for p in twin.probabilities:
        values, vectors = explicit_eigenpairs(p.sort(descending=True).values)
        rows.append(vectors @ torch.diag(values.sqrt()))
    matrix = torch.stack(rows).mean(0)
    matrix[:, -1] = 0  # λ⁽ᶜ⁾ is zero, not the rounding of eigh
    assert_value(measured(problem, "impurity_matrix"), matrix, 1e-8)


def test_sorted_roots_square_to_the_sorted_hessian():
    p = dirichlet(50, 6)
    roots = sorted_roots(p)
    assert torch.allclose(roots @ roots.mT, logit_hessian(p.sort(dim=1, descending=True).values), atol=1e-13)


def _constant_model(logits):
    model = nn.Linear(2, len(logits), dtype=torch.float64)
    model.weight.data.zero_()
    model.bias.data = torch.tensor(logits, dtype=torch.float64)
    return Problem(model, nn.CrossEntropyLoss(), (torch.ones(4, 2).double(), torch.tensor([0, 1, 1, 0])))


def test_one_hot_outputs_are_answers_with_counts():
    problem = _constant_model([0.0, 2000.0, 0.0])  # the second label is right in part: the loss stays finite
    found = measured(problem, "impurity")
    assert found.value == 0
    assert "4 one-hot outputs" in found.note
    inverse = measured(problem, "inverse_impurity")
    assert inverse.value == torch.inf
    assert "one-hot" in inverse.note
    assert bool(torch.isfinite(measured(problem, "impurity_matrix").value).all())


def test_uniform_outputs_are_counted_as_ties():
    found = measured(_constant_model([1.0, 1.0, 1.0]), "impurity")
    assert found.value == pytest.approx(1 / 3)
    assert "4 with tied largest probabilities" in found.note


@pytest.mark.parametrize("name", ["impurity", "gini", "impurity_matrix", "sample_alignment", "class_mean_norms"])
def test_squared_error_is_refused_with_the_reason(name):
    problem, _ = setting("linear", HalfSquaredError())
    with pytest.raises(ValueError, match="M is a multiple of the identity"):
        measured(problem, name)


def test_losses_without_known_logit_hessian_are_refused():
    problem, _ = setting("linear", nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0]).double()))
    with pytest.raises(ValueError, match="no known closed form"):
        measured(problem, "impurity")
    case, _ = setting("linear")
    ignored = [(inputs, torch.full_like(targets, -100)) if k == 1 else (inputs, targets)
               for k, (inputs, targets) in enumerate(case.data)]  # fmt: skip
    with pytest.raises(ValueError, match="leave ignored samples out"):
        measured(Problem(case.model, nn.CrossEntropyLoss(), ignored), "impurity")


def test_label_smoothing_leaves_the_logit_hessian_alone():
    plain, smooth = setting("linear")[0], setting("linear", nn.CrossEntropyLoss(label_smoothing=0.3))[0]
    assert measured(plain, "impurity").value == measured(smooth, "impurity").value
