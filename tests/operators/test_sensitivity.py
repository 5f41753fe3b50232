"""The shared backward passes and the Lanczos way around them, against one sample and one layer at a time."""

import copy

import pytest
import torch
from torch import nn

from metrics.live_bytes import LiveBytes
from reference.agreement import assert_close
from reference.cases import BY_NAME
from reference.naive_jacobians import input_jacobian, layer_jacobian, layer_names, weight_gradients
from spherometer import Problem
from spherometer.operators.many_outputs import batch_grams, local_grams
from spherometer.operators.sensitivity import PLACES, sensitivity

NAMES = [
    "linear", "relu in place", "gelu", "softmax inside", "linear on sequences", "conv1d", "conv2d", "conv2d circular",
    "conv2d grouped", "conv3d", "transposed conv2d grouped", "max pool", "conv residual", "batch norm eval",
    "batch norm eval relu", "batch norm 1d eval", "layer norm", "group norm", "attention", "multihead attention",
    "transformer layer", "lstm", "x @ W.T",
]  # fmt: skip
every_model = pytest.mark.parametrize("name", NAMES)


def gram(jacobian):
    return jacobian @ jacobian.T


@every_model
def test_input_jacobians(name):
    case = BY_NAME[name]
    found, model, inputs = sensitivity(case.problem()), case.model(), case.data()[0]
    for i, sample in enumerate(inputs):
        jacobian = input_jacobian(model, sample)
        assert_close(found.input_gram[i], gram(jacobian))
        assert_close(found.input_columns[i].flatten(), jacobian.square().sum(0))


@every_model
def test_layer_jacobians(name):
    case = BY_NAME[name]
    found, model, inputs = sensitivity(case.problem()), case.model(), case.data()[0]
    assert {layer.name for layer in found.layers} == set(layer_names(model))
    for layer in found.layers:
        for i, sample in enumerate(inputs):
            assert_close(layer.gram[i], gram(layer_jacobian(model, sample, layer.name)))


@every_model
def test_weight_gradients_of_layers_and_of_everything(name):
    case = BY_NAME[name]
    found, model, inputs = sensitivity(case.problem()), case.model(), case.data()[0]
    assert (found.weight_norms is not None) == case.closed
    for i, sample in enumerate(inputs):
        for layer in found.layers:
            parameter = layer.name + ("_weight" if layer.name.endswith("in_proj") else ".weight")
            truth = weight_gradients(model, sample, [parameter])
            assert_close(layer.weight_norms[i], truth.square().sum())
        if case.closed:
            truth = weight_gradients(model, sample)
            assert_close(found.weight_norms[i], truth.square().sum())
            assert_close(found.weight_gram[i], gram(truth))


def test_tokens_have_no_input_jacobian_but_layers_do():
    case = BY_NAME["embedding"]
    found, model, inputs = sensitivity(case.problem()), case.model(), case.data()[0]
    assert found.inputs is None
    assert found.input_gram is None
    for layer in found.layers:
        for i, sample in enumerate(inputs):
            assert_close(layer.gram[i], gram(layer_jacobian(model, sample, layer.name)))


def test_layers_below_the_chosen_parameters_are_reached():
    case = BY_NAME["embedding"]
    problem = case.problem(parameters="3.bias")
    problem.model[0].requires_grad_(False)
    assert_close(sensitivity(problem).layers[0].gram, sensitivity(case.problem()).layers[0].gram)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def test_a_layer_used_twice_counts_per_use():
    torch.manual_seed(0)
    model, inputs = Twice().double(), torch.randn(3, 4, dtype=torch.float64)
    found = sensitivity(Problem(model, nn.CrossEntropyLoss(), (inputs, torch.tensor([0, 1, 2]))))
    assert [layer.name for layer in found.layers] == ["layer", "layer#2", "head"]
    assert found.weight_norms is None  # one parameter in two places has no closed form
    for use, layer in [(1, found.layers[0]), (2, found.layers[1])]:
        for i, sample in enumerate(inputs):
            assert_close(layer.gram[i], gram(layer_jacobian(model, sample, "layer", use)))


@pytest.mark.parametrize("name", ["conv residual", "relu in place", "transformer layer"])
def test_chunks_give_the_same_numbers(name):
    case = BY_NAME[name]
    whole, chunked = sensitivity(case.problem()), sensitivity(case.problem(memory=20_000.0))
    for key in ("outputs", "targets", "inputs", "input_gram", "input_columns"):
        assert_close(getattr(chunked, key).double(), getattr(whole, key).double())
    for one, other in zip(whole.layers, chunked.layers, strict=True):
        assert_close(other.gram, one.gram)
        assert_close(other.input_norms, one.input_norms)


