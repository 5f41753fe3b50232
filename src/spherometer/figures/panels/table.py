"""The data behind a figure as one tidy table."""

from __future__ import annotations

import csv
import io

from spherometer.figures.panels.description import HeatPanel, Panel, Panels

COLUMNS = ("panel", "kind", "series", "x", "y", "low", "high")


def panels_csv(panels: Panels) -> str:
    """CSV with one row for each point, line and cell; of a heat map, series is the row and x the column.

    Example:
        >>> Path("data.csv").write_text(panels_csv(figure))
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for panel in panels.panels:
        for row in _cells(panel) if isinstance(panel, HeatPanel) else _points(panel):
            writer.writerow([panel.title, *(_shown(entry) for entry in row)])
    return text.getvalue()


def _points(panel: Panel) -> list[tuple[str | float | None, ...]]:
    rows: list[tuple[str | float | None, ...]] = []
    for series in panel.series:
        low, high = (bounds or [None] * len(series.x) for bounds in (series.low, series.high))
        places = [_name(panel, x) for x in series.x]
        rows += [("point", series.label, *entry) for entry in zip(places, series.y, low, high, strict=True)]
    return rows + [("line", line.label, line.x, line.y, None, None) for line in panel.lines]


def _name(panel: Panel, x: float) -> str | float:
    known = panel.x_names and x.is_integer() and 0 <= x < len(panel.x_names)
    return panel.x_names[int(x)] if known else x


def _cells(panel: HeatPanel) -> list[tuple[str | float | None, ...]]:
    return [
        ("cell", row, column, panel.matrix[i][j], panel.low and panel.low[i][j], panel.high and panel.high[i][j])
        for i, row in enumerate(panel.rows)
        for j, column in enumerate(panel.columns)
    ]


def _shown(entry: str | float | None) -> str:
    if isinstance(entry, float):
        return str(int(entry)) if entry.is_integer() and abs(entry) < 1e15 else repr(entry)
    return "" if entry is None else str(entry)
