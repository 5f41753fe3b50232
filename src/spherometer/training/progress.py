"""A progress bar around the steps of a training; silent when nobody watches a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from spherometer.training.loop import Step, Training


def watched(training: Training, num_steps: int) -> Iterator[Step]:
    """`training.run(num_steps)` with a bar, the loss and the time left on standard error.

    Example:
        >>> for step in watched(training, 1000):
        ...     pass
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from training.run(num_steps)
        return
    columns = TextColumn("step {task.completed}"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=num_steps, completed=training.number)
        for step in training.run(num_steps):
            bar.update(task, completed=step.number, description=f"loss {step.loss:.4f}")
            yield step
