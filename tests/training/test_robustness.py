"""Robust accuracy and its interval; models that only look robust are found out."""

from __future__ import annotations

import pytest
import torch
from adversary_cases import Answers, digits, stream, trained
from torch import nn

from spherometer.training.adversaries import (
    PGD,
    AdversarialTraining,
    AutoAttack,
    Trades,
    apgd,
    fgsm,
    gradient_masking,
    proportion,
    robust_accuracy,
)
from spherometer.training.adversaries.masking import beats


def test_inputs_that_are_all_alike_are_looked_at_too():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    data = torch.full((6, 1, 2, 2), 0.5), torch.arange(6) % 3
    assert gradient_masking(model, data, PGD(0.1, bounds=None)) is not None


def test_the_interval_is_that_of_clopper_and_pearson():
    from scipy.stats import binomtest

    for successes, trials in [(0, 10), (3, 10), (10, 10), (57, 120), (1, 1), (999, 1000)]:
        expected = binomtest(successes, trials).proportion_ci(0.95, method="exact")
        found = proportion(successes, trials)
        assert found.interval == pytest.approx((expected.low, expected.high), abs=1e-12)
        assert found.value == successes / trials
        assert found.error == pytest.approx((found.value * (1 - found.value) / trials) ** 0.5)
    with pytest.raises(ValueError, match="at least one trial"):
        proportion(0, 0)


def test_robust_accuracy_by_hand():
    inputs, targets = digits()
    attack = PGD(0.1, num_steps=5)
    moved = attack(trained(), inputs, targets, stream(3))
    right = (trained()(inputs).argmax(1) == targets) & (trained()(moved).argmax(1) == targets)
    found = robust_accuracy(trained(), (inputs, targets), attack, seed=3)
    assert found.value == pytest.approx(float(right.double().mean()))
    assert found.source == "data sample"
    assert found.note.startswith("PGD, linf radius 0.1, 5 steps; clean accuracy 0.")
    nothing = robust_accuracy(trained(), (inputs, targets), PGD(0.0, num_steps=1))
    assert nothing.value == pytest.approx(float((trained()(inputs).argmax(1) == targets).double().mean()))
    assert nothing.value > found.value > robust_accuracy(trained(), (inputs, targets), PGD(0.3, num_steps=10)).value


def test_the_model_is_attacked_in_eval_mode_and_left_as_it_was():
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(1), trained())
    model.train()
    model[1].eval()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    first, second = (robust_accuracy(model, digits(), fgsm(0.1)).value for _ in range(2))
    assert first == second  # dropout is off
    assert [module.training for module in model] == [True, False, True]
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())
    trained().eval()


@pytest.mark.parametrize(
    ("after", "match"),
    [
        (lambda z: z.softmax(dim=1), "outputs that are probabilities: leave the softmax out"),
        (lambda z: z + torch.randn(z.shape), "with different outputs"),
    ],
)
def test_classic_mistakes_are_refused(after, match):
    with pytest.raises(ValueError, match=match):
        robust_accuracy(Answers(after=after), digits(), fgsm(0.1))


def test_wrong_data_and_outputs_are_refused():
    inputs, targets = digits(num=5)
    for wrong in (targets.float(), targets[:3], nn.functional.one_hot(targets)):
        with pytest.raises(ValueError, match=r"class numbers|one target per input"):
            robust_accuracy(trained(), (inputs, wrong), fgsm(0.1))
    with pytest.raises(ValueError, match="batch size of at least 1"):
        robust_accuracy(trained(), (inputs, targets), fgsm(0.1), batch_size=0)
    with pytest.raises(ValueError, match=r"expected inputs in \[0, 1\]"):
        robust_accuracy(trained(), (inputs * 2, targets), fgsm(0.1))

    def overflow(logits):
        return torch.where(logits.sum() > 1e9, logits, logits / 0)

    with pytest.raises(FloatingPointError, match="not finite"):
        robust_accuracy(Answers(after=overflow), (inputs, targets), fgsm(0.1))


def test_bytes_are_refused_with_the_way_out():
    model, inputs = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    data = inputs, torch.tensor([0, 1])
    for call in (
        lambda: robust_accuracy(model, data, PGD(0.1)),
        lambda: gradient_masking(model, data, PGD(0.1)),
        lambda: AdversarialTraining(PGD(0.1), stream())(model, *data),
        lambda: Trades(PGD(0.1), stream())(model, *data),
    ):
        with pytest.raises(TypeError, match=r"expected inputs of floats .* got torch.uint8: .* inputs / 255"):
            call()


