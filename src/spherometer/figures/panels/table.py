"""The data behind a figure as one tidy table."""

from __future__ import annotations

import csv
import io

from spherometer.figures.panels.description import HeatPanel, Panel, Panels

Row = tuple[str | float | None, ...]
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


def _points(panel: Panel) -> list[Row]:
    rows: list[Row] = []
    for series in panel.series:
        places = [_name(panel, x) for x in series.x]
        ends = zip(series.low, series.high, strict=True) if series.low and series.high else [(None, None)] * len(places)
        rows += [("point", series.label, x, y, *pair) for x, y, pair in zip(places, series.y, ends, strict=True)]
    return rows + [("line", line.label, line.x, line.y, None, None) for line in panel.lines]


def _name(panel: Panel, x: float) -> str | float:
    known = panel.x_names and x.is_integer() and 0 <= x < len(panel.x_names)
    return panel.x_names[int(x)] if known else x


def _cells(panel: HeatPanel) -> list[Row]:
    rows: list[Row] = []
    for i, row in enumerate(panel.rows):
        for j, column in enumerate(panel.columns):
            ends = (panel.low[i][j], panel.high[i][j]) if panel.low and panel.high else (None, None)
            rows.append(("cell", row, column, panel.matrix[i][j], *ends))
    return rows


def _shown(entry: str | float | None) -> str:
    if isinstance(entry, float):
        return str(int(entry)) if entry.is_integer() and abs(entry) < 1e15 else repr(entry)
    return "" if entry is None else str(entry)
