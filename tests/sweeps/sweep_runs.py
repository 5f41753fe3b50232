"""Runs for the tests of sweeps: they count how often they are called, and sleep, fail, or kill themselves as told."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from spherometer.records import RunWriter
from spherometer.sweeps import Job

FUNCTION = "sweep_runs:perform"


def job(number: int, **settings: Any) -> Job:
    return Job(FUNCTION, {"number": number, **settings}, title=f"run {number}")


def perform(settings: dict[str, Any], folder: Path) -> None:
    """Write `rows` rows, `seconds` apart; misbehave at the row and as often as the settings say."""
    calls = note(folder, "calls.txt")
    with RunWriter(folder, settings=settings, seed=settings["number"], resume=True) as run:
        for step in range(settings.get("rows", 3)):
            time.sleep(settings.get("seconds", 0.0))
            run.write(step, {"square": settings["number"] ** 2 + step})
            if calls <= settings.get("bad_calls", 10**9):
                misbehave(settings.get("trouble", ""))
    note(folder, "ends.txt")


def misbehave(trouble: str) -> None:
    if trouble == "raise":
        raise ArithmeticError("as told\nover two lines")
    if trouble == "exit":
        raise SystemExit(3)
    if trouble == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == "os exit":
        os._exit(7)


def end_early(settings: dict[str, Any], folder: Path) -> None:
    """Return without a word."""


def leave_a_child(settings: dict[str, Any], folder: Path) -> None:
    """Die and leave a child behind that holds on to all that was open."""
    child = os.fork()
    if child == 0:
        note(folder, "child.txt")
        time.sleep(60)
        os._exit(0)
    while not count(folder, "child.txt"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def threads(settings: dict[str, Any], folder: Path) -> None:
    """Write down how many threads torch has, and the process."""
    import torch

    with RunWriter(folder, settings=settings, resume=True) as run:
        run.write(0, {"threads": torch.get_num_threads(), "process": os.getpid()})
        time.sleep(0.2)


def note(folder: Path, name: str) -> int:
    """Append a line; how many there are now."""
    with (folder / name).open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    return count(folder, name)


def count(folder: Path, name: str) -> int:
    path = folder / name
    return len(path.read_text().splitlines()) if path.exists() else 0
