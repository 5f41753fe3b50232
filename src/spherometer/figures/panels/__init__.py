"""A figure of a paper as plain data, drawn into a file, drawn on a page, or written as a table."""

from spherometer.figures.panels.description import HeatPanel, Line, Panel, Panels, Series
from spherometer.figures.panels.drawing import draw_panels
from spherometer.figures.panels.page import plotly_panels
from spherometer.figures.panels.seeds import over_seeds
from spherometer.figures.panels.table import panels_csv

__all__ = [
    "HeatPanel",
    "Line",
    "Panel",
    "Panels",
    "Series",
    "draw_panels",
    "over_seeds",
    "panels_csv",
    "plotly_panels",
]
