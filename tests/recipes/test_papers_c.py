"""The recipes of paper C: every id at every scale, shared runs, printed tables that add up, margins that can fail."""

from __future__ import annotations

import re
from importlib import import_module

import numpy as np
import pytest
import torch

from spherometer.metrics.class_means import ClassMeans
from spherometer.metrics.measure import bench_for
from spherometer.metrics.registry import parse
from spherometer.operators.logit_hessian import logit_hessian_eigenpairs, top_logit_eigenpair
from spherometer.problems import Problem
from spherometer.recipes import find_recipe, perform, recipes
from spherometer.recipes.claims import judge
from spherometer.recipes.papers import c_printed, c_tables
from spherometer.recipes.papers.c_class_planes import on_plane
from spherometer.recipes.papers.c_curves import (
    end_of_regularisation,
    log_correlation,
    mean_within,
    regularisation_period,
    value_at,
)
from spherometer.recipes.papers.c_edge import edge_claims
from spherometer.recipes.papers.c_impurity import largest_probability
from spherometer.recipes.papers.c_methods import error_reduction
from spherometer.recipes.papers.c_phases import clipped
from spherometer.recipes.papers.c_trajectory import _turning
from spherometer.recipes.results import Results, Run
from spherometer.records import RunWriter
from spherometer.sweeps import Job, Outcome
from spherometer.training.settings import Settings

IDS = [f"C-F{k}" for k in range(1, 37)] + [f"C-T{k}" for k in range(1, 8)]


def keys(name, scale="laptop"):
    """The runs of a recipe by key."""
    return {run.job.key for run in find_recipe(name).at(scale).runs}


def made(root, labels, arrays=None, **rows):
    """A run folder with rows at steps 0, 10, 20, ..."""
    run = Run(labels, Job("nowhere:nothing", dict(labels)))
    with RunWriter(run.job.folder(root)) as writer:
        for place, values in enumerate(zip(*rows.values(), strict=True)):
            writer.write(10 * place, dict(zip(rows, values, strict=True)))
        for step, array in enumerate(arrays if arrays is not None else ()):
            writer.write(step, arrays={"trajectory": array})
    return run


def test_all_figures_and_tables_are_there():
    assert set(IDS) == {name for name in recipes() if name.startswith("C-")}


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_each_builds_at_each_scale(name, scale):
    experiment = find_recipe(name).at(scale)
    assert experiment.claims
    assert experiment.departures
    assert all(claim.source for claim in experiment.claims)
    if scale == "smoke":
        data = [run.job.settings.get("training", run.job.settings).get("data", {}) for run in experiment.runs]
        assert all(told.get("data", "digits") == "digits" for told in data)


def test_figures_share_their_runs():
    assert keys("C-F4") == keys("C-F28")
    assert len(keys("C-F4") & keys("C-F5")) == 6
    assert keys("C-F2") == keys("C-F26")
    assert keys("C-F1") == keys("C-F3") == keys("C-F12") == keys("C-F13") == keys("C-F14")
    assert keys("C-F1") < keys("C-F15") == keys("C-F23")
    assert keys("C-F8") == keys("C-F30") == keys("C-F10") == keys("C-F11") == keys("C-F32") == keys("C-F33")
    assert keys("C-F8") < keys("C-F9") == keys("C-F31")
    assert keys("C-F16") == keys("C-F22")
    assert len(keys("C-F24") & keys("C-F19")) == 6
    assert keys("C-F20") == keys("C-F25")
    assert keys("C-T2") < keys("C-T7")
    assert len(keys("C-F36") & keys("C-T1")) == 18


def test_the_papers_own_settings():
    told = find_recipe("C-F5").at("paper").runs
    assert {(run.labels["rate"], run.labels["batch"]) for run in told} == {
        (0.01, 128),
        (0.02, 128),
        (0.03, 128),
        (0.01, 64),
        (0.01, 32),
    }
    assert all(run.job.settings["model"]["model"] == "cnn6" for run in told)
    (first, *_) = find_recipe("C-F26").at("paper").runs
    assert first.job.settings["measurement"]["track_within"] == [0, 200, 1000, 1200, 4000, 4200]
    every = {
        run.labels["batch"]: run.job.settings["measurement"]["track_every"]
        for run in find_recipe("C-F19").at("paper").runs
    }
    assert every == {512: 97, 128: 388, 32: 1552}


