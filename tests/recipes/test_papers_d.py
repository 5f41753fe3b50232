"""The recipes of paper D: the paper's settings, spectra, tables, and the toy whose claims can fail."""

from __future__ import annotations

import numpy as np
import pytest

from spherometer.recipes import find_recipe, perform
from spherometer.recipes.claims import judge
from spherometer.recipes.papers import d_toy
from spherometer.recipes.results import Results, Run
from spherometer.recipes.spectra import spectrum_panel
from spherometer.records import RunWriter
from spherometer.sweeps import Job, Outcome
from spherometer.zoo import build_model


def done_here(jobs, root):
    """The jobs in this very process: a worker of a sweep takes longer to start than they run."""
    for job in jobs:
        job.load()(dict(job.settings), job.folder(root))
    return [Outcome(job, "done" if job.is_done(root) else "failed") for job in jobs]


@pytest.mark.parametrize(
    ("name", "rate", "epochs", "num_parameters"),
    [
        ("D-F1", 0.01, 1000, 7_850),
        ("D-F2", 0.01, 50, 9_960),
        ("D-F3", 0.01, 300, 1_387_108),
        ("D-F4", 0.1, 300, 1_726_388),
    ],
)
def test_the_papers_own_settings(name, rate, epochs, num_parameters):
    runs = find_recipe(name).at("paper").runs
    assert sorted({run.labels["decay"] for run in runs}) == [0.0, 1e-4, 5e-4]
    for run in runs:
        told = run.job.settings
        assert told["method"].get("learning_rate", 0.1) == rate
        assert told["method"]["momentum"] == 0.9
        assert told["method"].get("weight_decay", 0.0) == run.labels["decay"]
        assert told["method"]["schedule"] == "flat-then-linear"
        assert told["loop"]["epochs"] == epochs
    model = build_model(runs[0].job.settings["model"]["model"])
    assert sum(weight.numel() for weight in model.parameters()) == num_parameters


@pytest.mark.parametrize(("name", "decays"), [("D-F6", (5e-4, 0.25)), ("D-F7", (3e-4, 0.35))])
def test_adam_has_decoupled_decay_and_averaged_iterates(name, decays):
    runs = find_recipe(name).at("paper").runs
    methods = {run.labels["optimiser"]: run.job.settings["method"] for run in runs}
    assert (methods["SGD"]["weight_decay"], methods["Adam"]["weight_decay"]) == decays
    assert methods["Adam"]["base"] == "adamw"
    assert methods["Adam"]["learning_rate"] == 5e-4
    assert methods["Adam"]["average_from"] == 162
    assert methods["SGD"]["momentum"] == 0.9


def test_the_two_modes_of_batch_norm_are_of_the_same_runs():
    eighth, fifth = ({run.job.key for run in find_recipe(name).at("laptop").runs} for name in ("D-F8", "D-F5"))
    assert eighth < fifth


def test_a_spectrum_shows_every_eigenvalue_and_nothing_between(tmp_path):
    run = Run({"seed": 0}, Job("nowhere:nothing", {}))
    nodes, weights = np.array([[0.0, 1.0, 10.0]]), np.array([[0.9, 0.099, 0.001]])
    with RunWriter(run.job.folder(tmp_path)) as writer:
        writer.write(7, {}, arrays={"spectrum_nodes": nodes, "spectrum_weights": weights})
    panel = spectrum_panel(Results([run], tmp_path), "spectrum")
    series = panel.series[0]
    x, y = np.array(series.x), np.array(series.y)
    assert panel.log_y
    assert panel.lines[0].x == pytest.approx(10.0, abs=0.4)
    for node in nodes[0]:
        assert np.isfinite(y[np.abs(x - node).argmin()])
    assert np.isnan(y[np.abs(x - 5.0).argmin()])
    mass = np.nansum(y) * (x[1] - x[0])
    assert mass == pytest.approx(1.0, abs=0.02)


def test_a_run_without_a_spectrum_leaves_its_panel_empty(tmp_path):
    run = Run({"seed": 0}, Job("nowhere:nothing", {}))
    assert spectrum_panel(Results([run], tmp_path), "spectrum").series == ()


def test_the_deep_linear_network_is_that_of_the_errata():
    """T17: λ₁/Tr is .476, .881, .965, .985 at s = 1, 2, 3, 4, and the trace is X²L‖v‖² exactly."""
    rows = d_toy._linear(4, 0)
    assert [row["share"] for row in rows] == pytest.approx([0.476, 0.881, 0.965, 0.985], abs=6e-4)
    assert [row["trace_over_formula"] for row in rows] == pytest.approx([1.0] * 4, rel=1e-12)


def test_weights_out_of_balance_are_sharp_at_tiny_loss():
    """D-e4: loss 2e-9 and λ₁ = 4.9e8 at K = 20, 8e-8 in balance."""
    last = d_toy._balance(2, 0)[-1]
    assert last["loss"] == pytest.approx(2.06e-9, rel=1e-2)
    assert last["unbalanced_sharpness"] == pytest.approx(4.85e8, rel=1e-2)
    assert last["balanced_sharpness"] == pytest.approx(8.2e-8, rel=2e-2)


