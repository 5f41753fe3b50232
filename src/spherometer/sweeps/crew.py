"""Those who do the jobs of a sweep: what the schedule asks of local processes, Ray and SLURM alike."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Protocol

from spherometer.sweeps.attempt import Attempt
from spherometer.sweeps.jobs import Job

GRACE = 10.0  # seconds that a run is given to end its record after it was told to stop


class Crew(Protocol):
    """Takes jobs and gives attempts back."""

    @property
    def size(self) -> int:
        """Jobs that are done side by side."""

    @property
    def room(self) -> int:
        """Jobs that it would take now."""

    def start(self, jobs: Sequence[Job]) -> None:
        """Take these jobs, at most as many as there is room."""

    def wait(self, timeout: float | None) -> list[tuple[Job, Attempt]]:
        """The attempts that have ended, as soon as there is one; none after so many seconds."""

    def stop(self) -> None:
        """Tell what still runs to end its record, wait for that, and leave nothing behind."""


def import_paths() -> list[str]:
    """Where this process finds modules, for others on the same file system."""
    return [os.path.abspath(path) for path in sys.path]
