"""The life of a local worker process: jobs in, attempts out, until the parent says so or is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

from spherometer.sweeps.attempt import attempt, limit_threads
from spherometer.sweeps.crew import GRACE
from spherometer.sweeps.jobs import Job

READY = "ready"


def work(link: Connection, root: Path, threads: int) -> None:
    """Do the jobs that come over the link, one after the other; torch is imported once for all of them."""
    with suppress(KeyboardInterrupt):  # we were told to stop
        _obey_the_parent()
        limit_threads(threads)
        link.send(READY)
        for job in _received(link):
            link.send(attempt(job, root))


def _received(link: Connection) -> Iterator[Job]:
    while True:
        try:
            yield link.recv()
        except EOFError:
            return  # the parent has no more jobs, or is gone


def _obey_the_parent() -> None:
    """SIGTERM interrupts a run as Ctrl-C would, once; so does the end of the parent, however that comes about."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells everybody, but the parent decides
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_follow_the_parent, daemon=True).start()


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _follow_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
