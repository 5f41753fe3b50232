"""A training in its folder: what is tracked and measured, resumed exactly; settings as data and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import spherometer as sm
from spherometer.records import RunReader, RunWriter
from spherometer.training import runs
from spherometer.training.assembly import assemble
from spherometer.training.instruments import final_rows
from spherometer.training.settings import Settings
from spherometer.training.tracking.schedules import Every, Moment, Within

SMALL = {
    "data": {"num": 60, "num_test": 30},
    "model": {"model": "digits-linear"},
    "loop": {"steps": 12, "evaluate_every": 4, "seed": 3},
    "measurement": {
        "track": ["sharpness", "impurity"],
        "track_every": 3,
        "track_num": 40,
        "measure": ["sharpness", "top_eigenvalues:num=2"],
        "spectrum": 5,
        "trajectory": 4,
    },
}
PASSING = {"tracking_overhead"}  # a time, not a number of the run


def values(folder: Path) -> dict:
    """Every value by step, name and part, times aside."""
    return {(row[1], row[2], row[3]): row[4] for row in RunReader(folder).rows() if row[2] not in PASSING}


def test_settings_are_their_differences_from_the_defaults():
    settings = Settings.of(SMALL)
    assert settings.measurement.track == ("sharpness", "impurity")
    told = settings.differences()
    assert told["loop"] == {"steps": 12, "evaluate_every": 4, "seed": 3}
    assert set(told) == set(SMALL)
    assert Settings.of(told) == settings
    assert Settings().differences() == {}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"lop": {}}, "no table of settings is called 'lop'"),
        ({"loop": {"step": 3}}, "loop has no setting 'step'"),
        ({"measurement": {"track": ["sharpnes"]}, "loop": {"steps": 1}}, "did you mean 'sharpness'"),
        ({"measurement": {"track_within": [5]}, "loop": {"steps": 1}}, "pairs of rising steps"),
        ({"measurement": {"track_within": [5, 1]}, "loop": {"steps": 1}}, "pairs of rising steps"),
        ({"measurement": {"spectrum": -1}, "loop": {"steps": 1}}, "spectrum: expected a whole number"),
        ({"measurement": {"measure_num": 0}, "loop": {"steps": 1}}, "measure_num: expected a whole number"),
        ({"loop": {"steps": 1, "seed": 2**63}}, "seed: expected a whole number of at most 9223372036854775807, got"),
        ({"loop": {"steps": 1, "mixup_per": "sample"}}, "mixup_per needs mixup"),
        ({"loop": {"steps": 1, "mixup": 1.0, "mixup_per": "image"}}, "no mixup_per is called 'image'"),
        ({"data": {"balanced": True}, "loop": {"steps": 1}}, "balanced needs num or num_test"),
        ({"data": {"input_scale": 0.0}, "loop": {"steps": 1}}, "input_scale: expected a positive number, got 0"),
        ({"method": {"eta": 0.1}, "loop": {"steps": 1}}, "eta is for method asam"),
        ({"method": {"method": "asam", "eta": -1.0}, "loop": {"steps": 1}}, "eta: expected a number of at least 0"),
        ({"method": {"base": "adam", "momentum": 0.9}, "loop": {"steps": 1}}, "adam has no momentum of its own"),
        ({"method": {"base": "rmspop"}, "loop": {"steps": 1}}, "did you mean 'rmsprop'"),
        ({"objective": {"squared": False}, "loop": {"steps": 1}}, "squared and scaled are for penalty input-jacobian"),
        ({"objective": {"penalty": "fisher", "scaled": True}, "loop": {"steps": 1}}, "are for penalty input-jacobian"),
        ({"objective": {"attack_batchnorm": "eval"}, "loop": {"steps": 1}}, "attack_batchnorm needs a defence"),
        (
            {"objective": {"defence": "at", "attack_batchnorm": "evil"}, "loop": {"steps": 1}},
            "no attack_batchnorm is called 'evil'; did you mean 'eval'",
        ),
        (
            {"objective": {"defence": "trades", "marked": "clean"}, "loop": {"steps": 1}},
            "marked is for defence trades with method ejr or ejr-v2",
        ),
    ],
)
def test_wrong_settings_get_one_line(tables, words):
    with pytest.raises(ValueError, match=words):
        Settings.of(tables).checked()


@pytest.mark.parametrize("kind", ["track", "measure", "measure_batch_statistics"])
def test_a_wrong_option_of_a_metric_is_told_before_the_first_step(kind, tmp_path):
    wanted = {**SMALL, "measurement": {kind: ["sharpness:rtol=7"]}}
    with pytest.raises(ValueError, match="expected 0 < rtol < 1, got 7"):
        runs.perform(wanted, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_run_writes(tmp_path):
    runs.perform(SMALL, tmp_path / "run")
    reader, found = RunReader(tmp_path / "run"), values(tmp_path / "run")
    assert reader.state == "done"
    assert {step for step, name, _ in found if name == "sharpness"} == {0, 3, 6, 9, 12}
    assert {step for step, name, _ in found if name == "test_loss"} == {0, 4, 8, 12}
    assert len([key for key in found if key[:2] == (12, "final_top_eigenvalues:num=2")]) == 2
    assert {step for _, step, name in reader.arrays() if name == "trajectory"} == {0, 4, 8, 12}
    nodes, weights = (reader.array(12, f"spectrum_{part}") for part in ("nodes", "weights"))
    assert nodes.shape == weights.shape == (4, 5)
    np.testing.assert_allclose(weights.sum(1), 1)


def test_the_final_numbers_are_those_of_the_library(tmp_path):
    parts = assemble(Settings.of(SMALL))
    rows, _ = final_rows(parts, parts.training.model)
    problem = sm.Problem(parts.training.model, parts.loss, parts.train.tensors)
    expected = sm.measure(problem, ["sharpness"], seed=3)["sharpness"]
    assert float(rows["sharpness"].value) == pytest.approx(float(expected.value), rel=1e-3)


def test_measuring_leaves_the_training_as_it_is(tmp_path):
    runs.perform(SMALL, tmp_path / "measured")
    runs.perform({name: table for name, table in SMALL.items() if name != "measurement"}, tmp_path / "plain")
    measured, plain = values(tmp_path / "measured"), values(tmp_path / "plain")
    assert {key: measured[key] for key in plain} == plain


def test_a_killed_run_ends_with_the_rows_of_an_undisturbed_one(tmp_path, monkeypatch):
    runs.perform(SMALL, tmp_path / "whole")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    real = runs._scores
    calls = iter(range(100))
    monkeypatch.setattr(runs, "_scores", lambda *given: killed() if next(calls) == 2 else real(*given))
    with pytest.raises(KeyboardInterrupt):
        runs.perform(SMALL, tmp_path / "broken")
    assert RunReader(tmp_path / "broken").state == "stopped"
    assert 6 in {step for step, _, _ in values(tmp_path / "broken")}  # later than the checkpoint of step 4
    monkeypatch.undo()
    runs.perform(SMALL, tmp_path / "broken")
    assert values(tmp_path / "broken") == values(tmp_path / "whole")


def test_batch_statistics_have_rows_of_their_own(tmp_path):
    tables = {
        "data": {"num": 40, "num_test": 20},
        "model": {"model": "digits-resnet8"},
        "loop": {"steps": 2},
        "measurement": {"measure": ["sharpness"], "measure_batch_statistics": ["sharpness"], "measure_num": 30},
    }
    runs.perform(tables, tmp_path / "run")
    found = values(tmp_path / "run")
    assert found[(2, "final_sharpness", "")] != found[(2, "final_batch_sharpness", "")]


def test_some_classes_only():
    parts = assemble(Settings.of({"data": {"classes": [7, 1], "num": 50}, "loop": {"steps": 1}}))
    assert parts.train.num_classes == 2
    assert len(parts.train) == 50
    assert parts.training.model(parts.train.inputs[:2]).shape == (2, 2)
    assert set(parts.train.targets.tolist()) == {0, 1}


def test_equal_shares_of_the_classes():
    parts = assemble(Settings.of({"data": {"num": 50, "num_test": 30, "balanced": True}, "loop": {"steps": 1}}))
    assert torch.bincount(parts.train.targets).tolist() == [5] * 10
    assert torch.bincount(parts.test.targets).tolist() == [3] * 10
    two = assemble(Settings.of({"data": {"classes": [7, 1], "num": 9, "balanced": True}, "loop": {"steps": 1}}))
    assert torch.bincount(two.train.targets).tolist() == [5, 4]


@pytest.mark.parametrize("rule", ["none", "channelwise"])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_defended_model_sees_the_inputs_of_an_undefended_one(rule, scale):
    tables = {"data": {"num": 20, "standardise": rule, "input_scale": scale}, "loop": {"steps": 1}}
    plain = assemble(Settings.of(tables))
    defended = assemble(Settings.of(tables | {"objective": {"defence": "at"}}))
    assert 0 <= float(defended.train.inputs.min()) <= float(defended.train.inputs.max()) <= 1
    outputs = [parts.training.model(parts.train.inputs) for parts in (plain, defended)]
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("loop", [{"epochs": 1}, {"steps": 11, "batch_size": 10}])
def test_an_average_of_nothing_is_refused(loop):
    tables = {"data": {"num": 60}, "loop": loop}
    with pytest.raises(ValueError, match=r"average_from: epoch 5 never ends in a run of 1 whole epochs"):
        assemble(Settings.of(tables | {"method": {"average_from": 5}}))
    assemble(Settings.of(tables | {"method": {"average_from": 0}}))


@pytest.mark.parametrize("start", [0, 1])
def test_an_average_from_the_start_falls_to_the_rate_of_averages(start):
    method = {"average_from": start, "schedule": "flat-then-linear"}
    training = assemble(Settings.of({"data": {"num": 60}, "loop": {"epochs": 9}, "method": method})).training
    assert training.schedule(8) == pytest.approx(0.5)


def test_a_run_that_stops_before_its_average_says_so(tmp_path):
    tables = {
        "data": {"num": 60, "num_test": 30},
        "method": {"average_from": 5},
        "loop": {"epochs": 9, "stop_accuracy": 0.01, "stop_every": 1},
    }
    trained = runs.train_in_folder(Settings.of(tables), tmp_path / "run", show=False)
    assert trained.steps < 5
    assert "stopped before any weights were averaged" in trained.headline


def test_a_run_begun_before_a_setting_existed_is_resumed(tmp_path):
    runs.perform(SMALL, tmp_path / "whole")
    older = Settings.of(SMALL).plain()
    del older["method"]["eta"], older["data"]["balanced"]
    with RunWriter(tmp_path / "run", settings=older, seed=3, title="train"):
        pass
    runs.perform(SMALL, tmp_path / "run")
    assert values(tmp_path / "run") == values(tmp_path / "whole")
    with pytest.raises(ValueError, match="holds a run with balanced False, not True"):
        runs.perform(SMALL | {"data": SMALL["data"] | {"balanced": True}}, tmp_path / "run")


def made(**tables):
    return assemble(Settings.of({"loop": {"steps": 1}, **tables})).training


def test_what_the_papers_leave_open_can_be_chosen():
    assert made(method={"method": "asam"}).optimizer.eta == 0.01
    assert made(method={"method": "asam", "eta": 0.5}).optimizer.eta == 0.5
    assert isinstance(made(method={"method": "sam", "base": "rmsprop"}).optimizer.base, torch.optim.RMSprop)
    assert made(method={"base": "rmsprop", "momentum": 0.9}).optimizer.param_groups[0]["momentum"] == 0.9
    for squared, scaled in ((None, None), (True, True), (False, True), (True, False)):
        objective = {"penalty": "input-jacobian", "squared": squared, "scaled": scaled}
        (penalty,) = made(objective=objective).objective.penalties
        assert (penalty.squared, penalty.scaled) == (squared is not False, scaled is not False)
    for given, per in ((None, "batch"), ("batch", "batch"), ("sample", "sample")):
        (transform,) = made(loop={"steps": 1, "mixup": 1.0, "mixup_per": given}).transforms
        assert transform.per == per
    for defence, mode in (("at", "train"), ("trades", "eval")):
        assert made(objective={"defence": defence}).objective.batchnorm == mode
        for chosen in ("train", "eval"):
            defended = made(objective={"defence": defence, "attack_batchnorm": chosen})
            assert defended.objective.batchnorm == chosen
    trades = {"objective": {"defence": "trades", "marked": "clean"}, "method": {"method": "ejr", "rho": 0.1}}
    assert made(**trades).objective.marked == "clean"
    assert made(objective={"defence": "trades"}).objective.marked == "adversarial"


def test_windows_of_steps():
    schedule = Within(Every(2), (4, 6, 10, 10))
    assert [step for step in range(1, 13) if schedule.due(Moment(step))] == [4, 6, 10]
    assert schedule.due(Moment(1, first=True))
    assert not schedule.due(Moment(4, epoch_ended=True))


def test_the_global_random_state_is_untouched(tmp_path):
    before = torch.get_rng_state()
    runs.perform(SMALL, tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
