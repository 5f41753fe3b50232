"""What a sweep costs beside its runs, and how much faster two workers are than one."""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.contest import console
from benchmarks.tables import write_table
from spherometer.records import RunReader, RunWriter
from spherometer.sweeps import Job, sweep

COLUMNS = (
    "crew", "workers", "runs", "s a run", "s in all", "s start, end", "overhead", "wanted", "with start, end",
    "speed-up", "wanted",
)  # fmt: skip
SIZE = 256


@dataclass(frozen=True)
class Timing:
    """A sweep by the clock of its runs' records."""

    workers: int
    inside: list[float]
    wall: float
    between: float  # from the begin of the first run to the end of the last

    @property
    def overhead_between(self) -> float:
        return 1 - sum(self.inside) / (self.workers * self.between)

    @property
    def overhead_in_all(self) -> float:
        return 1 - sum(self.inside) / (self.workers * self.wall)


def busy(settings: dict[str, Any], folder: Path) -> None:
    """So many products of matrices on one thread, a row for each hundredth of them."""
    torch.set_num_threads(1)
    with RunWriter(folder, settings=settings, seed=settings["seed"], resume=True) as run:
        matrix = torch.eye(SIZE)
        for step in range(100):
            for _ in range(settings["products"] // 100):
                matrix = matrix @ matrix
            run.write(step, {"corner": matrix[0, 0]})


def write(folder: Path, *, quick: bool) -> Table:
    """Run, write `sweeps.md` into the folder, and return the table for the terminal."""
    seconds = 2.0 if quick else 10.0
    rows = list(_rows(products=100 * round(seconds * _products_per_second() / 100)))
    conditions = (
        f"torch {torch.__version__}, {platform.machine()}; each run multiplies matrices on one thread for about "
        f"{seconds:g} s and writes 100 rows. *Overhead*: share of the workers' time from the begin of the first run to "
        "the end of the last that was not spent inside runs. *Start, end*: before and after that, where workers "
        "import torch, and Ray starts and ends a cluster. *Speed-up*: over one worker, start and end included."
    )
    return write_table(folder / "sweeps.md", conditions, COLUMNS, rows)


def _rows(products: int) -> Iterator[list[str]]:
    one = _timed(6, products, 1)
    yield _cells("local", one, "", "")
    two = _timed(6, products, 2)
    yield _cells("local", two, f"{one.wall / two.wall:.2f}", "≥ 1.8")
    if find_spec("ray") is None:
        console.print("  sweeps: Ray is not installed, its row is left out", style="dim")
        return
    yield _cells("Ray, local", _timed(4, products, 2, ray="local"), "", "")


def _timed(num: int, products: int, workers: int, **options: Any) -> Timing:
    jobs = [Job("benchmarks.sweeps:busy", {"seed": seed, "products": products}) for seed in range(num)]
    with tempfile.TemporaryDirectory() as root:
        began = time.perf_counter()
        outcomes = sweep(jobs, root, workers=workers, **options)
        wall = time.perf_counter() - began
        assert all(outcome.state == "done" for outcome in outcomes)
        spans = [[entry["time"] for entry in RunReader(job.folder(root)).status] for job in jobs]
    console.print(f"  sweeps: {num} runs by {workers} workers {options or ''} took {wall:.1f} s", style="dim")
    between = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return Timing(workers, [end - begin for begin, end in spans], wall, between)


def _products_per_second() -> float:
    threads, matrix = torch.get_num_threads(), torch.eye(SIZE)
    torch.set_num_threads(1)
    began, num = time.perf_counter(), 0
    while time.perf_counter() - began < 1.0:
        matrix, num = matrix @ matrix, num + 1
    torch.set_num_threads(threads)
    return num / (time.perf_counter() - began)


def _cells(crew: str, timing: Timing, speed_up: str, wanted: str) -> list[str]:
    return [
        crew, str(timing.workers), str(len(timing.inside)), f"{statistics.median(timing.inside):.2f}",
        f"{timing.wall:.1f}", f"{timing.wall - timing.between:.1f}", f"{100 * timing.overhead_between:.1f} %", "< 5 %",
        f"{100 * timing.overhead_in_all:.1f} %", speed_up, wanted,
    ]  # fmt: skip
