"""Spectra of Hessians as panels, from the quadrature that a run keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Series
from spherometer.recipes.results import Results

POINTS = 400
WIDTH = 0.01  # of the kernel, in units of the range of the spectrum
FAINT = 0.1  # of the peak that the lightest node makes: below, nothing is shown


def spectrum_panel(results: Results, title: str, *, prefix: str = "", **labels: Any) -> Panel:
    """Log density over eigenvalues of the first run that kept a spectrum; `prefix` "batch_" for batch statistics.

    Example:
        >>> spectrum_panel(results, "γ = 0", decay=0.0)
    """
    nodes, weights = (
        [kept[max(kept)] for kept in results.arrays(f"{prefix}spectrum_{name}", **labels) if kept]
        for name in ("nodes", "weights")
    )
    series = [_density(nodes[0], weights[0])] if nodes else []
    lines = [Line("λ₁", x=float(nodes[0].max()))] if nodes else []
    return Panel(title, "eigenvalue", "density", series, log_y=True, lines=lines)


def _density(nodes: np.ndarray, weights: np.ndarray) -> Series:
    """Mean over probes of Σ_j w_j N(x; t_j, width²), a gap where it is fainter than any node would be (D App B)."""
    low, high = float(nodes.min()), float(nodes.max())
    width = WIDTH * ((high - low) or abs(high) or 1.0)
    grid = np.linspace(low - 3 * width, high + 3 * width, POINTS)
    kernel = np.exp(-0.5 * ((grid[:, None, None] - nodes) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    density = (weights * kernel).sum(2).mean(1)
    lightest = weights[weights > 0].min() / len(nodes) / (width * np.sqrt(2 * np.pi))
    return Series("", grid, np.where(density > FAINT * lightest, density, np.nan))
