"""Bad arguments of a bound are answered in one line."""

from __future__ import annotations

import math
from numbers import Integral

import torch
from torch import Tensor


def whole(name: str, value: int, *, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r} (round an estimated one up)")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def probability(name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}")
    return value


def positive(name: str, value: float) -> float:
    """A finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return value


def rows(name: str, points: Tensor, *, least: int = 1) -> Tensor:
    """At least `least` finite points as a matrix in float64, one point a row."""
    points = torch.as_tensor(points)
    if points.ndim < 2 or len(points) < least or points[:1].numel() == 0:
        raise ValueError(f"{name} must hold at least {least} points, one a row, got shape {tuple(points.shape)}")
    matrix = points.detach().flatten(1).double()
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"{name} must be finite, got inf or nan")
    return matrix
