"""Worker processes on this machine: they die, are interrupted, lose their parent, meet another sweep."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_runs import count, job

from spherometer.records import RunReader, RunWriter
from spherometer.sweeps import Job, JobError, SweepError, processes, sweep
from spherometer.sweeps.attempt import ERRORS

SCRIPT = Path(__file__).parent / "sweep_script.py"
SLOW = ("4", "400", "0.05", "2")  # four runs of twenty seconds, two at a time


def values(one: Job, root: Path) -> list[float]:
    return [row[4] for row in RunReader(one.folder(root)).rows()]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def alive(process: int) -> bool:
    """A zombie is not alive: nobody here reaps the children of a dead parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def begun(root: Path) -> list[Path]:
    """Folders of runs with at least three rows."""
    found = [path.parent for path in root.glob("runs/*/run.db") if RunReader(path.parent).exists]
    return [folder for folder in found if (RunReader(folder).last_step() or 0) >= 2]


def started(root: Path, *words: str) -> subprocess.Popen[str]:
    """The script in a process group of its own, as a shell would start it."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, root, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    wait_until(lambda: len(begun(root)) == int(words[-1]) or process.poll() is not None)
    return process


def workers_of(root: Path) -> list[int]:
    return [int(line) for path in root.glob("runs/*/calls.txt") for line in path.read_text().split()]


def test_a_troubled_sweep(tmp_path):
    """Runs that raise, exit, and kill their workers: the others are done, and each is told."""
    jobs = [
        job(0),
        job(1, trouble="raise"),
        job(2, trouble="kill", bad_calls=1),
        job(3, trouble="os exit"),
        job(0),
        job(4, trouble="exit", bad_calls=1),
        job(5),
    ]
    outcomes = sweep(jobs, tmp_path, workers=2)
    assert [outcome.job for outcome in outcomes] == jobs
    assert [outcome.state for outcome in outcomes] == ["done", "failed", "done", "failed", "done", "done", "done"]
    assert [outcome.attempts for outcome in outcomes] == [1, 2, 2, 2, 1, 2, 1]
    assert outcomes[1].message == "ArithmeticError: as told over two lines"
    assert outcomes[3].message == "the worker of this run ended with exit code 7"
    assert count(job(0).folder(tmp_path), "calls.txt") == 1
    assert "SIGKILL" in (jobs[2].folder(tmp_path) / ERRORS).read_text()
    assert (jobs[1].folder(tmp_path) / ERRORS).read_text().count("Traceback") == 2
    assert values(jobs[2], tmp_path) == [4, 5, 6]
    assert not any(alive(process) for process in workers_of(tmp_path))


def test_workers_share_the_cores_and_live_on(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "cores", lambda: 6)
    jobs = [Job("sweep_runs:threads", {"number": number}) for number in range(6)]
    sweep(jobs, tmp_path, workers=2)
    threads, workers = zip(*(values(one, tmp_path) for one in jobs), strict=True)
    assert set(threads) == {3}
    assert len(set(workers)) == 2


def test_ctrl_c_is_graceful_and_the_next_sweep_goes_on(tmp_path):
    process = started(tmp_path, *SLOW)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and to the workers
    told, errors = process.communicate(timeout=processes.GRACE / 2)
    assert told == ""
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # the workers are silent
    assert [RunReader(folder).state for folder in begun(tmp_path)] == ["stopped", "stopped"]
    assert not any(alive(worker) for worker in workers_of(tmp_path))
    jobs = [job(number, rows=400, seconds=0.05) for number in range(4)]
    for one in jobs:  # what is left is hurried along: done runs are kept whoever did them
        RunWriter(one.folder(tmp_path), settings=one.settings, seed=one.settings["number"], resume=True).close("done")
    assert [outcome.state for outcome in sweep(jobs, tmp_path)] == ["kept"] * 4


def test_stopped_runs_are_resumed(tmp_path):
    words = ("2", "30", "0.05", "2")
    process = started(tmp_path, *words)
    process.send_signal(signal.SIGINT)  # to the parent alone
    process.communicate(timeout=processes.GRACE / 2)
    assert [RunReader(folder).state for folder in begun(tmp_path)] == ["stopped", "stopped"]
    again = subprocess.run([sys.executable, SCRIPT, tmp_path, *words], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout) == ["done", "done"]
    jobs = [job(number, rows=30, seconds=0.05) for number in range(2)]
    assert [values(one, tmp_path) for one in jobs] == [list(range(30)), list(range(1, 31))]
    assert [count(one.folder(tmp_path), "calls.txt") for one in jobs] == [2, 2]


def test_a_killed_parent_leaves_no_orphans(tmp_path):
    process = started(tmp_path, *SLOW)
    workers = workers_of(tmp_path)
    assert len(workers) == 2
    assert all(alive(worker) for worker in workers)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(alive(worker) for worker in workers), processes.GRACE / 2)
    assert [RunReader(folder).state for folder in begun(tmp_path)] == ["stopped", "stopped"]


def test_a_worker_killed_from_outside_is_replaced(tmp_path):
    words = ("2", "30", "0.05", "2")
    process = started(tmp_path, *words)
    os.kill(workers_of(tmp_path)[0], signal.SIGKILL)
    told, _ = process.communicate(timeout=60)
    assert json.loads(told) == ["done", "done"]
    jobs = [job(number, rows=30, seconds=0.05) for number in range(2)]
    assert sorted(count(one.folder(tmp_path), "calls.txt") for one in jobs) == [1, 2]
    assert [values(one, tmp_path) for one in jobs] == [list(range(30)), list(range(1, 31))]


def test_two_sweeps_on_one_root_do_each_run_once(tmp_path):
    jobs = [job(number, rows=4, seconds=0.1) for number in range(8)]
    found = {}

    def one_of_two(name: str) -> None:
        found[name] = sweep(jobs, tmp_path, workers=1)

    threads = [threading.Thread(target=one_of_two, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states = [{found[name][index].state for name in found} for index in range(8)]
    assert states == [{"done", "kept"}] * 8
    assert [count(one.folder(tmp_path), "calls.txt") for one in jobs] == [1] * 8


def test_a_script_without_a_guard_is_told_about_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.append({str(SCRIPT.parent)!r})\nfrom sweep_runs import job\n"
        f"from spherometer.sweeps import sweep\nsweep([job(1)], {str(tmp_path)!r}, workers=1)\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "SweepError: workers end before they begin" in ended.stderr
    assert "if __name__ == '__main__':" in ended.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"workers": 0}, "at least 1 worker, got 0"),
        ({"retries": -1}, "retries of at least 0, got -1"),
        ({"ray": "local", "slurm": {}}, "choose one"),
        ({"ray": "auto", "workers": 2}, "leave workers out"),
        ({"slurm": {}, "workers": 2}, "leave workers out"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(tmp_path, options, told):
    with pytest.raises(ValueError, match=told):
        sweep([job(1)], tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_a_function_that_cannot_be_imported_is_told_before_anything_starts(tmp_path):
    with pytest.raises(JobError, match="sweep_runs:nothing"):
        sweep([job(1), Job("sweep_runs:nothing")], tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_to_do_is_told_once(tmp_path):
    told = []
    assert sweep([], tmp_path, tell=told.append) == []
    assert [(progress.done, progress.total, progress.left) for progress in told] == [(0, 0, 0.0)]


@pytest.mark.parametrize(("library", "option"), [("ray", {"ray": "local"}), ("submitit", {"slurm": {}})])
def test_a_missing_extra_is_asked_for_by_name(tmp_path, monkeypatch, library, option):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SweepError, match=rf"pip install 'spherometer\[{'ray' if 'ray' in option else 'slurm'}\]'"):
        sweep([job(1)], tmp_path, **option)
