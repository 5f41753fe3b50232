"""Claims of recipes on made-up curves: each can hold and fail, and noise or a failed run is no evidence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spherometer.recipes import find_recipe
from spherometer.recipes.claims import judge
from spherometer.recipes.margins import weakest
from spherometer.recipes.papers.c_alignment import undefined_steps
from spherometer.recipes.papers.c_curves import NORM, ONES
from spherometer.recipes.papers.c_oscillation import WINDOWS
from spherometer.recipes.papers.th_training import BOUND
from spherometer.recipes.results import Results

STEPS = np.arange(0.0, 1000.0, 25.0)


class Pretended(Results):
    """What `curves` makes up for each run, {(name, part): values}; a run with nothing has failed."""

    def __init__(self, runs, curves, steps=STEPS):
        super().__init__(runs, None)
        self.made = {run.job.key: {key: (steps, value) for key, value in curves(run.labels).items()} for run in runs}

    @property
    def _rows(self):
        return self.made

    def last_step(self, **labels):
        return [700 if self.made[run.job.key] else 0 for run in self.choose(**labels)]


def judged(name, curves, scale="laptop", steps=STEPS):
    """The verdicts by sentence."""
    planned = find_recipe(name).at(scale)
    runs = list(planned.runs)
    if planned.then is not None:
        runs += planned.then(Pretended(runs, curves, steps))
    return {one.sentence: one for one in judge(planned.claims, Pretended(runs, curves, steps))}


def only(verdicts, words):
    (found,) = (one for sentence, one in verdicts.items() if words in sentence)
    return found


def noise(seed, size=40):
    """5 %, at each of the steps."""
    return np.exp(0.05 * np.random.default_rng(seed).standard_normal(size))


CHAIN = {("mls_chain", part): (1.0 + place) * np.ones(len(STEPS)) for place, part in enumerate("ABCD")}
BOUNDED = {("gauss_newton_norm", ""): 3 * np.ones(len(STEPS)), (NORM, ""): np.ones(len(STEPS))}
GROWTH = {("loss", ""): 1e-9 * np.ones(len(STEPS)), ("sharpness", ""): 1 / (1 + STEPS)}
ORDER = ("printed", "pairwise", "secant")
SLOPES = {(BOUND, part): (1.0 + place) * np.ones(len(STEPS)) for place, part in enumerate(ORDER)}


@pytest.mark.parametrize(
    ("name", "words", "rows"),
    [
        ("C-F1", "½Gini ≤", {("impurity_bounds", "violations"): np.zeros(len(STEPS))}),
        ("B-FG4", "A ≤ B", CHAIN),
        ("B-FG4", "C ≤ D", CHAIN),
        ("C-F35", "‖⟨J⟩‖² ≤ ‖G‖", BOUNDED),
        ("D-TOY", "it falls with every step", GROWTH),
        ("TH-4", "printed ≤ pairwise", SLOPES),
    ],
)
def test_an_inequality_does_not_hold_where_a_run_failed(name, words, rows):
    whole = only(judged(name, lambda _: rows), words)
    assert whole.answer == "holds"
    last = max(run.labels.get("seed", 0) for run in find_recipe(name).at("laptop").runs)
    part = only(judged(name, lambda labels: {} if labels.get("seed", 0) == last else rows), words)
    assert part.answer == "undecided"
    assert "missing" in part.remark
    assert part.num < whole.num


def phases(sharpness):
    """Runs of C-F4 whose impurity rises and falls below ¼ after 600 steps."""
    impurity = np.where(STEPS > 600, 0.05, 0.1 + 0.3 * np.exp(-(((STEPS - 300) / 250) ** 2)))
    return {("impurity", ""): impurity, ("sharpness", ""): sharpness, (NORM, ""): 1 + STEPS / 500}


def test_the_first_phase_is_no_matter_of_noise():
    words = "phase I:"
    flat = [judged("C-F4", lambda labels, trial=trial: phases(noise([trial, labels["seed"]]))) for trial in range(60)]
    answers = [only(found, words).answer for found in flat]
    assert answers.count("holds") <= 8  # more than eight of sixty at 5 % come by chance three times in a thousand
    fallen = judged("C-F4", lambda labels: phases(np.exp(-STEPS / 1000) * noise(labels["seed"])))
    assert only(fallen, words).answer == "fails"
    risen = judged("C-F4", lambda labels: phases(np.minimum(1 + STEPS / 100, 4) * noise(labels["seed"])))
    assert only(risen, words).answer == "holds"


def widths(rate):
    """Runs of A-S5: the sharpness of networks as exp(rate(width) step / 1000), their linearisations' hardly moves."""

    def curves(labels):
        shaken = noise([labels["seed"], labels["width"]])
        moved = np.exp(rate(labels["width"]) * STEPS / 1000) * shaken
        return {("sharpness", ""): 1 + 1e-6 * shaken if labels["linearised"] else moved}

    return curves


