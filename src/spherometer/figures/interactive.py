"""Figures as plain plotly descriptions.  Colours are names of the page's style sheet, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spherometer.figures.ticks import log_ticks

Figure = dict[str, Any]  # {"data": [...], "layout": {...}}, as plotly.js wants it
Numbers = Sequence[float]

INK, ACCENT, SOFT, SECOND, GOAL = (f"var(--{name})" for name in ("ink", "accent", "accent-soft", "second", "goal"))


def edge_figure(steps: Numbers, sharpness: Numbers, errors: Numbers, losses: Numbers, *, threshold: float) -> Figure:
    """Sharpness with its error band and the line 2/lr above, the loss on a logarithmic axis below."""
    layout = _layout(height=520)
    layout |= {
        "xaxis": _axis("step of gradient descent") | {"anchor": "y2", "range": [0, max(steps)]},
        "yaxis": _axis("sharpness") | {"domain": [0.34, 1], "rangemode": "tozero"},
        "yaxis2": _axis("loss") | {"domain": [0, 0.27], "type": "log", "tickvals": log_ticks(losses)},
        "shapes": [_goal_line("h", threshold)],
        "annotations": [
            _label("2 / learning rate", x=1, y=threshold, xref="paper", yanchor="top", xanchor="right", yshift=-10)
        ],
    }
    curve = {
        "type": "scatter", "mode": "lines", "name": "sharpness", "x": list(steps), "y": list(sharpness),
        "customdata": list(errors), "line": {"color": ACCENT, "width": 1.8},
        "hovertemplate": "step %{x}<br>sharpness %{y:.2f} ± %{customdata:.2g}<extra></extra>",
    }  # fmt: skip
    loss = {
        "type": "scatter", "mode": "lines", "name": "loss", "x": list(steps), "y": list(losses), "yaxis": "y2",
        "line": {"color": SECOND, "width": 1.8}, "hovertemplate": "step %{x}<br>loss %{y:.4f}<extra></extra>",
    }  # fmt: skip
    return {"data": [_band(steps, sharpness, errors), curve, loss], "layout": layout}


def density_figure(
    grid: Numbers, density: Numbers, errors: Numbers, eigenvalues: Numbers, *, threshold: float
) -> Figure:
    """Density of eigenvalues with a band of one standard error, on a logarithmic axis; single eigenvalues as ticks."""
    top = max(density)
    floor, depth = top * 1e-7, top * 1e-30  # the curve leaves the picture at its floor; a logarithm needs some depth
    curve_values = [max(value, depth) for value in density]
    lower = [max(value - error, depth) for value, error in zip(density, errors, strict=True)]
    upper = [max(value + error, depth) for value, error in zip(density, errors, strict=True)]
    layout = _layout(height=400)
    layout |= {
        "xaxis": _axis("eigenvalue of the Hessian"),
        "yaxis": _axis("density") | {
            "type": "log", "range": [math.log10(floor), math.log10(top) + 0.3], "exponentformat": "power", "dtick": 2,
        },
        "shapes": [_goal_line("v", threshold)],
        "annotations": [_label("2 / lr", x=threshold, y=1, yref="paper", yanchor="top", xanchor="right")],
    }  # fmt: skip
    curve = {
        "type": "scatter", "mode": "lines", "name": "density", "x": list(grid), "y": curve_values,
        "line": {"color": ACCENT, "width": 1.8}, "hovertemplate": "λ %{x:.3g}<br>density %{y:.2g}<extra></extra>",
    }  # fmt: skip
    ticks = {
        "type": "scatter", "mode": "markers", "name": "largest eigenvalues", "x": list(eigenvalues),
        "y": [floor * 2.5] * len(eigenvalues), "hovertemplate": "eigenvalue %{x:.4g}<extra></extra>",
        "marker": {"symbol": "line-ns-open", "size": 14, "color": SECOND, "line": {"width": 1.8}},
    }  # fmt: skip
    return {"data": [_ribbon(grid, lower, upper), curve, ticks], "layout": layout}


def _band(places: Numbers, values: Numbers, errors: Numbers) -> dict[str, Any]:
    pairs = list(zip(values, errors, strict=True))
    return _ribbon(places, [value - error for value, error in pairs], [value + error for value, error in pairs])


def _ribbon(places: Numbers, lower: Numbers, upper: Numbers) -> dict[str, Any]:
    return {
        "type": "scatter", "x": [*places, *reversed(places)], "y": [*upper, *reversed(lower)], "fill": "toself",
        "fillcolor": SOFT, "line": {"width": 0}, "mode": "lines", "hoverinfo": "skip",
    }  # fmt: skip


def _layout(height: int) -> dict[str, Any]:
    return {
        "height": height, "autosize": True, "margin": {"l": 58, "r": 12, "t": 12, "b": 48},
        "showlegend": False, "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "inherit", "size": 13, "color": INK}, "dragmode": False,
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--rule)", "font": {"color": INK}},
    }  # fmt: skip


def _axis(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 10}, "gridcolor": "var(--grid)", "linecolor": "var(--rule)",
        "zeroline": False, "ticks": "", "automargin": True, "tickfont": {"color": "var(--quiet)", "size": 12},
    }  # fmt: skip


def _goal_line(direction: str, place: float) -> dict[str, Any]:
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": place, "y1": place, "yref": "y"}
    if direction == "v":
        ends = {"y0": 0, "y1": 1, "yref": "paper", "x0": place, "x1": place, "xref": "x"}
    return ends | {"type": "line", "line": {"color": GOAL, "width": 1.3, "dash": "dash"}}


def _label(text: str, **place: Any) -> dict[str, Any]:
    return {"text": text, "showarrow": False, "font": {"color": GOAL, "size": 12}} | place
