"""Every figure and table of the papers has a recipe that can be planned at every scale; a selection is run."""

from __future__ import annotations

import pytest

from spherometer.recipes import SCALES, find_recipe, perform, recipes
from spherometer.recipes.recipe import recipe, variant
from spherometer.sweeps import sweeping

PAPERS = {
    "A": [*(f"F{n}" for n in range(1, 34)), "T1", "T2"],
    "B": ["F1", "F2", "F3", "FG4", "FG5", "FG6", "FG7", "FH8", "FH9"],
    "C": [*(f"F{n}" for n in range(1, 37)), *(f"T{n}" for n in range(1, 8))],
    "D": [f"F{n}" for n in range(1, 9)],
}
IDS = [f"{paper}-{name}" for paper, names in PAPERS.items() for name in names]
QUICK = ("A-F1", "B-FG4", "C-F1", "D-F1")


def test_every_figure_and_table_has_a_recipe():
    assert [name for name in IDS if name not in recipes()] == []


@pytest.mark.parametrize("scale", SCALES)
def test_every_recipe_can_be_planned(scale):
    for entry in recipes().values():
        experiment = entry.at(scale)
        keys = [(run.job.key, tuple(run.labels.items())) for run in experiment.runs]
        assert len(set(keys)) == len(keys), f"{entry.id}: a run is planned twice"
        assert experiment.claims, f"{entry.id}: nothing is claimed"
        for claim in experiment.claims:
            assert claim.source, f"{entry.id}: {claim.sentence} has no source"
        if scale != "paper":
            assert experiment.departures, f"{entry.id}: a smaller experiment departs from the paper, and says how"


def test_a_variant_is_its_parent_with_what_differs():
    first, sixth, seventh = (find_recipe(name) for name in ("A-F1", "A-F6", "A-F7"))
    assert {run.job.key for run in first.at("laptop").runs} == {run.job.key for run in sixth.at("laptop").runs}
    assert {run.job.key for run in first.at("laptop").runs}.isdisjoint(run.job.key for run in seventh.at("laptop").runs)


def test_wrong_names_get_one_line():
    with pytest.raises(ValueError, match="no recipe is called 'A-F99'"):
        find_recipe("A-F99")
    with pytest.raises(ValueError, match="no scale is called 'latop'; did you mean 'laptop'"):
        find_recipe("a-f1").at("latop")


def test_an_id_is_used_once():
    with pytest.raises(ValueError, match="A-F1 twice"):
        recipe("A-F1", "again", finding="", minutes=1)(lambda scale: None)
    with pytest.raises(ValueError, match="A-F1 twice"):
        variant("A-F1", next(entry.build for entry in recipes().values() if entry.id == "A-F1"))


@pytest.mark.parametrize("name", QUICK)
def test_a_selection_runs(name, tmp_path):
    with sweeping(tmp_path, workers=1) as do:
        assert_runs(name, tmp_path, do)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_run_at_smoke_scale(tmp_path):
    with sweeping(tmp_path) as do:
        for name in recipes():
            assert_runs(name, tmp_path, do)


def assert_runs(name, folder, do):
    entry = find_recipe(name)
    result = perform(entry, "smoke", folder, do)
    assert [run["message"] for run in result.runs if run["state"] == "failed"] == []
    assert len(result.verdicts) == len(entry.at("smoke").claims)
    assert [verdict for verdict in result.verdicts if "could not be evaluated" in verdict.remark] == []
    written = {path.name for path in (folder / "recipes" / f"{name}.smoke").iterdir()}
    assert written >= {"result.json", "figure.png", "figure.svg", "figure.pdf", "figure.json", "data.csv"}
