"""Samples along other axes, linear maps inside attention, layouts in memory: nothing of it may change a number."""

import pytest
import torch
from torch import nn

from reference.agreement import assert_close
from reference.cases import BY_NAME
from reference.naive_jacobians import frozen
from spherometer import GaussNewton, Problem
from spherometer.metrics import measure
from spherometer.operators.arrangement import by_sample, order_of
from spherometer.operators.sensitivity import sensitivity
from spherometer.operators.trial import try_out

NUM, TOKENS, WIDTH = 4, 6, 4


class Mixer(nn.Module):
    """Linear, tanh, sum over other tokens, linear: with the samples first, second, or merged with the tokens."""

    def __init__(self, way: str, *, tokens: str = "all") -> None:
        super().__init__()
        self.way, self.tokens = way, tokens
        self.up, self.head = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, inputs):
        num = len(inputs)
        if self.way == "second":
            hidden = torch.tanh(self.up(inputs.transpose(0, 1))).transpose(0, 1)
        elif self.way == "merged":
            hidden = torch.tanh(self.up(inputs.flatten(0, 1))).unflatten(0, (num, -1))
        elif self.way == "inner":
            hidden = torch.tanh(self.up(inputs.transpose(0, 1).flatten(0, 1))).unflatten(0, (-1, num)).transpose(0, 1)
        else:
            hidden = torch.tanh(self.up(inputs))
        return self.head(hidden[:, 0] if self.tokens == "first" else hidden.mean(1))


def mixed(way, *, tokens="all", num_tokens=TOKENS, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Mixer(way, tokens=tokens).double()
        inputs = torch.randn(NUM, num_tokens, 3, dtype=torch.float64)
    return Problem(model, nn.CrossEntropyLoss(), (inputs, torch.arange(NUM) % 3), **options)


@pytest.mark.parametrize("way", ["second", "merged", "inner"])
@pytest.mark.parametrize("tokens", ["all", "first"])
@pytest.mark.parametrize("num_tokens", [2, NUM, TOKENS])
def test_samples_are_found_wherever_they_lie(way, tokens, num_tokens):
    plain, other = (mixed(one, tokens=tokens, num_tokens=num_tokens) for one in ("first", way))
    truth, found = sensitivity(plain), sensitivity(other)
    for one, two in zip(truth.layers, found.layers, strict=True):
        assert_close(two.gram, one.gram)
        assert_close(two.input_norms, one.input_norms)
        assert_close(two.weight_norms, one.weight_norms)
        assert two.input_shape == one.input_shape
    names = [
        "nmls",
        "layer_log_volume",
        "representation_participation_ratio",
        "feature_norms",
        "nmls_bound:kernel=reshaped",
    ]
    before, after = measure(plain, names), measure(other, names)
    for name in names:
        assert_close(torch.as_tensor(after[name].value), torch.as_tensor(before[name].value))


@pytest.mark.parametrize("way", ["second", "merged", "inner"])
def test_as_many_tokens_as_samples_do_not_fool_the_exact_trace(way):
    """Shapes (n, n, d) do not tell samples from tokens: taken for samples, tokens would give another trace."""
    plain, other = (mixed(one, num_tokens=NUM) for one in ("first", way))
    dense = GaussNewton(other) @ torch.eye(other.num_parameters, dtype=torch.float64)
    for problem in (plain, other):
        exact = GaussNewton(problem).exact_norms()
        assert exact is None or sum(exact.values()) == pytest.approx(float(dense.trace()), rel=1e-10)
    assert GaussNewton(plain).exact_norms() is not None


def test_orders_of_tensors():
    batch = torch.arange(24.0).reshape(4, 6) + 1
    for order, tensor in (
        ("first", batch), ("first", batch.reshape(8, 3)), ("second", batch.reshape(4, 2, 3).transpose(0, 1)),
        ("inner", batch.reshape(4, 2, 3).transpose(0, 1).reshape(8, 3)),
    ):  # fmt: skip
        arranged = by_sample(tensor, 4, order)
        assert torch.equal(arranged.reshape(4, -1), batch)
        slopes = []
        for i in range(4):
            slope = torch.zeros_like(tensor)
            by_sample(slope, 4, order)[i] = 1.0
            slopes.append(slope)
        assert order_of(slopes) == order
    assert order_of([torch.ones(1, 3), torch.ones(1, 3)]) is None
    assert order_of([torch.ones(2, 3), torch.ones(2, 3)]) is None
    assert order_of([torch.ones(2, 3), torch.ones(2, 3)], mixed=True) == "first"


def test_what_belongs_to_no_sample_is_left_out_and_named():
    problem = BY_NAME["prompt"].problem()
    assert sensitivity(problem).layers == ()
    with pytest.raises(ValueError, match="no linear or convolutional layer"):
        measure(problem, ["nmls"])
    model = nn.Sequential(nn.Linear(3, 3), BY_NAME["prompt"].build()).double()
    model[1].layer = nn.Linear(4, 3).double()
    found = measure(Problem(model, nn.CrossEntropyLoss(), BY_NAME["prompt"].data()), ["layer_mls"])["layer_mls"]
    assert found.estimate.labels == ("0",)
    assert found.estimate.note == "not among the layers: 1.layer (no input of each sample)"


def test_recurrent_cells_are_named():
    found = measure(BY_NAME["lstm"].problem(), ["nmls"])["nmls"]
    assert found.estimate.note == "not among the layers: 0.inner (LSTM)"


@pytest.mark.parametrize("need_weights", [False, True])
def test_linear_maps_inside_multihead_attention(need_weights):
    case = BY_NAME["multihead attention"]
    model = case.model()
    heads = model[1]
    heads.forward = lambda x: heads.attention(x, x, x, need_weights=need_weights)[0]
    written_out = frozen(case.model()).requires_grad_()
    found, truth = (sensitivity(Problem(one, nn.CrossEntropyLoss(), case.data())) for one in (model, written_out))
    assert [layer.name for layer in found.layers] == ["0", "1.attention.in_proj", "1.attention.out_proj", "3"]
    for one, two in zip(truth.layers, found.layers, strict=True):
        assert two.name == one.name
        assert_close(two.gram, one.gram)
        assert_close(two.input_norms, one.input_norms)
        assert_close(two.weight_norms, one.weight_norms)
        assert_close(two.weight, one.weight)


def test_cross_attention_is_heard_part_by_part():
    class Cross(nn.Module):
        def __init__(self, **sizes):
            super().__init__()
            self.heads, self.head = nn.MultiheadAttention(4, 2, batch_first=True, **sizes), nn.Linear(4, 3)

        def forward(self, inputs):
            return self.head(self.heads(inputs, inputs.flip(1), inputs.sin())[0].mean(1))

    for sizes, expected in (
        ({}, ["heads.in_proj", "heads.in_proj#2", "heads.in_proj#3", "heads.out_proj", "head"]),
        ({"kdim": 4, "vdim": 4}, ["heads.in_proj", "heads.in_proj#2", "heads.in_proj#3", "heads.out_proj", "head"]),
    ):
        torch.manual_seed(0)
        model = Cross(**sizes).double()
        problem = Problem(model, nn.CrossEntropyLoss(), (torch.randn(3, 5, 4).double(), torch.arange(3)))
        found = measure(problem, ["layer_mls"])["layer_mls"].estimate
        assert list(found.labels) == expected
        assert "used more than once, each use counts: heads.in_proj" in found.note


def test_nothing_changes_in_what_attention_answers():
    case = BY_NAME["transformer layer"]
    problem = case.problem()
    with torch.no_grad():
        truth = case.model().eval()(case.data()[0])
    assert_close(sensitivity(problem).outputs, truth)


class Viewing(nn.Module):
    """Joins samples and channels by a view, which channels-last tensors refuse."""

    def __init__(self, backward: bool) -> None:
        super().__init__()
        self.convolution, self.head, self.backward = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 3), backward

    def forward(self, inputs):
        maps = torch.tanh(self.convolution(inputs))
        if self.backward:
            return self.head(ViewingGradient.apply(maps).square().sum((2, 3)))
        return self.head(maps.view(len(maps) * 4, -1).mean(1).view(-1, 4))


