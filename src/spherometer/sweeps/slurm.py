"""A crew of SLURM jobs, by submitit, on nodes that share the file system (extra `slurm`)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from spherometer.sweeps.attempt import Attempt, attempt_elsewhere, crashed, one_line
from spherometer.sweeps.crew import GRACE, import_paths
from spherometer.sweeps.jobs import Job
from spherometer.sweeps.outcomes import SweepError

LARGEST_ARRAY = 1000  # SLURM takes 1001 jobs in an array unless told otherwise
PAUSE = 0.5  # seconds between two looks; submitit itself asks SLURM less often


@dataclass(frozen=True)
class Errand:
    """What a SLURM job calls; one that runs out of time or has to make room is queued again and goes on."""

    root: Path
    paths: Sequence[str]
    threads: int

    def __call__(self, job: Job) -> Attempt:
        """One attempt."""
        return attempt_elsewhere(job, self.root, self.paths, self.threads)

    def checkpoint(self, job: Job) -> Any:
        """The same again: a run goes on from what is in its folder."""
        return _library().helpers.DelayedSubmission(self, job)


class Slurm:
    """Arrays of SLURM jobs, a run each; they go on when the sweep that sent them has died.

    Args:
        parameters: those of `submitit.AutoExecutor.update_parameters`, whose prefix slurm_ may be left out; and
            "cluster": "slurm" unless told otherwise, "local" or "debug" to try without SLURM.
    """

    def __init__(self, root: Path, parameters: Mapping[str, Any]) -> None:
        submitit, chosen = _library(), dict(parameters)
        cluster, self._root = chosen.pop("cluster", "slurm"), root
        try:
            self._executor = submitit.AutoExecutor(folder=root / "slurm" / "%j", cluster=cluster)
            with warnings.catch_warnings(action="ignore"):  # of names without their prefix slurm_, which it adds
                self._executor.update_parameters(**chosen)
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            raise SweepError(f"submitit cannot send jobs ({one_line(error)})") from error
        self._errand = Errand(root, import_paths(), chosen.get("cpus_per_task", 1))
        chosen |= {name.removeprefix("slurm_"): value for name, value in chosen.items()}
        self._side_by_side: int | None = chosen.get("array_parallelism")
        self._tasks: dict[Job, tuple[Any, float]] = {}

    @property
    def size(self) -> int:
        """As many as SLURM lets run of an array, else all."""
        return self._side_by_side or max(1, len(self._tasks))

    @property
    def room(self) -> int:
        """SLURM has a queue of its own."""
        return LARGEST_ARRAY

    def start(self, jobs: Sequence[Job]) -> None:
        """As one array."""
        now = time.monotonic()
        tasks = self._executor.map_array(self._errand, list(jobs))
        self._tasks |= {job: (task, now) for job, task in zip(jobs, tasks, strict=True)}

    def wait(self, timeout: float | None) -> list[tuple[Job, Attempt]]:
        """Attempts that have ended, those included that SLURM has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            ended = [job for job, (task, _) in self._tasks.items() if task.done()]
            if ended or (until is not None and time.monotonic() >= until):
                return [(job, self._ended(job)) for job in ended]
            time.sleep(PAUSE)

    def stop(self) -> None:
        """Cancel what still runs or waits."""
        tasks = [task for task, _ in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel(check=False)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not all(task.done() for task in tasks):
            time.sleep(PAUSE)

    def _ended(self, job: Job) -> Attempt:
        task, began = self._tasks.pop(job)
        try:
            attempt: Attempt = task.result()
        except Exception as error:  # submitit raises many kinds, plain ones among them
            return crashed(job, self._root, str(error), time.monotonic() - began)
        return attempt


def _library() -> ModuleType:
    try:
        import submitit
    except ImportError:
        raise SweepError(
            "sweeps under SLURM need submitit, which is not installed: pip install 'spherometer[slurm]'"
        ) from None
    return submitit
