"""Thresholds of torch's own optimisers: on a quadratic they diverge above and converge below."""

import pytest
import torch
from metric_cases import one, problem_and_twin
from torch import nn

from spherometer import HalfSquaredError, Hessian, Preconditioned, Problem
from spherometer.estimators import eigenvalues
from spherometer.metrics import preconditioned_sharpness, preconditioner, stability_threshold_of

START = 1e-6
FROZEN = 1e15  # a step number at which every bias correction is one


def quadratic(curvatures):
    """½ Σ a_j θ_j² as a regression on scaled unit vectors."""
    num = len(curvatures)
    inputs = torch.diag(torch.tensor(curvatures, dtype=torch.float64).mul(num).sqrt())
    model = nn.Linear(num, 1, bias=False).double()
    model.weight.data.fill_(1.0)
    return Problem(model, HalfSquaredError(), (inputs, torch.zeros(num, 1, dtype=torch.float64)))


def growth(problem, optimizer, steps=400):
    """How much longer the weights get, from a start so near the minimum that an adaptive memory stays frozen."""
    inputs, targets = problem.data
    for parameter in problem.model.parameters():
        parameter.data.fill_(START)
    for _ in range(steps):
        optimizer.zero_grad()
        problem.loss(problem.model(inputs), targets).backward()
        optimizer.step()
        grown = max(float(p.detach().abs().max()) for p in problem.model.parameters()) / START
        if grown > 100:
            break
    return grown


