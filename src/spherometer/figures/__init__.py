"""Rows -> pictures: descriptions for plotly (the page) and drawings by matplotlib (files); never a model."""

from spherometer.figures.interactive import Figure, density_figure, edge_figure
from spherometer.figures.panels import (
    HeatPanel,
    Line,
    Panel,
    Panels,
    Series,
    draw_panels,
    over_seeds,
    panels_csv,
    plotly_panels,
)
from spherometer.figures.static import draw_edge
from spherometer.figures.trajectory import draw_trajectory, flattened

__all__ = [
    "Figure",
    "HeatPanel",
    "Line",
    "Panel",
    "Panels",
    "Series",
    "density_figure",
    "draw_edge",
    "draw_panels",
    "draw_trajectory",
    "edge_figure",
    "flattened",
    "over_seeds",
    "panels_csv",
    "plotly_panels",
]