def test_printed_error_reductions_add_up():
    """ERR = 100 Δ/(100 − base), except where the paper is known to have it wrong (C-e10)."""
    rows = [
        (row[0], row[3], row[5])
        for table in (c_printed.SIMPLE, c_printed.SIMPLE_WHOLE, c_printed.WIDE)
        for row in table.values()
    ]
    rows += [(row[0], row[1], row[3]) for table in (c_printed.SEARCH, c_printed.SEARCH_WHOLE) for row in table.values()]
    rows += [(base, entry[0], entry[2]) for base, entries in c_printed.RADII.values() for entry in entries.values()]
    rows += [(c_printed.SECOND_BASE, entry[0], entry[2]) for entry in c_printed.SECOND.values()]
    assert len(rows) == 54
    wrong = []
    for base, better, printed in rows:
        first, second = (float(text.split()[0].rstrip("*")) for text in (base, better))
        if abs(100 * (second - first) / (100 - first) - float(printed.split()[0])) > 0.011:
            wrong.append(printed)
    assert wrong == ["12.72 (12.53: C-e10)"]


@pytest.mark.parametrize("table", [c_tables.table_three, c_tables.table_four])
def test_tables_of_settings_are_ours(table):
    entries = table()
    assert len(entries) > 10
    assert all(value == ours for _, value, ours in entries)
    (wrong,) = judge(c_tables._experiment([("ρ", 2.0, 3.0)], "", []).claims, None)
    assert wrong.answer == "fails"


def test_the_end_of_the_regularisation_period():
    steps = np.arange(0.0, 100.0, 10)
    impurity = (steps, np.array([0.1, 0.2, 0.3, 0.32, 0.3, 0.24, 0.2, 0.1, 0.05, 0.02]))
    assert end_of_regularisation(impurity) == 50
    sharpness = (steps, np.array([1, 5, 9.5, 10, 9, 9, 20, 3, 2, 1.0]))
    assert regularisation_period(impurity, sharpness) == (20, 50)
    assert mean_within(sharpness, 20, 50) == pytest.approx(9.375)
    assert value_at(sharpness, 15) == pytest.approx(7.25)
    never = (steps, np.full(10, 0.2))
    assert np.isnan(end_of_regularisation(never))
    assert np.isnan(regularisation_period(never, sharpness)).all()
    lasting = (steps, np.full(10, 0.3))
    assert regularisation_period(lasting, sharpness) == (60, 90)


def test_correlation_of_logarithms():
    steps = np.arange(10.0)
    values = np.exp(np.sin(steps))
    assert log_correlation((steps, values), (steps, 7 * values**2)) == pytest.approx(1)
    assert log_correlation((steps, values), (steps, 1 / values)) == pytest.approx(-1)
    assert np.isnan(log_correlation((steps, values), (steps[:3], values[:3])))


def test_the_largest_probability_from_its_bounds():
    p = np.array([0.1, 0.3, 0.5, 0.7, 0.999])
    assert largest_probability(p * (1 - p), np.minimum(p, 2 * p * (1 - p))) == pytest.approx(p)


@pytest.mark.parametrize(("late", "answers"), [(20.0, ["holds"] * 3), (8.0, ["fails", "undecided", "holds"])])
def test_edge_claims_can_hold_and_fail(tmp_path, late, answers):
    """η = 0.1 and 0.2: the sharpness stays at 2/η, or at 0.4 of it."""
    runs = []
    for rate in (0.1, 0.2):
        for seed in range(3):
            level = late * 0.1 / rate * (1 + 0.01 * seed)
            sharpness = [1.0, level / 2, *[level] * 8]
            impurity = [0.1, 0.2, *[0.3] * 8]
            runs.append(made(tmp_path, {"rate": rate, "seed": seed}, sharpness=sharpness, impurity=impurity))
    assert [verdict.answer for verdict in judge(edge_claims("here"), Results(runs, tmp_path))] == answers


