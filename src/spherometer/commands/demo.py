"""`spherometer demo`: train to the edge of stability, measure, write a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spherometer.commands.kinds import Count, CountOrAuto, Folder, Seed

if TYPE_CHECKING:
    from spherometer.commands.edge import Row


@dataclass(frozen=True)
class Demo:
    """Train a small network on handwritten digits by full-batch gradient descent until it stands at the edge of
    stability, measure it on the way and at the end, and write one HTML page with curve, spectrum and table.
    """

    out: Folder = Path("spherometer-demo")
    """folder for the page"""
    steps: Count = 2500
    """updates of gradient descent; the edge is reached near step 400"""
    every: Count = 20
    """measure the sharpness once in so many steps"""
    seed: Seed = 0
    """of the weights at the start and of random vectors"""
    threads: CountOrAuto = 1
    """processor threads; for a network this small more of them only wait for each other"""
    watch: bool = False
    """follow the run on a live page, and keep it in the folder"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> int:
        """Train, measure, write, print."""
        from spherometer.report import prepare

        page = self.out / "report.html"
        prepare(page)  # a folder that cannot be written, or a missing library, is told now and not in a minute
        from spherometer.commands.edge import reach_edge, reading
        from spherometer.commands.machine import threads
        from spherometer.commands.output import show, show_json
        from spherometer.commands.page import write_page
        from spherometer.commands.tables import measurement_table

        kept = self.out / "run" if self.watch else None
        with threads(self.threads), _bar(self.steps) as show_row:
            edge = reach_edge(num_steps=self.steps, every=self.every, seed=self.seed, watch=show_row, run=kept)
        write_page(edge, page)
        if self.json:
            show_json({"page": str(page), "reading": reading(edge), **edge.to_dict()})
        else:
            show(
                measurement_table(edge.measurements),
                "",
                reading(edge),
                "",
                f"The curve, the spectrum and the table: {page}",
                *([f"The run, for spherometer watch: {kept}"] if kept else []),
            )
        return 0


@contextmanager
def _bar(num_steps: int) -> Iterator[Callable[[Row], None]]:
    """A progress bar with loss and sharpness on standard error; silent when that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("step {task.completed:>5}"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("starting", total=num_steps)

        def watch(row: Row) -> None:
            words = f"loss {row.loss:.4f}   sharpness {row.sharpness:6.2f} ± {row.error:.2f}"
            if row.step == num_steps:
                words = "measuring the end   "
            progress.update(task, completed=row.step, description=words)

        yield watch
