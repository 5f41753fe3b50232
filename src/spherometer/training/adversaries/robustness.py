"""Robust accuracy with its error bar."""

from __future__ import annotations

import time
from dataclasses import replace

from scipy.special import betaincinv
from torch import nn

from spherometer.training.adversaries.attacks import Attack
from spherometer.training.adversaries.masking import signs_of_masking
from spherometer.training.adversaries.outcomes import check_subject, right_answers, withstanding
from spherometer.training.evaluation import Data
from spherometer.values import Estimate, Status

CONFIDENCE = 0.95


def robust_accuracy(
    model: nn.Module,
    data: Data,
    attack: Attack,
    *,
    seed: int = 0,
    batch_size: int = 250,
    check_masking: bool = False,
) -> Estimate:
    """The share of samples that the model gets right before and after the attack.  Q8.

    The error is √(p(1−p)/n) and the interval that of Clopper and Pearson, both for the choice of test samples. As an
    estimate of what the best attack in the ball would leave, the value is an upper bound: a stronger attack can only
    lower it. With `check_masking` the status tells of signs that this attack fails (`gradient_masking`). The model is
    attacked in eval mode and left as it was.

    Example:
        >>> robust_accuracy(model, (inputs, targets), PGD(8 / 255, num_steps=20, step_size=2 / 255))
    """
    began = time.perf_counter()
    check_subject(model, data)
    right = right_answers(model, data, batch_size=batch_size)
    standing = withstanding(model, data, attack, right, seed=seed, batch_size=batch_size)
    status = Status()
    if check_masking:
        status = signs_of_masking(model, data, attack, right, standing, seed=seed, batch_size=batch_size)
    return replace(
        proportion(int(standing.sum()), len(standing)),
        seconds=time.perf_counter() - began,
        status=status,
        note=f"{describe(attack)}; clean accuracy {float(right.double().mean()):.4g}",
    )


def proportion(successes: int, trials: int) -> Estimate:
    """k/n with its standard error and the interval of Clopper and Pearson (1934), which holds at 0 and at 1 too."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"expected 0 <= successes <= trials and at least one trial, got {successes} of {trials}")
    share, tail = successes / trials, (1 - CONFIDENCE) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    error = (share * (1 - share) / trials) ** 0.5
    return Estimate(share, error, "standard error", "data sample", interval=(low, high))


def describe(attack: Attack) -> str:
    """`PGD, linf radius 0.03137, 20 steps`."""
    steps, restarts = getattr(attack, "num_steps", 0), getattr(attack, "num_restarts", 1)
    told = [type(attack).__name__, f"{attack.norm} radius {attack.radius:.4g}"]
    told += [f"{steps} step{'' if steps == 1 else 's'}"] if steps else []
    told += [f"{restarts} restarts"] if restarts > 1 else []
    return ", ".join(told)
