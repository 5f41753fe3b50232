"""SAM, ASAM, EJR and EJRv2: each step against its formula written out, and against another library."""

import pytest
import torch
from optimiser_cases import KINDS, RADII, batch, closure_of, direction_of, flat, gradient_at, gradient_by_hand, network
from torch import nn
from torch.nn import functional

import spherometer as sm
from reference.agreement import assert_close, assert_unbiased

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_a_step_is_the_formula(kind):
    model, data = network(), batch()
    expected = flat(model.parameters()) - 0.5 * gradient_by_hand(kind, model, data, rho=RADII[kind])
    optimizer = KINDS[kind](model.parameters(), torch.optim.SGD, rho=RADII[kind], lr=0.5)
    before = functional.cross_entropy(model(data[0]), data[1])
    loss = optimizer.step(closure_of(optimizer, model, [data]))
    assert_close(flat(model.parameters()), expected)
    assert_close(loss.double(), before.detach())


@every_kind
def test_micro_batches_of_any_size_are_one_batch(kind):
    data = batch(8)
    results = []
    for cuts in ([8], [5, 3], [1, 6, 1]):
        model = network()
        optimizer = KINDS[kind](model.parameters(), torch.optim.SGD, rho=RADII[kind], lr=0.5)
        batches = list(zip(data[0].split(cuts), data[1].split(cuts), strict=True))
        for _ in range(2):
            optimizer.step(closure_of(optimizer, model, batches))
        results.append(flat(model.parameters()))
    assert_close(results[1], results[0])
    assert_close(results[2], results[0])


@every_kind
def test_radius_zero_is_the_base_optimiser(kind):
    options = {"mu": 0.0} if kind == "EJRv2" else {}
    model, twin, data = network(), network(), batch()
    optimizer = KINDS[kind](model.parameters(), torch.optim.Adam, rho=0.0, lr=0.1, **options)
    plain = torch.optim.Adam(twin.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.step(closure_of(optimizer, model, [data]))
        plain.step(closure_of(plain, twin, [data]))
    assert torch.equal(flat(model.parameters()), flat(twin.parameters()))


@pytest.mark.parametrize(("kind", "adaptive"), [("SAM", False), ("ASAM", True)])
@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW])
def test_agrees_with_pytorch_optimizer(kind, adaptive, base):
    theirs = pytest.importorskip("pytorch_optimizer").SAM
    model, twin, data = network(), network(), batch()
    options = {"lr": 0.05, "weight_decay": 0.01} | ({"momentum": 0.9} if base is torch.optim.SGD else {})
    own = {"eta": 0.0} if adaptive else {}  # theirs has no eta
    ours = KINDS[kind](model.parameters(), base, rho=0.2, **own, **options)
    other = theirs(twin.parameters(), base, rho=0.2, adaptive=adaptive, **options)
    for _ in range(5):
        ours.step(closure_of(ours, model, [data]))
        closure = closure_of(other, twin, [data])
        closure()
        other.step(closure)
    assert_close(flat(model.parameters()), flat(twin.parameters()), 1e-7)  # they take the norm in single precision


def test_weight_decay_is_not_part_of_the_way_up():
    model, data = network(), batch()
    weights = flat(model.parameters())
    expected = weights - 0.5 * (gradient_by_hand("SAM", model, data, rho=0.3) + 0.1 * weights)
    optimizer = sm.optim.SAM(model.parameters(), torch.optim.SGD, rho=0.3, lr=0.5, weight_decay=0.1)
    optimizer.step(closure_of(optimizer, model, [data]))
    assert_close(flat(model.parameters()), expected)


def test_groups_have_their_own_radius_and_share_the_norm():
    model, data = network(), batch()
    weights, groups = flat(model.parameters()), [model[0], model[2]]
    slope = gradient_at(model, weights, functional.cross_entropy, data)
    radii = torch.tensor([0.2] * 30 + [0.6] * 21, dtype=torch.float64)
    expected = weights - 0.5 * gradient_at(
        model, weights + radii * slope / slope.norm(), functional.cross_entropy, data
    )
    given = [{"params": groups[0].parameters(), "rho": 0.2}, {"params": list(groups[1].parameters())}]
    optimizer = sm.optim.SAM(given, torch.optim.SGD, rho=0.6, lr=0.5)
    optimizer.step(closure_of(optimizer, model, [data]))
    assert_close(flat(model.parameters()), expected)


@pytest.mark.parametrize("kind", ["EJR", "EJRv2"])
def test_only_the_logits_decide_the_way_up(kind):
    """A term of the loss that does not go through the logits is in the step, not in δ."""
    model, data = network(), batch()
    weights, u = flat(model.parameters()), direction_of(0)
    delta = gradient_at(model, weights, lambda z, y: (z @ u).mean(), data)
    top = weights + 0.4 * delta / delta.norm()

    def scalar(z, y):
        return functional.cross_entropy(z, y) + (0.03 * (z @ u).mean() if kind == "EJRv2" else 0)

    expected = weights - 0.5 * (gradient_at(model, top, scalar, data) + top)
    optimizer = KINDS[kind](model.parameters(), torch.optim.SGD, rho=0.4, lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(sm.optim.logits(model(data[0])), data[1])
        loss = loss + sum(weight.square().sum() for weight in model.parameters()) / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    assert_close(flat(model.parameters()), expected)


def test_directions_are_fresh_in_each_step_uniform_and_reproducible():
    """δ of a linear model with one constant input is u itself, which the weights then tell."""

    def run(seed):
        model = nn.Linear(1, 3, bias=False).double()
        nn.init.zeros_(model.weight)
        optimizer = sm.optim.EJR(model.parameters(), torch.optim.SGD, rho=1.0, seed=seed, lr=1.0)
        tops = []

        def closure():
            optimizer.zero_grad()
            z = sm.optim.logits(model(torch.ones(2, 1).double()))
            tops.append(model.weight.detach().flatten().clone())
            loss = 0 * z.sum()
            loss.backward()
            return loss

        for _ in range(400):
            optimizer.step(closure)
        return torch.stack(tops[1::2])

    seen = run(0)
    assert torch.equal(seen, run(0))
    assert not torch.equal(seen, run(1))
    assert_close(seen.norm(dim=1), torch.ones(400).double())
    assert_unbiased(seen, torch.zeros(3).double())
    assert_unbiased(seen.unsqueeze(1) * seen.unsqueeze(2), torch.eye(3).double() / 3)


def test_v2_descends_the_jacobian_norm_on_top():
    """The gradient gained over EJR is μ∇⟨u'z⟩ + ∇(μρ‖⟨J⟩u‖) to first order in ρ (C Eq 55-60)."""
    data, u, rho, mu = batch(), direction_of(0), 1e-4, 0.5
    steps = []
    for kind, options in ((sm.optim.EJRv2, {"mu": mu}), (sm.optim.EJR, {})):
        model = network()
        start = flat(model.parameters())
        optimizer = kind(model.parameters(), torch.optim.SGD, rho=rho, lr=1.0, **options)
        optimizer.step(closure_of(optimizer, model, [data]))
        steps.append(start - flat(model.parameters()))

    def jacobian_times_u(weights):
        return gradient_at(network(), weights, lambda z, y: (z @ u).mean(), data)

    norm_slope = torch.stack(
        [
            (jacobian_times_u(start + shift).norm() - jacobian_times_u(start - shift).norm()) / 2e-5
            for shift in 1e-5 * torch.eye(len(start)).double()
        ]
    )
    gained = steps[0] - steps[1] - mu * jacobian_times_u(start)
    assert_close(gained / (mu * rho), norm_slope, 1e-3)
