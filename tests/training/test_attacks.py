"""Attacks against formulas by hand, against foolbox, and against what they must never do."""

from __future__ import annotations

import pytest
import torch
from adversary_cases import Answers, digits, stream, trained
from torch import nn
from torch.nn.functional import cross_entropy

from spherometer.training.adversaries import PGD, Noise, ball, fgsm
from spherometer.training.adversaries.attacks import margins

ATTACKS = [
    fgsm(0.1),
    fgsm(0.5, "l2"),
    PGD(0.1, num_steps=5),
    PGD(1.0, "l2", num_steps=5),
    PGD(0.1, num_steps=3, num_restarts=3),
    PGD(0.1, num_steps=1, random_start=False, step_size=3.0),
    PGD(0.0, num_steps=2),
    Noise(0.2),
    Noise(2.0, "l2"),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_every_attack_stays_in_its_ball_and_in_the_bounds(attack):
    inputs, targets = digits()
    moved = attack(trained(), inputs, targets, stream())
    assert float(ball(attack.norm, attack.radius).norm(moved - inputs).max()) <= attack.radius * (1 + 1e-5) + 1e-7
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    assert not moved.requires_grad


def test_one_step_by_hand():
    inputs, targets = digits(num=20)
    moved = inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(trained()(moved), targets, reduction="sum"), moved)
    maximum = (inputs + 0.1 * gradient.sign()).clamp(0, 1)
    torch.testing.assert_close(fgsm(0.1)(trained(), inputs, targets, stream()), maximum)
    euclidean = (inputs + 0.7 * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)).clamp(0, 1)
    torch.testing.assert_close(fgsm(0.7, "l2")(trained(), inputs, targets, stream()), euclidean)


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.1), ("l2", 0.8)])
def test_the_path_is_that_of_foolbox(norm, radius):
    foolbox = pytest.importorskip("foolbox")
    inputs, targets = digits()
    step, num_steps = radius / 5, 12
    attack = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm]
    theirs = attack(abs_stepsize=step, steps=num_steps, random_start=False)
    wrapped = foolbox.PyTorchModel(trained(), bounds=(0, 1), device="cpu")
    expected = theirs.run(wrapped, inputs, foolbox.criteria.Misclassification(targets), epsilon=radius)
    ours = PGD(radius, norm, num_steps=num_steps, step_size=step, random_start=False)
    torch.testing.assert_close(ours(trained(), inputs, targets, stream()), expected, rtol=1e-4, atol=1e-5)


def test_the_draws_are_uniform_in_the_ball():
    like = torch.zeros(4000, 3)
    spread = ball("linf", 2.0).draw(like, stream())
    assert abs(float(spread.mean())) < 4 * (4 / 3 / spread.numel()) ** 0.5
    assert float(spread.var()) == pytest.approx(4 / 3, rel=0.05)
    lengths = ball("l2", 2.0).draw(like, stream()).norm(dim=1)
    assert float((lengths <= 1).double().mean()) == pytest.approx(1 / 8, abs=4 * (7 / 64 / 4000) ** 0.5)
    assert float(lengths.max()) <= 2


def test_more_restarts_and_steps_never_break_fewer():
    inputs, targets = digits()
    wrong = []
    for attack in (PGD(0.1, num_steps=2), PGD(0.1, num_steps=2, num_restarts=4)):
        wrong.append(margins(trained(), attack(trained(), inputs, targets, stream()), targets) > 0)
    assert bool((wrong[1] | ~wrong[0]).all())  # the first restart is the single run
    assert int(wrong[1].sum()) >= int(wrong[0].sum())


def test_margins_by_hand():
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    assert margins(nn.Identity(), logits, torch.tensor([1, 2])).tolist() == [-1.0, 1.0]


def test_a_seed_decides_and_nothing_else_changes():
    inputs, targets = digits(num=20)
    model = trained()
    before, state = {n: p.clone() for n, p in model.named_parameters()}, torch.random.get_rng_state()
    one, same, other = (PGD(0.1, num_steps=2)(model, inputs, targets, stream(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[n], p) and p.grad is None for n, p in model.named_parameters())


def test_a_flat_loss_moves_nothing_and_makes_no_nan():
    inputs, targets = digits(num=5)
    flat = Answers(after=lambda z: z * 0)
    for norm in ("linf", "l2"):
        attack = PGD(0.1, norm, random_start=False, num_steps=2)
        assert torch.equal(attack(flat, inputs, targets, stream()), inputs)


def test_attacks_work_without_gradients_and_on_inference_weights():
    inputs, targets = digits(num=10)
    with torch.no_grad():
        moved = fgsm(0.1)(trained(), inputs, targets, stream())
    assert not torch.equal(moved, inputs)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: PGD(-1.0), "expected a finite radius"),
        (lambda: PGD(float("nan")), "expected a finite radius"),
        (lambda: PGD(0.1, "l1"), "expected a norm of linf, l2, got 'l1'"),
        (lambda: PGD(0.1, num_steps=0), "at least one step"),
        (lambda: PGD(0.1, num_restarts=0), "at least one step and one restart"),
        (lambda: PGD(0.1, step_size=0.0), "positive step size"),
        (lambda: PGD(0.1, num_restarts=2, random_start=False), "random start for 2 restarts"),
        (lambda: PGD(0.1, bounds=(1.0, 0.0)), "low < high"),
    ],
)
def test_impossible_attacks(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_inputs_outside_the_bounds_are_refused_with_the_way_out():
    inputs, targets = digits(num=5)
    for attack in (fgsm(0.1), Noise(0.1)):
        with pytest.raises(ValueError, match=r"expected inputs in \[0, 1\], got -0.5 to .* inside the model"):
            attack(trained(), inputs - 0.5, targets, stream())
    assert fgsm(0.1, bounds=None)(trained(), inputs - 0.5, targets, stream()).min() < -0.5
    with pytest.raises(TypeError, match="inputs of floats"):
        fgsm(0.1)(trained(), inputs.long(), targets, stream())
