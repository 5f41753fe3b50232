"""What is left when training is over: the gap, and a quantity over the values of what was swept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Series
from spherometer.recipes.margins import Quantity, levels_of, numbers
from spherometer.recipes.results import Results, setting_of

R_OVER_SETTINGS = "Pearson's r over settings, each the mean of its seeds"


def gap(results: Results, **labels: Any) -> list[float]:
    """|training loss − test loss| at the end, one for each seed; Q5."""
    train, test = results.final("final_train_loss", **labels), results.final("final_test_loss", **labels)
    return [abs(one - other) for one, other in zip(train, test, strict=True)]


def over_settings(results: Results, quantity: Quantity, **labels: Any) -> np.ndarray:
    """A quantity at each setting, the mean of its seeds: what correlations over a grid are of.

    Seeds of one setting differ little, and counting each as a network of its own finds correlations that are none. Runs
    that stand at two places of a grid count once. A setting of which a seed failed is nan.

    Example:
        >>> pearson(over_settings(results, "final_sharpness"), over_settings(results, gap))
    """
    means: dict[tuple[str, ...], float] = {}
    chosen = results.choose(**labels)
    for setting in [dict(known) for known in dict.fromkeys(map(setting_of, chosen))]:
        key = tuple(run.job.key for run in results.choose(**setting))
        means.setdefault(key, float(np.mean(numbers(results, quantity, **setting))))
    return np.array(list(means.values()))


def over_label(
    results: Results,
    quantity: Quantity,
    over: str,
    name: str,
    *,
    among: Sequence[Any] | None = None,
    style: str = "solid",
    **labels: Any,
) -> Series:
    """The mean over seeds at each value of a label, and a band of one standard deviation.

    A value is drawn at its place `among` those of the axis; lines with different values share an axis that has them
    all. Where nothing is said, the axis has the values of this line, at 0, 1, 2, ... A seed without a finite number is
    left out; where there is none, there is a gap.

    Example:
        >>> over_label(results, gap, "weight_decay", "lr 0.1", rate=0.1)
    """
    levels = levels_of(results, over, **labels)
    table = [finite(numbers(results, quantity, **{over: level}, **labels)) for level in levels]
    mean = np.array([row.mean() if len(row) else np.nan for row in table])
    spread = np.array([row.std(ddof=1) if len(row) > 1 else 0.0 for row in table])
    axis = list(levels if among is None else among)
    return Series(name, [axis.index(level) for level in levels], mean, mean - spread, mean + spread, style=style)


def mean_line(label: str, values: Sequence[float] | np.ndarray) -> list[Line]:
    """A line across a panel at the mean over seeds; none where no seed has a finite number."""
    found = finite(values)
    return [Line(label, y=float(found.mean()))] if len(found) else []


def finite(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Those that are numbers."""
    found = np.asarray(values, dtype=float)
    return found[np.isfinite(found)]


def told(values: Sequence[float] | np.ndarray, form: str = ".2f", spread: str = ".2f") -> str:
    """Mean and standard deviation over the seeds that have a finite number, for a table.

    Example:
        >>> told([75.58, 75.64, float("nan")])
        '75.61 ± 0.04'
    """
    found = finite(values)
    if not len(found):
        return "missing"
    return f"{found.mean():{form}}" + (f" ± {found.std(ddof=1):{spread}}" if len(found) > 1 else "")


def label_panel(
    results: Results,
    title: str,
    quantity: Quantity,
    over: str,
    x_label: str,
    lines: Sequence[tuple[str, dict[str, Any]]],
    *,
    log_y: bool = False,
    **labels: Any,
) -> Panel:
    """A quantity over a swept label: one line for each (name, labels)."""
    axis = levels_of(results, over, **labels)
    series = [over_label(results, quantity, over, name, among=axis, **labels, **chosen) for name, chosen in lines]
    return Panel(title, x_label, title, series, log_y=log_y, x_names=[f"{level:g}" for level in axis])
