"""Many seeds -> one curve with a band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spherometer.figures.panels.description import Numbers, Series


def over_seeds(
    curves: Sequence[tuple[Numbers, Numbers]],
    label: str,
    smooth: int | None = None,
    *,
    style: str = "solid",
    colour: int | None = None,
) -> Series:
    """The mean of some curves (steps, values), one for each seed, and a band of one standard deviation.

    Only steps that all seeds have are shown, so that the mean does not jump where a run ends; where a seed has no
    finite value there is a gap. A seed whose run failed has no steps and is left out; where none has any, nothing is
    drawn. One seed has no band.

    Args:
        smooth: running mean over so many points of each curve, shorter at its ends, where the paper smooths.

    Example:
        >>> over_seeds(results.curve("sharpness", lr=0.1), "lr 0.1", smooth=20)
    """
    if not curves:
        raise ValueError(f"{label!r}: expected the curve of at least one seed, got none")
    if smooth is not None and smooth < 1:
        raise ValueError(f"{label!r}: expected smooth of at least 1 point, got {smooth}")
    tables = [dict(zip(steps, _smoothed(values, smooth), strict=True)) for steps, values in curves if len(steps)]
    if not tables:
        return Series(label, (), (), style=style, colour=colour)
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    if not steps:
        raise ValueError(f"{label!r}: the {len(tables)} seeds have no step in common")
    values = np.array([[table[step] for step in steps] for table in tables], dtype=float)
    values[~np.isfinite(values)] = np.nan
    mean = values.mean(0)
    if len(tables) == 1:
        return Series(label, steps, mean, style=style, colour=colour)
    spread = values.std(0, ddof=1)
    return Series(label, steps, mean, mean - spread, mean + spread, style=style, colour=colour)


def _smoothed(values: Numbers, width: int | None) -> np.ndarray:
    """Mean of the finite values within a centred window; nan stays nan."""
    found = np.asarray(values, dtype=float)
    if width is None or width == 1:
        return found
    finite = np.isfinite(found)
    sums, counts = (np.concatenate([[0.0], np.cumsum(part)]) for part in (np.where(finite, found, 0.0), finite))
    places = np.arange(len(found))
    start = np.maximum(places - (width - 1) // 2, 0)
    end = np.minimum(places + width // 2 + 1, len(found))
    with np.errstate(invalid="ignore"):
        means = (sums[end] - sums[start]) / (counts[end] - counts[start])
    return np.where(finite, means, np.nan)
