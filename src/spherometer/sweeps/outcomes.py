"""What a sweep tells while it goes on, and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spherometer.sweeps.jobs import Job


class SweepError(ValueError):
    """A sweep that cannot be done as asked, such as on a cluster that nobody can reach; the message says what to do."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Args:
        state: `kept` is a run that was done before, here or by another sweep.
        seconds: inside the run, of its last try; of a kept run as its record tells.
        attempts: in this sweep; 0 for a kept run.
        message: the last error in a line; the whole story is in `errors.txt` of the folder of the run.
    """

    job: Job
    state: Literal["done", "failed", "kept"]
    seconds: float = 0.0
    attempts: int = 0
    message: str = ""


@dataclass(frozen=True)
class Progress:
    """Where a sweep is: told at its beginning, and each time a job has ended.

    Args:
        done: jobs that have ended, well or not, the kept ones included.
        left: seconds until the end as far as the runs so far tell; None before the first has ended.
        last: the job that has just ended; None at the beginning.
    """

    done: int
    total: int
    running: int
    left: float | None
    last: Outcome | None = None
