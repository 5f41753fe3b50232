"""A job is known by its function and settings, and done once its folder says so."""

import numpy as np
import pytest
from sweep_runs import FUNCTION, job, perform

from spherometer.records import RunWriter
from spherometer.sweeps import Job, JobError


def test_identity_is_function_and_settings_in_any_order_and_not_the_title():
    one = Job(FUNCTION, {"lr": 0.1, "sizes": (1, 2), "data": {"name": "digits", "num": None}}, title="one")
    same = Job(FUNCTION, {"data": {"num": None, "name": "digits"}, "sizes": [1, 2], "lr": 0.1})
    assert one == same
    assert len({one, same}) == 1
    assert one.key == same.key
    assert len(one.key) == 16
    assert one != Job("sweep_runs:threads", one.settings)
    assert one != Job(FUNCTION, {**one.settings, "lr": 0.2})
    assert one != one.key


def test_the_key_is_the_same_for_ever():
    assert Job("package.module:function", {"lr": 0.1, "seed": 0}).key == "c7d2d69ecf8f6670"


def test_settings_are_a_copy():
    settings = {"layers": [1, 2]}
    made = Job(FUNCTION, settings)
    key = made.key
    settings["layers"].append(3)
    assert made.settings == {"layers": [1, 2]}
    assert Job(FUNCTION, made.settings).key == key


@pytest.mark.parametrize(
    ("function", "settings", "told"),
    [
        ("package.module", {}, "package.module:function"),
        (":function", {}, "package.module:function"),
        ("__main__:run", {}, "move the function to a module"),
        (FUNCTION, {"lr": float("nan")}, r"settings\['lr'\]: expected a finite number"),
        (FUNCTION, {"lr": [0.1, float("inf")]}, r"settings\['lr'\]\[1\]"),
        (FUNCTION, {3: 1}, "text as keys, got 3"),
        (FUNCTION, {"data": {"x": np.ones(2)}}, r"settings\['data'\]\['x'\]: expected plain data .* got ndarray"),
    ],
)
def test_what_no_worker_could_do_is_refused(function, settings, told):
    with pytest.raises(JobError, match=told):
        Job(function, settings)


@pytest.mark.parametrize("function", ["nowhere.to_be:found", "sweep_runs:nothing", "sweep_runs:FUNCTION"])
def test_a_function_that_cannot_be_had_is_told(function):
    with pytest.raises(JobError, match=function):
        Job(function).load()


def test_the_function_is_found():
    assert job(1).load() is perform
    assert Job("spherometer.records:RunWriter.write").load() is RunWriter.write


def test_a_job_is_done_when_its_record_says_so(tmp_path):
    one = job(1)
    assert not one.is_done(tmp_path)
    run = RunWriter(one.folder(tmp_path))
    assert not one.is_done(tmp_path)
    run.close("failed")
    assert not one.is_done(tmp_path)
    RunWriter(one.folder(tmp_path), resume=True).close("done")
    assert one.is_done(tmp_path)
    (one.folder(tmp_path) / "run.db").write_bytes(b"something else, not a database")
    assert not one.is_done(tmp_path)


def test_a_job_is_called_by_its_title():
    assert str(job(3)) == "run 3"
    assert str(Job(FUNCTION)) == Job(FUNCTION).key