class ViewingGradient(torch.autograd.Function):
    """The identity, whose gradient is written with a view."""

    @staticmethod
    def forward(context, maps):
        return maps.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient.view(-1).view_as(gradient)


@pytest.mark.parametrize("name", ["conv2d", "conv residual", "batch norm eval", "max pool"])
def test_the_layout_changes_no_number(name):
    case = BY_NAME[name]
    single, double = case.problem(dtype=torch.float32), case.problem()
    assert try_out(single, single.state()).layout is torch.channels_last
    assert try_out(double, double.state()).layout is torch.preserve_format
    found, truth = sensitivity(single), sensitivity(double)
    assert_close(found.input_gram, truth.input_gram, tolerance=1e-4)
    assert_close(found.input_columns, truth.input_columns, tolerance=1e-4)
    for one, two in zip(truth.layers, found.layers, strict=True):
        assert_close(two.gram, one.gram, tolerance=1e-4)
        assert_close(two.weight_norms, one.weight_norms, tolerance=1e-4)


@pytest.mark.parametrize("backward", [False, True])
def test_a_model_that_views_its_tensors_keeps_the_plain_layout(backward):
    torch.manual_seed(0)
    data = torch.randn(5, 2, 4, 4), torch.arange(5) % 3
    problem = Problem(Viewing(backward), nn.CrossEntropyLoss(), data)
    assert try_out(problem, problem.state()).layout is torch.preserve_format
    double = Problem(Viewing(backward).double(), nn.CrossEntropyLoss(), (data[0].double(), data[1]))
    double.model.load_state_dict(problem.model.state_dict())
    assert_close(sensitivity(problem).layers[0].gram, sensitivity(double).layers[0].gram, tolerance=1e-4)
