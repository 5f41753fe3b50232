"""Margins of the usual sentences: one number for each seed, positive where the sentence is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spherometer.recipes.results import Results

Reduce = Callable[[np.ndarray], Any]
Labels = Mapping[str, Any]
Quantity = str | Callable[..., Sequence[float]]  # a name of rows, or (results, **labels) -> one number for each seed


def last(values: np.ndarray) -> float:
    """The value at the end of a curve."""
    return float(values[-1])


def numbers(results: Results, quantity: Quantity, how: Reduce = last, **labels: Any) -> np.ndarray:
    """A quantity of the runs with these labels, one number for each seed."""
    found = quantity(results, **labels) if callable(quantity) else results.reduce(quantity, how, **labels)
    return np.asarray(found, dtype=float)


def levels_of(results: Results, over: str, **labels: Any) -> list[Any]:
    """The values that a label has among the runs with these labels, in order."""
    return sorted({run.labels[over] for run in results.choose(**labels) if over in run.labels})


def falling(results: Results, name: Quantity, *, over: str, how: Reduce = last, **labels: Any) -> list[float]:
    """For "more X, less Y": minus the slope of ln Y on the place of X among its values, times the whole range of X.

    It is ln of the factor by which Y falls from the smallest to the largest X, fitted through all, seed by seed.

    Example:
        >>> Claim("more smoothing, smaller norm", lambda results: falling(results, "mls", over="smoothing"))
    """
    levels = levels_of(results, over, **labels)
    if len(levels) < 2:
        raise ValueError(f"expected at least 2 values of {over!r}, got {levels}")
    table = np.log([numbers(results, name, how, **{over: level}, **labels) for level in levels])
    places = np.arange(len(levels)) - (len(levels) - 1) / 2
    slopes = (places[:, None] * table).sum(0) / (places**2).sum()
    return [float(-slope * (len(levels) - 1)) for slope in slopes]


def rising(results: Results, name: Quantity, *, over: str, how: Reduce = last, **labels: Any) -> list[float]:
    """For "more X, more Y": `falling` with its sign changed."""
    return [-margin for margin in falling(results, name, over=over, how=how, **labels)]


def smaller(
    results: Results, name: Quantity, *, here: Labels, there: Labels, how: Reduce = last, **labels: Any
) -> list[float]:
    """For "Y is smaller here than there": ln(Y there / Y here), seed by seed."""
    near, far = (numbers(results, name, how, **chosen, **labels) for chosen in (here, there))
    return _paired(np.log(far), np.log(near))


def larger(
    results: Results, name: Quantity, *, here: Labels, there: Labels, how: Reduce = last, **labels: Any
) -> list[float]:
    """For "Y is larger here than there": ln(Y here / Y there), seed by seed."""
    return smaller(results, name, here=there, there=here, how=how, **labels)


def above(
    results: Results, name: Quantity, *, here: Labels, there: Labels, how: Reduce = last, **labels: Any
) -> list[float]:
    """For quantities on a plain scale, such as accuracies: Y here minus Y there, seed by seed."""
    near, far = (numbers(results, name, how, **chosen, **labels) for chosen in (here, there))
    return _paired(near, far)


def averaged(
    margin: Callable[..., Sequence[float]], over: str, levels: Sequence[Any] | None = None
) -> Callable[[Results], list[float]]:
    """The mean of a margin over the values of another label, all or some, seed by seed.

    Example:
        >>> averaged(partial(falling, name="final_sharpness", over="rate"), "batch")
    """

    def mean(results: Results) -> list[float]:
        chosen = results.values(over) if levels is None else levels
        return list(np.mean([margin(results, **{over: level}) for level in chosen], axis=0))

    return mean


def _paired(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> list[float]:
    if len(first) != len(second):
        raise ValueError(f"expected the same seeds on both sides, got {len(first)} and {len(second)} runs")
    return [float(one - other) for one, other in zip(first, second, strict=True)]
