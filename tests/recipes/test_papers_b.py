"""The recipes of paper B: plans that share runs, margins that can fail, transformers by name."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from spherometer.recipes import find_recipe, perform
from spherometer.recipes.claims import judge
from spherometer.recipes.interpolation import early_fall, fall_after_interpolation, late_fall
from spherometer.recipes.papers import b_correlations, b_transformers
from spherometer.recipes.results import Results, Run
from spherometer.records import RunWriter
from spherometer.sweeps import Job, Outcome
from spherometer.zoo import MissingDataError, find_timm_weights


def keys(name, scale="laptop"):
    """The runs of a recipe by key."""
    return {run.job.key for run in find_recipe(name).at(scale).runs}


def curves(root, labels, **rows):
    """A run folder with one row of each name at steps 0, 1, 2, ..."""
    run = Run(labels, Job("nowhere:nothing", dict(labels)))
    with RunWriter(run.job.folder(root)) as writer:
        for step, values in enumerate(zip(*rows.values(), strict=True)):
            writer.write(step, dict(zip(rows, values, strict=True)))
    return run


def done_here(jobs, root):
    """The jobs in this very process: a worker of a sweep takes longer to start than they run."""
    for job in jobs:
        job.load()(dict(job.settings), job.folder(root))
    return [Outcome(job, "done" if job.is_done(root) else "failed") for job in jobs]


def test_figures_share_their_middle_run():
    assert len(keys("B-F1") & keys("B-F2")) == 5
    assert len(keys("B-FH8") & keys("B-FH9")) == 5
    assert keys("B-FG4") == keys("B-FH8") & keys("B-FH9")


@pytest.mark.parametrize(
    ("name", "labels", "model"), [("B-F1", {0.05, 0.1, 0.2}, "vgg11"), ("B-FH8", {8, 20, 32}, "mlp4")]
)
def test_the_papers_own_settings(name, labels, model):
    runs = find_recipe(name).at("paper").runs
    assert len(runs) == 15
    swept = {run.labels.get("rate", run.labels.get("batch")) for run in runs}
    assert swept == labels
    for run in runs:
        told = run.job.settings
        assert told["model"]["model"] == model
        assert told["objective"] == {"loss": "half-squared-error"}
        assert told["loop"]["batch_size"] == run.labels.get("batch", 20)
        assert told.get("method", {}).get("learning_rate", 0.1) == run.labels.get("rate", 0.1)
        assert told["measurement"]["track_num"] == 100


def test_a_zoo_has_its_own_rate_batch_and_seed_for_every_network():
    runs = find_recipe("B-FG6").at("paper").runs
    assert len(runs) == len({tuple(run.labels.values()) for run in runs}) == 100
    assert all(0.05 <= run.labels["rate"] <= 0.2 and 8 <= run.labels["batch"] <= 32 for run in runs)


def test_falls_before_and_after_interpolation(tmp_path):
    """The loss is first below 0.01 at step 2; from there S falls by e, the volume by 2 e-folds, D_PR before by 1."""
    steps = np.arange(21)
    runs = [
        curves(
            tmp_path,
            {"seed": seed, "rate": rate},
            train_loss=np.where(steps < 2, 0.5, 0.001),
            jacobian_sharpness=np.exp(np.where(steps <= 2, 1.0, 0.0)),
            log_volume=np.where(steps <= 2, 2.0, 0.0) - 0.1 * (steps > 15),
            mls=np.ones(21),
            participation_ratio=np.where(steps < 2, 3.0, 2.0),
        )
        for seed in (0, 1)
        for rate in (0.1, 0.2)
    ]
    results = Results(runs, tmp_path)
    assert fall_after_interpolation(results, name="jacobian_sharpness") == pytest.approx([1.0, 1.0])
    assert fall_after_interpolation(results, name="log_volume") == pytest.approx([2.1, 2.1])
    assert early_fall(results) == pytest.approx([1.0, 1.0])
    assert late_fall(results, "jacobian_sharpness", rate=0.1) == pytest.approx([0.0, 0.0])
    assert late_fall(results, "log_volume") == pytest.approx([0.1, 0.1])


def test_without_interpolation_there_is_no_fall(tmp_path):
    rows = {key: [1.0, 1.0] for key in ("jacobian_sharpness", "log_volume", "mls", "participation_ratio")}
    results = Results([curves(tmp_path, {"seed": 0}, train_loss=[0.5, 0.4], **rows)], tmp_path)
    assert np.isnan(fall_after_interpolation(results, name="jacobian_sharpness")).all()
    assert np.isnan(early_fall(results)).all()


def test_a_broken_chain_is_found_out(tmp_path):
    experiment = find_recipe("B-FG4").at("laptop")
    for run in experiment.runs:
        with RunWriter(run.job.folder(tmp_path)) as writer:
            from spherometer.values import Estimate

            for step in range(3):
                values = np.array([1.0, 2.0, 3.0, 30.0 if step else 2.9]) * (1 + 0.01 * run.labels["seed"])
                writer.write(
                    step, {"mls_chain": Estimate(_tensor(values), labels=("A", "B", "C", "D")), "train_loss": 1}
                )
    answers = {v.sentence: v.answer for v in judge(experiment.claims, Results(experiment.runs, tmp_path))}
    assert answers["A ≤ B at every measurement"] == answers["B ≤ C at every measurement"] == "holds"
    assert answers["C ≤ D at every measurement"] == "fails"


def _tensor(values):
    import torch

    return torch.as_tensor(values)


def test_one_diverged_network_leaves_the_others_their_correlations():
    found = b_correlations._correlation([1.0, 2.0, np.nan, 3.0, 4.0], [1.0, 2.0, 1.0, -np.inf, 3.5])
    assert found.num == 3
    assert found.value == pytest.approx(np.corrcoef([1, 2, 4], [1, 2, 3.5])[0, 1])


def test_partial_correlations_given_rate_and_batch_are_told_beside_the_plain(tmp_path):
    """Two columns that only follow the learning rate correlate, and do not given it."""
    rng = np.random.default_rng(0)
    runs = []
    for run in find_recipe("B-FG5").at("laptop").runs:
        noise = 0.1 * rng.standard_normal(2)
        rows = {"final_train_loss": 0.0, "final_test_loss": np.log(run.labels["rate"]) + noise[0]}
        rows |= {f"final_{name}": rng.uniform() for name in b_correlations.MEASURED}
        rows |= {"final_mls": np.log(run.labels["rate"]) + noise[1], "final_nmls": rows["final_test_loss"]}
        runs.append(curves(tmp_path, dict(run.labels), **{name: [value] for name, value in rows.items()}))
    experiment, results = find_recipe("B-FG5").at("laptop"), Results(runs, tmp_path)
    (found,) = (v for v in judge(experiment.claims, results) if v.sentence == "MLS correlates positively with gap")
    assert found.effect > 0.9
    assert found.answer == "holds"
    assert "given ln learning rate and ln batch size partial r" in found.remark
    columns, rows = (experiment.table(results).columns, experiment.table(results).rows)
    assert columns == ["pair", "Pearson's r", "partial r given ln learning rate and ln batch size"]
    (row,) = (row for row in rows if row[0] == "gap, MLS")
    assert abs(float(row[2].split()[0])) < 0.5 < 0.9 < float(row[1].split()[0])
    assert row[2] in found.remark


def test_weights_of_timm_models_are_found_where_they_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("SPHEROMETER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    assert find_timm_weights("tiny") is None
    cached = tmp_path / "cache" / "hub" / "models--timm--tiny.in1k" / "snapshots" / "abc" / "model.safetensors"
    own = tmp_path / "data" / "timm" / "tiny.safetensors"
    for path in (cached, own):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        assert find_timm_weights("tiny") == path
    assert find_timm_weights("tin") is None


def test_without_timm_our_own_networks_stand_in_and_it_is_said(monkeypatch):
    monkeypatch.setattr(b_transformers, "find_spec", lambda name: None)
    for scale in ("smoke", "laptop"):
        experiment = find_recipe("B-F3").at(scale)
        assert {run.job.settings["model"] for run in experiment.runs} == set(b_transformers.STAND_INS)
    assert any("timm is not installed" in told for told in experiment.departures)
    assert any("12 of 12 models have random weights" in told for told in experiment.departures)
    paper = find_recipe("B-F3").at("paper")
    assert len({run.labels["model"] for run in paper.runs}) == 181


@pytest.mark.slow
def test_stand_ins_can_be_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(b_transformers, "find_spec", lambda name: None)
    result = perform(find_recipe("B-F3"), "smoke", tmp_path, lambda jobs: done_here(jobs, tmp_path))
    assert {run["state"] for run in result.runs} == {"done"}
    assert np.isfinite(result.verdicts[0].effect)


def test_the_images_of_the_paper_scale_are_asked_for_and_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPHEROMETER_DATA", str(tmp_path / "sets"))
    with pytest.raises(MissingDataError, match=r"imagenet-100\.npz: not found in .*yours to bring"):
        b_transformers._brought()
    (tmp_path / "sets").mkdir()
    np.savez(tmp_path / "sets" / "imagenet-100.npz", images=np.zeros((2, 8, 8, 3), np.uint8), labels=np.array([3, 7]))
    settings = {"model": "digits-mlp", "data": "imagenet-100.npz", "num": 2, "seed": 0, "weights": "random"}
    _, inputs, targets = b_transformers._subject(settings | {"targets": "labels"})
    assert inputs.shape == (2, 3, 8, 8)
    assert targets.argmax(1).tolist() == [3, 7]


def test_what_the_text_leaves_open_is_told_at_paper_scale():
    for name, words in (
        ("B-F1", "not standardised"),
        ("B-FG5", "not standardised"),
        ("D-F3", "no augmentation"),
        ("D-F6", "no augmentation"),
        ("C-F1", "6,000 steps of gradient descent"),
        ("C-F16", "2,000 steps of gradient descent"),
        ("C-F5", "six seeds where the paper shows one"),
    ):
        assert words in " ".join(find_recipe(name).at("paper").departures), name
    assert "three seeds" not in " ".join(find_recipe("C-F5").at("paper").departures)
    assert max(run.job.settings["loop"]["steps"] for run in find_recipe("C-F5").at("paper").runs) == 100_000


def test_outliers_are_families_off_the_trend(tmp_path):
    def verdicts(root, mobile, fast):
        runs = []
        for place, run in enumerate(find_recipe("B-F3").at("paper").runs):
            family = b_transformers._family(run.labels["model"])
            shift = {"mobilevit": mobile, "fastvit": fast}.get(family, 0.1 * (-1) ** place)
            sharpness = float(np.exp(place % 17))
            values = {"adaptive_sharpness": [sharpness], "normalised_mls": [sharpness * np.exp(shift + 0.001 * place)]}
            runs.append(curves(root, dict(run.labels), **values))
        return [verdict.answer for verdict in judge(find_recipe("B-F3").at("paper").claims, Results(runs, root))]

    assert verdicts(tmp_path / "as", 1.0, -1.0) == ["holds"] * 3
    assert verdicts(tmp_path / "not", -1.0, 1.0) == ["holds", "fails", "fails"]
    assert len(find_recipe("B-F3").at("laptop").claims) == 1


def test_findings_of_paper_b_have_claims():
    for name, words in (
        ("B-FH8", "NMLS rises and falls with √S"),
        ("B-FG6", "κ correlates weakly or negatively with gap"),
        ("B-FG7", "log volume correlates more with gap than D_PR does, whichever the sign"),
    ):
        assert any(words in claim.sentence for claim in find_recipe(name).at("laptop").claims), name


@pytest.mark.parametrize(("strength", "answer"), [(-3.0, "fails"), (3.0, "fails"), (0.0, "holds")])
def test_the_weakest_correlation_is_not_the_most_negative(strength, answer, monkeypatch):
    rng = np.random.default_rng(0)
    gap, others, local = rng.standard_normal((3, 30))
    columns = dict.fromkeys(b_correlations.COLUMNS, gap * (0.2 if strength else 3.0) + others)
    columns |= {"gap": gap, "D_PR": strength * gap + local}
    monkeypatch.setattr(b_correlations, "table", lambda results: columns)
    weakest = [claim for claim in find_recipe("B-FG7").at("laptop").claims if "whichever the sign" in claim.sentence]
    assert [verdict.answer for verdict in judge(weakest, None)] == [answer] * 5


def test_images_are_prepared_as_the_model_was_trained():
    import torch

    wanted = {"input_size": (3, 16, 16), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.25, 1.0)}
    found = b_transformers._prepared(torch.ones(2, 1, 8, 8), wanted)
    assert found.shape == (2, 3, 16, 16)
    torch.testing.assert_close(found[0, :, 3, 3], torch.tensor([1.0, 2.0, 0.5]))


@pytest.mark.parametrize("name", ["B-FH9", "B-FG6"])
def test_smoke(name, tmp_path):
    result = perform(find_recipe(name), "smoke", tmp_path, lambda jobs: done_here(jobs, tmp_path))
    assert {run["state"] for run in result.runs} == {"done"}
    assert all(np.isfinite(verdict.effect) for verdict in result.verdicts)
    if name == "B-FG6":
        networks = b_correlations.table(Results(find_recipe(name).at("smoke").runs, tmp_path))
        with (tmp_path / "recipes" / f"{name}.smoke" / "data.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["kind"] == "point"]
        for column, values in networks.items():
            axis, panel = ("x", "D_PR over gap") if column == "gap" else ("y", f"{column} over gap")
            assert [float(row[axis]) for row in rows if row["panel"] == panel] == pytest.approx(values)
