"""Sizes of outputs and weights, accuracy, and comparisons of two points or two data sets."""

import copy
from functools import partial

import pytest
import torch
from scipy.special import stdtrit
from torch import nn

from metrics.jacobian_cases import dense_network, entries_of, problem_of, value_of
from reference.cases import BY_NAME
from spherometer import Problem
from spherometer.metrics import measure
from spherometer.metrics.outputs import accuracy_gap, distance, generalisation_gap


def approximately(value):
    return pytest.approx(float(value), rel=1e-10)


def test_outputs():
    """Q9, Q10."""
    model, inputs = dense_network(11)
    outputs, problem = model(inputs).detach(), problem_of(model, inputs)
    assert value_of(problem, "output_frobenius") == approximately(outputs.norm())
    assert value_of(problem, "logit_norm") == approximately(outputs.norm(dim=1).mean())
    assert value_of(problem, "logit_sum") == approximately((outputs.sum(1) / outputs.shape[1] ** 0.5).abs().mean())


def test_ragged_batches_count_samples():
    model, inputs = dense_network(11)
    targets = torch.zeros(len(inputs), dtype=torch.long)
    whole = problem_of(model, inputs)
    ragged = Problem(model, whole.loss, [(inputs[:1], targets[:1]), (inputs[1:], targets[1:])])
    for name in ("logit_norm", "logit_sum", "output_frobenius", "accuracy", "mls", "nmls", "log_volume"):
        assert value_of(ragged, name) == approximately(value_of(whole, name))


def test_weights():
    """Q11, Q12."""
    model, inputs = dense_network(12)
    problem = problem_of(model, inputs)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert value_of(problem, "weight_norm") == approximately(flat.norm())
    norms = entries_of(problem, "parameter_norms")
    assert norms == {name: approximately(parameter.detach().norm()) for name, parameter in model.named_parameters()}
    layers = entries_of(problem, "layer_norms")
    assert layers["0 spectral"] == approximately(torch.linalg.matrix_norm(model[0].weight.detach(), 2))
    assert layers["0 Frobenius"] == approximately(model[0].weight.detach().norm())


def test_layer_norms_of_a_convolution_in_both_readings():
    """An unrolled norm lies between that of one window's kernel and √(number of windows a pixel is in) times it."""
    problem = BY_NAME["conv2d"].problem()
    found = measure(problem, ["layer_norms"])["layer_norms"].estimate
    values = dict(zip(found.labels, found.value.tolist(), strict=True))
    reshaped, unrolled = values["0 reshaped"], values["0 unrolled"]
    assert 0.5 * reshaped <= unrolled <= 6**0.5 * reshaped
    assert found.source == "solver"
    assert float(found.error.max()) <= 1e-4 * unrolled


def test_accuracy():
    """Q6, Q8."""
    model = nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.eye(2, dtype=torch.float64)
    inputs = torch.tensor([[1.0, 0], [0, 1], [2, 1], [1, 2]], dtype=torch.float64)
    targets = torch.tensor([0, 1, 1, -100])
    problem = Problem(model, nn.CrossEntropyLoss(), (inputs, targets))
    found = measure(problem, ["accuracy"])["accuracy"]
    assert float(found) == approximately(2 / 3)
    assert found.estimate.note == "1 ignored targets left out"
    soft = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)
    assert value_of(Problem(model, nn.CrossEntropyLoss(), (inputs[:3], soft[:3])), "accuracy") == approximately(2 / 3)
    with pytest.raises(ValueError, match="accuracy needs class numbers"):
        value_of(Problem(nn.Linear(2, 1).double(), nn.MSELoss(), (inputs, inputs[:, :1])), "accuracy")


def test_accuracy_of_tokens():
    model, tokens = nn.Conv1d(2, 3, 1).double(), torch.randn(4, 2, 5, dtype=torch.float64)
    targets = torch.randint(3, (4, 5), generator=torch.Generator().manual_seed(0))
    right = (model(tokens).argmax(1) == targets).double().mean()
    assert value_of(Problem(model, nn.CrossEntropyLoss(), (tokens, targets)), "accuracy") == approximately(right)


