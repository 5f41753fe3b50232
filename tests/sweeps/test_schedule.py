"""The order of things, with a crew that does what it is told and no process at all."""

import time
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from sweep_runs import job

from spherometer.records import RunWriter
from spherometer.records.lock import Lock
from spherometer.sweeps import Job, Outcome, Progress, schedule
from spherometer.sweeps.attempt import CLAIM, Attempt
from spherometer.sweeps.schedule import Schedule


class Script:
    """A crew that ends its oldest job with the next attempt that was written down for it, else well."""

    def __init__(self, size: int = 2, attempts: dict[Job, list[Attempt]] | None = None) -> None:
        self.size, self._attempts = size, attempts or {}
        self.started: list[Job] = []
        self._under_way: deque[Job] = deque()

    @property
    def room(self) -> int:
        return self.size - len(self._under_way)

    def start(self, jobs: Sequence[Job]) -> None:
        assert len(jobs) <= self.room
        self.started += jobs
        self._under_way.extend(jobs)

    def wait(self, timeout: float | None) -> list[tuple[Job, Attempt]]:
        one = self._under_way.popleft()
        written = self._attempts.get(one)
        return [(one, written.pop(0) if written else Attempt("done", 10.0))]

    def stop(self) -> None:
        raise AssertionError("the schedule does not end the crew")


def followed(jobs, root, crew, retries=1) -> tuple[dict[Job, Outcome], list[Progress]]:
    told: list[Progress] = []
    course = Schedule(jobs, root, retries, told.append)
    course.follow(crew)
    return course.outcomes, told


A, B, C, D = (job(number) for number in range(4))


def test_each_job_is_done_once_in_order(tmp_path):
    crew = Script()
    outcomes, told = followed([A, B, A, C, B, D], tmp_path, crew)
    assert crew.started == [A, B, C, D]
    assert outcomes == {one: Outcome(one, "done", 10.0, 1) for one in (A, B, C, D)}
    assert [progress.done for progress in told] == [0, 1, 2, 3, 4]
    assert {progress.total for progress in told} == {4}
    assert [progress.running for progress in told] == [0, 2, 2, 1, 0]
    assert [progress.last and progress.last.job for progress in told] == [None, A, B, C, D]


@pytest.mark.parametrize(("retries", "state", "attempts"), [(0, "failed", 1), (1, "failed", 2), (2, "done", 3)])
def test_failed_jobs_are_tried_again_after_the_others(tmp_path, retries, state, attempts):
    crew = Script(1, {A: [Attempt("failed", 1.0, "first"), Attempt("failed", 2.0, "second")]})
    outcomes, _ = followed([A, B], tmp_path, crew, retries)
    message = {1: "first", 2: "second", 3: ""}[attempts]
    seconds = {1: 1.0, 2: 2.0, 3: 10.0}[attempts]
    assert outcomes[A] == Outcome(A, state, seconds, attempts, message)
    assert outcomes[B].state == "done"
    assert crew.started == [A, B] + [A] * (attempts - 1)


def test_a_lost_job_is_sent_again_and_not_counted(tmp_path):
    crew = Script(1, {A: [Attempt("lost")] * 5})
    outcomes, _ = followed([A], tmp_path, crew, retries=0)
    assert outcomes[A] == Outcome(A, "done", 10.0, 1)
    assert crew.started == [A] * 6


def test_what_another_sweep_is_at_is_waited_for(tmp_path, monkeypatch):
    looks, folder = [], A.folder(tmp_path)
    folder.mkdir(parents=True)
    claim = Lock(folder, name=CLAIM)

    def sleep(seconds: float) -> None:  # while we wait the other one does it
        looks.append(seconds)
        if len(looks) == 3:
            RunWriter(folder).close("done")
            claim.release()

    monkeypatch.setattr(schedule, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    crew = Script(1, {A: [Attempt("busy"), Attempt("kept", 4.0)]})
    outcomes, _ = followed([A, B], tmp_path, crew)
    assert crew.started == [A, B, A]
    assert outcomes[A] == Outcome(A, "kept", 4.0, 0)
    assert looks == [schedule.POLL] * 3


def test_done_runs_are_kept_without_being_sent(tmp_path):
    RunWriter(B.folder(tmp_path)).close("done")
    crew = Script()
    outcomes, told = followed([A, B], tmp_path, crew)
    assert crew.started == [A]
    assert outcomes[B].state == "kept"
    assert [progress.done for progress in told] == [1, 2]


def test_time_left_is_the_work_left_over_the_crew(tmp_path, monkeypatch):
    clock = iter(range(0, 1000, 4))  # each look at the clock takes four seconds
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    _, told = followed([A, B, C, D], tmp_path, Script(1))
    # after A: B has just begun, four seconds ago, and C and D wait
    assert [progress.left for progress in told] == [None, 26.0, 16.0, 6.0, 0.0]


def test_failed_runs_say_nothing_about_the_time_left(tmp_path):
    crew = Script(1, {A: [Attempt("failed", 0.01)], B: [Attempt("failed", 0.01)]})
    _, told = followed([A, B, C, D], tmp_path, crew, retries=0)
    assert [progress.left is None for progress in told] == [True, True, True, False, False]
