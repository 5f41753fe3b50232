"""The page of the demo: what happened, the curve, the spectrum, the table, and how the numbers were taken."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spherometer import __version__
from spherometer.commands.edge import LEARNING_RATE, Edge, reading
from spherometer.commands.tables import remark_lines, value_lines
from spherometer.figures import density_figure, edge_figure
from spherometer.metrics import Measurement
from spherometer.records.files import write_whole
from spherometer.report import Facts, Grid, Page, Picture, render


def write_page(edge: Edge, path: Path) -> None:
    """One HTML file, whole or not at all."""
    write_whole(path, render(describe(edge)).encode())


def describe(edge: Edge) -> Page:
    """What the page says."""
    return Page(
        title="At the edge of stability",
        lead=reading(edge),
        headlines=_headlines(edge),
        sections=[_curve(edge), _spectrum(edge), _table(edge), _conventions(edge)],
        footer=f"Written by Spherometer {__version__}. The whole page is in this one file.",
    )


def _headlines(edge: Edge) -> list[tuple[str, str]]:
    sharpness = edge.measurements["sharpness"].estimate
    first, last = edge.rows[0], edge.rows[-1]
    numbers = [
        (f"{float(sharpness.value):.4g}", f"sharpness at the end, ±\N{NO-BREAK SPACE}{float(sharpness.error):.1g}"),
        (f"{edge.threshold:g}", f"2/lr, at learning rate {LEARNING_RATE:g}"),
    ]
    if edge.crossing is not None:
        numbers.append((f"{edge.crossing:,}", "step at which 2/lr was reached"))
    return [*numbers, (f"{last.loss:.3g}", f"loss at the end, from {first.loss:.3g}")]


def _curve(edge: Edge) -> Picture:
    rows = edge.rows
    figure = edge_figure(
        [row.step for row in rows],
        [row.sharpness for row in rows],
        [row.error for row in rows],
        [row.loss for row in rows],
        threshold=edge.threshold,
    )
    caption = (
        "Above: the largest eigenvalue of the Hessian during training, certified to 1 %; the band shows the bound. "
        "Below: the loss, on a logarithmic axis. Once the sharpness is at 2/lr it wobbles, and falls all the same."
    )
    return Picture("Sharpness climbs to 2/lr and stays", figure, caption)


def _spectrum(edge: Edge) -> Picture:
    grid = edge.spectrum.grid(600)
    found = edge.spectrum.on(grid)
    figure = density_figure(
        grid.tolist(),
        _numbers(found.value),
        _numbers(found.error),
        _numbers(edge.measurements["top_eigenvalues:num=10"].value),
        threshold=edge.threshold,
    )
    caption = (
        "Density of all eigenvalues at the end, from stochastic Lanczos quadrature with eight random vectors; the band "
        "is one standard error over them. The ticks are the ten largest eigenvalues. Most of the spectrum lies near "
        "zero; a few directions carry the curvature."
    )
    return Picture("A bulk at zero, and a few outliers", figure, caption)


def _table(edge: Edge) -> Grid:
    rows = [_row(entry) for entry in edge.measurements.values()]
    caption = (
        "Bounds are certified by the solver; standard errors are those of the random vectors. "
        "A product is one multiplication by the Hessian or Gauss-Newton matrix."
    )
    columns = ("quantity", "symbol", "value", "uncertainty", "products")
    return Grid("Measured at the end", columns, rows, numeric=(4,), fixed=(1, 2), caption=caption)


def _row(entry: Measurement) -> tuple[str, ...]:
    estimate = entry.estimate
    remarks = remark_lines(estimate) + ([] if estimate.status else [f"not converged: {estimate.status.message}"])
    name = entry.metric.name.replace("_", " ")
    products = str(estimate.products) if estimate.products else "–"
    return name, entry.metric.symbol, _aligned(value_lines(estimate)), "\n".join(remarks), products


def _aligned(lines: list[str]) -> str:
    """Labels and numbers in columns, by spaces as wide as a digit."""
    return "\n".join(re.sub(" {2,}", lambda gap: "\N{FIGURE SPACE}" * len(gap[0]), line) for line in lines)


def _conventions(edge: Edge) -> Facts:
    told: dict[str, Any] = edge.measurements.conventions
    entries = {
        "network": "tanh 64-64-64-10, weights from seed " + str(edge.seed),
        "data": edge.data,
        "loss": f"{told['loss']}: half the squared distance to the one-hot label, mean over {told['terms']:g} samples",
        "training": f"full-batch gradient descent, learning rate {LEARNING_RATE:g}, {edge.rows[-1].step:,} steps",
        "measured over": f"{told['parameters']:,} parameters ({told['selected']}), {told['dtype']}",
        "random numbers": f"seed {told['seed']}; the same seed gives the same numbers",
        "versions": f"spherometer {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "again": f"spherometer demo --steps {edge.rows[-1].step} --seed {edge.seed}",
    }
    return Facts("How the numbers were taken", entries)


def _numbers(values: float | Tensor) -> list[float]:
    assert isinstance(values, Tensor)
    found: list[float] = values.tolist()
    return found
