"""Which job is next, what becomes of those that fail, and how long the rest will take."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path

from spherometer.sweeps.attempt import Attempt, is_busy, recorded_seconds
from spherometer.sweeps.crew import Crew
from spherometer.sweeps.jobs import Job
from spherometer.sweeps.outcomes import Outcome, Progress

POLL = 0.5  # seconds between two looks at runs that somebody else is at
Tell = Callable[[Progress], None]


class Schedule:
    """The jobs of a sweep from the first to the last outcome.

    A job whose attempt fails goes to the end of the queue, `retries` times. One that another sweep is at is left to it
    and looked at again later; the crew goes on with other jobs meanwhile.
    """

    def __init__(self, jobs: Iterable[Job], root: Path, retries: int, tell: Tell) -> None:
        self._jobs, self._root, self._retries, self._tell = list(dict.fromkeys(jobs)), root, retries, tell
        self.outcomes = {
            job: Outcome(job, "kept", recorded_seconds(job.folder(root))) for job in self._jobs if job.is_done(root)
        }
        self.waiting = deque(job for job in self._jobs if job not in self.outcomes)
        self._elsewhere: list[Job] = []
        self._running: dict[Job, float] = {}
        self._attempts: Counter[Job] = Counter()

    @property
    def open(self) -> int:
        """Jobs without an outcome."""
        return len(self._jobs) - len(self.outcomes)

    def follow(self, crew: Crew) -> None:
        """Until every job has its outcome."""
        self.report(crew.size)
        while self.open:
            self._look_elsewhere()
            self._send(crew)
            if self._running:
                for job, attempt in crew.wait(POLL if self._elsewhere else None):
                    self._settle(job, attempt, crew)
            else:
                time.sleep(POLL)  # all that is left is done elsewhere

    def report(self, size: int, last: Outcome | None = None) -> None:
        """Tell where the sweep is, done by a crew of this size."""
        running = min(len(self._running), size)
        self._tell(Progress(len(self.outcomes), len(self._jobs), running, self._left(size), last))

    def _send(self, crew: Crew) -> None:
        batch = [self.waiting.popleft() for _ in range(min(crew.room, len(self.waiting)))]
        self._running |= dict.fromkeys(batch, time.monotonic())
        if batch:
            crew.start(batch)

    def _look_elsewhere(self) -> None:
        free = [job for job in self._elsewhere if not is_busy(job, self._root)]
        self._elsewhere = [job for job in self._elsewhere if job not in free]
        self.waiting.extendleft(free)

    def _settle(self, job: Job, attempt: Attempt, crew: Crew) -> None:
        del self._running[job]
        if attempt.state == "busy":
            self._elsewhere.append(job)
            return
        if attempt.state == "lost":
            self.waiting.append(job)
            return
        self._attempts[job] += attempt.state != "kept"
        if attempt.state == "failed" and self._attempts[job] <= self._retries:
            self.waiting.append(job)
            return
        last = Outcome(job, attempt.state, attempt.seconds, self._attempts[job], attempt.message)
        self.outcomes[job] = last
        self._send(crew)  # no worker stands idle while somebody is told
        self.report(crew.size, last)

    def _left(self, size: int) -> float | None:
        """Mean time of a run times the runs to come, less what those under way have behind them, over the crew."""
        if not self.open:
            return 0.0
        ended = [outcome.seconds for outcome in self.outcomes.values() if outcome.state != "failed"]
        if not ended:
            return None
        mean, now = sum(ended) / len(ended), time.monotonic()
        begun = sorted((now - start for start in self._running.values()), reverse=True)[:size]
        work = (self.open - len(begun)) * mean + sum(max(0.0, mean - seconds) for seconds in begun)
        return work / min(size, self.open)
