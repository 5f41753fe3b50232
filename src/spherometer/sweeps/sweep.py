"""Many runs, on this machine or on a cluster: `sweep(jobs, root)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from spherometer.sweeps.crew import Crew
from spherometer.sweeps.jobs import Job
from spherometer.sweeps.outcomes import Outcome, Progress
from spherometer.sweeps.processes import Processes, cores
from spherometer.sweeps.schedule import Schedule, Tell


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
        tell: called with the `Progress` at the beginning and each time a job has ended; `progress.display()` is one.

    Example:
        >>> outcomes = sweep([Job("mypackage.runs:train", {"seed": seed}) for seed in range(10)], "results", workers=2)
        >>> [outcome.job for outcome in outcomes if outcome.state == "failed"]
    """
    with _crews(root, workers, ray, slurm, retries) as (place, hire):
        return _swept(jobs, place, retries, tell, hire)


@contextmanager
def sweeping(
    root: str | Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    slurm: Mapping[str, Any] | None = None,
    retries: int = 1,
    tell: Tell | None = None,
) -> Iterator[Callable[[Iterable[Job]], list[Outcome]]]:
    """`sweep` for many lots of jobs: workers, or a cluster, start with the first job and end with the context.

    Example:
        >>> with sweeping("results", workers=2) as do:
        ...     first = do(jobs)
        ...     second = do(further_jobs(first))
    """
    with _crews(root, workers, ray, slurm, retries) as (place, hire):
        crew = cache(partial(hire, workers or cores()))
        yield lambda jobs: _swept(jobs, place, retries, tell, lambda _: crew())


@contextmanager
def _crews(
    root: str | Path, workers: int | None, ray: str | None, slurm: Mapping[str, Any] | None, retries: int
) -> Iterator[tuple[Path, Callable[[int], Crew]]]:
    """The root as others see it, and a way to hire a crew for so many jobs, which is stopped at the end."""
    _refuse_wrong_use(workers, ray, slurm, retries)
    place = Path(root).expanduser().resolve()
    with ExitStack() as stops:

        def hire(num: int) -> Crew:
            crew = _crew(place, num, workers, ray, slurm)
            stops.callback(crew.stop)
            return crew

        yield place, hire


def _swept(
    given: Iterable[Job], root: Path, retries: int, tell: Tell | None, hire: Callable[[int], Crew]
) -> list[Outcome]:
    jobs = list(given)
    schedule = Schedule(jobs, root, retries, tell or _silent)
    for job in {job.function: job for job in schedule.waiting}.values():
        job.load()  # a function that nobody can import is found out before anything is started
    if schedule.open:
        schedule.follow(hire(schedule.open))
    else:
        schedule.report(size=1)
    return [replace(schedule.outcomes[job], job=job) for job in jobs]


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
