"""Paper C: what its figures make of curves (steps, values) - products, the active regularisation period, plateaus."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import numpy as np

from spherometer.recipes.results import Curve, Results

IMPURE = 0.25  # the active regularisation period (ARP) ends when the mean impurity falls below (C Fig 4)
REACHED = 0.9  # of the highest sharpness: phase II has begun
NORM, PROJECTED, ONES = "mean_logit_jacobian_norm", "projected_mean_logit_jacobian_norm", "ones_logit_jacobian"
NO_CURVE: Curve = (np.zeros(0), np.zeros(0))


def square(curve: Curve) -> Curve:
    """The values squared: C plots ‖⟨J⟩‖², the metrics give ‖⟨J⟩‖."""
    return curve[0], curve[1] ** 2


def scaled(curve: Curve, factor: float) -> Curve:
    """The values times a factor."""
    return curve[0], factor * curve[1]


def combined(first: Curve, second: Curve, how: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.multiply) -> Curve:
    """Two curves at the steps they have in common: their product, or what `how` makes of them."""
    steps, here, there = np.intersect1d(first[0], second[0], return_indices=True)
    return steps, how(first[1][here], second[1][there])


def weighted_ones(results: Results, **labels: Any) -> list[Curve]:
    """⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖², what C finds the sharpness to be proportional to (App G), one curve for each seed."""
    pairs = zip(results.curve("impurity", **labels), results.curve(ONES, **labels), strict=True)
    return [combined(impurity, square(ones)) for impurity, ones in pairs]


def value_at(curve: Curve, step: float) -> float:
    """Linearly between two steps; nan where there is no curve or no step."""
    return float(np.interp(step, *curve)) if len(curve[0]) and np.isfinite(step) else nan


def within(curve: Curve, low: float, high: float) -> np.ndarray:
    """The values between two steps, both ends included."""
    steps, values = curve
    return np.asarray(values[(steps >= low) & (steps <= high)])


def mean_within(curve: Curve, low: float, high: float) -> float:
    """Their mean; nan where there are none."""
    found = within(curve, low, high)
    return float(found.mean()) if len(found) else nan


def first_step(curve: Curve, reached: Callable[[np.ndarray], np.ndarray], *, after: float = -np.inf) -> float:
    """The first step whose value is as asked; nan where none is."""
    steps, values = curve
    found = steps[reached(values) & (steps >= after)]
    return float(found[0]) if len(found) else nan


def end_of_regularisation(impurity: Curve) -> float:
    """The step at which the mean impurity falls below ¼ after its peak; nan where it never was above or never falls."""
    steps, values = impurity
    if not len(values) or not np.nanmax(values) >= IMPURE:
        return nan
    return first_step(impurity, lambda seen: seen < IMPURE, after=float(steps[np.nanargmax(values)]))


def regularisation_period(impurity: Curve, sharpness: Curve) -> tuple[float, float]:
    """Phase II of C Fig 4: from where the sharpness has reached 90 % of its highest value up to the end, to the end.

    The paper gives the end (impurity below ¼) and not the beginning: that is chosen here. Where the impurity has not
    yet fallen the period lasts as long as the run.
    """
    steps, values = sharpness
    end = end_of_regularisation(impurity)
    if np.isnan(end):
        risen = len(impurity[1]) and np.nanmax(impurity[1]) >= IMPURE
        end = float(steps[-1]) if risen and len(steps) else nan
    before = values[steps <= end]
    if not len(before):
        return nan, nan
    return first_step(sharpness, lambda seen: seen >= REACHED * np.nanmax(before)), end


def periods(results: Results, **labels: Any) -> list[tuple[float, float]]:
    """The regularisation period of each seed."""
    pairs = zip(results.curve("impurity", **labels), results.curve("sharpness", **labels), strict=True)
    return [regularisation_period(impurity, sharpness) for impurity, sharpness in pairs]


def plateau(results: Results, name: str = "sharpness", *, squared: bool = False, **labels: Any) -> list[float]:
    """The mean of a quantity over the regularisation period, one for each seed."""
    curves = [square(curve) if squared else curve for curve in results.curve(name, **labels)]
    return [mean_within(curve, *ends) for curve, ends in zip(curves, periods(results, **labels), strict=True)]


def log_correlation(first: Curve, second: Curve) -> float:
    """Pearson's correlation of ln x and ln y over the steps in common; nan below five of them."""
    _, logs = combined(first, second, lambda x, y: np.stack([np.log(np.abs(x)), np.log(np.abs(y))], 1))
    return correlation(logs)


def correlation(pairs: np.ndarray) -> float:
    """Pearson's correlation of two columns; nan below five rows, or where one does not vary."""
    pairs = pairs[np.isfinite(pairs).all(1)]
    if len(pairs) < 5 or not (pairs.std(0) > 0).all():
        return nan
    return float(np.corrcoef(pairs.T)[0, 1])
