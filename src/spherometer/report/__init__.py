"""Records and figures -> a page: one HTML file that needs nothing else."""

from spherometer.report.files import prepare
from spherometer.report.page import Facts, Grid, Page, Picture, Prose, render

__all__ = ["Facts", "Grid", "Page", "Picture", "Prose", "prepare", "render"]
