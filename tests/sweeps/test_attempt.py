"""One attempt: done, kept, failed with its error kept, or left to somebody else."""

from types import SimpleNamespace

import pytest
from sweep_runs import count, job

from spherometer.records import RunReader, RunWriter
from spherometer.records.lock import Lock
from spherometer.sweeps import Job
from spherometer.sweeps.attempt import CLAIM, ERRORS, attempt, is_busy, recorded_seconds


def test_a_job_is_done_once(tmp_path):
    one = job(3, seconds=0.02)
    first, second = attempt(one, tmp_path), attempt(one, tmp_path)
    assert (first.state, second.state) == ("done", "kept")
    assert 0.06 < first.seconds < 2
    assert second.seconds == pytest.approx(first.seconds, abs=0.3)
    assert count(one.folder(tmp_path), "calls.txt") == 1
    assert [row[4] for row in RunReader(one.folder(tmp_path)).rows()] == [9, 10, 11]
    assert not (one.folder(tmp_path) / ERRORS).exists()


def test_errors_are_kept_one_after_the_other(tmp_path):
    one = job(3, trouble="raise")
    assert [attempt(one, tmp_path).message for _ in range(2)] == ["ArithmeticError: as told over two lines"] * 2
    kept = (one.folder(tmp_path) / ERRORS).read_text()
    assert kept.count("Traceback (most recent call last)") == 2
    assert "in misbehave" in kept
    assert RunReader(one.folder(tmp_path)).state == "failed"


def test_a_function_that_leaves_its_run_undone_has_failed(tmp_path):
    one = Job("sweep_runs:end_early")
    told = attempt(one, tmp_path)
    assert told.state == "failed"
    assert "returned, but the run in its folder is not done" in told.message
    assert told.message in (one.folder(tmp_path) / ERRORS).read_text()


def test_a_damaged_folder_fails_and_says_so(tmp_path):
    one = job(3)
    one.folder(tmp_path).mkdir(parents=True)
    (one.folder(tmp_path) / "run.db").write_bytes(b"not a database" * 100)
    told = attempt(one, tmp_path)
    assert told.state == "failed"
    assert "another kind of file" in told.message


def test_a_folder_that_cannot_be_made_fails_and_says_so(tmp_path):
    (tmp_path / "runs").write_text("a file is in the way")
    told = attempt(job(3), tmp_path)
    assert told.state == "failed"
    assert "runs" in told.message


@pytest.mark.parametrize("hold", ["another attempt", "a writer without a sweep"])
def test_what_somebody_else_is_at_is_left_to_them(tmp_path, hold):
    one = job(3)
    folder = one.folder(tmp_path)
    folder.mkdir(parents=True)
    holder = Lock(folder, name=CLAIM) if hold == "another attempt" else RunWriter(folder, settings=one.settings, seed=3)
    assert attempt(one, tmp_path).state == "busy"
    assert is_busy(one, tmp_path)
    assert count(folder, "calls.txt") == 0
    holder.release() if isinstance(holder, Lock) else holder.close("stopped")
    assert not is_busy(one, tmp_path)
    assert attempt(one, tmp_path).state == "done"


@pytest.mark.parametrize(("kind", "state"), [(KeyboardInterrupt, "stopped"), (SystemExit, "failed")])
def test_an_interrupted_attempt_lets_go_of_the_folder(tmp_path, monkeypatch, kind, state):
    def interrupt(trouble):
        raise kind

    monkeypatch.setattr("sweep_runs.misbehave", interrupt)
    with pytest.raises(kind):
        attempt(job(3), tmp_path)
    assert RunReader(job(3).folder(tmp_path)).state == state
    assert not is_busy(job(3), tmp_path)


def test_recorded_seconds_add_up_the_sessions(tmp_path, monkeypatch):
    clock = iter([100.0, 103.0, 200.0, 300.0, 305.0])  # open, stop, open (killed), open, done
    monkeypatch.setattr("spherometer.records.writer.time", SimpleNamespace(time=lambda: next(clock)))
    RunWriter(tmp_path / "run").close("stopped")
    killed = RunWriter(tmp_path / "run", resume=True)
    killed._lock.release()
    RunWriter(tmp_path / "run", resume=True).close("done")
    assert recorded_seconds(tmp_path / "run") == 3.0 + 5.0
