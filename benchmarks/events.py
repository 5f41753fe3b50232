"""How often the tracker's events are told where nothing happened, and missed where something did."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.table import Table

from benchmarks.tables import write_table
from spherometer.training.tracking.events import Catapult, Event, Sharpening
from spherometer.values import Estimate

SCATTERS = (0.05, 0.1, 0.2, 0.4)  # standard deviations of the logarithm of the sharpness
START, LATER, RISING = 60, 2000, 50  # values of a run
COLUMNS = (
    "scatter of the sharpness",
    f"rises told in the first {START} values of noise",
    "told later",
    f"rises by 7 over {RISING} values that are missed",
    "catapults told in noise",
)


def write(folder: Path, *, quick: bool) -> Table:
    """Simulate, and write the table as Markdown too."""
    rows = [_cells(scatter, 20 if quick else 1000, np.random.default_rng(0)) for scatter in SCATTERS]
    return write_table(folder / "events.md", "Simulated sharpness and losses.", COLUMNS, rows)


def _cells(scatter: float, num: int, stream: np.random.Generator) -> list[str]:
    def noise(length: int) -> np.ndarray:
        return scatter * stream.standard_normal(length)

    early = sum(bool(_rises(noise(START))) for _ in range(num))
    long = num // 20
    late = sum(event.step >= START for _ in range(long) for event in _rises(noise(LATER)))
    missed = sum(not _rises(np.linspace(0, np.log(7), RISING) + noise(RISING)) for _ in range(num))
    losses = [stream.exponential(size=LATER) * np.where(stream.random(LATER) < 0.01, 10, 1) for _ in range(long)]
    catapults = sum(len(_catapults(loss, noise(LATER))) for loss in losses)
    return [
        f"{scatter:.0%}",
        f"{early} of {num} runs",
        f"{late} in {long * (LATER - START):,} values",
        f"{missed} of {num}",
        f"{catapults} in {long * LATER:,} steps",
    ]


def _rises(logarithms: Iterable[float]) -> list[Event]:
    seen = Sharpening()
    values = enumerate(np.exp(list(logarithms)))
    return [event for step, value in values for event in seen.see(step, Estimate(float(value), 0.01 * float(value)))]


def _catapults(losses: np.ndarray, logarithms: np.ndarray) -> list[Event]:
    seen, told = Catapult(), list[Event]()
    for step, (loss, sharpness) in enumerate(zip(losses, np.exp(logarithms), strict=True)):
        seen.see_loss(step, float(loss))
        told += seen.see_sharpness(step, float(sharpness))
    return told
