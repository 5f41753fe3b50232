"""Assertions about estimates; `estimators/test_assertions.py` shows of each that it fails on a wrong answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spherometer import Estimate


def assert_bounded(estimate: Estimate, truth: Tensor | float) -> None:
    """A certified bound holds: |value − truth| ≤ error, entry by entry."""
    assert estimate.kind == "bound", f"expected a bound, got a {estimate.kind}"
    value, error = (torch.as_tensor(number, dtype=torch.float64) for number in (estimate.value, estimate.error))
    expected = torch.as_tensor(truth, dtype=torch.float64)
    assert value.shape == expected.shape, f"expected shape {tuple(expected.shape)}, got {tuple(value.shape)}"
    missed = (value - expected).abs() > error
    assert not bool(missed.any()), f"{value.tolist()} ± {error.tolist()} does not cover {expected.tolist()}"


def assert_converged(estimate: Estimate, rtol: float) -> None:
    """The status says so, and so do the numbers."""
    assert estimate.status, f"not converged: {estimate.status.message}"
    value, error = (torch.as_tensor(number, dtype=torch.float64) for number in (estimate.value, estimate.error))
    allowed = (rtol * value.abs()).clamp_min(1e-11 * float(value.abs().max()))
    assert bool((error <= allowed).all()), f"errors {error.tolist()} above rtol={rtol} of {value.tolist()}"


def assert_honest(scores: Sequence[float] | np.ndarray) -> None:
    """z-scores (value − truth)/error of independent runs: mean zero and unit spread, as an honest bar gives."""
    z = np.asarray(scores, dtype=float)
    assert len(z) >= 200, f"expected at least 200 runs, got {len(z)}"
    assert abs(z.mean()) < 4 / math.sqrt(len(z)), f"biased: mean z {z.mean():.2f} over {len(z)} runs"
    assert 0.8 < z.std(ddof=1) < 1.25, f"dishonest error bars: spread of z {z.std(ddof=1):.2f}"
