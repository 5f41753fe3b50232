"""Rows of runs by their labels, and the margins that claims are made of."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest

from spherometer.recipes.margins import above, aligned, every, falling, larger, rising, smaller
from spherometer.recipes.results import Results, Run, training_run
from spherometer.records import RunWriter
from spherometer.sweeps import Job


def write(root, labels, rows, arrays=None):
    """A run folder with rows {step: {name: value}}."""
    run = Run(labels, Job("nowhere:nothing", dict(labels)))
    with RunWriter(run.job.folder(root)) as writer:
        for step, values in rows.items():
            writer.write(step, values, arrays=arrays if step == max(rows) else None)
    return run


@pytest.fixture
def results(tmp_path):
    """Y = 8, 4, 2 for X = 1, 2, 3 and seeds that multiply by 1, 3; written in a muddled order."""
    runs = [
        write(tmp_path, {"x": x, "seed": seed}, {5: {"y": 99.0}, 10: {"y": 2.0 ** (4 - x) * (1 + 2 * seed)}})
        for x, seed in [(3, 1), (1, 0), (2, 1), (1, 1), (2, 0), (3, 0)]
    ]
    return Results(runs, tmp_path)


def test_curves_and_ends_by_label_in_the_order_of_seeds(results):
    assert results.final("y", x=1) == [8.0, 24.0]
    steps, values = results.curve("y", x=2)[1]
    assert steps.tolist() == [5, 10]
    assert values.tolist() == [99, 12]
    assert results.reduce("y", np.max, x=3) == [99, 99]
    assert results.reduce("y", np.max, x=3, after=6) == [2, 6]
    assert results.last_step(x=1) == [10, 10]
    assert sorted(results.values("x")) == [1, 2, 3]


def test_margins(results):
    assert falling(results, "y", over="x") == pytest.approx([math.log(4)] * 2)
    assert rising(results, "y", over="x") == pytest.approx([-math.log(4)] * 2)
    assert smaller(results, "y", here={"x": 2}, there={"x": 1}) == pytest.approx([math.log(2)] * 2)
    assert larger(results, "y", here={"x": 2}, there={"x": 1}) == pytest.approx([-math.log(2)] * 2)
    assert above(results, "y", here={"x": 1}, there={"x": 3}) == pytest.approx([6, 18])


def test_a_run_that_failed_is_seen(results, tmp_path):
    missing = Run({"x": 1, "seed": 2}, Job("nowhere:nothing", {"other": 1}))
    seen = Results([*results.runs, missing], tmp_path)
    assert seen.final("y", x=1)[:2] == [8.0, 24.0]
    assert math.isnan(seen.final("y", x=1)[2])
    assert math.isnan(seen.reduce("y", np.max, x=1)[2])
    assert smaller(seen, "y", here={"x": 2}, there={"x": 1}) == pytest.approx(
        [math.log(2)] * 2 + [math.nan], nan_ok=True
    )


def test_margins_of_runs_without_partners_are_missing_and_leave_the_others(results, tmp_path):
    kept = [run for run in results.runs if dict(run.labels) not in ({"x": 1, "seed": 0}, {"x": 3, "seed": 1})]
    seen = Results(kept, tmp_path)
    assert smaller(seen, "y", here={"x": 2}, there={"x": 1}) == pytest.approx([math.nan, math.log(2)], nan_ok=True)
    assert above(seen, "y", here={"x": 2}, there={"x": 3}) == pytest.approx([2, math.nan], nan_ok=True)
    assert above(seen, "y", here={"x": 1}, there={"x": 3}) == pytest.approx([math.nan] * 2, nan_ok=True)
    assert falling(seen, "y", over="x") == pytest.approx([math.nan] * 2, nan_ok=True)
    with pytest.raises(ValueError, match="one run of each seed"):
        aligned(Results([*kept, kept[0]], tmp_path), "y", [{"x": 1}, {"x": 2}])


def test_a_run_without_measurements_is_a_missing_one_for_an_inequality():
    assert every([np.array([1.0, 2.0]), np.zeros(0), [3.0]]) == pytest.approx([1, 2, math.nan, 3], nan_ok=True)


def test_a_run_that_broke_off_counts_as_missing(tmp_path):
    run = Run({"seed": 0}, Job("nowhere:nothing", {"seed": 0}))
    with suppress(FloatingPointError), RunWriter(run.job.folder(tmp_path)) as writer:
        writer.write(3, {"y": 1.0}, arrays={"spectrum": np.arange(3.0)})
        raise FloatingPointError("training diverged")
    found = Results([run], tmp_path)
    assert math.isnan(found.final("y")[0])
    assert found.last_step() == [0]
    assert found.arrays("spectrum") == [{}]


def test_wrong_labels_are_told(results):
    with pytest.raises(KeyError, match="no run has the labels"):
        results.final("y", x=4)


def test_vectors_and_arrays(tmp_path):
    run = write(tmp_path, {"seed": 0}, {1: {"y": 1.0}}, arrays={"spectrum": np.arange(3.0)})
    found = Results([run], tmp_path)
    assert found.arrays("spectrum", seed=0)[0][1].tolist() == [0, 1, 2]
    assert found.parts("y", seed=0) == [{"": 1.0}]


def test_a_training_run_is_known_by_what_differs():
    one = training_run({"rate": 0.1, "seed": 4}, loop={"steps": 5}, method={"learning_rate": 0.1})
    same = training_run({"anything": 1, "seed": 4}, loop={"steps": 5})
    assert one.job.settings == {"loop": {"steps": 5, "seed": 4}}  # 0.1 is the default
    assert one.job.key == same.job.key
    assert training_run({"seed": 5}, loop={"steps": 5}).job.key != one.job.key
    with pytest.raises(ValueError, match="neither"):
        training_run({"seed": 0})
