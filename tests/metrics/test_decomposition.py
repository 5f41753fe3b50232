import pytest
import torch
from hypothesis import given, settings
from logit_twin import NETWORKS, LogitTwin, assert_value, measured, networks, setting
from torch import nn

from spherometer import HalfSquaredError, Problem
from spherometer.metrics.bench import Bench
from spherometer.metrics.decomposition import decompose

FINE = ":rtol=1e-10"


def explicit_terms(twin, middles=None):
    """‖J_l'C'u‖² for each layer from the dense conjugate matrix of A's Eq 4, and ‖C'u‖²."""
    middles = middles or twin.hessians
    num = len(twin.jacobians)
    roots = []
    for M in middles:
        values, vectors = torch.linalg.eigh(M)
        roots.append(vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T / num**0.5)
    C = torch.block_diag(*roots)  # C² = block diagonal of N⁻¹ ∇²c
    J = twin.jacobians.flatten(0, 1)
    values, vectors = torch.linalg.eigh(C @ J @ J.T @ C.T)
    pulled = J.T @ C.T @ vectors[:, -1]
    pieces = pulled.split([shape.numel() for shape in twin.shapes.values()])
    layers: dict[str, float] = {}
    for name, piece in zip(twin.shapes, pieces, strict=True):
        owner = name.rpartition(".")[0]
        layers[owner] = layers.get(owner, 0.0) + float(piece.square().sum())
    return layers, float((C.T @ vectors[:, -1]).square().sum()) * num, float(values[-1])


@pytest.mark.parametrize("name", NETWORKS)
def test_layer_terms_against_the_dense_conjugate_matrix(name):
    problem, twin = setting(name)
    layers, loss, top = explicit_terms(twin)
    found = measured(problem, "sharpness_by_layer" + FINE)
    assert found.labels == tuple(layers)
    assert_value(found, list(layers.values()), 1e-5)
    assert float(found.value.sum()) == pytest.approx(top, rel=1e-9)
    assert_value(measured(problem, "loss_factor" + FINE), loss, 1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_shares_sum_to_the_norm_at_ordinary_accuracy_and_stay_in_their_bars(name):
    problem, twin = setting(name)
    layers, _, top = explicit_terms(twin)
    found = measured(problem, "sharpness_by_layer")
    assert float(found.value.sum()) == pytest.approx(top, rel=1e-3)
    truth = torch.tensor(list(layers.values()), dtype=torch.float64)
    assert bool(((found.value - truth).abs() <= found.error + 1e-9).all())
    assert "% of ‖G‖" in found.note


@pytest.mark.parametrize("name", ["linear", "relu", "conv2d", "conv residual", "batch norm eval", "attention"])
def test_three_factors_multiply_to_the_share(name):
    problem, _ = setting(name)
    parts = decompose(Bench(problem), 1e-8)
    product = parts.loss * parts.suffix * parts.parameter
    assert torch.allclose(product, parts.terms, rtol=1e-10)
    assert float(parts.suffix[-1]) == pytest.approx(1)  # nothing comes after the last layer


def test_T8_factors_of_a_dense_network_by_hand():
    """z = W₂ tanh(W₁x + b₁) + b₂: suffix Jacobian W₂ diag(1 − a²), parameter derivative (x, 1)."""
    problem, twin = setting("linear")
    model, num = problem.model, len(twin.inputs)
    first, last = model[0], model[2]
    hidden = torch.tanh(twin.inputs @ first.weight.T + first.bias).detach()
    W, D = last.weight.detach(), torch.diag_embed(1 - hidden.square())
    suffixes = [W @ d for d in D]
    features = torch.cat([twin.inputs, torch.ones(num, 1, dtype=torch.float64)], 1)
    inner = torch.cat([hidden, torch.ones(num, 1, dtype=torch.float64)], 1)
    gram = torch.block_diag(*[torch.zeros(3, 3, dtype=torch.float64)] * num)
    for i in range(num):
        for j in range(num):  # Σ_l suffix (Df Df') suffix'
            block = suffixes[i] @ suffixes[j].T * (features[i] @ features[j]) + torch.eye(3).double() * (
                inner[i] @ inner[j]
            )
            gram[3 * i : 3 * i + 3, 3 * j : 3 * j + 3] = block
    J = twin.jacobians.flatten(0, 1)
    assert torch.allclose(gram, J @ J.T, atol=1e-12)
    _values, vectors = torch.linalg.eigh(twin.gauss_newton())
    y = torch.stack([M @ Ji @ vectors[:, -1] for M, Ji in zip(twin.hessians, twin.jacobians, strict=True)])
    arriving = torch.stack([S.T @ row for S, row in zip(suffixes, y, strict=True)])
    suffix = arriving.square().sum() / y.square().sum()
    parameter = (arriving.T @ features).square().sum() / arriving.square().sum() / num
    assert float(measured(problem, "suffix_factors" + FINE).value[0]) == pytest.approx(float(suffix), rel=1e-5)
    assert float(measured(problem, "parameter_factors" + FINE).value[0]) == pytest.approx(float(parameter), rel=1e-5)
    assert float(parameter) <= float(torch.linalg.matrix_norm(features, 2)) ** 2 / num + 1e-12  # Q13


@given(networks())
@settings(max_examples=20, deadline=None)
def test_terms_add_up_on_any_network_and_loss(network):
    model, inputs, targets = network
    for loss in (nn.CrossEntropyLoss(), HalfSquaredError()):
        problem, twin = Problem(model, loss, (inputs, targets)), LogitTwin(model, loss, inputs, targets)
        identity = [torch.eye(twin.outputs.shape[1], dtype=torch.float64)] * len(inputs)
        G = twin.gauss_newton(None if isinstance(loss, nn.CrossEntropyLoss) else identity)
        parts = decompose(Bench(problem), 1e-8)
        assert float(parts.terms.sum()) == pytest.approx(float(torch.linalg.eigvalsh(G)[-1]), rel=1e-6, abs=1e-12)
        finite = torch.isfinite(parts.parameter)
        assert torch.allclose((parts.loss * parts.suffix * parts.parameter)[finite], parts.terms[finite])


def test_other_losses_need_no_closed_form():
    problem, _ = setting("linear", nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]).double()))
    shares = measured(problem, "sharpness_by_layer" + FINE)
    assert float(shares.value.sum()) == pytest.approx(
        float(measured(problem, "gauss_newton_norm" + FINE).value), rel=1e-8
    )


def test_layers_torch_calls_without_their_forward_are_counted():
    problem, _ = setting("multihead attention")
    found = measured(problem, "suffix_factors")
    assert int(found.value.isnan().sum()) == 1
    assert "1 layers are used in a way that hides their output" in found.note


def test_in_place_activations_do_not_disturb_the_pass():
    plain, inplace = setting("relu")[0], setting("relu in place")[0]
    assert_value(measured(inplace, "sharpness_by_layer"), measured(plain, "sharpness_by_layer").value, 1e-9)
    assert_value(measured(inplace, "suffix_factors"), measured(plain, "suffix_factors").value, 1e-9)


def test_a_flat_loss_has_no_driver():
    problem, _ = setting("relu")
    for weight in problem.model.parameters():
        weight.data.zero_()
    found = measured(problem.select("0"), "sharpness_by_layer")
    assert bool((found.value == 0).all())
    assert "no layer drives it" in found.note


def test_hooks_are_gone_afterwards():
    problem, _ = setting("conv residual")
    measured(problem, "sharpness_by_layer")
    assert all(not module._forward_hooks for module in problem.model.modules())