@pytest.mark.parametrize(("rate", "answer"), [(1, "holds"), (-1, "fails")])
def test_a_network_that_flattens_does_not_sharpen(rate, answer):
    alike = judged("A-S5", widths(lambda _: rate))
    assert only(alike, "at every width").answer == answer
    assert only(alike, "stays where it starts").answer == "holds"
    assert only(judged("A-S5", widths(lambda width: 16 * rate / width)), "the wider the network").answer == answer


def smoothed(labels):
    if labels["smoothing"] == 0 and labels["seed"] == 2:
        return {}
    names = [("softmax_input_jacobian_norm", ""), ("batch/sharpness", "")]
    return {name: (2 - labels["smoothing"]) * (1 + STEPS / 100) * noise(labels["seed"]) for name in names}


def test_an_unsmoothed_run_that_failed_leaves_the_other_seeds():
    for found in judged("A-F1", smoothed, "paper").values():
        assert found.answer == "holds"
        assert found.num == 4
        assert "1 of 5 numbers missing" in found.remark


@pytest.mark.parametrize(("gain", "answer"), [(1.0, "holds"), (-1.0, "fails")])
def test_no_rise_at_all_is_the_smallest_rise(gain, answer):
    def curves(labels):
        away = gain * (labels["scale"] - 1)
        flat = 10 - 0.01 * STEPS
        rows = {("sharpness", ""): 10 + away * STEPS * noise(labels["seed"]) if away > 0 else flat}
        norms = {("final_feature_norms", part): STEPS + 1 for part in "ab"}
        return rows | norms | {("input_jacobian_norm", ""): 1 + STEPS}

    assert only(judged("A-F30", curves), "the less the sharpness rises").answer == answer


@pytest.mark.parametrize("factor", [1.0, 1.3, 2.0, 0.5])
def test_the_printed_factors_are_held_against_ours(factor):
    windows = WINDOWS["laptop"]
    steps = np.array([step for low, high in windows for step in range(low, high + 1)], dtype=float)
    printed = np.repeat([8, 17.5, 45], [high - low + 1 for low, high in windows])

    def curves(labels):
        norm = noise(labels["seed"], len(steps))
        return {("sharpness", ""): factor * norm**2 / printed, (NORM, ""): norm}

    found = judged("C-F26", curves, steps=steps)
    close = [one.answer for sentence, one in found.items() if "λ̂* is about 1/" in sentence]
    assert close == [("holds" if 1 / 1.5 < factor < 1.5 else "fails")] * 3
    assert not any("is about" in sentence for sentence in judged("C-F2", curves, steps=steps))


@pytest.mark.parametrize(("name", "printed"), [("D-F6", 200.0), ("D-F7", 108.39)])
@pytest.mark.parametrize(("off", "answer"), [(1.0, "holds"), (10.0, "fails"), (0.1, "fails")])
def test_the_printed_ratio_of_squares_is_held_against_ours(name, printed, off, answer):
    def curves(labels):
        ratio = printed * off if labels["optimiser"] == "Adam" else 1.0
        return {("final_batch_mean_squared_eigenvalue", ""): ratio * noise([labels["seed"], round(ratio)])}

    assert only(judged(name, curves), "Tr(H²)/P is about").answer == answer


