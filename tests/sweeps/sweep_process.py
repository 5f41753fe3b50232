"""Sweeps in processes of their own, and what they leave behind."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweep_runs import job

from spherometer.records import RunReader
from spherometer.sweeps import Job

SCRIPT = Path(__file__).parent / "sweep_script.py"
Settings = list[dict[str, Any]]


def jobs_of(settings: Settings) -> list[Job]:
    """The jobs that the script does."""
    return [job(number, **chosen) for number, chosen in enumerate(settings)]


def start(
    root: Path, settings: Settings, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """The script in a process group of its own, as a shell would start it."""
    words = [sys.executable, str(SCRIPT), str(root), json.dumps(settings), json.dumps(options)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, text=True, process_group=0, env=os.environ | (environment or {}), **pipes)


def answer(process: subprocess.Popen[str], seconds: float = 240.0) -> list[list[Any]]:
    """State, attempts and message of each job, once the script has ended well."""
    told, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors
    found: list[list[Any]] = json.loads(told)
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def begun(root: Path, rows: int = 3) -> list[Path]:
    """Folders of runs with at least so many rows."""
    found = [path.parent for path in root.glob("runs/*/run.db") if RunReader(path.parent).exists]
    return [folder for folder in found if len(RunReader(folder).rows()) >= rows]


def callers(root: Path) -> list[int]:
    """Processes that have called a run."""
    return [int(line) for path in root.glob("runs/*/calls.txt") for line in path.read_text().split()]


def alive(process: int) -> bool:
    """A zombie is not alive: nobody here reaps the children of a dead parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def descendants(process: int) -> list[int]:
    """Processes below a process, from the system's table."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has just ended
    found, new = [], [process]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def values(one: Job, root: Path) -> list[float]:
    return [row[4] for row in RunReader(one.folder(root)).rows()]
