"""A sweep on the screen: a line for each run that has ended, and a bar with the time left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task
from rich.progress import Progress as Bar
from rich.text import Text

from spherometer.sweeps.attempt import ERRORS
from spherometer.sweeps.outcomes import Outcome, Progress
from spherometer.sweeps.schedule import Tell

STYLES = {"done": "green", "kept": "dim", "failed": "bold red"}


@contextmanager
def shown(console: Console | None = None) -> Iterator[Tell]:
    """What `sweep` takes as `tell`, writing on standard error; plain lines where that is not a terminal.

    Example:
        >>> with shown() as tell:
        ...     outcomes = sweep(jobs, "results", tell=tell)
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: _print_line(console, progress, counted=True)
        return
    with Bar(MofNCompleteColumn(), BarColumn(), _Left(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(progress: Progress) -> None:
            now = time.monotonic()
            bar.update(task, completed=progress.done, total=progress.total, progress=progress, told=now)
            _print_line(console, progress, counted=False)

        yield tell


def duration(seconds: float) -> str:
    """As people say it.

    Example:
        >>> duration(200)
        '3 min'
    """
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class _Left(ProgressColumn):
    """How many runs are under way and how long the rest will take, counted down between two tidings."""

    def render(self, task: Task) -> Text:
        """One look."""
        progress: Progress | None = task.fields.get("progress")
        if progress is None:
            return Text("starting")
        if progress.left is None:
            return Text(f"{progress.running} running")
        left = max(0.0, progress.left - (time.monotonic() - task.fields["told"]))
        return Text(f"{progress.running} running, about {duration(left)} left")


def _print_line(console: Console, progress: Progress, *, counted: bool) -> None:
    """What is new; with the count and the time left where no bar shows them."""
    if progress.last is None:
        if progress.done:
            console.print(f"{progress.done} of {progress.total} runs are done already", highlight=False)
        return
    line = Text(f"[{progress.done}/{progress.total}] " if counted else "")
    line += _described(progress.last)
    if counted and progress.left:
        line.append(f", about {duration(progress.left)} left")
    console.print(line, soft_wrap=True)


def _described(outcome: Outcome) -> Text:
    line = Text.assemble((outcome.state, STYLES[outcome.state]), f" {outcome.job}")
    if outcome.state == "kept":
        return line.append(" (done by somebody else)")
    line.append(f" in {duration(outcome.seconds)}")
    if outcome.attempts > 1:
        line.append(f" at attempt {outcome.attempts}")
    if outcome.state == "failed":
        line.append(f": {outcome.message} (runs/{outcome.job.key}/{ERRORS})")
    return line
