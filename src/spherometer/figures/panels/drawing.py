"""Panels drawn by matplotlib into a file: PNG, SVG or PDF."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spherometer.figures.panels.description import HeatPanel, Line, Panel, Panels, Series
from spherometer.figures.panels.palette import MARKERS, PAPER
from spherometer.figures.panels.ranges import FEW, bar_places, named, on_axis
from spherometer.figures.static import GOAL, INK, QUIET, RULE
from spherometer.records.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = {"solid": "-", "dashed": (0, (5, 2.5)), "dotted": (0, (1.2, 1.8))}
NO_DATE: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def draw_panels(panels: Panels, *paths: Path) -> None:
    """The figure in a file, or in several of different kinds, each whole or not at all.

    The same figure gives the same bytes. Several files in one call are laid out once, which takes most of the time.

    Example:
        >>> draw_panels(figure, Path("figure.svg"), Path("figure.pdf"))
    """
    for path in paths:
        if path.suffix not in NO_DATE:
            raise ValueError(f"{path}: expected a name that ends in .png, .svg or .pdf")
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "spherometer"}):
        figure = _figure(panels)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # as it is laid out now
        for path in paths:
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], metadata=NO_DATE[path.suffix])
            write_whole(path, content.getvalue())


def _figure(panels: Panels) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # not pyplot: no global state, no window

    num_columns = min(panels.columns, len(panels.panels))
    num_rows = math.ceil(len(panels.panels) / num_columns)
    width, height = (max(sizes) for sizes in zip(*map(_size, panels.panels), strict=True))
    figure = Figure((width * num_columns, height * num_rows), dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
    shared = _shared_legend(panels)
    for axes, panel in zip(grid, panels.panels, strict=False):
        if isinstance(panel, HeatPanel):
            _draw_heat(axes, panel)
        else:
            _draw_axes(axes, panel, panels, legend=not shared)
    for axes in grid[len(panels.panels) :]:
        axes.set_visible(False)
    if shared:
        _draw_legend(figure, grid)
    return figure


def _size(panel: Panel | HeatPanel) -> tuple[float, float]:
    """Inches; numbers in cells need their room."""
    if isinstance(panel, HeatPanel) and panel.numbers:
        cell = 0.85 if panel.low else 0.5
        return max(4.0, cell * len(panel.columns) + 2.0), max(3.0, 0.55 * len(panel.rows) + 1.4)
    return 4.0, 3.0


def _shared_legend(panels: Panels) -> bool:
    """Whether all panels name the same series, at least two: then one legend serves them all."""
    named = [
        {entry.label for entry in panel.series if entry.label} for panel in panels.panels if isinstance(panel, Panel)
    ]
    return len(named) > 1 and len(named[0]) > 1 and all(labels == named[0] for labels in named)


def _draw_legend(figure: Figure, grid: Any) -> None:
    for axes in grid:
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6), **_LEGEND)
            return


_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": INK}


def _draw_axes(axes: Axes, panel: Panel, panels: Panels, *, legend: bool) -> None:
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    for series in panel.series:
        _draw_series(axes, panel, series, panels.colour_of(series))
    for line in panel.lines:
        _draw_line(axes, line)
    for line in panel.lines:
        _name_line(axes, line)
    if panel.x_names:
        slanted: dict[str, Any] = {"rotation": 30, "ha": "right"} if max(map(len, panel.x_names)) > 6 else {}
        axes.set_xticks(range(len(panel.x_names)), [_text(name) for name in panel.x_names], **slanted)
    axes.set_title(_text(panel.title), loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(_text(panel.x_label), color=INK)
    axes.set_ylabel(_text(panel.y_label), color=INK)
    axes.grid(color=RULE, linewidth=0.5, alpha=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=QUIET, length=0, which="both", labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
    if legend and axes.get_legend_handles_labels()[0]:
        if any(entry.style == "bars" for entry in panel.series):
            axes.margins(y=0.3)  # the legend stands above the bars
        axes.legend(**_LEGEND)


def _draw_series(axes: Axes, panel: Panel, series: Series, place: int) -> None:
    colour, marker = PAPER[place % len(PAPER)], MARKERS[place % len(MARKERS)]
    label = _text(series.label) if named(panel, series) else "_nolegend_"
    x, y, low, high = on_axis(panel, series)
    if series.style in ("markers", "bars"):
        errors = None
        if low is not None and high is not None:
            errors = [[max(0.0, v - end) for v, end in zip(y, low, strict=True)],
                      [max(0.0, end - v) for v, end in zip(y, high, strict=True)]]  # fmt: skip
        if series.style == "bars":
            places, width = bar_places(panel, series)
            axes.bar(places, y, width, yerr=errors, color=colour, ecolor=QUIET, capsize=2, label=label)
        else:
            size = 4.5 if len(x) <= 300 else 2.5
            axes.errorbar(x, y, errors, fmt=marker, color=colour, markersize=size, alpha=0.85, elinewidth=1,
                          markeredgewidth=0, label=label)  # fmt: skip
        return
    if low is not None and high is not None:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    few = marker if sum(map(math.isfinite, y)) <= FEW else ""
    axes.plot(x, y, color=colour, linewidth=1.5, linestyle=DASHES[series.style], marker=few, markersize=4, label=label)


def _draw_line(axes: Axes, line: Line) -> None:
    how: dict[str, Any] = {"color": _colour(line), "linewidth": 1.1, "linestyle": (0, (5, 4)), "zorder": 1}
    if line.y is not None:
        axes.axhline(line.y, **how)
    elif line.x is not None:
        axes.axvline(line.x, **how)


def _name_line(axes: Axes, line: Line) -> None:
    """Above the line, or below it where the title is near."""
    words: dict[str, Any] = {"textcoords": "offset points", "color": _colour(line), "fontsize": 8.5, "ha": "left"}
    if line.y is not None:
        axes.autoscale_view()
        _, height = axes.transAxes.inverted().transform(axes.transData.transform((axes.get_xlim()[0], line.y)))
        place: dict[str, Any] = {"xytext": (3, 2), "va": "bottom"} if height < 0.9 else {"xytext": (3, -2), "va": "top"}
        axes.annotate(_text(line.label), (0, line.y), xycoords=axes.get_yaxis_transform(), **place, **words)
    elif line.x is not None:
        axes.annotate(_text(line.label), (line.x, 1), (2, -2), xycoords=axes.get_xaxis_transform(), va="top", **words)


def _colour(line: Line) -> str:
    return GOAL if line.colour is None else PAPER[line.colour % len(PAPER)]


def _draw_heat(axes: Axes, panel: HeatPanel) -> None:
    import numpy as np
    from matplotlib import colormaps

    colours = colormaps["RdBu_r"].with_extremes(bad="0.88")
    image = axes.imshow(np.array(panel.matrix), cmap=colours, vmin=-panel.reach, vmax=panel.reach, aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.046)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=QUIET, length=0, labelsize=8)
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    straight: dict[str, Any] = {}
    for names, ticks, how in (
        (panel.columns, axes.set_xticks, slanted),
        (panel.rows, axes.set_yticks, straight),
    ):
        shown = range(0, len(names), max(1, len(names) // 12)) if len(names) > 24 else range(len(names))
        ticks(list(shown), [_text(names[k]) for k in shown], **how)
    axes.set_title(_text(panel.title), loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(_text(panel.x_label), color=INK)
    axes.set_ylabel(_text(panel.y_label), color=INK)
    axes.tick_params(colors=QUIET, length=0, labelsize=8.5)
    axes.spines[:].set_visible(False)
    if panel.numbers:
        _write_numbers(axes, panel)


def _write_numbers(axes: Axes, panel: HeatPanel) -> None:
    for i, row in enumerate(panel.matrix):
        for j, value in enumerate(row):
            if not math.isfinite(value):
                continue
            colour = "white" if abs(value) > 0.62 * panel.reach else INK
            raised = 4 if panel.low else 0
            axes.annotate(f"{value:.2f}", (j, i), (0, raised), textcoords="offset points", ha="center", va="center",
                          fontsize=8.5, color=colour)  # fmt: skip
            if panel.low and panel.high:
                axes.annotate(f"{panel.low[i][j]:.2f} … {panel.high[i][j]:.2f}", (j, i), (0, -7), ha="center",
                              textcoords="offset points", va="center", fontsize=6, color=colour)  # fmt: skip


def _text(words: str) -> str:
    """Words as they are: matplotlib would read what stands between two dollars as a formula."""
    return words.replace("$", r"\$")
