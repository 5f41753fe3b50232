"""What both renderers need to know about places on axes: logarithms of nothing, few points, bars side by side."""

from __future__ import annotations

import math
from itertools import pairwise

from spherometer.figures.panels.description import Numbers, Panel, Series

FEW = 16  # so few points are marked on their line


def on_axis(panel: Panel, series: Series) -> tuple[Numbers, Numbers, Numbers | None, Numbers | None]:
    """x, y, low, high as the axes can show them: infinities are gaps; on a logarithmic axis what is not positive is a
    gap, and a band ends at half the smallest value of the panel.
    """
    x = [_shown(value, log=panel.log_x) for value in series.x]
    y = [_shown(value, log=panel.log_y) for value in series.y]
    if series.low is None or series.high is None:
        return x, y, None, None
    floor = _floor(panel) if panel.log_y else -math.inf
    low, high = (
        [
            max(end, floor) if math.isfinite(end) and not math.isnan(v) else math.nan
            for end, v in zip(ends, y, strict=True)
        ]
        for ends in (series.low, series.high)
    )
    return x, y, low, high


def bar_places(panel: Panel, series: Series) -> tuple[list[float], float]:
    """Bars of several series stand side by side around their place: where they are, and how wide."""
    bars = [entry for entry in panel.series if entry.style == "bars"]
    places = sorted({x for entry in bars for x in entry.x})
    gap = min((right - left for left, right in pairwise(places)), default=1.0)
    width = 0.8 * gap / len(bars)
    shift = (bars.index(series) - (len(bars) - 1) / 2) * width
    return [x + shift for x in series.x], width


def named(panel: Panel, series: Series) -> bool:
    """Whether the legend names a series: it has a label, and is the first of its panel that has it."""
    return bool(series.label) and next(one for one in panel.series if one.label == series.label) is series


def _shown(value: float, *, log: bool) -> float:
    return value if math.isfinite(value) and (value > 0 or not log) else math.nan


def _floor(panel: Panel) -> float:
    positive = [value for entry in panel.series for value in entry.y if 0 < value < math.inf]
    return 0.5 * min(positive, default=1.0)
