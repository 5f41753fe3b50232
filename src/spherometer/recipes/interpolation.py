"""What happens to paper B's quantities before and after the training loss is as good as zero: margins by seed."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import numpy as np

from spherometer.recipes.results import Curve, Results

INTERPOLATED = 0.01  # training loss from which on a network counts as interpolating
NAMES = ("train_loss", "jacobian_sharpness", "log_volume", "mls", "nmls", "participation_ratio")
Curves = dict[str, Curve]


def correlation(curves: Curves, name: str) -> float:
    """Correlation over time of a quantity with √S."""
    sharpness, other = np.sqrt(curves["jacobian_sharpness"][1]), curves[name][1]
    return float(np.corrcoef(sharpness, other)[0, 1]) if len(other) > 2 else nan


def _logs(curves: Curves, name: str) -> np.ndarray:
    """The logarithm of a quantity over time, at the tracked steps."""
    values = curves[name][1]
    return values if name == "log_volume" else np.log(values)


def fall_after_interpolation(results: Results, *, name: str) -> list[float]:
    """ln of the factor by which a quantity falls from interpolation to the end, a mean over the swept values."""

    def fall(curves: Curves) -> float:
        start = _interpolation(curves)
        return nan if start is None else float(_logs(curves, name)[start] - _logs(curves, name)[-1])

    return by_seed(results, fall)


def early_fall(results: Results) -> list[float]:
    """By how much the local dimension D_PR falls from the start to interpolation."""

    def fall(curves: Curves) -> float:
        start, values = _interpolation(curves), curves["participation_ratio"][1]
        return nan if start is None else float(values[0] - values[start])

    return by_seed(results, fall)


def late_fall(results: Results, name: str, **labels: Any) -> list[float]:
    """ln of the factor by which a quantity falls over the last half of training, both ends as means of a tenth."""

    def fall(curves: Curves) -> float:
        logs = _logs(curves, name)
        tenth, half = max(1, len(logs) // 10), len(logs) // 2
        return float(logs[half : half + tenth].mean() - logs[-tenth:].mean()) if len(logs) else nan

    return by_seed(results, fall, **labels)


def _interpolation(curves: Curves) -> int | None:
    """Place among the tracked steps where the training loss is first below `INTERPOLATED`."""
    steps, losses = curves["train_loss"]
    below = steps[losses < INTERPOLATED]
    if not len(below):
        return None
    places = np.flatnonzero(curves["log_volume"][0] >= below[0])
    return int(places[0]) if len(places) else None


def by_seed(results: Results, how: Callable[[Curves], float], **labels: Any) -> list[float]:
    """A number of each run, one mean for each seed over the runs with these labels."""
    found = []
    for seed in sorted(results.values("seed")):
        runs = zip(*(results.curve(name, seed=seed, **labels) for name in NAMES), strict=True)
        found.append(float(np.mean([how(dict(zip(NAMES, curves, strict=True))) for curves in runs])))
    return found
