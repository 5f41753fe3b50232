"""Every figure and table of the papers has a recipe that can be planned at every scale; a selection is run."""

from __future__ import annotations

import json

import pytest

from spherometer.figures.panels import Panels
from spherometer.recipes import SCALES, Experiment, Recipe, find_recipe, perform, recipes
from spherometer.recipes.claims import Inequality
from spherometer.recipes.recipe import SMOKE, recipe, variant
from spherometer.recipes.result import RecipeResult
from spherometer.sweeps import Outcome, sweeping

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
        assert len(set(experiment.departures)) == len(experiment.departures), f"{entry.id}: a departure is told twice"
        for claim in experiment.claims:
            assert claim.source, f"{entry.id}: {claim.sentence} has no source"
        if scale != "paper":
            assert experiment.departures, f"{entry.id}: a smaller experiment departs from the paper, and says how"


CHOSEN = {  # what papers leave open and recipes have to tell, by words of the departure at paper scale
    "A-F1": ["loss on a logarithmic axis"],
    "A-F28": ["1,000 samples"],
    "A-F29": ["every 391 steps on 1,000 samples"],
    "A-T2": ["10,000 steps of pretraining", "within 0.1 of the logarithm"],
    "A-F32": ["10,000 steps of pretraining"],
    "B-F1": ["training loss is below 0.01"],
    "B-F2": ["training loss is below 0.01", "within 0.1 of its logarithm"],
    "B-FH8": ["training loss is below 0.01", "within 0.1 of its logarithm"],
    "C-F1": ["within 0.03", "0.05 above both ends"],
    "C-F9": ["0.25 above 1/√n", "below 0.3"],
    "C-F16": ["judged over all 2,000 steps, of which 1,000 are shown"],
    "C-F24": ["within 0.25"],
    "C-F27": ["6,000 steps of gradient descent (vgg11: 2,000, fcn3: 2,000)"],
    "D-F4": ["batch norm in training mode"],
}


@pytest.mark.parametrize(("name", "words"), CHOSEN.items())
def test_what_was_chosen_is_told(name, words):
    told = " / ".join(find_recipe(name).at("paper").departures)
    assert [word for word in words if word not in told] == [], told


@pytest.mark.parametrize("name", ["A-F9", "A-F20", "A-F33", "B-FG6", "B-FG7", "C-F1", "D-F3", "TH-4"])
def test_smoke_does_not_tell_the_departures_of_the_laptop(name):
    smoke, laptop, paper = (find_recipe(name).at(scale).departures for scale in SCALES)
    assert smoke[0] == SMOKE
    assert set(smoke[1:]) <= set(paper)
    assert SMOKE not in {*laptop, *paper}


def test_smoke_keeps_what_the_paper_leaves_open():
    def build(scale):
        return Experiment([], [], lambda _: None, ["a border: chosen here", f"a network of the {scale}"])

    made_up = Recipe("X-F2", "made up", "", 0, build)
    assert made_up.at("smoke").departures == [SMOKE, "a border: chosen here"]
    assert made_up.at("laptop").departures == ["a border: chosen here", "a network of the laptop"]


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
@pytest.mark.timeout(1800)
def test_all_run_at_smoke_scale(tmp_path):
    with sweeping(tmp_path) as do:
        for name in recipes():
            assert_runs(name, tmp_path, do)


FAILED = ("A-F1", "A-F33", "B-F1", "C-F3", "C-F6", "C-T6", "D-TOY", "TH-4")


@pytest.mark.parametrize("name", FAILED)
def test_a_recipe_whose_runs_all_fail_is_undecided_and_says_so(name, tmp_path):
    result = perform(find_recipe(name), "smoke", tmp_path, lambda jobs: [failed(job) for job in jobs])
    assert {verdict.answer for verdict in result.verdicts} == {"undecided"}
    assert {run["message"] for run in result.runs} == {"made to fail"}
    assert RecipeResult.read(tmp_path / "recipes" / f"{name}.smoke" / "result.json").to_dict() == result.to_dict()


def test_one_failed_run_leaves_the_others_in_the_figure(tmp_path):
    with sweeping(tmp_path, workers=1) as do:

        def all_but_one(jobs):
            return [failed(jobs[0]), *do(jobs[1:])]

        perform(find_recipe("A-F1"), "smoke", tmp_path, all_but_one)
    folder = tmp_path / "recipes" / "A-F1.smoke"
    assert len(RecipeResult.read(folder / "result.json").verdicts) == 2
    figure = Panels.from_dict(json.loads((folder / "figure.json").read_text(encoding="utf-8")))
    assert all(len(series.x) for panel in figure.panels for series in panel.series)
    assert figure.panels[0].series[0].low is None  # of one seed


def test_a_figure_that_cannot_be_drawn_says_why_and_the_result_is_kept(tmp_path):
    def broken(results):
        raise KeyError("no such curve")

    experiment = Experiment([], [Inequality("1 > 0", lambda _: [1.0])], broken, table=broken)
    made_up = Recipe("X-F1", "made up", "", 0, lambda _: experiment)
    result = perform(made_up, "smoke", tmp_path, lambda jobs: [])
    assert "could not be made: KeyError: 'no such curve'" in result.table.rows[0][0]
    figure = (tmp_path / "recipes" / "X-F1.smoke" / "figure.json").read_text(encoding="utf-8")
    assert "could not be drawn: KeyError" in figure
    assert RecipeResult.read(tmp_path / "recipes" / "X-F1.smoke" / "result.json").to_dict() == result.to_dict()


def failed(job):
    return Outcome(job, "failed", 0.0, 1, "made to fail")


def assert_runs(name, folder, do):
    entry = find_recipe(name)
    result = perform(entry, "smoke", folder, do)
    assert [run["message"] for run in result.runs if run["state"] == "failed"] == []
    assert len(result.verdicts) == len(entry.at("smoke").claims)
    assert [verdict for verdict in result.verdicts if "could not be evaluated" in verdict.remark] == []
    assert "could not be" not in (folder / "recipes" / f"{name}.smoke" / "figure.json").read_text(encoding="utf-8")
    assert "could not be made" not in str(result.table)
    written = {path.name for path in (folder / "recipes" / f"{name}.smoke").iterdir()}
    assert written >= {"result.json", "figure.png", "figure.svg", "figure.pdf", "figure.json", "data.csv"}
