"""Panels as plotly descriptions for a page, in the colours of its style sheet."""

from __future__ import annotations

import html
import math
from itertools import pairwise
from typing import Any

from spherometer.figures.interactive import GOAL, Figure, _axis, _layout
from spherometer.figures.panels.description import HeatPanel, Line, Numbers, Panel, Panels, Series
from spherometer.figures.panels.palette import PAGE, SYMBOLS
from spherometer.figures.panels.ranges import FEW, bar_places, named, on_axis
from spherometer.figures.ticks import log_ticks

DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot"}
SHORT = 3000.0  # largest over smallest value of a logarithmic axis that has room for 1, 2, 5, ...
MOST = 1500  # points of a series on a page; the file keeps them all


def plotly_panels(panels: Panels) -> list[Figure]:
    """One plotly description for each panel; long series are thinned without losing their extremes.

    Example:
        >>> [Picture(panel.title, figure) for panel, figure in zip(figure.panels, plotly_panels(figure))]
    """
    return [_heat(panel) if isinstance(panel, HeatPanel) else _axes(panel, panels) for panel in panels.panels]


def _axes(panel: Panel, panels: Panels) -> Figure:
    data = [trace for series in panel.series for trace in _traces(panel, series, panels.colour_of(series))]
    labels = list(dict.fromkeys(entry.label for entry in panel.series if entry.label))
    legend = len(labels) > 1
    layout = _layout(height=320 + (22 * math.ceil(sum(map(len, labels)) / 36) if legend else 0))
    layout |= {
        "xaxis": _axis(_text(panel.x_label))
        | _scale(panel.log_x, [x for entry in panel.series for x in entry.x])
        | _names(panel.x_names),
        "yaxis": _axis(_text(panel.y_label)) | _scale(panel.log_y, [y for entry in panel.series for y in entry.y]),
        "shapes": [_stroke(line) for line in panel.lines],
        "annotations": [_label(line, panel) for line in panel.lines],
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
    }
    return {"data": data, "layout": layout}


def _traces(panel: Panel, series: Series, place: int) -> list[dict[str, Any]]:
    colour, symbol = PAGE[place % len(PAGE)], SYMBOLS[place % len(SYMBOLS)]
    kept = _kept(series)
    x, y, low, high = ([values[k] for k in kept] if values is not None else None for values in on_axis(panel, series))
    assert x is not None
    assert y is not None
    shown = {"x": _nulls(x), "y": _nulls(y), "name": _text(series.label), "showlegend": named(panel, series)}
    shown["legendgroup"] = f"{place} {series.style}"
    shown["hovertemplate"] = f"{_text(series.label)}<br>%{{x:.4~g}}, %{{y:.4~g}}<extra></extra>"
    if series.style in ("markers", "bars"):
        if low is not None and high is not None:
            shown["error_y"] = _errors(y, low, high)
        if series.style == "bars":
            places, width = bar_places(panel, series)
            return [
                shown | {"type": "bar", "x": [places[k] for k in kept], "width": width, "marker": {"color": colour}}
            ]
        marker = {"color": colour, "symbol": symbol, "size": 7 if len(x) <= 300 else 4, "opacity": 0.85}
        return [shown | {"type": "scatter", "mode": "markers", "marker": marker}]
    marked = sum(map(math.isfinite, y)) <= FEW
    curve = shown | {
        "type": "scatter", "mode": "lines+markers" if marked else "lines",
        "line": {"color": colour, "width": 1.8, "dash": DASHES[series.style]},
        "marker": {"symbol": symbol, "size": 7, "color": colour},
    }  # fmt: skip
    if low is None or high is None:
        return [curve]
    return [_band(x, low, high, colour) | {"legendgroup": shown["legendgroup"]}, curve]


