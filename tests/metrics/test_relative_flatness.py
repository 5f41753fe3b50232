"""Relative flatness against the definition, block by block."""

import pytest
import torch
from metric_cases import LOSSES, NETWORKS, assert_exactly, assert_within, network, one, samples
from metric_twin import Twin
from torch import nn

from spherometer import HalfSquaredError, Problem
from spherometer.operators import Hessian, Rescaled, RowMixed


def defined(twin, name):
    """Σ_{s,s'} ⟨w_s, w_s'⟩ Tr(H_{s,s'}) from the dense Hessian."""
    start = 0
    for key, shape in twin.shapes.items():
        if key == name:
            break
        start += shape.numel()
    rows, columns = twin.shapes[name]
    stop = start + rows * columns
    block = twin.hessian()[start:stop, start:stop].reshape(rows, columns, rows, columns)
    weight = twin.weights[start:stop].view(rows, columns)
    return float(torch.einsum("sk,tk,sjtj->", weight, weight, block))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("loss", LOSSES)
def test_relative_flatness_is_its_definition(name, loss):
    model, data = network(name), samples(name)
    last = [key for key, weight in model.named_parameters() if weight.ndim == 2][-1]
    found = one(Problem(model, LOSSES[loss], data), "relative_flatness")
    assert_exactly(found, defined(Twin(model, LOSSES[loss], *data), last))
    assert found.note == f"of {last}"


def test_closed_forms_of_the_papers():
    """Half squared error: ‖W‖_F² ⟨‖φ‖²⟩; cross-entropy: ⟨‖φ‖² Tr(W'MW)⟩ with M = diag p − pp' (Q61)."""
    model, (inputs, classes) = network("tanh"), samples("tanh")
    features, weight = model[:2](inputs).detach(), model[2].weight.detach()
    sizes = features.square().sum(1)
    half = one(Problem(model, HalfSquaredError(), (inputs, classes)), "relative_flatness")
    assert half.value == pytest.approx(float(weight.square().sum() * sizes.mean()))
    chances = model(inputs).softmax(1).detach()
    middles = torch.diag_embed(chances) - chances[:, :, None] * chances[:, None]
    traces = torch.einsum("sk,nst,tk->n", weight, middles, weight)
    crossed = one(Problem(model, nn.CrossEntropyLoss(), (inputs, classes)), "relative_flatness")
    assert crossed.value == pytest.approx(float((sizes * traces).mean()))


@pytest.mark.parametrize("tail", [nn.Tanh(), nn.Softplus()])
def test_a_layer_that_does_not_give_the_outputs_goes_through_its_block(tail):
    model, data = nn.Sequential(network("tanh"), tail), samples("tanh")
    found = one(Problem(model, nn.CrossEntropyLoss(), data), "relative_flatness:rtol=0.05")
    assert_within(found, defined(Twin(model, nn.CrossEntropyLoss(), *data), "0.2.weight"))
    assert found.products > 0 or found.source == "exact"


def test_ragged_batches_give_the_same():
    model, (inputs, classes) = network("relu"), samples("relu")
    whole = one(Problem(model, nn.CrossEntropyLoss(), (inputs, classes)), "relative_flatness")
    parts = [(inputs[:5], classes[:5]), (inputs[5:], classes[5:])]
    assert one(Problem(model, nn.CrossEntropyLoss(), parts), "relative_flatness").value == pytest.approx(whole.value)


def test_class_weights_follow_the_dtype_of_the_measurement():
    model, (inputs, classes), weight = network("relu"), samples("relu"), torch.tensor([0.5, 1.0, 3.0])
    single = Problem(model.float(), nn.CrossEntropyLoss(weight=weight), (inputs, classes), dtype=torch.float64)
    found = one(single, "relative_flatness")
    double = Problem(model.double(), nn.CrossEntropyLoss(weight=weight.double()), (inputs, classes))
    assert found.value == pytest.approx(one(double, "relative_flatness").value, rel=1e-10)


def test_model_without_a_linear_layer_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()).double()
    problem = Problem(model, nn.CrossEntropyLoss(), samples("convolutional"))
    with pytest.raises(ValueError, match=r"uses a chosen weight in a linear layer .* got none: choose its parameters"):
        one(problem, "relative_flatness")


def test_mixing_rows_gives_the_trace_of_the_definition():
    model, data = network("tanh"), samples("tanh")
    block = Hessian(Problem(model, nn.CrossEntropyLoss(), data, parameters="0.weight"))
    mixed = RowMixed(block, model[0].weight)
    truth = defined(Twin(model, nn.CrossEntropyLoss(), *data), "0.weight")
    assert float(mixed.dense().trace()) == pytest.approx(truth)
    assert torch.allclose(mixed.dense(), mixed.dense().T)


def test_congruences_refuse_wrong_shapes():
    problem = Problem(network("tanh"), nn.CrossEntropyLoss(), samples("tanh"))
    with pytest.raises(ValueError, match="expected a scale of length 43, got shape"):
        Rescaled(Hessian(problem), torch.ones(4))
    with pytest.raises(ValueError, match="expected a matrix of 43 entries, got shape"):
        RowMixed(Hessian(problem), torch.ones(2, 3))