def test_an_honest_model_shows_no_sign_of_masking():
    for attack in (PGD(0.1, num_steps=10), PGD(1.0, "l2", num_steps=10)):
        assert gradient_masking(trained(), digits(), attack)
    assert robust_accuracy(trained(), digits(), PGD(0.1), check_masking=True).status.converged


def rounded(inputs):
    return (inputs * 4).round() / 4  # no gradient at all


class Jagged(torch.autograd.Function):
    """Identity whose gradient is noise: a defence that shatters gradients."""

    @staticmethod
    def forward(context, inputs):
        context.save_for_backward(inputs)
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        (inputs,) = context.saved_tensors
        return torch.sin(1e4 * inputs) * gradient.abs().mean()


@pytest.mark.parametrize(
    ("model", "attack", "sign"),
    [
        (Answers(before=rounded), PGD(0.2, num_steps=5), "gradient of the loss is exactly zero"),
        (Answers(after=lambda z: z * 1e4), PGD(0.1, random_start=False), "exactly zero"),
        (Answers(before=Jagged.apply), PGD(0.1, num_steps=10), "in a ball that holds every input"),
        (trained(), PGD(0.1, num_steps=1, step_size=1e-6, random_start=False), "a single step breaks more"),
        (Answers(before=rounded), PGD(0.7, num_steps=5, random_start=False), "random noise breaks more"),
    ],
    ids=["rounded", "saturated", "shattered", "too timid", "noise"],
)
def test_masked_gradients_are_found_out(model, attack, sign):
    found = robust_accuracy(model, digits(), attack, check_masking=True)
    assert not found.status
    assert sign in found.status.message
    assert "the true robust accuracy is lower" in found.status.message


def test_the_sign_test_allows_for_chance():
    standing, other = torch.ones(100, dtype=torch.bool), torch.ones(100, dtype=torch.bool)
    other[:6] = False
    assert not beats(other, standing)  # 1/64
    other[6] = False
    assert beats(other, standing)  # 1/128
    standing[50:57] = False
    assert not beats(other, standing)


def test_autoattack_is_at_least_as_strong_as_pgd_and_keeps_the_global_state():
    pytest.importorskip("pyautoattack")
    data, state = digits(num=40), torch.random.get_rng_state()
    weak = robust_accuracy(trained(), data, PGD(0.08, num_steps=10))
    whole = AutoAttack(0.08, attacks=("apgd-ce", "apgd-t", "fab-t"), num_steps=10)
    strong, again = (robust_accuracy(trained(), data, whole, seed=5) for _ in range(2))
    assert strong.value <= weak.value + 0.026  # one sample of forty
    assert strong.value == again.value
    assert torch.equal(torch.random.get_rng_state(), state)
    assert robust_accuracy(trained(), data, apgd(1.0, "l2", num_steps=10)).value < 1
    moved = apgd(0.05, num_steps=5)(trained(), *data, stream())
    assert float((moved - data[0]).abs().max()) <= 0.05 + 1e-6


@pytest.mark.slow
def test_the_whole_of_autoattack():
    pytest.importorskip("pyautoattack")
    data = digits(num=60)
    assert (
        robust_accuracy(trained(), data, AutoAttack(0.08)).value
        <= robust_accuracy(trained(), data, PGD(0.08, num_steps=40, num_restarts=2)).value
    )


def test_autoattack_with_few_classes_and_wrong_settings():
    pytest.importorskip("pyautoattack")
    inputs, targets = digits(num=20)
    few = Answers(after=lambda z: z[:, :3])
    with pytest.raises(ValueError, match="at least 4 classes, the model has 3: use"):
        robust_accuracy(few, (inputs, targets.clamp(max=2)), AutoAttack(0.1))
    left = robust_accuracy(few, (inputs, targets.clamp(max=2)), AutoAttack(0.1, attacks=("fab-t",), num_steps=3))
    assert 0 <= left.value <= 1
    with pytest.raises(ValueError, match=r"expected images \(n, channels, height, width\)"):
        AutoAttack(0.1)(nn.Flatten(), inputs.flatten(1), targets, stream())
    with pytest.raises(ValueError, match="expected attacks of apgd-ce"):
        AutoAttack(0.1, attacks=("apgd",))
    with pytest.raises(ValueError, match="only ones AutoAttack knows"):
        AutoAttack(0.1, bounds=(-1.0, 1.0))
