"""One table of tolerances, and assertions that compare with a truth."""

from __future__ import annotations

import torch
from torch import Tensor

# Relative to the norm of the truth; a test that needs more says why.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-4}
FINITE_DIFFERENCES = 1e-6  # central differences in float64, step 1e-5


def assert_close(actual: Tensor, truth: Tensor, tolerance: float | None = None) -> None:
    """‖actual − truth‖ ≤ tolerance · ‖truth‖, by default that of the actual's dtype; shapes must agree."""
    assert actual.shape == truth.shape, f"expected shape {tuple(truth.shape)}, got {tuple(actual.shape)}"
    allowed = TOLERANCES[actual.dtype] if tolerance is None else tolerance
    error, size = float((actual.double() - truth.double()).norm()), float(truth.double().norm())
    assert error <= allowed * max(size, 1e-12), f"relative error {error / max(size, 1e-12):.3g}, allowed {allowed:.3g}"


def assert_symmetric(matrix: Tensor) -> None:
    assert_close(matrix, matrix.T.contiguous())


def assert_positive(matrix: Tensor) -> None:
    """No eigenvalue below zero by more than rounding."""
    values = torch.linalg.eigvalsh((matrix + matrix.T).double() / 2)
    assert float(values[0]) >= -TOLERANCES[matrix.dtype] * float(values[-1].abs()), f"eigenvalue {float(values[0]):.3g}"


def assert_unbiased(draws: Tensor, truth: Tensor, limit: float = 4.0) -> None:
    """The mean of independent draws (runs, ...) lies within `limit` standard errors of the truth in every entry."""
    errors = draws.std(0) / len(draws) ** 0.5
    scores = (draws.mean(0) - truth).abs() / errors.clamp_min(1e-300)
    assert float(scores.max()) < limit, f"largest z-score {float(scores.max()):.3g}, allowed {limit}"
