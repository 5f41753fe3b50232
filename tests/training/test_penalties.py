"""Penalties against dense Jacobians and Hessians in value, mean and gradient; ghost batches against one batch."""

import pytest
import torch
from optimiser_cases import assert_slopes, batch, flat, gradient_at, network
from torch import nn
from torch.nn import functional

import spherometer as sm
from reference.agreement import FINITE_DIFFERENCES, assert_close, assert_unbiased
from spherometer.training.objectives import Penalised, Plain
from spherometer.training.penalties import (
    FisherPenalty,
    GradientNormPenalty,
    InputJacobianPenalty,
    MeanJacobianPenalty,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def nothing(outputs, targets):
    """A loss of zero: what is left of the objective is the penalty."""
    return 0.0 * outputs.sum()


PENALTIES = {
    "mean Jacobian": lambda: MeanJacobianPenalty(0.7, generator=seeded()),
    "gradient norm": lambda: GradientNormPenalty(0.7, loss=nn.CrossEntropyLoss()),
    "Fisher": lambda: FisherPenalty(0.7, generator=seeded()),
    "input Jacobian": lambda: InputJacobianPenalty(0.7, generator=seeded()),
    "input Jacobian, as printed": lambda: InputJacobianPenalty(0.7, generator=seeded(), scaled=False),
    "input Jacobian, norm": lambda: InputJacobianPenalty(0.7, generator=seeded(), squared=False),
    "input Jacobian, norm as printed": lambda: InputJacobianPenalty(
        0.7, generator=seeded(), squared=False, scaled=False
    ),
}
every_penalty = pytest.mark.parametrize("name", PENALTIES)


def value_and_gradient(name, model, data):
    value = Penalised(nothing, [PENALTIES[name]()])(model, *data)
    return value.detach(), flat(torch.autograd.grad(value, list(model.parameters()), materialize_grads=True))


def drawn(penalty, model, data, num):
    """Values of the same penalty with one draw after the other."""
    objective = Penalised(nothing, [penalty])
    return torch.stack([objective(model, *data).detach() for _ in range(num)])


def mean_jacobian(model, data):
    """(C, P), by one backward pass for each class."""
    weights = flat(model.parameters())
    rows = [gradient_at(model, weights, lambda z, y, c=c: z[:, c].mean(), data) for c in range(3)]
    return torch.stack(rows)


def input_jacobians(model, inputs):
    return torch.stack([torch.func.jacrev(model)(sample) for sample in inputs])


def test_the_check_of_slopes_notices_wrong_ones():
    model, data = network(), batch(5)
    value, gradient = value_and_gradient("gradient norm", model, data)
    with pytest.raises(AssertionError, match="relative error"):
        assert_slopes(1.001 * gradient, lambda: value_and_gradient("gradient norm", model, data)[0], model, 1e-4)
    assert torch.equal(value_and_gradient("gradient norm", model, data)[0], value)


@pytest.mark.parametrize("name", [name for name in PENALTIES if name != "Fisher"])  # its draws follow the weights
def test_gradients_agree_with_finite_differences(name):
    model, data = network(), batch(5)
    _, gradient = value_and_gradient(name, model, data)
    assert_slopes(gradient, lambda: value_and_gradient(name, model, data)[0], model, 1e-7)


def test_mean_jacobian_penalty_is_a_dense_product():
    model, data = network(), batch()
    u = torch.randn(3, generator=seeded(), dtype=torch.float64)
    u = u / u.norm()
    jacobian = mean_jacobian(model, data)
    weights = flat(model.parameters())
    hessian = torch.zeros(len(weights), len(weights), dtype=torch.float64)
    for k, e in enumerate(1e-5 * torch.eye(len(weights)).double()):
        up, down = (gradient_at(model, w, lambda z, y: (z @ u).mean(), data) for w in (weights + e, weights - e))
        hessian[k] = (up - down) / 2e-5
    value, gradient = value_and_gradient("mean Jacobian", model, data)
    assert_close(value, 0.7 * (u @ jacobian).square().sum())
    assert_close(gradient, 2 * 0.7 * hessian @ (u @ jacobian), FINITE_DIFFERENCES)


def test_mean_jacobian_penalty_in_the_mean():
    """λ‖⟨J⟩‖_F²/C: the square of the mean over samples, which is far from the mean of squares."""
    model, data = network(), batch()
    draws = drawn(MeanJacobianPenalty(0.7, generator=seeded(3)), model, data, 500)
    assert_unbiased(draws, 0.7 * mean_jacobian(model, data).square().sum() / 3)
    singles = [mean_jacobian(model, (x, y)).square().sum() for x, y in zip(*[t.split(1) for t in data], strict=True)]
    with pytest.raises(AssertionError, match="z-score"):
        assert_unbiased(draws, 0.7 * torch.stack(singles).mean() / 3)


def test_gradient_norm_penalty_is_the_squared_gradient():
    model, data = network(), batch()
    slope = gradient_at(model, flat(model.parameters()), functional.cross_entropy, data)
    value, _ = value_and_gradient("gradient norm", model, data)
    assert_close(value, 0.7 * slope.square().sum())


def test_fisher_penalty_in_the_mean_is_the_trace_over_the_batch_size():
    model, data = network(), batch()
    trace = sm.trace(sm.Fisher(sm.Problem(model, nn.CrossEntropyLoss(), data))).value
    draws = drawn(FisherPenalty(0.7, generator=seeded(2)), model, data, 800)
    assert_unbiased(draws, 0.7 * torch.as_tensor(trace) / 8)


def test_fisher_penalty_for_fixed_labels_is_a_gradient_norm():
    model, data = network(), batch()
    uniform = torch.rand(8, 1, generator=seeded(), dtype=torch.float64)
    labels = (model(data[0]).softmax(-1).cumsum(-1) < uniform).sum(-1)
    assert len(labels.unique()) > 1
    value, gradient = value_and_gradient("Fisher", model, data)
    expected_value, expected = value_and_gradient("gradient norm", model, (data[0], labels))
    assert_close(value, expected_value)
    assert_close(gradient, expected)


def test_sampled_labels_have_the_probabilities_of_the_model():
    penalty, outputs = FisherPenalty(1.0, generator=seeded()), torch.tensor([[0.0, 1.0, -2.0]]).double()
    labels = penalty._draw(outputs.expand(20000, 3), None)
    assert_unbiased(functional.one_hot(labels, 3).double(), outputs.softmax(-1)[0])


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_input_jacobian_penalty_in_the_mean(squared, scaled):
    model, data = network(), batch()
    total = input_jacobians(model, data[0]).square().sum().detach()
    penalty = InputJacobianPenalty(0.7, generator=seeded(1), squared=squared, scaled=scaled)
    draws = drawn(penalty, model, data, 800)
    squares = draws if squared else draws.square() / 0.7
    assert_unbiased(squares, 0.7 * total / (1 if scaled else 24))


def test_hand_made_input_jacobian():
    """A linear layer W: u'J is W'uᵢ for each sample, so the squares are known for a known u."""
    model, inputs = nn.Linear(2, 3, bias=False).double(), torch.zeros(2, 2).double()
    u = torch.randn(6, generator=seeded(), dtype=torch.float64)
    u = (u / u.norm()).view(2, 3)
    expected = 0.7 * 6 * (u @ model.weight.detach()).square().sum()
    value = Penalised(nothing, [InputJacobianPenalty(0.7, generator=seeded())])(model, inputs, torch.zeros(2).long())
    assert_close(value.detach(), expected)


def test_the_norm_of_a_vanishing_jacobian_has_no_nan():
    model = nn.Linear(2, 3, bias=False).double()
    nn.init.zeros_(model.weight)
    penalty = InputJacobianPenalty(1.0, generator=seeded(), squared=False)
    objective, data = Penalised(nothing, [penalty]), (torch.ones(4, 2).double(), torch.zeros(4).long())
    objective(model, *data).backward()
    assert torch.equal(model.weight.grad, torch.zeros(3, 2).double())
    for part in objective.over(model, [data, data]):
        part(model, *data).backward()
    assert torch.equal(model.weight.grad, torch.zeros(3, 2).double())


@every_penalty
@pytest.mark.parametrize("cuts", [[4, 4], [1, 5, 2]])
def test_ghost_batches_are_one_batch(name, cuts):
    """Value and gradient of loss and penalty, with the same draw; the square is taken of the mean (L8, traps)."""
    model, data = network(), batch(8)
    whole = Penalised(nn.CrossEntropyLoss(), [PENALTIES[name](), GradientNormPenalty(0.1, loss=nn.CrossEntropyLoss())])
    value = whole(model, *data)
    gradient = flat(torch.autograd.grad(value, list(model.parameters())))
    ghosts = list(zip(*[tensor.split(cuts) for tensor in data], strict=True))
    again = Penalised(whole.loss, [PENALTIES[name](), whole.penalties[1]])
    total = torch.zeros(())
    for part, (inputs, targets) in zip(again.over(model, ghosts), ghosts, strict=True):
        total = total + part(model, inputs, targets)
    assert_close(total.double().detach(), value.detach())
    assert_close(flat(torch.autograd.grad(total, list(model.parameters()))), gradient)


def test_plain_ghost_batches_and_no_penalties():
    model, data = network(), batch(8)
    for objective in (Plain(nn.CrossEntropyLoss()), Penalised(nn.CrossEntropyLoss(), [])):
        expected = functional.cross_entropy(model(data[0]), data[1])
        assert_close(objective(model, *data).detach(), expected.detach())
        parts = list(objective.over(model, [data, data]))
        assert len(parts) == 2
        assert_close(parts[1](model, *data).detach(), expected.detach() / 2)
        assert objective.over(model, [data]) == [objective]


@pytest.mark.parametrize("norm", ["batch", "layer", "group", "instance", "attention"])
def test_second_derivatives_through_norms_and_attention(norm):
    """Train mode: each penalty's gradient against finite differences."""
    torch.manual_seed(0)
    layer = {
        "batch": nn.BatchNorm1d(4),
        "layer": nn.LayerNorm((4, 3)),
        "group": nn.GroupNorm(2, 4),
        "instance": nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
        "attention": nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0, batch_first=True),
    }[norm]
    model = nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Linear(1, 3), layer, nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    model, data = model.double().train(), batch(5)
    for name in ("mean Jacobian", "gradient norm", "input Jacobian"):
        _, gradient = value_and_gradient(name, model, data)
        assert_slopes(gradient, lambda name=name: value_and_gradient(name, model, data)[0], model, 1e-6)


