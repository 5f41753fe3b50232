"""Small pictures in the text: an interval against what is claimed, a figure as a stamp.  Numbers only, no words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from spherometer.figures.panels import HeatPanel, Panel, Panels, Series
from spherometer.figures.panels.palette import PAGE
from spherometer.figures.panels.ranges import on_axis
from spherometer.recipes.verdicts import Verdict

WIDTH, HEIGHT = 150.0, 20.0
STAMP = (132.0, 72.0)
POINTS = 60  # of a line on a stamp


def interval_mark(verdict: Verdict) -> str:
    """The effect as a dot, its interval as a line, the claimed side shaded; an open end reaches the edge."""
    ends = [verdict.effect, verdict.low, verdict.high, verdict.least, verdict.most]
    known = [end for end in ends if end is not None and math.isfinite(end)]
    if not math.isfinite(verdict.effect):
        return ""
    pad = 0.12 * (max(known) - min(known)) or 1.0
    left, right = min(known) - pad, max(known) + pad

    def place(value: float | None, otherwise: float) -> float:
        if value is None or math.isnan(value):
            value = otherwise
        return round(WIDTH * (min(max(value, left), right) - left) / (right - left), 1)

    start, end = place(verdict.least, left), place(verdict.most, right)
    low, high, dot = place(verdict.low, left), place(verdict.high, right), place(verdict.effect, left)
    borders = "".join(
        f'<path class="border" d="M{place(border, left)} 1V{HEIGHT - 1:g}"/>'
        for border in (verdict.least, verdict.most)
        if border is not None
    )
    middle = HEIGHT / 2
    return _drawing(
        "interval",
        (WIDTH, HEIGHT),
        f'<rect class="claimed" x="{start}" y="1" width="{max(0.0, round(end - start, 1))}" height="{HEIGHT - 2:g}"/>'
        f'{borders}<path class="reach" d="M{low} {middle:g}H{high}"/><circle cx="{dot}" cy="{middle:g}" r="4"/>',
    )


def stamp(figure: Panels) -> str:
    """The first panel of a figure without words."""
    panel = figure.panels[0]
    inside = _cells(panel) if isinstance(panel, HeatPanel) else _curves(panel, figure)
    width, height = STAMP
    frame = f'<rect class="frame" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="3"/>'
    return _drawing("stamp", STAMP, frame + "".join(inside))


def _drawing(kind: str, size: tuple[float, float], inside: str) -> str:
    width, height = size
    box = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg class="{kind}" {box} aria-hidden="true">{inside}</svg>'


def _cells(panel: HeatPanel) -> Iterable[str]:
    rows, columns = panel.matrix[:16], range(min(16, len(panel.columns)))
    width, height = (STAMP[0] - 8) / len(columns), (STAMP[1] - 8) / len(rows)
    for i, row in enumerate(rows):
        for j in columns:
            if math.isfinite(row[j]):
                colour = "var(--heat-high)" if row[j] > 0 else "var(--heat-low)"
                strength = min(1.0, abs(row[j]) / panel.reach)
                yield (
                    f'<rect x="{4 + j * width:.1f}" y="{4 + i * height:.1f}" width="{width:.1f}" height="{height:.1f}" '
                    f'style="fill:{colour};opacity:{strength:.2f}"/>'
                )


def _curves(panel: Panel, figure: Panels) -> Iterable[str]:
    shown = [(series, _points(panel, series)) for series in panel.series[:8]]
    points = [point for _, line in shown for point in line if point is not None]
    if not points:
        return
    frame = Frame(points)
    for series, line in shown:
        colour = PAGE[figure.colour_of(series) % len(PAGE)]
        if series.style in ("markers", "bars"):
            for point in line:
                if point is not None:
                    x, y = frame(point)
                    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8" style="fill:{colour}"/>'
        else:
            dashes = {"dashed": ";stroke-dasharray:5 3", "dotted": ";stroke-dasharray:1.5 2.5"}.get(series.style, "")
            yield f'<path d="{_path(line, frame)}" style="stroke:{colour}{dashes}"/>'


def _points(panel: Panel, series: Series) -> list[tuple[float, float] | None]:
    """A few points, by the logarithm where the axis is; None is a gap."""
    x, y, _, _ = on_axis(panel, series)
    stride = max(1, math.ceil(len(x) / POINTS))
    return [
        (math.log(a) if panel.log_x else a, math.log(b) if panel.log_y else b)
        if math.isfinite(a) and math.isfinite(b)
        else None
        for a, b in zip(x[::stride], y[::stride], strict=True)
    ]


class Frame:
    """Places inside the frame of a stamp."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        (self._left, self._right), (self._low, self._high) = (
            (min(axis), max(axis)) for axis in zip(*points, strict=True)
        )

    def __call__(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a point is drawn."""
        across = (point[0] - self._left) / ((self._right - self._left) or 1.0)
        up = (point[1] - self._low) / ((self._high - self._low) or 1.0)
        return 6 + (STAMP[0] - 12) * across, STAMP[1] - 6 - (STAMP[1] - 12) * up


def _path(line: Sequence[tuple[float, float] | None], frame: Frame) -> str:
    words, pen = [], "M"
    for point in line:
        if point is None:
            pen = "M"
            continue
        x, y = frame(point)
        words.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return "".join(words)
