"""Rows -> pictures: descriptions for plotly (the page) and drawings by matplotlib (files); never a model."""

from spherometer.figures.interactive import Figure, density_figure, edge_figure

__all__ = ["Figure", "density_figure", "edge_figure"]
