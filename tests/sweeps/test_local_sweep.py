"""Worker processes on this machine: they die, are interrupted, lose their parent, meet another sweep."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from sweep_process import SCRIPT, alive, answer, begun, callers, jobs_of, start, values, wait_until
from sweep_runs import count, job

from spherometer.records import RunReader
from spherometer.sweeps import Job, JobError, SweepError, processes, sweep, sweeping
from spherometer.sweeps.attempt import ERRORS

LONG = [{"rows": 4000, "seconds": 0.05}] * 4  # runs of minutes
SHORT = [{"rows": 30, "seconds": 0.05}] * 2


def started(root, settings):
    """Two workers, both in the middle of a run."""
    process = start(root, settings, workers=2)
    wait_until(lambda: len(begun(root)) == 2 or process.poll() is not None)
    return process


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
    assert not any(alive(process) for process in callers(tmp_path))


@pytest.mark.parametrize(
    ("workers", "said", "threads"), [(2, "", 3), (2, "2", 2), (2, "8", 3), (2, "0", 3), (2, "many", 3), (12, "", 1)]
)
def test_threads_are_the_share_of_the_cores_up_to_what_the_user_said(monkeypatch, workers, said, threads):
    monkeypatch.setattr(processes, "cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert processes.threads_each(workers) == threads


def test_workers_share_the_cores_and_live_on(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # which torch would take without the share
    jobs = [Job("sweep_runs:threads", {"number": number}) for number in range(6)]
    sweep(jobs, tmp_path, workers=2)
    threads, workers = zip(*(values(one, tmp_path) for one in jobs), strict=True)
    assert set(threads) == {1}
    assert len(set(workers)) == 2


def test_sweeping_keeps_its_workers_for_all_lots_of_jobs(tmp_path):
    lots = [[Job("sweep_runs:threads", {"number": 4 * lot + number}) for number in range(4)] for lot in range(3)]
    with sweeping(tmp_path, workers=2) as do:
        outcomes = [outcome for lot in lots for outcome in do(lot)]
        again = do(lots[0])
        workers = {int(values(outcome.job, tmp_path)[1]) for outcome in outcomes}
        assert all(alive(worker) for worker in workers)
    assert {outcome.state for outcome in outcomes} == {"done"}
    assert [outcome.state for outcome in again] == ["kept"] * 4
    assert len(workers) <= 2
    assert not any(alive(worker) for worker in workers)


def test_ctrl_c_is_graceful_and_the_next_sweep_goes_on(tmp_path):
    process = started(tmp_path, SHORT)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and to the workers
    told, errors = process.communicate(timeout=60)
    assert told == ""
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # the workers are silent
    assert [RunReader(folder).state for folder in begun(tmp_path)] == ["stopped", "stopped"]
    assert not any(alive(worker) for worker in callers(tmp_path))
    assert answer(start(tmp_path, SHORT, workers=2)) == [["done", 1, ""]] * 2
    jobs = jobs_of(SHORT)
    assert [values(one, tmp_path) for one in jobs] == [list(range(30)), list(range(1, 31))]
    assert [count(one.folder(tmp_path), "calls.txt") for one in jobs] == [2, 2]


def test_an_interrupt_of_the_parent_alone_reaches_the_runs(tmp_path):
    process = started(tmp_path, LONG)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert [RunReader(folder).state for folder in begun(tmp_path)] == ["stopped", "stopped"]
    assert not any(alive(worker) for worker in callers(tmp_path))


def test_a_killed_parent_leaves_no_orphans(tmp_path):
    process = started(tmp_path, LONG)
    workers = callers(tmp_path)
    assert len(workers) == 2
    assert all(alive(worker) for worker in workers)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(alive(worker) for worker in workers))
    assert [RunReader(folder).state for folder in begun(tmp_path)] == ["stopped", "stopped"]


def test_a_worker_killed_from_outside_is_replaced(tmp_path):
    process = started(tmp_path, SHORT)
    os.kill(callers(tmp_path)[0], signal.SIGKILL)
    assert sorted(answer(process)) == [["done", 1, ""], ["done", 2, ""]]
    jobs = jobs_of(SHORT)
    assert sorted(count(one.folder(tmp_path), "calls.txt") for one in jobs) == [1, 2]
    assert [values(one, tmp_path) for one in jobs] == [list(range(30)), list(range(1, 31))]


def test_a_worker_is_missed_though_its_children_live_on(tmp_path):
    one = Job("sweep_runs:leave_a_child")
    (outcome,) = sweep([one], tmp_path, retries=0)
    child = int((one.folder(tmp_path) / "child.txt").read_text())
    assert alive(child)
    os.kill(child, signal.SIGKILL)
    assert outcome.state == "failed"
    assert "SIGKILL" in outcome.message


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
