"""Signs that an attack fails for want of a useful gradient, and not because the model is strong."""

from __future__ import annotations

import torch
from scipy.special import betainc
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spherometer.training.adversaries.attacks import PGD, Attack, Noise, fgsm
from spherometer.training.adversaries.outcomes import right_answers, withstanding
from spherometer.training.evaluation import Data, batches, evaluating
from spherometer.values import Status

TOLERATED = 0.01  # share of samples that may stand where none should
LEVEL = 0.01  # of the sign test between two attacks


def gradient_masking(model: nn.Module, data: Data, attack: Attack, *, seed: int = 0, batch_size: int = 250) -> Status:
    """Whether the attack can be believed; if not, the status says which sign was seen and what to do.

    After Athalye et al. (2018) and Carlini et al. (2019): a single step breaks more than many; noise breaks more than
    the attack; a ball that holds every input leaves samples standing; gradients are zero to the last digit. The first
    two allow for chance by a sign test on the samples on which the two attacks differ.

    Example:
        >>> gradient_masking(model, (inputs, targets), PGD(8 / 255, num_steps=20)).message
    """
    right = right_answers(model, data, batch_size=batch_size)
    standing = withstanding(model, data, attack, right, seed=seed, batch_size=batch_size)
    return signs_of_masking(model, data, attack, right, standing, seed=seed, batch_size=batch_size)


def signs_of_masking(
    model: nn.Module, data: Data, attack: Attack, right: Tensor, standing: Tensor, *, seed: int, batch_size: int
) -> Status:
    """The same, where it is known which samples are right (n,) and which of them withstand the attack (n,)."""

    def left_by(other: Attack) -> Tensor:
        return withstanding(model, data, other, right, seed=seed, batch_size=batch_size)

    weaker: dict[str, Attack] = {
        "a single step": fgsm(attack.radius, attack.norm, bounds=attack.bounds),
        "random noise": Noise(attack.radius, attack.norm, attack.bounds),
    }
    signs = [
        f"{name} breaks more samples than the attack"
        for name, other in weaker.items()
        if beats(left_by(other), standing)
    ]
    left = int(left_by(_everywhere(attack, data[0])).sum())
    if left > TOLERATED * len(standing):
        signs.append(f"in a ball that holds every input {left} of {len(standing)} samples withstand")
    flat = int((_flat(model, data, batch_size) & right).sum())
    if flat > TOLERATED * len(standing):
        signs.append(f"at {flat} of {len(standing)} samples the gradient of the loss is exactly zero")
    if not signs:
        return Status()
    advice = "the true robust accuracy is lower: attack with AutoAttack, which also searches without gradients"
    return Status(False, f"gradients are masked ({'; '.join(signs)}); {advice}")


def beats(other: Tensor, standing: Tensor) -> bool:
    """Whether `other` leaves fewer samples standing, beyond chance: a one-sided sign test on those that differ."""
    better, worse = int((standing & ~other).sum()), int((other & ~standing).sum())
    if better <= worse:
        return False
    return float(betainc(better, worse + 1, 0.5)) < LEVEL  # P(X ≥ better) of better + worse fair coins


def _everywhere(attack: Attack, inputs: Tensor) -> PGD:
    """An attack whose ball holds all of the bounds, or all of the data where there are none."""
    low, high = attack.bounds or (float(inputs.min()), float(inputs.max()))
    radius = (high - low) if attack.norm == "linf" else (high - low) * inputs[0].numel() ** 0.5
    radius = max(radius, attack.radius)
    return PGD(radius, attack.norm, num_steps=50, step_size=radius / 10, bounds=attack.bounds)


def _flat(model: nn.Module, data: Data, batch_size: int) -> Tensor:
    """Samples at which the loss does not depend on the input at all."""
    found = []
    with evaluating(model):
        for inputs, targets in batches(data, batch_size):
            moved = inputs.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(cross_entropy(model(moved), targets, reduction="sum"), moved)
            found.append(gradient.flatten(1).abs().amax(dim=1) == 0)
    return torch.cat(found)