def test_measuring_leaves_no_trace():
    case = BY_NAME["batch norm eval"]
    problem = case.problem()
    problem.model.train()
    before, state = copy.deepcopy(problem.model.state_dict()), torch.random.get_rng_state()
    sensitivity(problem)
    list(local_grams(problem, "input"))
    assert all(torch.equal(before[key], value) for key, value in problem.model.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert problem.model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in problem.model.modules())
    assert all(parameter.grad is None for parameter in problem.model.parameters())


def test_only_what_is_wanted_is_computed():
    problem = BY_NAME["relu"].problem()
    found = sensitivity(problem, frozenset())
    assert found.input_gram is None
    assert found.layers == ()
    assert_close(found.outputs, sensitivity(problem).outputs)
    assert sensitivity(problem, frozenset({"layer_inputs"})).layers[0].weight_norms is None
    assert sensitivity(problem, frozenset({"input_norms"})).input_gram is not None  # few outputs: the quickest way
    assert {"input", "layers"} <= PLACES


def test_samples_that_see_each_other_are_refused():
    with pytest.raises(ValueError, match="samples that do not see each other"):
        sensitivity(BY_NAME["batch norm train"].problem())


@every_model
def test_products_of_each_sample_at_the_input_and_at_the_last_layer(name):
    problem = BY_NAME[name].problem()
    found = sensitivity(problem)
    vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    places = {"input": found.input_gram} | {layer.name: layer.gram for layer in found.layers[-1:]}
    for place, grams in places.items():
        (product,) = local_grams(problem, place)
        assert_close(product @ vectors, torch.einsum("nck,nk->nc", grams, vectors))


@pytest.mark.parametrize("name", ["batch norm train", "batch norm 1d train", "relu"])
def test_the_jacobian_of_a_whole_batch(name):
    case = BY_NAME[name]
    problem, inputs = case.problem(), case.data()[0]
    model = case.model().train(case.batchnorm == "train")
    full = torch.autograd.functional.jacobian(lambda x: model(x).flatten(), inputs).flatten(1)
    (product,) = batch_grams(problem)
    columns = torch.eye(len(full), dtype=torch.float64)
    assert_close(product @ columns, gram(full))
    assert_close(product @ columns[:, 0], gram(full)[:, 0])


def test_pieces_of_the_lanczos_way_keep_to_the_memory_limit():
    case = BY_NAME["conv2d"]
    assert len(list(local_grams(case.problem(memory=1000.0), "input"))) == 5
    assert len(list(local_grams(case.problem(), "input"))) == 1


def test_a_module_registered_twice_keeps_its_parameters():
    """torch's own weight tying in `functional_call` leaves plain tensors behind in such a model."""
    layer = nn.Linear(3, 3).double()
    model = nn.Sequential(layer, nn.Tanh(), layer)
    weight = layer.weight
    problem = Problem(model, nn.CrossEntropyLoss(), (torch.randn(4, 3).double(), torch.tensor([0, 1, 2, 0])))
    found = sensitivity(problem)
    assert [one.name for one in found.layers] == ["0", "0#2"]
    assert layer.weight is weight
    assert isinstance(layer.weight, nn.Parameter)


def layers_of_thirty_outputs(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 30)).double()
        data = torch.randn(1000, 8, dtype=torch.float64), torch.arange(1000) % 30
    return Problem(model, nn.CrossEntropyLoss(), data, **options)


def test_norms_at_layers_are_those_of_whole_gram_matrices():
    problem = layers_of_thirty_outputs(memory=1e6)
    whole, norms = (sensitivity(problem, frozenset({place})) for place in ("layer_inputs", "layer_norms"))
    for one, other in zip(whole.layers, norms.layers, strict=True):
        assert one.norms is None
        assert other.whole_gram is None
        assert_close(other.norms, torch.linalg.eigvalsh(one.gram)[:, -1].sqrt())


def test_norms_at_layers_keep_to_the_memory_limit():
    problem = layers_of_thirty_outputs(memory=1e6)
    with LiveBytes() as live:
        sensitivity(problem, frozenset({"layer_norms"}))
    assert live.peak < 3e6  # the Gram matrices of all samples are 21.6 MB


@pytest.mark.parametrize("scale", [1e-25, 1e-20, 1.0, 1e18])
def test_norms_of_layers_neither_vanish_nor_overflow(scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        model[2].weight.mul_(scale)
    problem = Problem(model, nn.MSELoss(), (torch.randn(4, 6), torch.randn(4, 3)))
    whole, norms = (sensitivity(problem, frozenset({place})) for place in ("layer_inputs", "layer_norms"))
    for layer, told in zip(whole.layers, norms.layers, strict=True):
        truth = torch.linalg.eigvalsh(layer.gram)[:, -1].sqrt()
        assert bool((truth > 0).all())
        torch.testing.assert_close(told.norms, truth, rtol=1e-6, atol=0)
