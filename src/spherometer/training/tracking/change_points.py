"""Where a curve bends down: the boundary between two phases, found without a threshold (gap G16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST = 120  # points that are looked at; a longer history is thinned
CHI_SQUARE = 3.84  # 95 % point of χ² with one degree of freedom


@dataclass(frozen=True)
class ChangePoint:
    """The kink of two joined lines: its step with an interval, the slopes, and the gain in BIC over one line."""

    step: float
    low: float
    high: float
    before: float
    after: float
    gain: float


def change_point(steps: Sequence[float], values: Sequence[float], *, least: int = 5) -> ChangePoint | None:
    """The best kink of y = a + b·t + c·max(0, t − k), by least squares over k; None where one line explains as much.

    `gain` is n·log(RSS₁/RSS₂) − 2·log n, two parameters more (Bai and Perron 1998); the interval holds all k whose
    residual is within the 95 % point of χ²₁ of the best. At least `least` points lie on each side.

    Example:
        >>> change_point(range(20), [min(1.0, 1.0 - 0.1 * (t - 9)) for t in range(20)]).step
        9.0
    """
    times, heights = np.asarray(steps, float), np.asarray(values, float)
    if len(times) != len(heights):
        raise ValueError(f"expected as many values as steps, got {len(heights)} and {len(times)}")
    if len(times) > MOST:
        chosen = np.unique(np.linspace(0, len(times) - 1, MOST).round().astype(int))
        times, heights = times[chosen], heights[chosen]
    number = len(times)
    if number < 2 * least:
        return None
    line = np.stack([np.ones(number), times], 1)
    scale = max(float(np.square(heights - heights.mean()).sum()), 1e-300)
    floor = 1e-12 * scale  # a perfect fit has no logarithm
    single = _residual(line, heights)[0] + floor
    kinks = times[least - 1 : number - least + 1]
    fits = [_residual(np.column_stack([line, np.maximum(0, times - kink)]), heights) for kink in kinks]
    residuals = np.array([rest for rest, _ in fits]) + floor
    best = int(residuals.argmin())
    gain = number * float(np.log(single / residuals[best])) - 2 * float(np.log(number))
    if gain <= 0:
        return None
    near = kinks[number * np.log(residuals / residuals[best]) <= CHI_SQUARE]
    _, before, bend = fits[best][1].tolist()
    return ChangePoint(float(kinks[best]), float(near.min()), float(near.max()), before, before + bend, gain)


def _residual(design: np.ndarray, heights: np.ndarray) -> tuple[float, np.ndarray]:
    solution = np.linalg.lstsq(design, heights, rcond=None)[0]
    return float(np.square(heights - design @ solution).sum()), solution
