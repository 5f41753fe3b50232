"""One try of one job, wherever it happens: the same in a local worker, on a Ray node and in a SLURM job."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal

from spherometer.records.errors import HeldError
from spherometer.records.lock import Lock, is_held
from spherometer.records.reader import RunReader
from spherometer.sweeps.jobs import Job

CLAIM = "job.lock"  # held from before the function is called until it has ended
ERRORS = "errors.txt"
MAX_MESSAGE = 400  # characters


@dataclass(frozen=True)
class Attempt:
    """How a try ended.

    `kept`: the run was done before; `busy`: somebody else is at it; `lost`: it ended through no fault of the job.
    """

    state: Literal["done", "kept", "failed", "busy", "lost"]
    seconds: float = 0.0
    message: str = ""


def attempt(job: Job, root: Path) -> Attempt:
    """Do a job unless it is done, or somebody else is at it; its error is kept in the folder, not raised.

    What is no `Exception` ends the process, as it means to: SLURM's way to make room is `SystemExit`.
    """
    folder = job.folder(root)
    began = time.perf_counter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim = Lock(folder, name=CLAIM, patience=0.5)
    except HeldError:
        return Attempt("busy")
    except OSError as error:
        return Attempt("failed", time.perf_counter() - began, one_line(error))
    try:
        if job.is_done(root):
            return Attempt("kept", recorded_seconds(folder))
        if is_held(folder):
            return Attempt("busy")
        return _tried(job, root)
    finally:
        claim.release()


def attempt_elsewhere(job: Job, root: Path, paths: Sequence[str], threads: int) -> Attempt:
    """An attempt in a process that others have started.

    Args:
        paths: `sys.path` of the process that sent the job: what it can import is found here too.
        threads: that torch may use.
    """
    sys.path.extend(path for path in paths if path not in sys.path)
    limit_threads(threads)
    return attempt(job, root)


def is_busy(job: Job, root: Path) -> bool:
    """Whether somebody alive is at this run."""
    folder = job.folder(root)
    return is_held(folder, CLAIM) or is_held(folder)


def limit_threads(threads: int) -> None:
    """Of torch in this process, whether it is imported already or will be by the first run that needs it."""
    os.environ |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def keep_error(folder: Path, text: str) -> None:
    """Append to the errors of a run, with time and place."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # a full disk, say, of which the message of the outcome tells
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ERRORS).open("a") as stream:
            stream.write(f"--- {now}, {platform.node()}, process {os.getpid()}\n{text.rstrip()}\n")


def crashed(job: Job, root: Path, message: str, seconds: float) -> Attempt:
    """The attempt of a process that could not tell itself what happened to it."""
    keep_error(job.folder(root), message)
    return Attempt("failed", seconds, " ".join(message.split())[:MAX_MESSAGE])


def one_line(error: BaseException) -> str:
    """The kind of an error and its message."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE]


def recorded_seconds(folder: Path) -> float:
    """Time that a run took according to its own record, over all its sessions; those that were killed do not count."""
    states = [(entry["state"], entry["time"]) for entry in RunReader(folder).status]
    return sum(end - start for (state, start), (following, end) in pairwise(states) if state == "running" != following)


def _tried(job: Job, root: Path) -> Attempt:
    folder, began = job.folder(root), time.perf_counter()
    try:
        function = job.load()
        began = time.perf_counter()  # the time of a run is not that of importing torch before the first one
        function(deepcopy(dict(job.settings)), folder)
    except Exception as error:  # whatever a run does, the sweep goes on
        seconds = time.perf_counter() - began
        keep_error(folder, traceback.format_exc())
        return Attempt("failed", seconds, one_line(error))
    seconds = time.perf_counter() - began
    if job.is_done(root):
        return Attempt("done", seconds)
    return crashed(job, root, f"{job.function} returned, but the run in its folder is not done", seconds)