def _kept(series: Series) -> list[int]:
    """Places of the points to show: all of them, or the least and the largest of each of many stretches."""
    num = len(series.x)
    if num <= MOST:
        return list(range(num))
    edges = [num * k // (MOST // 2) for k in range(MOST // 2 + 1)]
    kept = {0, num - 1}
    for start, end in pairwise(edges):
        finite = [k for k in range(start, end) if math.isfinite(series.y[k])]
        kept |= {min(finite, key=series.y.__getitem__), max(finite, key=series.y.__getitem__)} if finite else {start}
    return sorted(kept)


def _band(x: Numbers, low: Numbers, high: Numbers, colour: str) -> dict[str, Any]:
    """Stretches without gaps, each a closed outline."""
    places: list[float | None] = []
    heights: list[float | None] = []
    for stretch in _stretches(x, low, high):
        if places:
            places, heights = [*places, None], [*heights, None]
        across, under, over = (_nulls(ends) for ends in zip(*stretch, strict=True))
        places += [*across, *reversed(across)]
        heights += [*over, *reversed(under)]
    return {
        "type": "scatter", "mode": "lines", "x": places, "y": heights, "fill": "toself", "fillcolor": colour,
        "opacity": 0.2, "line": {"width": 0, "color": colour}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def _stretches(x: Numbers, low: Numbers, high: Numbers) -> list[list[tuple[float, float, float]]]:
    found: list[list[tuple[float, float, float]]] = [[]]
    for point in zip(x, low, high, strict=True):
        if all(map(math.isfinite, point)):
            found[-1].append(point)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def _errors(y: Numbers, low: Numbers, high: Numbers) -> dict[str, Any]:
    up = [max(0.0, end - v) if math.isfinite(end) else 0.0 for v, end in zip(y, high, strict=True)]
    down = [max(0.0, v - end) if math.isfinite(end) else 0.0 for v, end in zip(y, low, strict=True)]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.2, "width": 2}


def _heat(panel: HeatPanel) -> Figure:
    rows, columns = ([_text(name) for name in names] for names in (panel.rows, panel.columns))
    layout = _layout(height=max(300, min(620, 40 * len(rows) + 120)))
    layout |= {
        "xaxis": _axis(_text(panel.x_label)) | {"type": "category", "showgrid": False},
        "yaxis": _axis(_text(panel.y_label)) | {"type": "category", "showgrid": False, "autorange": "reversed"},
    }
    cells = {
        "type": "heatmap", "x": columns, "y": rows, "z": [_nulls(row) for row in panel.matrix],
        "zmin": -panel.reach, "zmax": panel.reach, "xgap": 1, "ygap": 1, "hoverongaps": False,
        "colorscale": [[0, "var(--heat-low)"], [0.5, "var(--heat-zero)"], [1, "var(--heat-high)"]],
        "colorbar": {"thickness": 10, "outlinewidth": 0, "tickfont": {"size": 11}},
        "hovertemplate": "%{y}, %{x}<br>%{z:.3~g}<extra></extra>",
    }  # fmt: skip
    if panel.numbers:
        cells["texttemplate"] = "%{z:.2f}"
    if panel.low and panel.high:
        pairs = [list(zip(*rows_, strict=True)) for rows_ in zip(panel.low, panel.high, strict=True)]
        cells["text"] = [[f"{low:.2f} … {high:.2f}" for low, high in row] for row in pairs]
        cells["hovertemplate"] = "%{y}, %{x}<br>%{z:.3~g} (%{text})<extra></extra>"
    return {"data": [cells], "layout": layout}


def _scale(log: bool, values: Numbers) -> dict[str, Any]:
    """A logarithmic axis, with 1, 2, 5, ... on it where it is short."""
    if not log:
        return {}
    positive = [value for value in values if 0 < value < math.inf]
    short = bool(positive) and 2 * min(positive) < max(positive) < SHORT * min(positive)
    return {"type": "log", "exponentformat": "power"} | ({"tickvals": log_ticks(positive)} if short else {})


def _names(names: Any) -> dict[str, Any]:
    return {"tickvals": list(range(len(names))), "ticktext": [_text(name) for name in names]} if names else {}


def _stroke(line: Line) -> dict[str, Any]:
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": line.y, "y1": line.y, "yref": "y"}
    if line.y is None:
        ends = {"y0": 0, "y1": 1, "yref": "paper", "x0": line.x, "x1": line.x, "xref": "x"}
    return ends | {"type": "line", "line": {"color": _colour(line), "width": 1.3, "dash": "dash"}}


def _label(line: Line, panel: Panel) -> dict[str, Any]:
    """Annotations on a logarithmic axis are placed by the logarithm, unlike shapes."""
    words = {"text": _text(line.label), "showarrow": False, "font": {"color": _colour(line), "size": 12}}
    if line.y is not None:
        y = math.log10(line.y) if panel.log_y else line.y
        return words | {"x": 0, "y": y, "xref": "paper", "xanchor": "left", "yanchor": "bottom"}
    assert line.x is not None
    x = math.log10(line.x) if panel.log_x else line.x
    return words | {"x": x, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top"}


def _colour(line: Line) -> str:
    return GOAL if line.colour is None else PAGE[line.colour % len(PAGE)]


def _nulls(values: Numbers) -> list[float | None]:
    """Seven digits, more than a screen shows; JSON has no nan, null is a gap."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]


def _text(words: str) -> str:
    """Words as they are: plotly would obey tags."""
    return html.escape(words).replace("%{", "%&#123;")
