"""A crew of processes on this machine; one that dies is noticed at once and replaced."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path

from spherometer.sweeps.attempt import Attempt, crashed
from spherometer.sweeps.crew import GRACE
from spherometer.sweeps.jobs import Job
from spherometer.sweeps.outcomes import SweepError
from spherometer.sweeps.worker import READY, work

HEARTBEAT = 1.0  # seconds between two looks at who lives: children of a dead worker may hold its link open
MAX_STILLBORN = 3  # workers in a row that may die before they are ready


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(workers: int) -> int:
    """Threads of each of so many workers: its share of the cores, and no more than OMP_NUM_THREADS says."""
    share = max(1, cores() // workers)
    said = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(said)) if said.isdigit() and int(said) else share


class Processes:
    """So many workers, started afresh (spawned) and fed over pipes; each computes on its share of the cores."""

    def __init__(self, root: Path, size: int) -> None:
        self.size, self._root = size, root
        self._workers: list[_Worker] = []
        self._stillborn = 0

    @property
    def room(self) -> int:
        """Workers without a job, those included that are not started yet."""
        return self.size - sum(worker.job is not None for worker in self._workers)

    def start(self, jobs: Sequence[Job]) -> None:
        """Give each job to an idle worker; workers are started as they are needed."""
        for job in jobs:
            idle = [worker for worker in self._workers if worker.job is None]
            if not idle:
                idle = [_Worker(self._root, threads_each(self.size))]
                self._workers += idle
            idle[0].give(job)

    def wait(self, timeout: float | None) -> list[tuple[Job, Attempt]]:
        """Attempts that have ended, those included whose worker has died."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while self._workers:
            left = max(0.0, min(HEARTBEAT, until - time.monotonic()))
            ready = set(wait([worker.link for worker in self._workers], left))
            ended = [pair for worker in list(self._workers) for pair in self._listen(worker, worker.link in ready)]
            if ended or time.monotonic() >= until:
                return ended
        return []

    def stop(self) -> None:
        """Workers end at once when idle, else as soon as their run has written that it was stopped."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.dismiss()
        _end(worker.process for worker in workers)

    def _listen(self, worker: _Worker, heard: bool) -> list[tuple[Job, Attempt]]:
        try:
            while heard and worker.link.poll():
                word = worker.link.recv()
                if word != READY:
                    return [worker.take(word)]
                worker.ready, self._stillborn = True, 0
        except (EOFError, OSError):
            return self._bury(worker)
        return [] if worker.process.is_alive() else self._bury(worker)

    def _bury(self, worker: _Worker) -> list[tuple[Job, Attempt]]:
        self._workers.remove(worker)
        worker.link.close()
        worker.process.join()
        reason = _reason(worker.process.exitcode or 0)
        if not worker.ready:
            self._stillborn += 1
            if self._stillborn >= MAX_STILLBORN:
                raise SweepError(
                    f"workers end before they begin (the last {reason}): look at what they printed; a script that "
                    "calls sweep needs the line if __name__ == '__main__': before the call"
                )
        if worker.job is None:
            return []
        if not worker.ready:
            return [worker.take(Attempt("lost"))]
        seconds = time.monotonic() - worker.began
        return [worker.take(crashed(worker.job, self._root, f"the worker of this run {reason}", seconds))]


class _Worker:
    """A process, the link to it, and the job it is at."""

    def __init__(self, root: Path, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, root, threads), name="spherometer worker")
        with _deaf_to_the_keyboard():
            self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.ready, self.began = False, 0.0

    def give(self, job: Job) -> None:
        self.job, self.began = job, time.monotonic()
        with suppress(OSError):  # it has just died, as the next wait will find out
            self.link.send(job)

    def take(self, attempt: Attempt) -> tuple[Job, Attempt]:
        job, self.job = self.job, None
        assert job is not None
        return job, attempt

    def dismiss(self) -> None:
        self.link.close()
        if self.job is not None or not self.ready:
            self.process.terminate()


@contextmanager
def _deaf_to_the_keyboard() -> Iterator[None]:
    """What is started inside never hears Ctrl-C, not even before its first line; here it is heard afterwards."""
    resource_tracker.ensure_running()  # its start would make us hear again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(processes: Iterable[multiprocessing.process.BaseProcess]) -> None:
    """Wait for processes that were told to end; kill those that do not, or all of them at a second Ctrl-C."""
    processes, until = list(processes), time.monotonic() + GRACE
    try:
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()


def _reason(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL): by somebody, or by the system because memory ran out"
    if code < 0:
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"
    return f"ended with exit code {code}"
