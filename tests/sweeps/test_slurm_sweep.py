"""The crew of SLURM jobs with submitit's stand-ins for SLURM: in this process, and in processes of their own."""

import os
import signal
import sys
import warnings

import pytest
import torch
from sweep_process import alive, begun, callers, descendants, jobs_of, values, wait_until
from sweep_runs import count, job

from spherometer.records import RunReader
from spherometer.sweeps import SweepError, sweep
from spherometer.sweeps.attempt import ERRORS
from spherometer.sweeps.slurm import Errand, Slurm

submitit = pytest.importorskip("submitit")


@pytest.fixture
def restored():
    """Jobs of the debug executor are done in this very process."""
    threads, paths = torch.get_num_threads(), list(sys.path)
    yield
    torch.set_num_threads(threads)
    sys.path[:] = paths


def test_a_sweep_in_this_process(tmp_path, restored):
    jobs = [job(0), job(1, trouble="raise"), job(2, trouble="raise", bad_calls=1), job(0)]
    outcomes = sweep(jobs, tmp_path, slurm={"cluster": "debug", "timeout_min": 5})
    assert [outcome.state for outcome in outcomes] == ["done", "failed", "done", "done"]
    assert [outcome.attempts for outcome in outcomes] == [1, 2, 2, 1]
    assert count(jobs[0].folder(tmp_path), "calls.txt") == 1
    assert values(jobs[2], tmp_path) == [4, 5, 6]


def test_an_errand_asks_to_be_queued_again_as_it_is(tmp_path):
    errand = Errand(tmp_path, ["somewhere"], 2)
    again = submitit.core.utils.DelayedSubmission(errand, job(1))._checkpoint_function()
    assert (again.function, again.args) == (errand, (job(1),))


def test_parameters_that_submitit_does_not_know_are_told(tmp_path):
    with pytest.raises(SweepError, match="colour_of_the_nodes"):
        Slurm(tmp_path, {"cluster": "debug", "colour_of_the_nodes": "blue"})
    with pytest.raises(SweepError, match="submitit cannot send jobs"):
        Slurm(tmp_path, {"cluster": "nothing of the kind"})


@pytest.mark.parametrize("prefix", ["", "slurm_"])
def test_parameters_of_slurm_go_with_and_without_prefix(tmp_path, prefix):
    with warnings.catch_warnings(action="error"):
        crew = Slurm(tmp_path, {"cluster": "debug", f"{prefix}array_parallelism": 3, f"{prefix}partition": "cpu"})
    assert crew.size == 3


@pytest.mark.slow
def test_a_sweep_in_processes(tmp_path):
    jobs = [job(0), job(1, trouble="raise"), job(2, trouble="kill", bad_calls=1)]
    outcomes = sweep(jobs, tmp_path, slurm={"cluster": "local", "timeout_min": 5})
    assert [outcome.state for outcome in outcomes] == ["done", "failed", "done"]
    assert [outcome.attempts for outcome in outcomes] == [1, 2, 2]
    assert (jobs[2].folder(tmp_path) / ERRORS).exists()
    assert values(jobs[2], tmp_path) == [4, 5, 6]


@pytest.mark.slow
def test_a_job_that_has_to_make_room_goes_on_later(tmp_path):
    crew, one = Slurm(tmp_path, {"cluster": "local", "timeout_min": 5}), job(3, rows=40, seconds=0.1)
    crew.start([one])
    wait_until(lambda: len(begun(tmp_path)) == 1)
    os.kill(*callers(tmp_path), signal.SIGUSR2)  # what SLURM is told to send before the time is up
    ((ended, attempt),) = crew.wait(60)
    assert (ended, attempt.state) == (one, "done")
    assert count(one.folder(tmp_path), "calls.txt") == 2
    assert values(one, tmp_path) == [9 + step for step in range(40)]


@pytest.mark.slow
def test_stopped_jobs_leave_nothing_behind(tmp_path):
    (one,) = jobs_of([{"rows": 400, "seconds": 0.05}])
    crew = Slurm(tmp_path, {"cluster": "local", "timeout_min": 5})
    crew.start([one])
    wait_until(lambda: len(begun(tmp_path)) == 1)
    crew.stop()
    wait_until(lambda: not any(alive(process) for process in callers(tmp_path)), 10)
    assert not descendants(crew._tasks[one][0]._process.pid)
    assert RunReader(one.folder(tmp_path)).state in ("stopped", "killed")