def frozen_state(optimizer, **entries):
    """Give every parameter a memory that the coming steps do not change."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            known = {key: torch.full_like(parameter, value) for key, value in entries.items()}
            optimizer.state[parameter] = known | {"step": torch.tensor(FROZEN)}


def sgd(parameters, lr, **options):
    return torch.optim.SGD(parameters, lr=lr, **options)


def adam(parameters, lr, kind=torch.optim.Adam, beta=0.9, amsgrad=False):
    optimizer = kind(parameters, lr=lr, betas=(beta, 1 - 1e-12), amsgrad=amsgrad, weight_decay=0.0)
    entries = {"exp_avg": 0.0, "exp_avg_sq": 4.0}
    frozen_state(optimizer, **entries, **({"max_exp_avg_sq": 4.0} if amsgrad else {}))
    return optimizer


def rmsprop(parameters, lr, centered=False, momentum=0.0):
    optimizer = torch.optim.RMSprop(parameters, lr=lr, alpha=1.0, centered=centered, momentum=momentum)
    entries = {"square_avg": 4.0} | ({"grad_avg": 1.0} if centered else {})
    entries |= {"momentum_buffer": 0.0} if momentum else {}
    frozen_state(optimizer, **entries)
    return optimizer


def adagrad(parameters, lr):
    optimizer = torch.optim.Adagrad(parameters, lr=lr, initial_accumulator_value=1e12)
    for state in optimizer.state.values():
        state["step"] += 1
    return optimizer


OPTIMIZERS = {
    "sgd": sgd,
    "heavy ball": lambda p, lr: sgd(p, lr, momentum=0.9),
    "dampened": lambda p, lr: sgd(p, lr, momentum=0.6, dampening=0.5),
    "dampening without momentum": lambda p, lr: sgd(p, lr, dampening=0.5),
    "nesterov": lambda p, lr: sgd(p, lr, momentum=0.9, nesterov=True),
    "adam": adam,
    "adam without momentum": lambda p, lr: adam(p, lr, beta=0.0),
    "amsgrad": lambda p, lr: adam(p, lr, amsgrad=True),
    "adamw": lambda p, lr: adam(p, lr, kind=torch.optim.AdamW),
    "rmsprop": rmsprop,
    "centered rmsprop": lambda p, lr: rmsprop(p, lr, centered=True),
    "rmsprop with momentum": lambda p, lr: rmsprop(p, lr, momentum=0.5),
    "adagrad": adagrad,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimiser_diverges_iff_above_its_threshold(name):
    """T27 for every optimiser: the top curvature is put 3 % below and above the threshold."""
    build, curvatures = OPTIMIZERS[name], (5.0, 1.0)
    problem = quadratic(curvatures)
    for factor, diverges in ((0.97, False), (1.03, True)):
        trial = build(problem.model.parameters(), 1.0)
        diagonal = preconditioner(problem, trial)
        seen = float(eigenvalues(Preconditioned(Hessian(problem), diagonal)).value[0])
        optimizer = build(problem.model.parameters(), factor * stability_threshold_of(trial) / seen)
        found = preconditioned_sharpness(problem, optimizer)
        assert (float(found.value) > stability_threshold_of(optimizer)) is diverges
        assert found.value == pytest.approx(factor * stability_threshold_of(optimizer), rel=1e-3)
        grown = growth(problem, optimizer)
        assert (grown > 10) is diverges, f"grown by {grown}"


def test_thresholds_are_the_formulas():
    problem = quadratic((1.0,))
    weights = list(problem.model.parameters())
    assert stability_threshold_of(sgd(weights, 0.1)) == pytest.approx(20)
    assert stability_threshold_of(sgd(weights, 0.1, momentum=0.9)) == pytest.approx(38)
    assert stability_threshold_of(sgd(weights, 0.1, momentum=0.9, dampening=0.9)) == pytest.approx(380)
    assert stability_threshold_of(sgd(weights, 0.1, momentum=0.9, nesterov=True)) == pytest.approx(38 / 2.8)
    assert stability_threshold_of(torch.optim.Adam(weights, lr=0.1)) == pytest.approx(380)
    assert stability_threshold_of(torch.optim.Adagrad(weights, lr=0.1)) == pytest.approx(20)
    assert stability_threshold_of(torch.optim.RMSprop(weights, lr=0.1, momentum=0.5)) == pytest.approx(30)
    with pytest.raises(ValueError, match="expected dampening below 1, got 1"):
        stability_threshold_of(sgd(weights, 0.1, momentum=0.9, dampening=1.0))
    plain = one(problem, "stability_threshold:lr=0.1:momentum=0.9")
    assert plain.value == pytest.approx(stability_threshold_of(sgd(weights, 0.1, momentum=0.9)))


REAL = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.03),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.03, amsgrad=True, eps=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.03, weight_decay=0.0),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.03),
    "centered": lambda p: torch.optim.RMSprop(p, lr=0.03, centered=True, eps=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.03, lr_decay=0.1),
}


@pytest.mark.parametrize("name", REAL)
def test_diagonal_is_what_the_last_step_divided_by(name):
    """Δθ = −lr · (first moment or gradient) / D, read off a real step with its bias corrections."""
    problem, _ = problem_and_twin("tanh")
    optimizer = REAL[name](problem.model.parameters())
    inputs, targets = problem.data
    for _ in range(5):
        optimizer.zero_grad()
        problem.loss(problem.model(inputs), targets).backward()
        before = problem.state().vector
        gradient = torch.cat([p.grad.reshape(-1) for p in problem.model.parameters()])
        optimizer.step()
    moved = problem.state().vector - before
    states = [optimizer.state[p] for p in problem.model.parameters()]
    pushed = torch.cat([s["exp_avg"].reshape(-1) for s in states]) if "exp_avg" in states[0] else gradient
    assert torch.allclose(moved, -0.03 * pushed / preconditioner(problem, optimizer), rtol=1e-6, atol=1e-12)


def test_learning_rates_of_groups_are_folded_into_the_diagonal():
    """Two curvatures with two rates: the top of D^(−½)HD^(−½) decides, against 2/lr of the first group."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(2))

        def forward(self, inputs):
            return inputs @ torch.cat([self.first, self.second])[:, None]

    inputs = torch.diag(torch.tensor([2.0, 4.0], dtype=torch.float64).sqrt())  # H = diag(1, 2)
    problem = Problem(Two(), HalfSquaredError(), (inputs, torch.zeros(2, 1, dtype=torch.float64)))
    for rate, diverges in ((0.98, False), (1.02, True)):
        groups = [{"params": [problem.model.first], "lr": 0.1}, {"params": [problem.model.second], "lr": rate}]
        optimizer = torch.optim.SGD(groups)
        assert preconditioner(problem, optimizer).tolist() == pytest.approx([1, 0.1 / rate])
        found = preconditioned_sharpness(problem, optimizer)
        assert found.value == pytest.approx(2 * rate / 0.1, rel=1e-3)
        assert (float(found.value) > stability_threshold_of(optimizer)) is diverges
        assert (growth(problem, optimizer) > 10) is diverges


