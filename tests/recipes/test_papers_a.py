"""The recipes of paper A: plans that share runs, run functions of their own, and what claims make of known rows."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from spherometer.figures.panels import panels_csv
from spherometer.recipes import find_recipe, perform
from spherometer.recipes.claims import judge
from spherometer.recipes.ends import gap, over_label, over_settings
from spherometer.recipes.papers import a_coordinate_networks, a_regularisers, a_rescaling, a_width
from spherometer.recipes.results import Results, Run
from spherometer.records import RunWriter
from spherometer.sweeps import Job, Outcome


def keys(name, scale="laptop"):
    """The runs of a recipe by key."""
    return {run.job.key for run in find_recipe(name).at(scale).runs}


def done_here(jobs, root):
    """The jobs in this very process: a worker of a sweep takes longer to start than they run."""
    for job in jobs:
        job.load()(dict(job.settings), job.folder(root))
    return [Outcome(job, "done" if job.is_done(root) else "failed") for job in jobs]


def written(root, labels, rows, arrays=None):
    """A run folder whose last step has these rows."""
    run = Run(labels, Job("nowhere:nothing", dict(labels)))
    with RunWriter(run.job.folder(root)) as writer:
        writer.write(1, rows, arrays=arrays)
    return run


@pytest.mark.parametrize(
    ("one", "other"),
    [("A-F1", "A-F6"), ("A-F3", "A-F4"), ("A-F3", "A-F12"), ("A-F12", "A-F16"), ("A-F15", "A-F19"), ("A-F5", "A-F23")],
)
def test_pictures_of_the_same_runs_share_them(one, other):
    assert keys(one) == keys(other)


def test_tables_are_halves_of_the_figure_of_coordinate_networks():
    assert keys("A-T1") | keys("A-T2") == keys("A-F32")
    assert not keys("A-T1") & keys("A-T2")


def test_the_run_without_regularisation_is_shared_by_all_techniques():
    runs = find_recipe("A-F5").at("laptop").runs
    plain = {run.job.key for run in runs if run.labels["strength"] == 0 and run.labels["seed"] == 0}
    assert len(plain) == 1
    assert len({run.labels["technique"] for run in runs}) == 4


@pytest.mark.parametrize(
    ("name", "table", "entries"),
    [
        ("A-F7", "method", {"learning_rate": 0.04}),
        ("A-F10", "model", {"model": "resnet18"}),
        ("A-F15", "loop", {"stop_loss": 0.02}),
        ("A-F20", "model", {"model": "vgg11"}),
        ("A-F23", "method", {"momentum": 0.9, "weight_decay": 5e-4, "milestones": [50, 80]}),
        ("A-F24", "data", {"data": "cifar100", "standardise": "channelwise"}),
        ("A-F31", "model", {"model": "fcn3-cifar", "activation": "tanh"}),
    ],
)
def test_the_papers_own_settings(name, table, entries):
    for run in find_recipe(name).at("paper").runs:
        if run.labels.get("technique") == "weight decay":
            continue  # swept
        told = run.job.settings[table]
        assert {key: told[key] for key in entries} == entries


def test_smoothed_runs_take_the_steps_of_the_unsmoothed(tmp_path):
    experiment = find_recipe("A-F1").at("paper")
    for run in experiment.runs:
        with RunWriter(run.job.folder(tmp_path)) as writer:
            writer.write(70 + run.labels["seed"], {"loss": 0.0})
    later = experiment.then(Results(experiment.runs, tmp_path))
    assert [run.job.settings["loop"]["steps"] for run in later] == 2 * [70, 71, 72, 73, 74]


def test_gap_and_its_mean_over_seeds(tmp_path):
    runs = [
        written(tmp_path, {"x": x, "seed": seed}, {"final_train_loss": 0.5, "final_test_loss": 0.5 + x * (1 + seed)})
        for x in (2.0, 1.0)
        for seed in (0, 1)
    ]
    results = Results(runs, tmp_path)
    assert gap(results, x=2.0) == [2.0, 4.0]
    series = over_label(results, gap, "x", "gap")
    np.testing.assert_allclose(series.y, [1.5, 3.0])
    np.testing.assert_allclose(series.high, [1.5 + 0.5**0.5, 3 + 2**0.5])


def test_a_setting_is_the_mean_of_its_seeds_and_counts_once(tmp_path):
    runs = find_recipe("A-F20").at("laptop").runs
    for place, key in enumerate(dict.fromkeys(run.job.key for run in runs)):
        folder = next(run.job.folder(tmp_path) for run in runs if run.job.key == key)
        with RunWriter(folder) as writer:
            writer.write(1, {"value": float(place)})
    found = over_settings(Results(runs, tmp_path), "value")
    assert sorted(found) == pytest.approx([2.0 + 5 * place for place in range(9)])  # of five seeds each
    assert len(over_settings(Results(runs, tmp_path), "value", technique="SAM")) == 3
    failed = over_settings(Results(runs, tmp_path / "nowhere"), "value")
    assert np.isnan(failed).all()


@pytest.mark.parametrize(("name", "words"), [("A-F2", "goes"), ("A-F20", "correlates more"), ("A-F20", "under SAM")])
def test_seeds_of_a_setting_are_no_evidence_for_a_correlation(name, words):
    """Settings that move every quantity at random, with seeds that follow: 5 % for each of the one or two claims."""
    experiment, wrong, trials = find_recipe(name).at("laptop"), 0, 100
    claims = [claim for claim in experiment.claims if words in claim.sentence]
    for trial in range(trials):
        results = Drawn(experiment.runs, np.random.default_rng(trial))
        wrong += sum(claim.evidence(results, 0.95).tested.p < 0.05 for claim in claims)
    assert wrong / (trials * len(claims)) < 0.05 + 4 * (0.05 * 0.95 / trials) ** 0.5


class Drawn(Results):
    """A random number for each setting and name, and a third of its size for each seed."""

    def __init__(self, runs, rng):
        super().__init__(runs, None)
        self.rng, self.known = rng, {}

    def curve(self, name, *, part="", **labels):
        return [(np.zeros(1), self._of(name, run)) for run in self.choose(**labels)]

    def _of(self, name, run):
        plain = {key: value for key, value in run.job.settings.items() if key != "loop"}
        setting = (name, str(plain), str({**run.job.settings["loop"], "seed": 0}))
        for key in (setting, (name, run.job.key)):
            self.known.setdefault(key, self.rng.standard_normal())
        return np.array([np.exp(self.known[setting] + 0.3 * self.known[name, run.job.key])])


def test_total_variation_counts_ups_and_downs(tmp_path):
    run = written(tmp_path, {"seed": 0}, {"loss": 0.0}, arrays={"fit": np.array([0.0, 1.0, -1.0, 0.0])})
    assert a_coordinate_networks.variation(Results([run], tmp_path)) == [4.0]


def test_rescaling_claims_can_fail(tmp_path):
    """A network whose "invariant" moves, and whose sharpness does not, is found out."""
    experiment = find_recipe("A-DINH").at("laptop")
    factors = experiment.runs[0].job.settings["factors"]
    for run in experiment.runs:
        with RunWriter(run.job.folder(tmp_path)) as writer:
            for step, factor in enumerate(factors):
                rows = dict.fromkeys((*a_rescaling.KEPT, *a_rescaling.MOVED), 1.0)
                writer.write(step, rows | {"factor": factor, "mls": factor, "nmls": factor + 1e-3 * run.labels["seed"]})
    verdicts = judge(experiment.claims, Results(experiment.runs, tmp_path))
    wrong = {verdict.sentence for verdict in verdicts if verdict.answer != "holds"}
    assert "rescaling leaves mls the same" in wrong
    assert "rescaling moves sharpness by more than a factor of 2" in wrong
    assert "rescaling leaves loss the same" not in wrong
    assert "rescaling moves nmls by more than a factor of 2" not in wrong


@pytest.mark.parametrize("name", ["A-DINH", "A-S5", "A-T1"])
def test_run_functions_at_smoke_scale(name, tmp_path):
    result = perform(find_recipe(name), "smoke", tmp_path, lambda jobs: done_here(jobs, tmp_path))
    assert {run["state"] for run in result.runs} == {"done"}
    answers = {verdict.sentence: verdict.answer for verdict in result.verdicts}
    if name == "A-DINH":
        assert all(answer == "holds" for sentence, answer in answers.items() if "leaves" in sentence)
    if name == "A-T1":
        assert [row[0] for row in result.table.rows] == ["Jacobian norm", "sharpness", "first-layer norm"]


def test_a_linearised_network_keeps_its_sharpness(tmp_path):
    runs = [run for run in find_recipe("A-S5").at("smoke").runs if run.labels["linearised"]][:1]
    done_here([run.job for run in runs], tmp_path)
    (ratio,) = a_width.rise(Results(runs, tmp_path))
    assert ratio == pytest.approx(1, abs=0.01)


def answers(tmp_path, name, rows, scale="laptop"):
    """The verdicts on rows by the labels of a run."""
    experiment = find_recipe(name).at(scale)
    runs = [written(tmp_path, dict(run.labels), rows(dict(run.labels))) for run in experiment.runs]
    return {verdict.sentence: verdict.answer for verdict in judge(experiment.claims, Results(runs, tmp_path))}


def test_near_zero_loss_and_accuracy_are_judged_with_weight_decay(tmp_path):
    def rows(labels, loss=0.001, gain=0.1):
        noise, decayed = 1 + 0.01 * labels["seed"], labels["weight_decay"] > 0
        ends = {"train_loss": loss * noise, "test_loss": 0.5 * noise, "test_accuracy": 0.8 * noise + gain * decayed}
        return {f"final_{name}": value for name, value in ends.items()}

    sentences = (
        "without weight decay the training loss is near zero",
        "the most weight decay gives a better test accuracy than none",
    )
    found = answers(tmp_path / "as", "A-F2", rows)
    assert [found[sentence] for sentence in sentences] == ["holds", "holds"]
    found = answers(tmp_path / "not", "A-F2", lambda labels: rows(labels, loss=0.1, gain=-0.1))
    assert [found[sentence] for sentence in sentences] == ["fails", "fails"]


def test_only_sam_may_lower_the_sharpness_and_strong_mixing_raises_the_norm(tmp_path):
    def rows(labels, others=0.0, again=1.0):
        noise = 1 + 0.01 * labels["seed"]
        rate = 1.0 if labels["technique"] == "SAM" else others
        norm = 1.0 if not labels["strength"] else 0.5 if labels["strength"] < 0.3 else 0.5 + 0.3 * again
        return {a_regularisers.SHARPNESS: noise * np.exp(-rate * labels["strength"]), a_regularisers.NORM: noise * norm}

    mixing, again = (
        "only SAM lowers it: mixup lowers the sharpness by less than 10%",
        "the Jacobian norm rises again at large β of mixup",
    )
    found = answers(tmp_path / "as", "A-F5", rows)
    assert (found[mixing], found[again]) == ("holds", "holds")
    found = answers(tmp_path / "not", "A-F5", lambda labels: rows(labels, others=1.0, again=-1.0))
    assert (found[mixing], found[again]) == ("fails", "fails")


def test_penalties_have_to_be_alike_and_monotonic(tmp_path):
    def rows(labels, input_too=1.0, wave=0.0):
        size = {"reference": 3.0, "mean-jacobian": 1.0, "input-jacobian": input_too}[labels["penalty"]]
        place = [0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1].index(labels["coefficient"])
        step = place if place < 4 else place - 3
        value = np.exp(-size * (step or 0) + wave * (step == 1) + 0.01 * labels["seed"])
        value = value if labels["penalty"] != "reference" else np.exp(-3.0 + 0.01 * labels["seed"])
        losses = {"final_train_loss": 1.0, "final_test_loss": 1.0 + value}
        return losses | {a_regularisers.NORM: value, a_regularisers.SHARPNESS: 1.0}

    found = answers(tmp_path / "as", "A-F33", rows)
    assert set(found.values()) == {"holds"}, found
    unlike = answers(tmp_path / "unlike", "A-F33", lambda labels: rows(labels, input_too=0.5))
    assert unlike["both penalties lower the gap alike, within a factor of 2"] == "fails"
    waves = answers(tmp_path / "waves", "A-F33", lambda labels: rows(labels, wave=1.5))
    assert waves["the Param. penalty lowers the gap with every step of its coefficient"] == "fails"


def test_penalties_are_drawn_at_their_own_coefficients_and_the_reference_with_its_spread(tmp_path):
    experiment = find_recipe("A-F33").at("laptop")
    rows = dict.fromkeys(("final_train_loss", "final_test_accuracy", a_regularisers.SHARPNESS), 1.0)

    def made(labels):
        value = 5.0 + labels["seed"] if labels["penalty"] == "reference" else labels["coefficient"]
        return rows | {"final_test_loss": 2.0, a_regularisers.NORM: value}

    runs = [written(tmp_path, dict(run.labels), made(run.labels)) for run in experiment.runs]
    figure = experiment.figure(Results(runs, tmp_path))
    table = [row for row in csv.DictReader(io.StringIO(panels_csv(figure))) if row["panel"] == "Jacobian norm"]
    swept = [row for row in table if row["series"] in ("Param.", "Input")]
    assert [float(row["x"]) for row in swept] == pytest.approx([float(row["y"]) for row in swept])
    assert [float(row["x"]) for row in swept] == [0, 1e-3, 1e-2, 1e-1, 0, 1e-6, 1e-5, 1e-4]
    (reference,) = (row for row in table if row["series"] == "large lr")
    spread = np.std([5, 6, 7, 8], ddof=1)
    found = [float(reference[name]) for name in ("x", "low", "high")]
    assert found == pytest.approx([0, 6.5 - spread, 6.5 + spread])


@pytest.mark.parametrize(("name", "log"), [("A-F3", False), ("A-F14", False), ("A-F4", True), ("A-F18", True)])
def test_the_sharpness_is_on_a_logarithmic_axis_where_the_paper_has_it(name, log, tmp_path):
    experiment = find_recipe(name).at("smoke")
    panels = experiment.figure(Results(experiment.runs, tmp_path)).panels
    assert [panel.log_y for panel in panels] == [log, False, False, False]


@pytest.mark.parametrize(
    ("name", "told", "other"),
    [
        ("A-F9", "20,000 iterations at most", "bias"),
        ("A-F22", "convolutions without bias", "lowers ln ‖H‖"),
        ("A-F26", "below 0.25 on average: chosen here", "lowers ln ‖H‖"),
        ("A-F23", "below 0.25 on average: chosen here", "bias"),
        ("A-F5", "lowers ln ‖H‖ by less than 0.1", "below 0.25"),
        ("A-F2", "on logarithmic axes: chosen here", "bias"),
    ],
)
def test_what_is_chosen_is_told_where_it_is_used(name, told, other):
    words = " / ".join(find_recipe(name).at("paper").departures)
    assert told in words
    assert other not in words


def test_smaller_rates_of_label_smoothing_are_said_to_take_longer():
    minutes = [find_recipe(f"A-F{number}").minutes for number in range(6, 12)]
    assert minutes == sorted(minutes)
    assert minutes[3] > 4 * minutes[0]  # convolutions
    assert find_recipe("A-F1").minutes == minutes[0]


def test_weight_decay_is_swept_at_paper_scale():
    runs = find_recipe("A-F23").at("paper").runs
    swept = [run for run in runs if run.labels["technique"] == "weight decay"]
    assert {run.job.settings["method"].get("weight_decay", 0.0) for run in swept} == {0.0, 1e-4, 5e-4, 1e-3}
    usual = {run.job.key for run in swept if run.labels["strength"] == a_regularisers.USUAL}
    assert usual == {run.job.key for run in runs if run.labels["technique"] == "SAM" and not run.labels["strength"]}


def test_the_features_of_hidden_layers_are_drawn_over_the_iterations(tmp_path):
    entry = find_recipe("A-F30")
    perform(entry, "smoke", tmp_path, lambda jobs: done_here(jobs, tmp_path))
    *_, panel = entry.at("smoke").figure(Results(entry.at("smoke").runs, tmp_path)).panels
    assert "feature norm" in panel.title
    assert [len(series.x) for series in panel.series] == [5, 5, 5]
    assert panel.series[0].y[-1] < panel.series[-1].y[-1]  # larger inputs, larger features
