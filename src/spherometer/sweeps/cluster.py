"""A crew on a Ray cluster whose nodes share the file system (extra `ray`)."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from spherometer.sweeps.attempt import Attempt, attempt_elsewhere, crashed
from spherometer.sweeps.crew import GRACE, import_paths
from spherometer.sweeps.jobs import Job
from spherometer.sweeps.outcomes import SweepError

NUM_ATTEMPTS = 3  # at connecting


class RayCluster:
    """Ray tasks of one core each; those of a node that dies are done again on another.

    A task is given to Ray once: what has become of it is decided here, as for every other crew. Nothing is done twice
    even if a node that Ray believes dead is alive, since it holds the lock of its run. Ray tells of dead processes on
    standard output; until `stop` that is standard error, so that output meant for programs stays clean.

    Args:
        address: "local" starts a cluster on this machine, which ends with the sweep; "auto", "host:port" and
            "ray://host:port" connect to one.
        workers: cores of a local cluster.
    """

    def __init__(self, root: Path, address: str, workers: int | None) -> None:
        self._ray, self._root = _library(), root
        with ExitStack() as begun:
            begun.enter_context(redirect_stdout(sys.stderr))
            if not self._ray.is_initialized():
                _connect(self._ray, address, workers)
                begun.callback(self._ray.shutdown)
            self._begun = begun.pop_all()
        self._errand = self._ray.remote(num_cpus=1, max_retries=0)(attempt_elsewhere)
        self._tasks: dict[Any, tuple[Job, float]] = {}

    @property
    def size(self) -> int:
        """Cores of the cluster as it is now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    @property
    def room(self) -> int:
        """Ray has a queue of its own, by which clusters that grow with demand know the demand."""
        return sys.maxsize

    def start(self, jobs: Sequence[Job]) -> None:
        """Give all to Ray."""
        for job in jobs:
            self._tasks[self._errand.remote(job, self._root, import_paths(), 1)] = job, time.monotonic()

    def wait(self, timeout: float | None) -> list[tuple[Job, Attempt]]:
        """Attempts that have ended, those included whose process or node has died."""
        tasks = list(self._tasks)
        self._ray.wait(tasks, num_returns=1, timeout=timeout)
        ready, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        return [(self._tasks[task][0], self._ended(task)) for task in ready]

    def stop(self) -> None:
        """Interrupt the tasks as Ctrl-C would, then by force, and end a cluster that was started here."""
        try:
            for task in self._tasks:
                self._ray.cancel(task)
            if self._tasks:
                self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=GRACE)
        finally:
            for task in self._tasks:
                self._ray.cancel(task, force=True)
            self._tasks.clear()
            self._begun.close()

    def _ended(self, task: Any) -> Attempt:
        job, began = self._tasks[task]
        try:
            attempt: Attempt = self._ray.get(task)
        except self._ray.exceptions.NodeDiedError:
            attempt = Attempt("lost")
        except self._ray.exceptions.RayError as error:
            attempt = crashed(job, self._root, str(error), time.monotonic() - began)
        del self._tasks[task]
        return attempt


def _library() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise SweepError(
            "sweeps on a cluster need Ray, which is not installed: pip install 'spherometer[ray]'"
        ) from None
    return ray


def _connect(ray: ModuleType, address: str, workers: int | None) -> None:
    options: dict[str, Any] = {"address": address}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
        options |= {"num_cpus": workers, "include_dashboard": False}
    if not address.startswith("ray://"):
        options |= {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        _knock(address)
        _begin(ray, options)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        raise SweepError(
            f"cannot reach a Ray cluster at {address!r} ({' '.join(str(error).split())[:300]}): look at the address; "
            "clusters with tokens also want RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH here"
        ) from error


def _begin(ray: ModuleType, options: dict[str, Any]) -> None:
    """Now and then a cluster fails to start the server of a client that comes by ray://, and does so if asked again."""
    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            ray.init(**options)
        except ConnectionAbortedError:
            if attempt == NUM_ATTEMPTS:
                raise
            ray.shutdown()
        else:
            return


def _knock(address: str) -> None:
    """Raise OSError at once where nobody listens: Ray itself would try for minutes."""
    recorded = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")  # by the last `ray start`
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or (recorded.read_text().strip() if recorded.exists() else "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host, int(port)), timeout=10):
            pass