def test_distance_from_the_start_in_three_forms():
    """Q11."""
    model, inputs = dense_network(13)
    start, problem = copy.deepcopy(model), problem_of(model, inputs)
    flat = torch.cat([parameter.detach().flatten() for parameter in start.parameters()])
    for parameter in model.parameters():
        parameter.data.add_(0.5)
    truth = 0.5 * len(flat) ** 0.5
    for form in (start, start.state_dict(), flat):
        assert float(distance(problem, form)) == approximately(truth)
    with pytest.raises(ValueError, match="expected a start for every chosen parameter"):
        distance(problem, {})
    with pytest.raises(ValueError, match="expected a start of"):
        distance(problem, flat[1:])


def test_gaps_between_two_data_sets():
    """Q5, Q6."""
    model = nn.Linear(2, 2).double()
    inputs, targets = torch.randn(20, 2, dtype=torch.float64), torch.randint(2, (20,))
    train, test = (Problem(model, nn.CrossEntropyLoss(), (inputs[k], targets[k])) for k in (slice(10), slice(10, 20)))
    assert float(generalisation_gap(train, test)) == approximately(abs(train.loss_at() - test.loss_at()))
    assert float(accuracy_gap(train, test)) == approximately(value_of(train, "accuracy") - value_of(test, "accuracy"))


def test_train_mode_batch_norm_has_outputs():
    case = BY_NAME["batch norm train"]
    problem, model = case.problem(), case.model().train()
    assert value_of(problem, "logit_norm") == approximately(model(case.data()[0]).detach().norm(dim=1).mean())


def test_accuracy_leaves_out_what_a_partial_ignores():
    model, inputs = nn.Linear(3, 3, bias=False).double(), torch.eye(3, dtype=torch.float64)
    model.weight.data = torch.eye(3, dtype=torch.float64)
    targets = torch.tensor([0, 2, 2])  # right, wrong, right
    for loss in (nn.CrossEntropyLoss(ignore_index=0), partial(nn.functional.cross_entropy, ignore_index=0)):
        found = measure(Problem(model, loss, (inputs, targets)), "accuracy")["accuracy"]
        assert float(found) == 0.5
        assert found.estimate.note == "1 ignored targets left out"


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1e6), (1e42, 0.0)])
def test_intervals_over_data_keep_the_range_and_digits_of_double_precision(scale, shift):
    model, inputs = dense_network(13)
    targets = torch.arange(len(inputs)) % model(inputs).shape[1]

    def moved(outputs, targets):
        return scale * nn.functional.cross_entropy(outputs, targets) + shift

    plain, other = (
        measure(Problem(model, loss, (inputs, targets)), "loss", data_groups=2)["loss"].estimate.interval
        for loss in (nn.CrossEntropyLoss(), moved)
    )
    assert other == pytest.approx([scale * end + shift for end in plain], rel=1e-12)


def test_groups_that_are_left_out_leave_the_others_their_dropout_masks():
    """The interval over data is that of the single batches' own losses, by hand."""
    torch.manual_seed(14)
    model = nn.Sequential(nn.Linear(4, 40), nn.Dropout(0.5), nn.Linear(40, 3)).double()
    batches = [(torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))) for _ in range(4)]
    problem = Problem(model, nn.CrossEntropyLoss(), batches, dropout=5)
    state = problem.state()
    losses = torch.stack([problem.evaluate(state, piece).loss.detach() for piece in problem.pieces()])
    means = (losses.sum() - losses) / 3
    reach = float(stdtrit(3, 0.975)) * float((means - means.mean()).square().sum() * 3 / 4) ** 0.5
    low, high = measure(problem, "loss", data_groups=4)["loss"].estimate.interval
    assert (high - low) / 2 == approximately(reach)