def test_preconditioned_sharpness_of_plain_descent_is_the_sharpness():
    problem, twin = problem_and_twin("relu")
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1, weight_decay=1e-3)
    found = preconditioned_sharpness(problem, optimizer)
    assert found.value == pytest.approx(float(torch.linalg.eigvalsh(twin.hessian())[-1]), rel=2e-3)
    assert found.note == "threshold 20; weight decay [0.001] is not part of H"
    assert found.vectors.shape == (problem.num_parameters, 1)


def test_weight_decay_inside_the_gradient_shifts_the_matrix():
    """SGD with weight decay γ sees H + γI (T15): the threshold holds for the shifted matrix."""
    problem = quadratic((1.0,))
    for decay, diverges in ((0.97, False), (1.03, True)):
        optimizer = torch.optim.SGD(problem.model.parameters(), lr=1.0, weight_decay=decay)
        shifted = Hessian(problem).shifted(decay)
        assert (float(eigenvalues(shifted).value[0]) > stability_threshold_of(optimizer)) is diverges
        assert (growth(problem, optimizer) > 10) is diverges


def test_a_part_of_the_parameters_can_be_measured():
    problem, _ = problem_and_twin("tanh")
    optimizer = torch.optim.Adam(problem.model.parameters())
    problem.loss(problem.model(problem.data[0]), problem.data[1]).backward()
    optimizer.step()
    part = problem.select("0.*")
    assert torch.equal(preconditioner(part, optimizer), preconditioner(problem, optimizer)[: part.num_parameters])


def test_measuring_changes_nothing_in_the_optimiser():
    problem, _ = problem_and_twin("tanh")
    optimizer = torch.optim.Adam(problem.model.parameters())
    problem.loss(problem.model(problem.data[0]), problem.data[1]).backward()
    optimizer.step()
    before = [value.clone() for state in optimizer.state.values() for value in state.values()]
    preconditioned_sharpness(problem, optimizer)
    after = [value for state in optimizer.state.values() for value in state.values()]
    assert all(torch.equal(one_, two) for one_, two in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "descends, got maximize=True: measure the negative loss"),
        (lambda p: torch.optim.SGD(p, lr=0.0), "a learning rate > 0 in every parameter group, got 0"),
        (lambda p: torch.optim.Adadelta(p), "SGD, Adam, AdamW, RMSprop or Adagrad of torch.optim, got Adadelta: build"),
        (
            lambda p: torch.optim.SGD([{"params": p[:1], "momentum": 0.9}, {"params": p[1:]}], lr=0.1),
            "the same momentum in every parameter group, got several",
        ),
    ],
)
def test_optimisers_without_a_threshold_are_refused(build, match):
    problem, _ = problem_and_twin("tanh")
    optimizer = build(list(problem.model.parameters()))
    with pytest.raises(ValueError, match=match):
        stability_threshold_of(optimizer)
    with pytest.raises(ValueError, match=match):
        preconditioner(problem, optimizer)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_an_optimiser_before_its_first_step_has_no_diagonal(kind):
    problem, _ = problem_and_twin("tanh")
    with pytest.raises(
        ValueError, match=r"has taken no step for '0.weight', so it has no preconditioner yet: take a step"
    ):
        preconditioner(problem, kind(problem.model.parameters()))


def test_a_parameter_the_optimiser_does_not_know_is_refused():
    problem, _ = problem_and_twin("tanh")
    optimizer = torch.optim.SGD(problem.model[0].parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"every chosen parameter in the optimizer, got none for '2.weight': choose"):
        preconditioner(problem, optimizer)
