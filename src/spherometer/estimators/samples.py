"""Means of independent samples, with an error bar that is honest for few of them too."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import t as student

ONE_SIGMA = 0.8413447460685429  # the normal distribution function at 1


def student_factor(num_samples: int) -> float:
    """By how much a standard error from `num_samples` samples must grow to cover 68 % in spite of their number."""
    return float(student.ppf(ONE_SIGMA, num_samples - 1)) if num_samples > 1 else math.inf


def mean_and_error(samples: np.ndarray) -> tuple[float, float]:
    """Mean of independent samples and its one-sigma error s/√N, widened by Student's t.

    Example:
        >>> mean_and_error(np.array([1.0, 3.0, 1.0, 3.0]))
        (2.0, 0.6910...)
    """
    count = len(samples)
    spread = float(samples.std(ddof=1)) if count > 1 else math.inf
    return float(samples.mean()), student_factor(count) * spread / math.sqrt(count)
