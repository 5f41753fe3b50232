"""Means of independent samples, with an error bar that is honest for few of them too."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import stdtrit

ONE_SIGMA = 0.8413447460685429  # the normal distribution function at 1


def student_factor(freedom: float) -> float:
    """By how much a standard error with so many degrees of freedom must grow to cover the 68 % of one sigma."""
    return float(stdtrit(freedom, ONE_SIGMA)) if freedom > 0 else math.inf


def mean_and_error(samples: np.ndarray) -> tuple[float, float]:
    """Mean of independent samples and its one-sigma error s/√N, widened by Student's t.

    Tails heavier than a normal distribution's, excess kurtosis κ > 0, make s² as uncertain as that of fewer samples:
    var s² / σ⁴ ≈ (2 + κ)/(N − 1), hence (N − 1)/(1 + κ/2) degrees of freedom.

    Example:
        >>> mean, error = mean_and_error(np.array([1.0, 3.0, 1.0, 3.0]))
        >>> mean, round(error, 3)
        (2.0, 1.356)
    """
    count = len(samples)
    if count < 2:
        return float(samples.mean()), math.inf
    freedom = (count - 1) / (1 + excess_kurtosis(samples) / 2)
    return float(samples.mean()), student_factor(freedom) * float(samples.std(ddof=1)) / math.sqrt(count)


def excess_kurtosis(samples: np.ndarray) -> float:
    """m₄/m₂² − 3 of the samples, or zero where tails are lighter than normal.

    Few samples seldom show their tails. They are therefore taken for values of a quadratic form, a constant and a
    mixture of χ² variables to one side of it, of which the excess kurtosis is at least 6·variance/(mean − constant)²;
    the constant can be no further from the mean than the outermost sample on the short side.
    """
    mean, variance = float(samples.mean()), float(samples.var())
    if variance**2 == 0:
        return 0.0
    seen = float(((samples - mean) ** 4).mean()) / variance**2 - 3
    short = min(mean - float(samples.min()), float(samples.max()) - mean)
    return max(0.0, seen, 6 * variance / short**2) if short**2 > 0 else max(0.0, seen)


def enough(samples: np.ndarray, least: int) -> int:
    """How many samples an error bar needs: `least`, and up to five times as many when a few of them carry it."""
    return math.ceil(least * min(5.0, 1 + max(0.0, excess_kurtosis(samples) - 1)))