def test_a_path_that_turns_back(tmp_path):
    zigzag = [np.array([0.01 * step, (-1.0) ** step]) for step in range(20)]
    straight = [np.array([0.01 * step, 0.0]) for step in range(20)]
    runs = [
        made(tmp_path, {"network": "cnn6", "seed": 0}, arrays=zigzag),
        made(tmp_path, {"network": "fcn3", "seed": 0}, arrays=straight),
    ]
    results = Results(runs, tmp_path)
    assert _turning(results, "cnn6", 0, 19)[0] < -0.99
    assert _turning(results, "fcn3", 0, 19)[0] == pytest.approx(1)
    assert np.isnan(_turning(results, "fcn3", 0, 1)[0])


def test_m_on_the_plane_of_two_class_means():
    """Against m = √λ⁽¹⁾ J'q⁽¹⁾ by one backward pass for each sample."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    inputs, targets = 3 * torch.randn(12, 4, dtype=torch.float64), torch.randint(3, (12,))
    problem = Problem(model, torch.nn.CrossEntropyLoss(), (inputs, targets))
    means = bench_for(problem, {"class_mean_cosines": parse("class_mean_cosines")}).shared(ClassMeans)
    one, other = means.sizes.argsort(descending=True)[:2].tolist()
    found = on_plane(means, one, other)
    outputs = model(inputs)
    value, vector = top_logit_eigenpair(outputs.detach().softmax(1))
    vectors = []
    for place in range(len(inputs)):
        slopes = torch.autograd.grad(
            (outputs[place] * vector[place]).sum(), list(model.parameters()), retain_graph=True
        )
        vectors.append(value[place].sqrt() * torch.cat([slope.flatten() for slope in slopes]))
    table = torch.stack(vectors)
    predicted = outputs.argmax(1)
    first, second = (table[predicted == label].mean(0) for label in (one, other))
    along = first / first.norm()
    across = second - (second @ along) * along
    across = across / across.norm()
    chosen = (predicted == one) | (predicted == other)
    expected = torch.stack([table @ along, table @ across, predicted.double()], 1)[chosen]
    assert found == pytest.approx(expected.numpy(), abs=1e-10)


def test_zeros_of_the_secular_function_interlace():
    (verdict,) = judge(find_recipe("C-F7").at("smoke").claims, None)
    assert verdict.answer == "holds"
    assert float(logit_hessian_eigenpairs(torch.tensor([0.7, 0.3]))[0][0]) == pytest.approx(0.42)


def test_error_reduction(tmp_path):
    runs = [
        made(tmp_path, {"method": name, "seed": 0}, final_test_accuracy=[value])
        for name, value in (("a", 0.8), ("b", 0.85))
    ]
    assert error_reduction(Results(runs, tmp_path), here={"method": "b"}, there={"method": "a"}) == ("+5.00", "25.00")


def here(job, root):
    """A job done in this process."""
    module, _, function = job.function.partition(":")
    getattr(import_module(module), function)(job.settings, job.folder(root))
    return Outcome(job, "done", seconds=0.0, attempts=1, message="")


@pytest.mark.parametrize("name", ["C-F1", "C-T2"])
def test_smoke(name, tmp_path):
    recipe = find_recipe(name)
    result = perform(recipe, "smoke", tmp_path, lambda jobs: [here(job, tmp_path) for job in jobs])
    assert all(run["state"] == "done" for run in result.runs)
    assert len(result.verdicts) == len(recipe.at("smoke").claims)
    assert (tmp_path / "recipes" / f"{name}.smoke" / "figure.png").stat().st_size > 1000
    if name == "C-T2":
        assert [row[2] for row in result.table.rows[:2]] == ["paper", "ours"]


def test_an_example_is_tracked_and_autoattack_needs_a_defence():
    (run, *_) = find_recipe("C-F1").at("paper").runs
    assert Settings.of(run.job.settings).measurement.track_example == ("impurity_bounds",)
    with pytest.raises(ValueError, match="autoattack judges a defended model"):
        Settings.of({"loop": {"steps": 1}, "measurement": {"autoattack": 5}}).checked()


def judged_as_printed(tmp_path, name, printed):
    """The verdicts of a recipe at paper scale on accuracies by the labels of a run, three seeds around each."""
    experiment = find_recipe(name).at("paper")
    runs = []
    for run in experiment.runs:
        accuracy, spread = printed(run.labels)
        value = accuracy + spread * (run.labels["seed"] - 1)
        runs.append(made(tmp_path, dict(run.labels), final_test_accuracy=[value / 100]))
    return {verdict.sentence: verdict.answer for verdict in judge(experiment.claims, Results(runs, tmp_path))}


def test_the_printed_numbers_satisfy_the_claims_of_the_main_table(tmp_path):
    def printed(labels, penalty="95.5 ± 0.1"):
        method = labels["method"]
        if method in ("gradient norm", "input Jacobian"):
            text = penalty if labels["model"] == "wrn-28-2" else "96.25 ± 0.05"
        else:
            wide = "model" in labels
            table = c_printed.SIMPLE_WHOLE if labels.get("whole") else c_printed.SIMPLE
            row = c_printed.WIDE[labels["model"], labels["data"]] if wide else table[labels["rate"]]
            text = row[("SGD", "SAM", "ASAM", "EJR").index(method)]
        mean, _, spread = text.replace("-", "20 ± 1").partition(" ± ") if text == "-" else text.partition(" ± ")
        return float(mean), float(spread)

    found = judged_as_printed(tmp_path / "printed", "C-T1", printed)
    assert set(found.values()) == {"holds"}, found
    assert sum("wide networks" in sentence for sentence in found) == 5
    assert "ASAM fails in full batches: about 20 % are right" in found
    better = judged_as_printed(tmp_path / "better", "C-T1", lambda labels: printed(labels, penalty="99 ± 0.1"))
    assert better["EJR beats the gradient norm penalty on the wide networks"] == "fails"


def test_the_printed_radii_are_the_best(tmp_path):
    def printed(labels):
        if "pair" in labels:
            key, table = (
                tuple(map(float, labels["pair"].split())),
                c_printed.SEARCH_WHOLE if labels["whole"] else c_printed.SEARCH,
            )
            return float(table[key][labels["method"] == "EJR"].rstrip("*")), 0.05
        base, radii = c_printed.RADII[labels["data"], labels["epochs"]]
        return float(radii[labels["rho"]][0] if labels["method"] == "EJR" else base.partition(" ")[0]), 0.01

    found = judged_as_printed(tmp_path / "printed", "C-T5", printed)
    assert sum("better than the smallest and the largest" in sentence for sentence in found) == 4
    assert set(found.values()) == {"holds"}, found
    steady = judged_as_printed(tmp_path / "steady", "C-T5", lambda labels: (90 + (labels.get("rho") or 0), 0.01))
    assert steady["ρ = 2 is better than the smallest and the largest ρ on cifar10, 200 epochs"] == "fails"


def test_tables_read_what_recipes_plan(monkeypatch):
    entries = {what: ours for what, _, ours in c_tables.table_three()}
    assert entries["λ_reg of simple EJR, full batch"] == 0.001
    monkeypatch.setattr("spherometer.recipes.papers.c_explicit.WHOLE_COEFFICIENT", 0.005)
    entries = {what: ours for what, _, ours in c_tables.table_three()}
    assert entries["λ_reg of simple EJR, full batch"] == 0.005
    monkeypatch.setattr("spherometer.recipes.papers.c_wide.EPOCHS", 300)
    assert {what: ours for what, _, ours in c_tables.table_four()}["Setting 2: epochs"] == 300


def test_the_deeper_network_has_to_oscillate_too(tmp_path):
    experiment = find_recipe("C-F27").at("smoke")
    turning = np.cumsum([[(-1.0) ** step, 0.01] for step in range(21)], axis=0)
    straight = np.cumsum([[1.0, 0.01]] * 21, axis=0)
    paths = {"cnn6": turning, "vgg11": straight, "fcn3": straight}
    runs = [made(tmp_path, dict(run.labels), arrays=paths[run.labels["network"]]) for run in experiment.runs]
    found = {verdict.sentence: verdict.answer for verdict in judge(experiment.claims, Results(runs, tmp_path))}
    assert found["steps of the deeper network turn back on themselves too, in the second half of its path"] == "fails"
    assert found["on the easy task there is no oscillation"] == "holds"


def test_an_easy_task_that_oscillates_late_oscillates(tmp_path):
    experiment = find_recipe("C-F27").at("smoke")
    late = np.cumsum([[1.0 if step <= 16 else 3 * (-1.0) ** step, 0.01] for step in range(21)], axis=0)
    runs = [made(tmp_path, dict(run.labels), arrays=late) for run in experiment.runs]
    found = {verdict.sentence: verdict.answer for verdict in judge(experiment.claims, Results(runs, tmp_path))}
    assert found["on the easy task there is no oscillation"] == "fails"


@pytest.mark.parametrize("name", ["C-F6", "C-F29"])
def test_panels_of_two_data_sets_are_told_apart(name, tmp_path):
    experiment = find_recipe(name).at("paper")
    rows = {"test_accuracy": [0.1, 0.9], "test_loss": [2.0, 1.0]}
    runs = [made(tmp_path, dict(run.labels), **rows) for run in experiment.runs]
    titles = [panel.title for panel in experiment.figure(Results(runs, tmp_path)).panels]
    assert len(set(titles)) == 4
    assert sum("cifar100" in title for title in titles) == 2


def test_radii_are_drawn_where_the_axis_names_them(tmp_path):
    experiment = find_recipe("C-T5").at("paper")
    radii = [(run, (run.labels.get("rho") or 0) / 100) for run in experiment.runs]
    runs = [made(tmp_path, dict(run.labels), final_test_accuracy=[radius]) for run, radius in radii]
    *_, panel = experiment.figure(Results(runs, tmp_path)).panels
    assert [series.label for series in panel.series][:2] == ["cifar10, 200 epochs", "cifar10, 400 epochs"]
    for series in panel.series:
        assert [float(panel.x_names[int(place)]) for place in series.x] == pytest.approx(series.y)


def test_the_deeper_network_is_shown_again_from_the_middle_on(tmp_path):
    experiment = find_recipe("C-F16").at("paper")
    names = ("sharpness", "impurity", "ones_logit_jacobian")
    runs = [made(tmp_path, dict(run.labels), **dict.fromkeys(names, np.arange(1.0, 202.0))) for run in experiment.runs]
    figure = experiment.figure(Results(runs, tmp_path))
    ranges = [(panel.series[0].x[0], panel.series[0].x[-1]) for panel in figure.panels]
    assert ranges == [(0, 1000), (500, 1000)] * 2


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", IDS)
def test_told_lengths_of_gradient_descent_are_those_of_the_runs(name, scale):
    experiment = find_recipe(name).at(scale)
    said = " ".join(line for line in experiment.departures if "steps of gradient descent" in line)
    loops = [run.job.settings.get("loop", {}) for run in experiment.runs if "training" not in run.job.settings]
    told = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]+(?= steps)|(?<=: )\d,\d+", said)}
    assert told <= {loop["steps"] for loop in loops if loop.get("batch_size") is None}, said


RATIO = 0.25


def stochastic(tmp_path, name, ratio=RATIO):
    """The runs of a recipe with batches at smoke scale: constant curves, ρ_B as given."""
    experiment = find_recipe(name).at("smoke")
    rows = {"sharpness": 5.0, "impurity": 0.3, "ones_logit_jacobian": 2.0, "mean_logit_jacobian_norm": 3.0}
    runs = []
    for run in experiment.runs:
        known = {f"gradient_ratio:batch_size={run.labels['batch']}": ratio} if run.labels["batch"] < 100 else {}
        rising = {key: value * np.linspace(0.9, 1 + 0.01 * run.labels["seed"], 8) for key, value in rows.items()}
        runs.append(made(tmp_path, dict(run.labels), **rising, **{key: [value] * 8 for key, value in known.items()}))
    return experiment, Results(runs, tmp_path)


@pytest.mark.parametrize("name", ["C-F17", "C-F18", "C-F19", "C-F20", "C-F24", "C-F25"])
def test_batches_have_their_own_threshold(name, tmp_path):
    experiment, results = stochastic(tmp_path, name)
    series = [one for panel in experiment.figure(results).panels for one in panel.series if "2ρ_B/η" in one.label]
    assert len(series) == len({run.labels["batch"] for run in results.runs if run.labels["batch"] < 100})
    for one in series:
        assert one.style == "dotted"
        assert one.y == pytest.approx([2 * RATIO / results.runs[0].labels["rate"]] * 8)


@pytest.mark.parametrize(("name", "number"), [("C-F2", 2), ("C-F26", 3), ("C-F4", 1), ("C-F28", 1), ("C-F5", 6)])
def test_sgd_is_drawn_with_both_thresholds(name, number, tmp_path):
    experiment, results = stochastic(tmp_path, name)
    asked = [run.job.settings["measurement"]["track"] for run in experiment.runs]
    batches = [run.labels["batch"] for run in experiment.runs]
    assert all(f"gradient_ratio:batch_size={size}" in names for size, names in zip(batches, asked, strict=True))
    panels = [panel for panel in experiment.figure(results).panels if panel.y_label == "‖H‖"]
    edges = [one for panel in panels for one in panel.series if "2ρ_B/η" in one.label]
    heights = {line.y for panel in panels for line in panel.lines if line.y is not None}
    assert len(edges) == number
    assert heights == {2 / run.labels["rate"] for run in results.runs}
    assert {round(float(height), 9) for one in edges for height in one.y} == {round(RATIO * y, 9) for y in heights}
    assert any("5,000 of 50,000" in line and "ρ_B" in line for line in find_recipe(name).at("paper").departures)


def test_bands_end_at_the_smallest_value_seen():
    steps = np.arange(3.0)
    band = clipped([(steps, np.array([1.0, 2.0, 9.0])), (steps, np.array([1.0, 2.0, 0.5]))], "‖⟨J⟩‖²")
    assert band.low == pytest.approx([1.0, 2.0, 0.5])
    assert band.high[2] > 9
    assert clipped([(steps, steps)], "one seed").low is None
    assert np.isnan(clipped([(steps, steps * np.nan)] * 2, "nothing").low).all()


def test_an_axis_of_samples_is_told():
    assert any("samples seen" in line for line in find_recipe("C-F5").at("paper").departures)


@pytest.mark.parametrize(("ratio", "answer"), [(0.98, "holds"), (0.5, "fails")])
def test_the_ratio_of_large_batches_is_measured(tmp_path, ratio, answer):
    experiment, results = stochastic(tmp_path, "C-F24", ratio)
    found = {verdict.sentence: verdict.answer for verdict in judge(experiment.claims, results)}
    assert found["ρ_B of batches of 64 is about 1"] == answer


def test_batches_of_different_length_share_an_axis(tmp_path):
    experiment, results = stochastic(tmp_path, "C-F24")
    assert all(panel.log_x for panel in experiment.figure(results).panels)
    (smoothing,) = (line for line in find_recipe("C-F24").at("paper").departures if "running means" in line)
    assert "20, 1,940, 31,040 steps" in smoothing


def said(name, scale="laptop"):
    """All departures of a recipe."""
    return " | ".join(find_recipe(name).at(scale).departures)


@pytest.mark.parametrize(
    ("name", "scale", "words"),
    [
        ("C-F13", "laptop", "measured at every 20th step | the paper shows every step"),
        ("C-F12", "laptop", "measured at every 20th step | the paper shows every tenth step"),
        *((name, "laptop", "measured at every 20th step") for name in ("C-F15", "C-F16", "C-F21", "C-F22", "C-F23")),
        ("C-F27", "laptop", "instead of VGG-11 on 50,000; 500 steps of its path instead of 1,000"),
        ("C-F27", "laptop", "instead of 784-200-200-10 on MNIST; 500 steps of its path instead of 1,000"),
        ("C-F24", "paper", "logarithm of the step"),
        ("C-F25", "laptop", "logarithm of the step"),
        *((name, "laptop", "rates 0.03, 0.1, 0.3 of the paper's five") for name in ("C-T1", "C-T5", "C-F36")),
        *((name, "laptop", "full batches at the rate 0.1 of the paper's four") for name in ("C-T1", "C-T5")),
        ("C-T1", "laptop", "radii of SAM"),
        ("C-T5", "laptop", "no rows of CIFAR-100"),
        *((name, "paper", "which setting is not in the text") for name in ("C-T5", "C-T6")),
        *((name, "paper", "PGD-20 by steps of 2.5/20 of the radius") for name in ("C-T2", "C-T7")),
    ],
)
def test_what_differs_is_told(name, scale, words):
    assert words in said(name, scale)


@pytest.mark.parametrize(("name", "scale"), [("C-T5", "laptop"), ("C-F36", "laptop"), ("C-F22", "laptop")])
def test_what_is_not_done_is_not_told(name, scale):
    assert "SAM" not in said(name, scale)
    assert "logarithm of the step" not in said(name, scale)


@pytest.mark.parametrize("name", ["C-F8", "C-F9", "C-F10", "C-F11", "C-F30", "C-F31", "C-F32", "C-F33"])
def test_gradient_descent_is_that_of_the_first_figure_only_where_it_is(name):
    here, first = (find_recipe(one).at("laptop").runs[0].job.settings for one in (name, "C-F1"))
    rates = [Settings.of(settings).method.learning_rate for settings in (here, first)]
    assert f"η = {rates[0]:g} (C-F1 here: {rates[1]:g}, on {first['data']['num']:,} images)" in said(name)
    assert "as in C-F1" not in said(name)
    assert "as in C-F1" in said(name, "paper")


@pytest.mark.parametrize("name", ["C-F32", "C-F33"])
def test_what_the_paper_does_not_say_is_ours(name):
    assert "our question" in find_recipe(name).finding
    assert any("ours" in claim.source for claim in find_recipe(name).at("paper").claims)


def accuracies(tmp_path, name, scale):
    """The runs of a recipe, each with an accuracy."""
    experiment = find_recipe(name).at(scale)
    values = enumerate(experiment.runs)
    runs = [made(tmp_path, dict(run.labels), final_test_accuracy=[0.5 + place / 1000]) for place, run in values]
    return experiment, Results(runs, tmp_path)


def test_digits_are_not_called_by_the_names_of_the_paper(tmp_path):
    experiment, results = accuracies(tmp_path, "C-T5", "laptop")
    sentences = [claim.sentence for claim in experiment.claims]
    assert not any("cifar" in sentence or "wide" in sentence for sentence in sentences)
    assert "efficient EJR improves the residual network on digits, 20 epochs, on average over radii" in sentences
    panel = experiment.figure(results).panels[-1]
    assert [series.label for series in panel.series] == ["digits, 20 epochs", "digits, 40 epochs"]
    assert not any("WRN" in row[0] for row in experiment.table(results).rows if row[1] == "ours")
    assert any("WRN" in row[0] for row in experiment.table(results).rows if row[1] == "paper")


def test_baselines_are_drawn(tmp_path):
    experiment, results = accuracies(tmp_path / "T5", "C-T5", "paper")
    assert sum(line.label.startswith("SGD, cifar") for line in experiment.figure(results).panels[-1].lines) == 4
    experiment, results = accuracies(tmp_path / "T6", "C-T6", "laptop")
    for panel in experiment.figure(results).panels:
        assert [line.label for line in panel.lines] == ["SGD", "EJR, ρ = 2"]


def test_all_printed_rows_of_a_network_that_is_not_run_are_shown(tmp_path):
    for name, number in (("C-T7", 9), ("C-T2", 4)):
        experiment = find_recipe(name).at("laptop")
        rows = {"final_test_accuracy": [0.9], "final_test_robust_accuracy": [0.5]}
        runs = [made(tmp_path / name, dict(run.labels), **rows) for run in experiment.runs]
        table = experiment.table(Results(runs, tmp_path / name)).rows
        assert sum(row[0] == "wrn-34-10" and row[2] == "paper" for row in table) == number
        assert sum(row[2] == "ours" for row in table) == number
