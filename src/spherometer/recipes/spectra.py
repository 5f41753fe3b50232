"""Spectra of Hessians as panels, from the quadrature that a run keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spherometer.estimators.density import SpectralDensity
from spherometer.figures.panels import Line, Panel, Series
from spherometer.recipes.results import Results

POINTS = 400
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
    title = title if nodes else f"{title}: missing"
    return Panel(title, "eigenvalue", "density", series, log_y=True, lines=lines)


def _density(nodes: np.ndarray, weights: np.ndarray) -> Series:
    """The mean over probes, a gap where it is fainter than any node would be (D App B)."""
    spectrum = SpectralDensity(torch.from_numpy(nodes), torch.from_numpy(weights), num_rows=0, products=0, seconds=0.0)
    grid = spectrum.grid(POINTS)
    density = np.asarray(spectrum.on(grid).value)
    lightest = weights[weights > 0].min() / len(nodes) / (spectrum.default_width * np.sqrt(2 * np.pi))
    return Series("", grid.numpy(), np.where(density > FAINT * lightest, density, np.nan))
