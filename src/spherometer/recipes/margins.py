"""Margins of the usual sentences: one number for each seed, positive where the sentence is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan
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


def aligned(results: Results, quantity: Quantity, choices: Sequence[Labels], how: Reduce = last) -> np.ndarray:
    """A quantity of several choices of runs: a row for each, a column for each seed; nan where it has no such run."""
    rows = [numbers(results, quantity, how, **labels) for labels in choices]
    seeds = [[run.labels.get("seed", 0) for run in results.choose(**labels)] for labels in choices]
    if all(one == seeds[0] for one in seeds):
        return np.array(rows)
    if any(len(one) > len(set(one)) for one in seeds):
        raise ValueError(f"expected one run of each seed, or the same seeds everywhere, got the seeds {seeds}")
    known = [dict(zip(one, row, strict=True)) for one, row in zip(seeds, rows, strict=True)]
    return np.array([[row.get(seed, nan) for seed in sorted(set().union(*seeds))] for row in known])


def every(runs: Iterable[Sequence[float] | np.ndarray]) -> list[float]:
    """All margins of all runs, for an `Inequality`: a run that has none, because it failed, is one that is missing."""
    return [float(margin) for margins in runs for margin in (margins if len(margins) else [nan])]


def levels_of(results: Results, over: str, **labels: Any) -> list[Any]:
    """The values that a label has among the runs with these labels, in order."""
    return sorted({run.labels[over] for run in results.choose(**labels) if over in run.labels})


def falling(results: Results, name: Quantity, *, over: str, how: Reduce = last, **labels: Any) -> list[float]:
    """For "more X, less Y": minus the slope of ln Y on the place of X among its values, times the whole range of X.

    It is ln of the factor by which Y falls from the smallest to the largest X, fitted through all, seed by seed.

    Example:
        >>> Claim("more smoothing, smaller norm", lambda results: falling(results, "mls", over="smoothing"))
    """
    table = _logarithms(results, name, over, how, labels)
    places = np.arange(len(table)) - (len(table) - 1) / 2
    slopes = (places[:, None] * table).sum(0) / (places**2).sum()
    return [float(-slope * (len(table) - 1)) for slope in slopes]


def rising(results: Results, name: Quantity, *, over: str, how: Reduce = last, **labels: Any) -> list[float]:
    """For "more X, more Y": `falling` with its sign changed."""
    return [-margin for margin in falling(results, name, over=over, how=how, **labels)]


def falling_throughout(
    results: Results, name: Quantity, *, over: str, how: Reduce = last, **labels: Any
) -> list[float]:
    """For "the more X, the less Y" of few values of X: ln of the factor by which Y falls at the weakest of the steps
    from one X to the next.

    A slope through three values would not see the middle one.

    Example:
        >>> Claim("the larger the batch, the smaller c", lambda results: falling_throughout(results, c, over="batch"))
    """
    return weakest(-np.diff(_logarithms(results, name, over, how, labels), axis=0))


def rising_throughout(results: Results, name: Quantity, *, over: str, how: Reduce = last, **labels: Any) -> list[float]:
    """For "the more X, the more Y" of few values of X: `falling_throughout` the other way."""
    return weakest(np.diff(_logarithms(results, name, over, how, labels), axis=0))


def weakest(rows: Sequence[Sequence[float]] | np.ndarray) -> list[float]:
    """Of several margins (a row each, a column for each seed) that must all be positive, that of the least mean.

    The least of each seed would be below zero by noise alone. A seed that lacks one of them has none.

    Example:
        >>> weakest([[1.0, 2.0], [0.5, 0.7]])
        [0.5, 0.7]
    """
    table = np.array(rows, dtype=float)
    table[:, ~np.isfinite(table).all(0)] = nan
    known = table[:, ~np.isnan(table[0])]
    place = int(known.mean(1).argmin()) if known.size else 0
    return [float(margin) for margin in table[place]]


def _logarithms(results: Results, name: Quantity, over: str, how: Reduce, labels: Labels) -> np.ndarray:
    """ln of a quantity: a row for each value of a label, in order, a column for each seed."""
    levels = levels_of(results, over, **labels)
    if len(levels) < 2:
        raise ValueError(f"expected at least 2 values of {over!r}, got {levels}")
    return np.asarray(np.log(aligned(results, name, [{over: level, **labels} for level in levels], how)))


def smaller(
    results: Results, name: Quantity, *, here: Labels, there: Labels, how: Reduce = last, **labels: Any
) -> list[float]:
    """For "Y is smaller here than there": ln(Y there / Y here), seed by seed."""
    near, far = np.log(aligned(results, name, [{**chosen, **labels} for chosen in (here, there)], how))
    return [float(margin) for margin in far - near]


def larger(
    results: Results, name: Quantity, *, here: Labels, there: Labels, how: Reduce = last, **labels: Any
) -> list[float]:
    """For "Y is larger here than there": ln(Y here / Y there), seed by seed."""
    return smaller(results, name, here=there, there=here, how=how, **labels)


def above(
    results: Results, name: Quantity, *, here: Labels, there: Labels, how: Reduce = last, **labels: Any
) -> list[float]:
    """For quantities on a plain scale, such as accuracies: Y here minus Y there, seed by seed."""
    near, far = aligned(results, name, [{**chosen, **labels} for chosen in (here, there)], how)
    return [float(margin) for margin in near - far]


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
