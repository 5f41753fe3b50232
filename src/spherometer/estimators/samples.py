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
        (2.0, 0.803)
    """
    count = len(samples)
    if count < 2:
        return float(samples.mean()), math.inf
    freedom = (count - 1) / (1 + excess_kurtosis(samples) / 2)
    return float(samples.mean()), student_factor(freedom) * float(samples.std(ddof=1)) / math.sqrt(count)


def excess_kurtosis(samples: np.ndarray) -> float:
    """m₄/m₂² − 3 of the samples, or zero where tails are lighter than normal.

    Few samples seldom show their tails. If all have one sign they are taken for values of a definite quadratic form,
    a mixture of χ² variables, of which the excess kurtosis is at least 6·variance/mean².
    """
    mean, variance = float(samples.mean()), float(samples.var())
    if variance**2 == 0:
        return 0.0
    seen = float(((samples - mean) ** 4).mean()) / variance**2 - 3
    definite = 6 * variance / mean**2 if abs(np.sign(samples).sum()) == len(samples) else 0.0
    return max(0.0, seen, definite)


def enough(samples: np.ndarray, least: int) -> int:
    """How many samples an error bar needs: `least`, and up to five times as many when a few of them carry it."""
    return math.ceil(least * min(5.0, 1 + max(0.0, excess_kurtosis(samples) - 1)))
