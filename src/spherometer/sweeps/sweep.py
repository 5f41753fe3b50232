"""Many runs, on this machine or on a cluster: `sweep(jobs, root)`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from spherometer.sweeps.crew import Crew
from spherometer.sweeps.jobs import Job
from spherometer.sweeps.outcomes import Outcome, Progress
from spherometer.sweeps.processes import Processes, cores
from spherometer.sweeps.schedule import Schedule, Tell

Do = Callable[[Iterable[Job]], list[Outcome]]


def sweep(
    jobs: Iterable[Job],
    root: str | Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    slurm: Mapping[str, Any] | None = None,
    retries: int = 1,
    tell: Tell | None = None,
) -> list[Outcome]:
    """Do the jobs that are not done yet; the outcomes come in the order of the jobs.

    Each run goes into its own folder below `root`. A run that fails, or kills its process, is tried again `retries`
    times and does not stop the others; its errors are in `errors.txt` of its folder. Ctrl-C lets the runs end their
    records; the same call again goes on from there. Several sweeps may work on one root: each run is done once.

    Args:
        workers: processes on this machine, each with its share of the cores; one for each core unless told otherwise.
        ray: address of a Ray cluster: "local" (started here), "auto", "host:port" or "ray://host:port" (extra `ray`).
        slurm: parameters of submitit, such as {"partition": "cpu", "timeout_min": 240} (extra `slurm`).
        tell: called with the `Progress` at the beginning and each time a job has ended;
            `with progress.shown() as tell:` gives one.

    Example:
        >>> outcomes = sweep([Job("mypackage.runs:train", {"seed": seed}) for seed in range(10)], "results", workers=2)
        >>> [outcome.job for outcome in outcomes if outcome.state == "failed"]
    """
    with _doing(root, workers, ray, slurm, retries, tell, once=True) as do:
        return do(jobs)


@contextmanager
def sweeping(
    root: str | Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    slurm: Mapping[str, Any] | None = None,
    retries: int = 1,
    tell: Tell | None = None,
) -> Iterator[Do]:
    """`sweep` for many lots of jobs: workers, or a cluster, start with the first job and end with the context.

    Example:
        >>> with sweeping("results", workers=2) as do:
        ...     first = do(jobs)
        ...     second = do(further_jobs(first))
    """
    with _doing(root, workers, ray, slurm, retries, tell, once=False) as do:
        yield do


@contextmanager
def _doing(
    root: str | Path,
    workers: int | None,
    ray: str | None,
    slurm: Mapping[str, Any] | None,
    retries: int,
    tell: Tell | None,
    *,
    once: bool,
) -> Iterator[Do]:
    """Does lots of jobs by one crew, hired with the first job; no larger than that lot needs if it is the only one."""
    _refuse_wrong_use(workers, ray, slurm, retries)
    place, crews = Path(root).expanduser().resolve(), list[Crew]()

    def do(given: Iterable[Job]) -> list[Outcome]:
        jobs = list(given)
        schedule = Schedule(jobs, place, retries, tell or _silent)
        for job in {job.function: job for job in schedule.waiting}.values():
            job.load()  # a function that nobody can import is found out before anything is started
        if schedule.open:
            crews[:] = crews or [_crew(place, schedule.open if once else sys.maxsize, workers, ray, slurm)]
            schedule.follow(crews[0])
        else:
            schedule.report(size=1)
        return [replace(schedule.outcomes[job], job=job) for job in jobs]

    try:
        yield do
    finally:
        for crew in crews:
            crew.stop()


def _crew(root: Path, num: int, workers: int | None, ray: str | None, slurm: Mapping[str, Any] | None) -> Crew:
    if ray is not None:
        from spherometer.sweeps.cluster import RayCluster

        return RayCluster(root, ray, workers)
    if slurm is not None:
        from spherometer.sweeps.slurm import Slurm

        return Slurm(root, slurm)
    return Processes(root, min(workers or cores(), num))


def _refuse_wrong_use(workers: int | None, ray: str | None, slurm: Mapping[str, Any] | None, retries: int) -> None:
    if workers is not None and workers < 1:
        raise ValueError(f"expected at least 1 worker, got {workers}")
    if retries < 0:
        raise ValueError(f"expected retries of at least 0, got {retries}")
    if ray is not None and slurm is not None:
        raise ValueError("expected ray or slurm, got both: choose one")
    if workers is not None and (slurm is not None or ray not in (None, "local")):
        raise ValueError(
            f"expected workers for this machine only, got {workers} for a cluster, which has as many as it has: leave "
            "workers out, or the cluster"
        )


def _silent(progress: Progress) -> None:
    """Nobody listens."""