@pytest.mark.parametrize(("late", "answers"), [(1.0, ["holds"] * 4), (0.2, ["fails"] * 4)])
def test_a_plateau_is_flat_at_both_degrees_of_smoothing(late, answers):
    def curves(labels):
        height = np.where(STEPS < 750, 1.0, late) if labels["smoothing"] else np.exp(-STEPS / 200)
        names = ("softmax_input_jacobian_norm", "batch/sharpness")
        return {(name, ""): height * noise(labels["seed"]) for name in names} | {("output_frobenius", ""): 1 + STEPS}

    found = judged("A-F29", curves)
    assert [one.answer for sentence, one in found.items() if "plateau" in sentence] == answers
    assert [one.answer for sentence, one in found.items() if "stays larger" in sentence] == ["holds"] * 2


def test_one_degree_of_smoothing_alone_does_not_stay_larger():
    def curves(labels):
        height = 1.0 if labels["smoothing"] == 0.5 else math.exp(-5 - labels["smoothing"])
        names = ("softmax_input_jacobian_norm", "batch/sharpness")
        return {(name, ""): height * noise(labels["seed"]) for name in names} | {("output_frobenius", ""): 1 + STEPS}

    found = judged("A-F29", curves)
    assert [one.answer for sentence, one in found.items() if "stays larger" in sentence] == ["fails"] * 2


def resultants(defined_from):
    """MRL of two classes, of which the second is predicted from a step on."""
    late = np.where(defined_from <= STEPS, 0.5, math.nan)
    return {("mean_resultant_length", "0"): np.ones(len(STEPS)), ("mean_resultant_length", "1"): late}


def test_the_steps_without_all_class_means():
    runs = find_recipe("C-F34").at("paper").runs
    starts = {0: 0.0, 1: 800.0, 2: 5000.0}
    assert undefined_steps(Pretended(runs, lambda labels: resultants(starts[labels["seed"]]))) == [0, 800, math.inf]
    assert all(np.isnan(undefined_steps(Pretended(runs, lambda _: {}))))


@pytest.mark.parametrize(("start", "answer"), [(800.0, "holds"), (0.0, "fails")])
def test_a_subspace_that_is_defined_from_the_start_is_not_that_of_the_paper(start, answer):
    found = judged("C-F34", lambda _: resultants(start), "paper")
    assert only(found, "undefined for about the first 800 steps").answer == answer
    assert not any("undefined" in sentence for sentence in judged("C-F10", lambda _: resultants(start)))


def levelled(name, over, heights, scale="laptop"):
    """Runs whose curves are as high as the place of a label among its values says, and their final numbers too."""
    levels = sorted({run.labels[over] for run in find_recipe(name).at(scale).runs})

    def curves(labels):
        place = levels.index(labels[over])
        height = heights[place] * noise([labels["seed"], place])
        root = np.ones(len(STEPS)) if name == "C-F18" else np.sqrt(height)
        final = {(f"final_{prefix}sharpness", ""): height for prefix in ("", "batch_")}
        return phases(height) | {(NORM, ""): root, (ONES, ""): root} | final

    return curves


@pytest.mark.parametrize(
    ("name", "words", "over", "right", "wrong"),
    [
        ("C-F5", "the larger the learning rate, the lower the plateau", "rate", (3, 2, 1), (3, 9, 1)),
        ("C-F5", "the larger the learning rate, the smaller ‖⟨J⟩‖²", "rate", (3, 2, 1), (3, 9, 1)),
        ("C-F5", "the smaller the batch, the lower the plateau", "batch", (1, 2, 3), (1, 9, 3)),
        ("C-F15", "the higher the plateau", "rate", (3, 2, 1), (3, 9, 1)),
        ("C-F18", "larger for smaller batches", "batch", (3, 2, 1), (3, 9, 1)),
        ("C-F23", "the smaller ‖⟨J⟩1̂‖²", "rate", (3, 2, 1), (3, 9, 1)),
        ("C-F24", "than with larger ones", "batch", (1, 3, 3), (1, 0.3, 3)),
        ("C-F25", "the smaller the batch", "batch", (1, 2, 3), (1, 9, 3)),
        ("D-F1", "more L2 gives a larger λ₁", "decay", (1, 2, 3), (1, 9, 3)),
        ("D-F3", "gives the largest λ₁", "decay", (1, 0.5, 3), (1, 9, 3)),
        ("D-F4", "more L2 gives a larger λ₁", "decay", (1, 2, 3), (1, 9, 3)),
    ],
)
def test_the_middle_value_is_seen(name, words, over, right, wrong):
    assert only(judged(name, levelled(name, over, right)), words).answer == "holds"
    assert only(judged(name, levelled(name, over, wrong)), words).answer == "fails"


