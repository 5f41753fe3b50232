"""What is drawn and told when runs failed: the seeds that are left, and a caption that names the others."""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager
from importlib import import_module

import numpy as np
import pytest

from spherometer.figures.panels import HeatPanel, Panels
from spherometer.recipes import find_recipe, perform, recipes
from spherometer.recipes.claims import Claim, Near, judge
from spherometer.recipes.ends import told
from spherometer.recipes.papers.c_geometry import mean_matrix
from spherometer.recipes.papers.c_methods import error_reduction
from spherometer.recipes.results import Results, Run
from spherometer.records import RunWriter
from spherometer.sweeps import Job, Outcome

CHEAP = ("C-F1", "C-F2", "C-F3", "C-F8", "C-F11", "C-F14", "C-F26", "C-F33", "D-F1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recipes of paper C share their runs."""
    return tmp_path_factory.mktemp("failed")


@pytest.fixture(autouse=True)
def one_picture(monkeypatch):
    monkeypatch.setattr(import_module("spherometer.recipes.perform"), "PICTURES", ("png",))


def here(job, root):
    """A job done in this process, once."""
    if not job.is_done(root):
        module, _, function = job.function.partition(":")
        getattr(import_module(module), function)(job.settings, job.folder(root))
    return Outcome(job, "done", seconds=0.0, attempts=1, message="")


def drawn(name, root, failed=frozenset()):
    """Figure and table of a recipe some of whose runs fail."""

    def do(jobs):
        return [Outcome(job, "failed", 0.0, 1, "") if job.key in failed else here(job, root) for job in jobs]

    result = perform(find_recipe(name), "smoke", root, do)
    text = (root / "recipes" / f"{name}.smoke" / "figure.json").read_text(encoding="utf-8")
    return Panels.from_dict(json.loads(text)), result.table


@contextmanager
def hidden(root, jobs):
    """Runs that other recipes did are not there for a while."""
    folders = [job.folder(root) for job in jobs if job.folder(root).exists()]
    for path in folders:
        path.rename(path.with_name(f"hidden-{path.name}"))
    try:
        yield
    finally:
        for path in folders:
            path.with_name(f"hidden-{path.name}").rename(path)


def setting(run):
    return {name: value for name, value in run.labels.items() if name != "seed"}


def first_seeds(name):
    """The runs with the smallest seed of each setting that has another."""
    runs = find_recipe(name).at("smoke").runs
    return {
        run.job.key: run.job
        for run in runs
        if any(setting(run) == setting(other) and run.labels["seed"] < other.labels["seed"] for other in runs)
    }


def numbers_of(panel):
    tables = panel.matrix if isinstance(panel, HeatPanel) else [series.y for series in panel.series]
    return [value for table in tables for value in table]


def assert_shows_what_is_left(name, root, failed, empty=()):
    """All panels have numbers, but those that are `empty` when no run fails."""
    with hidden(root, failed.values()):
        panels, table = drawn(name, root, failed)
    assert re.search(rf"\b{len(failed)} of \d+ runs failed: ", panels.caption), panels.caption
    assert "could not be" not in panels.caption, panels.caption
    assert "could not be" not in str(table)
    assert "nan" not in str(table)
    for panel in panels.panels:
        only_there = panel.title.endswith(": missing")  # spectra of paper D are those of its first seed
        assert only_there or panel.title in empty or any(map(math.isfinite, numbers_of(panel))), (name, panel.title)


@pytest.mark.parametrize("name", CHEAP)
def test_figures_and_tables_of_the_seeds_that_are_left(name, folder):
    assert_shows_what_is_left(name, folder, first_seeds(name))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_show_the_seeds_that_are_left(folder):
    several = [name for name in recipes() if first_seeds(name)]
    assert len(several) > 60
    for name in several:
        whole, _ = drawn(name, folder)
        empty = {panel.title for panel in whole.panels if not any(map(math.isfinite, numbers_of(panel)))}
        failed = first_seeds(name)
        assert_shows_what_is_left(name, folder, failed, empty)
        assert_shows_what_is_left(name, folder, dict([next(iter(failed.items()))]), empty)


def made(root, value, **labels):
    """A run folder with one number, none for one that failed."""
    run = Run(labels, Job("nowhere:nothing", labels))
    if value is not None:
        with RunWriter(run.job.folder(root)) as writer:
            writer.write(0, {"y": value, "final_test_accuracy": value})
    return run


def test_a_setting_of_which_nothing_is_left_is_a_gap(tmp_path):
    runs = [made(tmp_path, 1.0, x=1, seed=0), made(tmp_path, None, x=1, seed=1), made(tmp_path, None, x=2, seed=0)]
    results = Results(runs, tmp_path)
    assert results.missing == runs[1:]
    left = results.left()
    assert left.final("y", x=1) == [1.0]
    assert [math.isnan(value) for value in left.final("y", x=2)] == [True]
    assert left.left().runs == left.runs
    whole = Results(runs[:1], tmp_path)
    assert whole.left() is whole


def test_tables_tell_what_is_left(tmp_path):
    assert told([75.58, 75.64, math.nan]) == "75.61 ± 0.04"
    assert told([1.0, math.nan], ".4g") == "1"
    assert told([math.nan]) == "missing"
    runs = [made(tmp_path, 0.8, x=1, seed=0), made(tmp_path, None, x=1, seed=1), made(tmp_path, None, x=2, seed=0)]
    results = Results([*runs, made(tmp_path, 0.85, x=3, seed=0)], tmp_path)
    assert error_reduction(results, here={"x": 3}, there={"x": 1}) == ("+5.00", "25.00")
    assert error_reduction(results, here={"x": 3}, there={"x": 2}) == ("missing", "missing")


def test_a_mean_of_matrices_leaves_out_what_a_seed_has_not():
    found = mean_matrix([np.array([[1.0, math.nan], [math.nan, 2.0]]), np.array([[3.0, 5.0], [math.nan, 4.0]])])
    assert found[0].tolist() == [2.0, 5.0]
    assert math.isnan(found[1, 0])
    assert found[1, 1] == 3


@pytest.mark.parametrize("left", [[0.01, 0.01], [0.01]])
def test_equal_numbers_among_missing_ones_are_undecided_and_break_nothing(left):
    values = [*left, *[math.nan] * 3]
    claims = [Claim("above", lambda _: values), Near("near", lambda _: values, 0.0, 0.5)]
    for verdict in judge(claims, None):
        assert verdict.answer == "undecided"
        assert verdict.needed is None
