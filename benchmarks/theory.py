"""Lipschitz bounds and the local variation of the Jacobian of the three-layer network, both sides, 1,000 samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from benchmarks.machine import machine
from benchmarks.tables import write_table
from spherometer.theory import covering_radius, jacobian_variation, lipschitz_bounds
from spherometer.zoo import build_model

COLUMNS = ("quantity", "activation", "samples", "radius", "seconds", "wanted", "lower", "certified upper", "smooth")
NUM, NUM_QUICK, RADIUS = 1000, 100, 0.1


def rows(*, quick: bool) -> Iterator[tuple[str, ...]]:
    """784-200-200-10 with ReLU and tanh: means over samples of both sides; then the program, and a covering radius."""
    num = NUM_QUICK if quick else NUM
    inputs = torch.rand(num, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    for activation in ("relu", "tanh"):
        model = build_model("fcn3-mnist", activation=activation, seed=0)
        yield _variation(model, inputs, activation)
        yield _lipschitz(model, inputs, activation)
    digits = torch.rand(num, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    yield _semidefinite(build_model("digits-mlp", seed=0), digits)
    yield _covering(10 * num)


def write(folder: Path, *, quick: bool) -> Table:
    """Run, write `theory.md` into the folder, and return the table for the terminal."""
    found = list(rows(quick=quick))
    conditions = f"{machine()}, 784-200-200-10, uniform inputs; the semidefinite program on 64-64-64-10."
    return write_table(folder / "theory.md", conditions, COLUMNS, found)


def _variation(model: nn.Module, inputs: Tensor, activation: str) -> tuple[str, ...]:
    found, seconds = _timed(lambda: jacobian_variation(model, inputs, RADIUS))
    smooth = "" if found.smooth is None else f"{float(found.smooth.mean()):.3g}"
    sides = (f"{float(found.lower.mean()):.3g}", f"{float(found.upper.mean()):.3g}", smooth)
    return ("V, mean", activation, str(len(inputs)), f"{RADIUS}", f"{seconds:.1f}", "≤ 60 together", *sides)


def _lipschitz(model: nn.Module, inputs: Tensor, activation: str) -> tuple[str, ...]:
    found, seconds = _timed(lambda: lipschitz_bounds(model, inputs, RADIUS))
    upper = f"{found.upper.value:.3g} (product {found.product:.3g}; in balls {float(found.balls.mean()):.3g})"
    sides = (f"{found.lower.value:.3g}", upper, "")
    return ("‖f‖_Lip", activation, str(len(inputs)), f"{RADIUS}", f"{seconds:.1f}", "≤ 60 together", *sides)


def _semidefinite(model: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    found, seconds = _timed(lambda: lipschitz_bounds(model, inputs, semidefinite=True))
    upper = f"{found.semidefinite:.4g} (product {found.product:.4g}; slopes by descent {found.slopes:.4g})"
    sides = (f"{found.lower.value:.4g}", upper, "")
    return ("‖f‖_Lip, semidefinite", "digits-mlp", str(len(inputs)), "", f"{seconds:.1f}", "", *sides)


def _covering(num: int) -> tuple[str, ...]:
    stream = torch.Generator().manual_seed(0)
    samples, probes = (torch.rand(num, 100, generator=stream) for _ in range(2))
    found, seconds = _timed(lambda: covering_radius(samples, probes))
    sides = (f"{found.value:.3g}", "", "")
    return ("covering radius, 100 dimensions", "", str(num), "", f"{seconds:.1f}", "seconds", *sides)


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = run()
    return found, time.perf_counter() - start