@pytest.mark.parametrize("name", ["D-F2", "D-F3"])
@pytest.mark.parametrize(("gaps", "answer"), [((5, 6, 1), "holds"), ((5, 0.1, 1), "fails")])
def test_the_smallest_gap_is_the_smallest_of_all(name, gaps, answer):
    def curves(labels):
        place = (0.0, 1e-4, 5e-4).index(labels["decay"])
        gap = gaps[place] / 100 * noise([labels["seed"], place])
        return {("final_train_accuracy", ""): np.ones(len(STEPS)), ("final_test_accuracy", ""): 1 - gap}

    assert only(judged(name, curves), "smallest accuracy gap").answer == answer


@pytest.mark.parametrize(("early", "late", "answer"), [(0.1, 0.75, "holds"), (0.9, 0.2, "fails")])
@pytest.mark.parametrize("name", ["C-F10", "C-F34"])
def test_a_subspace_is_judged_where_it_is_defined(name, early, late, answer):
    def curves(labels):
        shares = np.where(STEPS < 800, early, late) * noise(labels["seed"])
        parts = ("gradient", "top eigenvector")
        return resultants(800.0) | {("subspace_alignment", part): shares for part in parts}

    found = judged(name, curves, "paper")
    assert [one.answer for sentence, one in found.items() if "lies in the span" in sentence] == [answer] * 2


@pytest.mark.parametrize(("best", "answer"), [(0.01, "holds"), (0.001, "fails"), (0.003, "fails")])
def test_the_best_coefficient_is_better_than_smaller_ones(best, answer):
    def curves(labels):
        away = 0.0 if labels["coefficient"] == 0 else abs(math.log(labels["coefficient"] / best))
        accuracy = 0.8 - 0.02 * away + 0.001 * noise([labels["seed"], round(1e4 * labels["coefficient"])])
        return {("final_test_accuracy", ""): accuracy}

    assert only(judged("C-F36", curves, "paper"), "better than 0.001 and 0.003").answer == answer


def test_speeding_up_is_said_of_the_steps_that_are_judged():
    """From the peak of the impurity on, whether it has fallen below 1/4 or not."""
    impurity = 0.5 - 0.2 * np.abs(STEPS - 200) / 800

    def curves(labels):
        growth = np.where(STEPS < 200, 0.1, 1 / impurity) * noise(labels["seed"]) ** 0.1
        return phases(1 + STEPS) | {("impurity", ""): impurity, (NORM, ""): np.sqrt(np.cumsum(growth))}

    (found,) = judged("C-F28", curves).values()
    assert found.answer == "holds"
    assert found.sentence == "‖⟨J⟩‖² speeds up as 1/⟨λ⁽¹⁾⟩ grows, from the impurity's peak on"


def test_the_weakest_of_several_margins():
    assert weakest([[1.0, 2.0], [0.5, 0.7]]) == [0.5, 0.7]
    assert weakest([[1.0, math.nan, 2.0], [3.0, -9.0, 4.0]]) == pytest.approx([1.0, math.nan, 2.0], nan_ok=True)
    assert np.isnan(weakest([[math.nan], [1.0]])).all()
    alike = np.random.default_rng(0).standard_normal((200, 2, 6))
    assert np.mean([np.mean(weakest(rows)) for rows in alike]) > np.mean(alike.min(1)) / 2


@pytest.mark.parametrize(("middle", "verdict"), [(2.0, "holds"), (9.0, "fails")])
def test_a_smaller_batch_must_compress_more_at_every_step(middle, verdict):
    size = {8: 1.0, 20: middle, 32: 4.0}

    def curves(labels):
        names = ("jacobian_sharpness", "mls", "nmls", "log_volume")
        return {(name, ""): size[labels["batch"]] * noise(labels["seed"]) for name in names}

    assert judged("B-FH8", curves)["a smaller batch ends with a smaller S"].answer == verdict
