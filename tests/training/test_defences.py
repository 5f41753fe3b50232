"""AT and TRADES: the losses by hand, batch norm as the papers have it, and robustness that rises."""

from __future__ import annotations

import pytest
import torch
from adversary_cases import digits, stream
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from spherometer.training.adversaries import PGD, AdversarialTraining, Trades, robust_accuracy
from spherometer.training.optim import EJR, SAM
from spherometer.zoo import Standardised, build_model, given, load_data

ATTACK = PGD(0.1, num_steps=3)


def make_model(batchnorm=True):
    return build_model("digits-cnn", width=4, batchnorm=batchnorm, seed=2)


def statistics(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_adversarial_training_by_hand(mode):
    inputs, targets = digits(num=30)
    model, twin = make_model(), make_model()
    for network in (model, twin):
        network.train()
        network(digits(num=50)[0])
    twin.train(mode == "train")
    kept = statistics(twin)
    moved = ATTACK.maximise(lambda x: cross_entropy(twin(x), targets, reduction="none"), inputs, stream(4))
    twin.load_state_dict(twin.state_dict() | kept)
    twin.train()
    expected = cross_entropy(twin(moved), targets)
    found = AdversarialTraining(ATTACK, stream(4), batchnorm=mode)(model, inputs, targets)
    torch.testing.assert_close(found, expected)
    assert all(torch.equal(statistics(twin)[name], value) for name, value in statistics(model).items())
    assert all(module.training for module in model.modules())


def test_trades_by_hand():
    inputs, targets = digits(num=30)
    model, twin = make_model(), make_model()
    twin.eval()
    with torch.no_grad():
        clean = log_softmax(twin(inputs), 1)

    def gain(moved):
        return kl_div(log_softmax(twin(moved), 1), clean, log_target=True, reduction="none").sum(1)

    moved = ATTACK.maximise(gain, inputs, stream(4))
    twin.train()
    outputs, others = twin(inputs), twin(moved)
    p, q = outputs.softmax(1), others.softmax(1)
    expected = cross_entropy(outputs, targets) + 6 * (p * (p / q).log()).sum(1).mean()
    model.train()
    found = Trades(ATTACK, stream(4), beta=6)(model, inputs, targets)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    found.backward()
    expected.backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_without_a_ball_they_are_the_plain_loss():
    inputs, targets = digits(num=30)
    model, still = make_model(batchnorm=False), PGD(0.0, num_steps=1)
    plain = cross_entropy(model(inputs), targets)
    torch.testing.assert_close(AdversarialTraining(still, stream())(model, inputs, targets), plain)
    torch.testing.assert_close(Trades(still, stream(), beta=6)(model, inputs, targets), plain)
    torch.testing.assert_close(Trades(ATTACK, stream(), beta=0)(model, inputs, targets), plain)


def test_the_attack_needs_a_random_start_for_trades():
    with pytest.raises(ValueError, match="random start"):
        Trades(PGD(0.1, random_start=False), stream())
    with pytest.raises(ValueError, match="beta of at least 0"):
        Trades(ATTACK, stream(), beta=-1)


@pytest.mark.parametrize("make", [AdversarialTraining, Trades])
@pytest.mark.parametrize("optimiser", [SAM, EJR])
def test_two_passes_see_the_same_adversary(make, optimiser):
    """L21: crafted once per step; the attack's generator moves once, the optimiser's closure runs twice."""
    (inputs, targets), model = digits(num=30), make_model()
    model.train()
    optimizer = optimiser(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, model=model)
    generator = stream()
    objective = make(ATTACK, generator)
    (part,) = objective.over(model, [(inputs, targets)])
    state, values = generator.get_state(), []

    def closure():
        optimizer.zero_grad()
        loss = part(model, inputs, targets)
        loss.backward()
        values.append(loss.item())
        return loss

    optimizer.step(closure)
    assert len(values) == 2
    assert torch.equal(generator.get_state(), state)


def train(objective, num_steps=150):
    model = build_model("fcn3-mnist", input_shape=(1, 8, 8), width=32, seed=1)
    inputs, targets = load_data("digits", num=600).tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(num_steps):
        chosen = torch.randperm(len(inputs), generator=stream(step))[:100]
        optimizer.zero_grad()
        objective(model, inputs[chosen], targets[chosen]).backward()
        optimizer.step()
    return model


def test_training_against_the_adversary_raises_robust_accuracy():
    data, attack = digits(num=300), PGD(0.15, num_steps=10)
    inner = PGD(0.15, num_steps=4)
    plain = robust_accuracy(train(lambda m, x, y: cross_entropy(m(x), y)), data, attack)
    at = robust_accuracy(train(AdversarialTraining(inner, stream())), data, attack)
    trades = robust_accuracy(train(Trades(inner, stream(), beta=6)), data, attack)
    assert at.interval[0] > plain.interval[1]
    assert trades.interval[0] > plain.interval[1]


def test_standardisation_inside_the_model_moves_with_it():
    model, rule = make_model(), given((0.3,), (0.5,))
    inside, inputs = Standardised(model, rule).eval(), digits(num=5)[0]
    torch.testing.assert_close(inside(inputs), model((inputs - 0.3) / 0.5))
    assert {"mean", "std"} < set(inside.state_dict())
    assert inside.double()(inputs.double()).dtype == torch.float64