def test_running_statistics_are_updated_once_by_a_penalised_loss():
    model, data = network(batchnorm=True), batch()
    objective = Penalised(nn.CrossEntropyLoss(), [make() for make in map(PENALTIES.get, PENALTIES)])
    list(objective.over(model, [data, data]))
    assert int(model[1].num_batches_tracked) == 0
    objective(model, *data)
    assert int(model[1].num_batches_tracked) == 1


@pytest.mark.parametrize("kind", ["EJR", "SAM"])
def test_penalties_inside_a_two_pass_step(kind):
    """The step is ∇(loss + penalty) at the top, the way up is that of the logits or of the whole objective."""
    model, data = network(), batch()
    objective = Penalised(nn.CrossEntropyLoss(), [GradientNormPenalty(0.1, loss=nn.CrossEntropyLoss())])
    start = flat(model.parameters())
    optimizer = getattr(sm.optim, kind)(model.parameters(), torch.optim.SGD, rho=0.3, lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = objective(model, *data)
        loss.backward()
        return loss

    optimizer.step(closure)
    moved = flat(model.parameters())

    def gradient():
        return flat(torch.autograd.grad(objective(model, *data), list(model.parameters())))

    nn.utils.vector_to_parameters(start, model.parameters())
    u = torch.randn(3, generator=seeded(), dtype=torch.float64)
    logit = gradient_at(model, start, lambda z, y: (z @ (u / u.norm())).mean(), data)
    up = logit if kind == "EJR" else gradient()
    nn.utils.vector_to_parameters(start + 0.3 * up / up.norm(), model.parameters())
    assert_close(moved, start - 0.5 * gradient())


@pytest.mark.parametrize("name", ["mean Jacobian", "Fisher"])
def test_outputs_without_an_axis_of_logits_are_refused(name):
    """N numbers of N samples are not N logits of one."""
    model, data = nn.Sequential(network(), nn.Linear(3, 1), nn.Flatten(0)).double(), batch()
    with pytest.raises(ValueError, match=r"expected outputs of shape \(samples, ..., logits\), got \(8,\)"):
        value_and_gradient(name, model, data)
    value, _ = value_and_gradient("input Jacobian", model, data)
    assert value > 0


@pytest.mark.parametrize("coefficient", [-1.0, float("nan"), float("inf")])
def test_impossible_coefficients(coefficient):
    for build in (
        lambda: MeanJacobianPenalty(coefficient, generator=seeded()),
        lambda: InputJacobianPenalty(coefficient, generator=seeded()),
    ):
        with pytest.raises(ValueError, match="expected a coefficient of at least 0"):
            build()