def test_growing_weights_first_sharpen_then_flatten():
    rows = d_toy._growing(17, seed=0)
    sharpness = [row["sharpness"] for row in rows]
    assert max(sharpness) > 1.5 * sharpness[0]
    assert sharpness[-1] < 1e-3 * max(sharpness)
    assert [row["loss"] for row in rows] == sorted((row["loss"] for row in rows), reverse=True)


def test_toy_claims_can_fail(tmp_path):
    experiment = find_recipe("D-TOY").at("smoke")
    for run in experiment.runs:
        with RunWriter(run.job.folder(tmp_path)) as writer:
            for step in range(4):
                writer.write(
                    step,
                    {
                        "share": 1 - 0.1 * step,
                        "trace_over_formula": 1.01,
                        "loss": 1e-6,
                        "sharpness": 1.0 + step + run.labels["seed"],
                        "unbalanced_sharpness": 4.0 - step,
                        "balanced_sharpness": 1.0 + step,
                    },
                )
    verdicts = judge(experiment.claims, Results(experiment.runs, tmp_path))
    wrong = [verdict.sentence for verdict in verdicts if verdict.answer == "fails"]
    assert len(wrong) == 5


@pytest.mark.parametrize("name", ["D-TOY", "D-F2", "D-F8", "D-F6"])
def test_smoke(name, tmp_path):
    result = perform(find_recipe(name), "smoke", tmp_path, lambda jobs: done_here(jobs, tmp_path))
    assert {run["state"] for run in result.runs} == {"done"}
    assert all(np.isfinite(verdict.effect) for verdict in result.verdicts)
    if name == "D-TOY":
        assert {verdict.answer for verdict in result.verdicts[:2]} == {"holds"}


@pytest.mark.parametrize(
    ("name", "row", "label", "largest", "words"),
    [
        ("D-F6", "final_batch_sharpness", "optimiser", "Adam", "about 35 times"),
        ("D-F8", "final_sharpness", "decay", 5e-4, "about 1,000 times"),
    ],
)
def test_so_many_times_is_not_merely_larger(name, row, label, largest, words, tmp_path):
    def answer(root, factor):
        experiment, runs = find_recipe(name).at("laptop"), []
        for run in experiment.runs:
            value = (factor if run.labels[label] == largest else 1.0) * (1 + 0.01 * run.labels["seed"])
            made_up = Run(run.labels, Job("nowhere:nothing", dict(run.labels)))
            with RunWriter(made_up.job.folder(root)) as writer:
                writer.write(1, {row: value + 0.001 * (run.labels[label] == largest) * run.labels["seed"]})
            runs.append(made_up)
        (found,) = (
            one
            for one in judge(experiment.claims, Results(runs, root))
            if words in one.sentence and "λ₁" in one.sentence
        )
        return found.answer

    wanted = 35.0 if name == "D-F6" else 1000.0
    assert answer(tmp_path / "as", wanted) == "holds"
    assert answer(tmp_path / "less", 2.0) == "fails"
    assert words not in " ".join(claim.sentence for claim in find_recipe("D-F7").at("laptop").claims)


@pytest.mark.parametrize("name", ["D-F4", "D-F5", "D-F6", "D-F7", "D-F8"])
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_batch_statistics_are_those_of_one_pass_that_can_be_had(name, scale):
    experiment = find_recipe(name).at(scale)
    nums = {run.job.settings["measurement"]["measure_num"] for run in experiment.runs}
    (num,) = nums
    assert num <= 500
    assert any(f"measured on {num} training samples" in line for line in experiment.departures)
    assert any("Lanczos steps from 4 random vectors: not in the text" in line for line in experiment.departures)


def test_the_ends_of_both_modes_are_drawn_and_tabled(tmp_path):
    experiment, runs = find_recipe("D-F8").at("laptop"), []
    names = ("sharpness", "mean_squared_eigenvalue")
    for run in experiment.runs:
        made_up = Run(run.labels, Job("nowhere:nothing", dict(run.labels)))
        with RunWriter(made_up.job.folder(tmp_path)) as writer:
            level = 1.0 + run.labels["seed"] + 1e5 * run.labels["decay"]
            writer.write(1, {f"final_{mode}{name}": level for mode in ("", "batch_") for name in names})
        runs.append(made_up)
    results = Results(runs, tmp_path)
    ends = experiment.figure(results).panels[-2:]
    assert [panel.title for panel in ends] == ["λ₁", "Tr(H²)/P"]
    assert [series.label for series in ends[0].series] == ["eval mode", "train mode"]
    assert ends[1].series[0].y == pytest.approx([2.0, 52.0])
    rows = experiment.table(results).rows
    assert ["Tr(H²)/P", "eval", "0", "9.8e-12", "2 ± 1"] in rows
    assert ["Tr(H²)/P", "eval", "0.0005", "4.9e-05", "52 ± 1"] in rows
    assert len(rows) == 8


def test_the_sharpness_of_d_f4_is_held_against_both_rates():
    sentences = [claim.sentence for claim in find_recipe("D-F4").at("paper").claims]
    assert any("above 2/α of the first" in sentence for sentence in sentences)
    assert any("far below 2/α of the last" in sentence for sentence in sentences)
