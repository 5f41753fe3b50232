"""A tracker sees everything and touches nothing."""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from itertools import cycle
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spherometer as sm
from spherometer.estimators import following
from spherometer.metrics.registry import _REGISTRY, Metric
from spherometer.records import RunReader, RunWriter
from spherometer.training import runs
from spherometer.training.tracking import EpochEnds, Every, LogSpaced, LossJumps
from spherometer.training.tracking.schedules import Moment, as_schedule
from training.tracking.tracked_loops import CASES, data, model_of, train

METRICS = ["sharpness", "input_jacobian_norm", "impurity", "hessian_trace"]


@pytest.mark.parametrize("case", CASES)
def test_a_tracked_run_is_the_untracked_one_bit_by_bit(case):
    (plain, _), (watched, tracker) = train(case, None), train(case, {"metrics": METRICS, "every": 2, "trajectory": 3})
    for one, other in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert [row.step for row in tracker.series("sharpness")] == [1, 2, 4, 6, 8, 10, 12]
    assert tracker.events == [] or not any(event.name.startswith("failed") for event in tracker.events)


def test_the_random_state_goes_on_as_if_nobody_had_watched():
    train("dropout", None)
    alone = torch.rand(3)
    train("dropout", {"metrics": METRICS, "every": 2})
    assert torch.equal(alone, torch.rand(3))


@pytest.fixture(params=[False, True], ids=["searched", "followed"])
def followed(request, monkeypatch):
    """Small matrices are searched anew each time; here they are also followed as large ones are."""
    if request.param:
        monkeypatch.setattr(following, "FEW_ROWS", 10)
    return request.param


def test_tracked_values_are_those_of_a_dense_hessian(followed):
    torch.manual_seed(0)
    model, loss, pair = model_of("plain").double(), nn.CrossEntropyLoss(), data()
    pair = (pair[0].double(), pair[1])
    problem = sm.Problem(model, loss, pair)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tracker = sm.Tracker(problem, ["sharpness"], every=1)
    for _ in range(15):
        optimizer.zero_grad()
        loss(model(pair[0]), pair[1]).backward()
        optimizer.step()
        tracker.step(optimizer)
        dense = sm.Hessian(problem) @ torch.eye(problem.num_parameters, dtype=torch.float64)
        truth = float(torch.linalg.eigvalsh((dense + dense.T) / 2)[-1])
        row = tracker.series("sharpness")[-1]
        assert abs(row.value - truth) <= row.error <= 0.0101 * truth
        assert row.kind == "bound"
        ratio = tracker.series("stability_ratio")[-1]
        assert ratio.value == pytest.approx(row.value * 0.5 / 2)
        assert ratio.error == pytest.approx(row.error * 0.5 / 2)
    (known,) = tracker.state_dict()["probes"][0]["starts"].values()
    assert (known["calls"] > 2) == followed


class Quadratic(nn.Module):
    """½ Σ h_i w_i² as the squared error of outputs √h_i w_i; its top eigenvector can be moved at will."""

    def __init__(self, curvatures: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones_like(curvatures))
        self.register_buffer("root", curvatures.sqrt())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.root * self.weight).expand(len(inputs), -1)


@pytest.mark.parametrize(("direction", "within"), [(7, 1), (8, 2), (1500, 9)])
def test_a_sudden_change_of_the_top_eigenvector_is_noticed_and_right(direction, within):
    """Along the top vector at once, along a rival at its next turn, and soon in a direction nobody has ever seen."""
    curvatures = torch.linspace(0.01, 1.0, 3000, dtype=torch.float64)
    curvatures[7], curvatures[8] = 5.0, 4.0
    model = Quadratic(curvatures)
    problem = sm.Problem(model, sm.HalfSquaredError(), (torch.zeros(1, 1).double(), torch.zeros(1, 3000).double()))
    tracker, optimizer = sm.Tracker(problem, every=1), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 25):
        if step == 9:
            model.root[direction] = 22.0**0.5
        tracker.step(optimizer)
    right = [abs(row.value - (5.0 if row.step < 9 else 22.0)) <= row.error for row in tracker.series("sharpness")]
    seen = next(step for step in range(9, 25) if right[step - 1])
    assert seen < 9 + within
    assert all(right[:8] + right[seen - 1 :])
    assert all(row.error <= 0.0101 * row.value for row in tracker.series("sharpness"))
    assert [event.step for event in tracker.events if event.name == "edge of stability"] == [seen]
    turned = [event.step for event in tracker.events if event.name.startswith("new top eigenvector")]
    assert turned == ([] if direction == 7 else [seen])


def test_warm_steps_cost_few_products():
    _, tracker = train("plain", {"metrics": ["gauss_newton_norm"], "every": 1}, num_steps=4)
    assert tracker.series("gauss_newton_norm")[0].products > 0
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 3)
    )  # above 2,000 weights, where warm vectors count
    problem, optimizer = sm.Problem(model, nn.CrossEntropyLoss(), data()), torch.optim.SGD(model.parameters(), lr=0.05)
    tracker = sm.Tracker(problem, ["sharpness", "gauss_newton_norm"], every=1)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(problem.data[0]), problem.data[1]).backward()
        optimizer.step()
        tracker.step(optimizer)
    products = [row.products for row in tracker.series("sharpness")]
    assert sorted(products[5:])[len(products[5:]) // 2] <= 5
    assert products[0] > 5


def test_the_optimiser_is_read():
    _, tracker = train("plain", {"metrics": ["sharpness"], "every": 1, "batch_size": 24})
    last = {row.name: row for row in tracker.rows if row.step == 12}
    assert last["learning_rate"].value == 0.3
    assert last["gradient_descent_threshold"].value == pytest.approx(2 / 0.3)
    assert last["stability_threshold"].value == pytest.approx(2 * 1.9 / 0.3)
    assert last["batch_threshold"].value == pytest.approx(2 / 0.3 * last["gradient_ratio:batch_size=24"].value)
    assert last["stability_ratio"].value == pytest.approx(last["sharpness"].value / last["stability_threshold"].value)


def test_adam_is_compared_with_its_own_threshold_in_its_own_coordinates():
    model, tracker = train("adam", {"metrics": ["sharpness"], "every": 1})
    last = {row.name: row for row in tracker.rows if row.step == 12}
    assert last["stability_threshold"].value == pytest.approx(2 * 1.9 / 0.1 / 0.01)
    problem = sm.Problem(model, nn.CrossEntropyLoss(), data(), dtype=torch.float64)
    fresh = sm.preconditioned_sharpness(problem, tracker._optimizer, rtol=1e-4)
    seen = last["preconditioned_sharpness"]
    assert abs(seen.value - float(fresh.value)) <= seen.error + float(fresh.error)
    assert last["stability_ratio"].value == pytest.approx(seen.value / last["stability_threshold"].value)


def optimised(model, optimizer, steps=1):
    """A few updates by full-batch gradients."""
    inputs, targets = data()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return optimizer


def test_adam_before_its_first_step_has_no_ratio_and_that_is_told_once(tmp_path):
    model = model_of("plain")
    problem, optimizer = sm.Problem(model, nn.CrossEntropyLoss(), data()), torch.optim.Adam(model.parameters())
    with sm.Tracker(problem, every=1, run=tmp_path, on_error="raise") as tracker:
        tracker.step(optimizer)
        resumed = sm.Tracker(problem, every=1, on_error="raise")
        resumed.load_state_dict(tracker.state_dict())
        for each in (tracker, resumed):
            each.step(optimizer)
        tracker.step(optimised(model, optimizer))
    assert len(tracker.series("sharpness")) == len(tracker.series("stability_threshold")) == 3
    assert [row.step for row in tracker.series("stability_ratio")] == [3]
    (event,) = tracker.events
    assert (event.step, event.name) == (1, "no stability ratio")
    assert "Adam has not yet moved any parameter" in event.text
    assert resumed.events == []
    assert len(RunReader(tmp_path).events()) == 1


def test_a_training_from_settings_by_adam_is_tracked(tmp_path):
    settings = {
        "data": {"num": 60, "num_test": 30},
        "model": {"model": "digits-linear"},
        "method": {"base": "adam", "learning_rate": 0.001},
        "loop": {"steps": 3},
        "measurement": {"track": ["sharpness"], "track_every": 1},
    }
    runs.perform(settings, tmp_path / "run")
    reader = RunReader(tmp_path / "run")
    assert reader.state == "done"
    steps = {name: [row[1] for row in reader.rows() if row[2] == name] for name in ("sharpness", "stability_ratio")}
    assert steps == {"sharpness": [0, 1, 2, 3], "stability_ratio": [1, 2, 3]}


class Unused(nn.Module):
    """A network with a layer that nobody calls, as the pooler of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.pooler = model_of("plain"), nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.network(inputs)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_a_parameter_without_gradient_is_none_that_the_optimiser_moves(kind):
    torch.manual_seed(0)
    model = Unused()
    problem = sm.Problem(model, nn.CrossEntropyLoss(), data(), dtype=torch.float64)
    optimizer = optimised(model, kind(model.parameters(), lr=0.01), steps=5)
    tracker = sm.Tracker(problem, on_error="raise")
    tracker.step(optimizer)
    seen = tracker.series("preconditioned_sharpness")[-1]
    fresh = sm.preconditioned_sharpness(problem.select("network"), optimizer, rtol=1e-4)
    assert abs(seen.value - float(fresh.value)) <= seen.error + float(fresh.error)
    assert f"{problem.num_parameters - 72} of {problem.num_parameters} weights" in seen.note


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_the_ratio_is_that_of_the_parameters_the_optimiser_holds(kind):
    torch.manual_seed(0)
    model = model_of("plain")
    problem = sm.Problem(model, nn.CrossEntropyLoss(), data(), dtype=torch.float64)
    tracker = sm.Tracker(problem, every=1, on_error="raise")
    optimizer = optimised(model, kind(model[2].parameters(), lr=0.1))
    tracker.step(optimizer)
    everything = optimised(model, kind(model.parameters(), lr=0.1))
    for now, seen in ((optimizer, problem.select("2")), (everything, problem)):
        tracker.step(now)
        ratio = tracker.series("stability_ratio")[-1]
        fresh = sm.preconditioned_sharpness(seen, now, rtol=1e-4)
        threshold = sm.stability_threshold_of(now)
        assert abs(ratio.value * threshold - float(fresh.value)) <= ratio.error * threshold + float(fresh.error)
    whole = sm.measure(problem, "sharpness")["sharpness"].estimate
    assert tracker.series("sharpness")[-1].value == pytest.approx(float(whole), rel=0.02)  # that is of all of them


def test_the_optimiser_is_read_on_the_data_of_the_sharpness():
    torch.manual_seed(0)
    model = model_of("plain")
    problem = sm.Problem(model, nn.CrossEntropyLoss(), data(), dtype=torch.float64)
    probes = [sm.Probe("impurity", every=1, samples=3), sm.Probe("sharpness:rtol=0.001", every=1)]
    tracker = sm.Tracker(problem, probes, batch_size=8, on_error="raise")
    optimizer = optimised(model, torch.optim.Adam(model.parameters(), lr=0.01), steps=3)
    tracker.step(optimizer)
    last = {row.name: row for row in tracker.rows}
    fresh = sm.preconditioned_sharpness(problem, optimizer, rtol=1e-4)
    seen = last["preconditioned_sharpness"]
    assert abs(seen.value - float(fresh.value)) <= seen.error + float(fresh.error)
    ratio = float(sm.measure(problem, "gradient_ratio:batch_size=8")["gradient_ratio:batch_size=8"])
    assert last["batch_threshold"].value == pytest.approx(2 / 0.01 * ratio, rel=0.05)


def test_a_named_probe_has_rows_and_nothing_else():
    _, tracker = train("plain", {"metrics": [sm.Probe("sharpness", every=1, name="own")]})
    assert {row.name for row in tracker.rows} == {"own/sharpness", "tracking_overhead", "training_loss"}


def test_a_failing_reading_loses_no_sharpness(monkeypatch):
    def broken(*_):
        raise FloatingPointError("the optimiser is on fire")

    monkeypatch.setattr("spherometer.training.tracking.stability.learning_rate", broken)
    model = model_of("plain")
    tracker = sm.Tracker(sm.Problem(model, nn.CrossEntropyLoss(), data()), every=1)
    with pytest.warns(RuntimeWarning, match="optimiser is on fire"):
        tracker.step(torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(tracker.series("sharpness")) == 1
    assert [event.name for event in tracker.events] == ["failed: sharpness"]


def test_an_optimiser_without_a_known_threshold_gives_no_ratio():
    model = model_of("plain")
    problem = sm.Problem(model, nn.CrossEntropyLoss(), data())
    optimizer = sm.optim.SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1)
    tracker = sm.Tracker(problem)
    tracker.step(optimizer)
    names = {row.name for row in tracker.rows}
    assert "gradient_descent_threshold" in names
    assert not names & {"stability_ratio", "stability_threshold"}


def test_schedules():
    steps = [step for step in range(1, 1001) if LogSpaced(3).due(Moment(step))]
    assert steps == [1, 2, 5, 10, 22, 46, 100, 215, 464, 1000]
    assert [step for step in range(1, 25) if Every(10).due(Moment(step, first=step == 1))] == [1, 10, 20]
    assert EpochEnds().due(Moment(3, epoch_ended=True))
    assert not EpochEnds().due(Moment(3))
    assert LossJumps(2.0).due(Moment(3, loss=2.1, usual_loss=1.0))
    assert LossJumps(2.0).due(Moment(3, loss=float("nan"), usual_loss=1.0))
    assert not LossJumps(2.0).due(Moment(3, loss=1.9, usual_loss=1.0))
    either = Every(10) | LossJumps()
    assert either.due(Moment(20))
    assert either.due(Moment(21, loss=9.0, usual_loss=1.0))
    assert not either.due(Moment(21))
    assert as_schedule("log") == LogSpaced()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: sm.Tracker(nn.Linear(1, 1)), "expected a Problem"),
        (lambda p: sm.Tracker(p, ["sharpnes"]), "did you mean 'sharpness'"),
        (lambda p: sm.Tracker(p, []), "expected names of metrics and Probes"),
        (lambda p: sm.Tracker(p, ["sharpness"], every=0), "at least 1"),
        (lambda p: sm.Tracker(p, ["sharpness"], every="often"), "log, epoch, jump"),
        (lambda p: sm.Tracker(p, ["sharpness", sm.Probe("sharpness", 5)]), "sharpness twice"),
        (lambda p: sm.Tracker(p, ["sharpness", "sharpness"]), "sharpness twice"),
        (lambda p: sm.Tracker(p, batch_size=49), "expected batch_size from 1 to the 48 samples of the problem, got 49"),
        (lambda p: sm.Tracker(p, batch_size=0), "expected batch_size from 1 to the 48 samples of the problem, got 0"),
        (lambda p: sm.Tracker(p, rtol=5.0), r"expected 0 < rtol < 1, got 5\.0"),
        (lambda p: sm.Tracker(p, rtol=-1), "expected 0 < rtol < 1, got -1"),
        (lambda p: sm.Tracker(p, "sharpness:rtol=-1"), r"expected 0 < rtol < 1, got -1\.0"),
        (lambda p: sm.Tracker(p, budget="a"), "budget above 0, such as 0.1 for 10 % of the training time, got 'a'"),
        (lambda p: sm.Tracker(p, budget=0), "budget above 0"),
        (lambda p: sm.Tracker(p, on_error="ignore"), "on_error"),
        (lambda p: sm.Tracker(p, sinks=[3]), "expected sinks with log"),
        (lambda p: sm.Tracker(p, "loss", batch_size=8), "expected a sharpness in a probe without a name"),
        (lambda p: sm.Probe("sharpness", samples=0), "samples of at least 1"),
        (lambda p: sm.Probe("sharpness", samples=2, data=()), "either samples or data"),
    ],
)
def test_wrong_use_is_told(make, message):
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    with pytest.raises((ValueError, TypeError), match=message):
        make(problem)


def test_one_probe_need_not_be_in_a_list():
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    tracker = sm.Tracker(problem, sm.Probe("loss", 5))
    tracker.step()
    assert [row.name for row in tracker.rows if row.name == "loss"] == ["loss"]


def test_probes_have_schedules_and_data_of_their_own():
    inputs, targets = data()
    model = model_of("plain")
    problem = sm.Problem(model, nn.CrossEntropyLoss(), (inputs, targets))
    probes = [
        sm.Probe("loss", every=2),
        sm.Probe("loss", every=3, samples=10, name="few"),
        sm.Probe("loss", every="epoch", data=(inputs[40:], targets[40:]), name="held out"),
    ]
    tracker = sm.Tracker(problem, probes)
    for step in range(6):
        tracker.step()
        if step == 4:
            tracker.end_epoch()
    assert [row.step for row in tracker.series("loss")] == [1, 2, 4, 6]
    assert [row.step for row in tracker.series("few/loss")] == [1, 3, 6]
    assert [row.step for row in tracker.series("held out/loss")] == [5]
    with torch.no_grad():
        few = nn.functional.cross_entropy(model(inputs[:10]), targets[:10])
        held = nn.functional.cross_entropy(model(inputs[40:]), targets[40:])
    assert tracker.series("few/loss")[-1].value == pytest.approx(float(few), rel=1e-5)
    assert tracker.series("held out/loss")[-1].value == pytest.approx(float(held), rel=1e-5)


def test_samples_of_a_probe_come_from_as_many_batches_as_it_takes():
    inputs, targets = data()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=10)
    model = model_of("plain")
    problem = sm.Problem(model, nn.CrossEntropyLoss(), loader)
    asked = {"few": 4, "even": 20, "odd": 27, "all": 200}
    tracker = sm.Tracker(problem, [sm.Probe("loss", samples=num, name=name) for name, num in asked.items()])
    tracker.step()
    for name, num in asked.items():
        with torch.no_grad():
            truth = nn.functional.cross_entropy(model(inputs[:num]), targets[:num])
        assert tracker.series(f"{name}/loss")[-1].value == pytest.approx(float(truth), rel=1e-5)
    ragged = sm.Problem(
        model,
        nn.CrossEntropyLoss(),
        [{"x": inputs, "y": targets, "scale": torch.tensor(1.0)}],
        forward=lambda model, batch: (model(batch["x"]), batch["y"]),
    )
    with pytest.raises(ValueError, match="samples can be counted"):
        sm.Tracker(ragged, [sm.Probe("loss", samples=3)])


@pytest.fixture
def broken_metric():
    def broken(bench):
        raise FloatingPointError("the bench is on fire")

    _REGISTRY["broken"] = Metric("broken", "b", "b", "", "", "", broken)
    yield
    del _REGISTRY["broken"]


def test_a_failing_probe_is_recorded_and_training_goes_on(tmp_path, broken_metric):
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    probes = [sm.Probe("broken", every=2), sm.Probe("loss", every=1)]
    with sm.Tracker(problem, probes, run=tmp_path) as tracker:
        for step in (1, 2, 3):
            told = pytest.warns(RuntimeWarning, match="bench is on fire") if step < 3 else nullcontext()
            with told:
                tracker.step()
    assert [row.step for row in tracker.series("loss")] == [1, 2, 3]
    events = RunReader(tmp_path).events()
    assert [(event["step"], event["name"]) for event in events] == [(1, "failed: broken"), (2, "failed: broken")]
    assert "FloatingPointError: the bench is on fire" in events[0]["text"]


def test_failures_of_two_named_probes_are_two_events(tmp_path, broken_metric):
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    probes = [sm.Probe("broken", name=name) for name in "ab"]
    with sm.Tracker(problem, probes, run=tmp_path) as tracker, pytest.warns(RuntimeWarning, match="on fire"):
        tracker.step()
    assert [event.name for event in tracker.events] == ["failed: a/broken", "failed: b/broken"]
    assert [event["name"] for event in RunReader(tmp_path).events()] == ["failed: a/broken", "failed: b/broken"]


def test_a_failing_probe_stops_the_training_if_asked_to_and_is_recorded(tmp_path, broken_metric):
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    with (
        pytest.raises(FloatingPointError, match="on fire"),
        sm.Tracker(problem, "broken", run=tmp_path, on_error="raise") as tracker,
    ):
        tracker.step()
    assert RunReader(tmp_path).events()[0]["name"] == "failed: broken"
    assert RunReader(tmp_path).state == "failed"


def test_rows_go_to_the_folder_and_to_every_sink(tmp_path):
    class Log:
        def __init__(self) -> None:
            self.seen: list = []

        def log(self, values: dict, step: int) -> None:
            self.seen.append((step, values))

    called: list = []
    sink = Log()
    options = {"metrics": ["sharpness", "impurity_quantiles"], "every": 4, "run": tmp_path / "run"}
    _, tracker = train("plain", options | {"sinks": [sink, lambda values, step: called.append((step, values))]})
    tracker.close()
    assert [step for step, _ in sink.seen] == [1, 4, 8, 12]
    assert sink.seen == called
    assert sink.seen[0][1]["sharpness/error"] > 0
    assert any(name.startswith("impurity_quantiles/") for name in sink.seen[0][1])
    table = sm.read_runs(tmp_path / "run", names=["sharpness"])
    assert table["value"].to_list() == [row.value for row in tracker.series("sharpness")]
    assert RunReader(tmp_path / "run").manifest["settings"]["tracking"]["conventions"]["loss"] == "CrossEntropyLoss"
    assert RunReader(tmp_path / "run").state == "done"


def test_two_trackers_in_one_folder_are_refused(tmp_path):
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    with sm.Tracker(problem, run=tmp_path), pytest.raises(OSError, match="somebody is writing"):
        sm.Tracker(problem, run=tmp_path)


@pytest.mark.usefixtures("followed")
def test_a_resumed_tracker_gives_the_rows_of_an_undisturbed_one(tmp_path):
    def run(model, optimizer, tracker, steps):
        inputs, targets = data()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            tracker.step(optimizer, loss.detach())

    def fresh(folder, resume=False):
        torch.manual_seed(1)
        model = model_of("plain")
        problem = sm.Problem(model, nn.CrossEntropyLoss(), data())
        writer = RunWriter(folder, seed=0, resume=resume)
        return model, torch.optim.Adam(model.parameters(), lr=0.02), sm.Tracker(problem, METRICS, 2, run=writer), writer

    *whole, writer = fresh(tmp_path / "whole")
    run(*whole, 12)
    writer.close()
    model, optimizer, tracker, writer = fresh(tmp_path / "broken")
    run(model, optimizer, tracker, 5)
    saved = [model.state_dict(), optimizer.state_dict(), tracker.state_dict()]
    saved = torch.load(_saved(saved, tmp_path / "checkpoint.pt"), weights_only=True)
    run(model, optimizer, tracker, 3)  # and then it dies
    writer.close("failed")
    model, optimizer, tracker, writer = fresh(tmp_path / "broken", resume=True)
    for part, state in zip((model, optimizer, tracker), saved, strict=True):
        part.load_state_dict(state)
    writer.rewind(5)
    run(model, optimizer, tracker, 7)
    writer.close()
    clock = {"time", "seconds"}
    tables = [sm.read_runs(tmp_path / name).drop(clock).sort("step", "name", "part") for name in ("whole", "broken")]
    one, other = (table.filter(table["name"] != "tracking_overhead") for table in tables)
    assert one.equals(other)
    with pytest.raises(ValueError, match="state of 1 probes"):
        tracker.load_state_dict(tracker.state_dict() | {"probes": []})


def _saved(content, path):
    torch.save(content, path)
    return path


def test_a_step_at_which_nothing_is_measured_calls_next_to_nothing():
    """What it costs in microseconds is in the benchmarks."""
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    tracker = sm.Tracker(problem, ["loss", sm.Probe("sharpness", "log")], every=10**9, budget=0.1)
    loss, calls = torch.tensor(1.0), []
    tracker.step(optimizer, loss, step=10**6 + 1)
    sys.setprofile(lambda frame, kind, argument: calls.append(kind))
    try:
        tracker.step(optimizer, loss, step=10**6 + 1)
    finally:
        sys.setprofile(None)
    assert sum(kind in ("call", "c_call") for kind in calls) < 40


@pytest.fixture
def costly(monkeypatch):
    """Makes metrics that take the seconds they are told, one after the other, on a clock that can be moved."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("spherometer.training.tracking.tracker.time", clock)
    monkeypatch.setattr("spherometer.training.tracking.clock.time", clock)

    def make(name, *seconds):
        costs = cycle(seconds)

        def measured(bench):
            now[0] += next(costs)
            return sm.Estimate(1.0)

        monkeypatch.setitem(_REGISTRY, name, Metric(name, "", "", "", "", "", measured))

    return make, now


@pytest.mark.parametrize("costs", [{"cheap": 0.05}, {"cheap": 0.002, "dear": 0.5}])
def test_a_budget_stretches_the_schedule(costly, costs):
    make, now = costly
    for name, seconds in costs.items():
        make(name, seconds)
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    tracker = sm.Tracker(problem, [sm.Probe(name, every=1) for name in costs], budget=0.1)
    for _ in range(3000):
        now[0] += 0.01
        tracker.step()
    assert tracker.overhead == pytest.approx(0.1, abs=0.02)
    counts = [len(tracker.series(name)) for name in costs]
    assert min(counts) >= 5
    assert max(counts) < 1500


def test_a_budget_is_kept_where_costs_vary(costly):
    """A warm measurement is cheap until one has to search anew: the cheap ones do not foretell the dear one."""
    make, now = costly
    make("uneven", 1.0, 0.3, 0.3, 1.0)
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    tracker = sm.Tracker(problem, sm.Probe("uneven", every=1), budget=0.1)
    shares = []
    for _ in range(6000):
        now[0] += 0.01
        tracker.step()
        shares.append(tracker.overhead)
    assert max(shares[3000:]) < 0.11
    assert min(shares[3000:]) > 0.07


def test_callbacks_may_run_without_gradients_and_in_inference_mode():
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    tracker = sm.Tracker(problem, METRICS, every=1, on_error="raise")
    with torch.no_grad():
        tracker.step(optimizer)
    with torch.inference_mode():
        tracker.step(optimizer)
    tracker.step(optimizer)
    assert len(tracker.series("sharpness")) == 3


def test_a_full_disk_does_not_stop_the_training(tmp_path):
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    with sm.Tracker(problem, "loss", every=1, run=tmp_path) as tracker:
        connection = tracker._outlets.run._connection
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(300):
                tracker.step()
        assert any("the disk is full" in str(one.message) for one in told)
        connection.execute("PRAGMA max_page_count = 1000000")
    assert len(tracker.series("loss")) == 300
    assert sm.read_runs(tmp_path, names=["loss"]).height == 300


def test_a_full_disk_under_somebody_elses_writer_does_not_stop_the_training(tmp_path):
    def go(tracker):
        for _ in range(300):
            tracker.step(loss=1.0)

    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    with RunWriter(tmp_path) as writer:  # raises
        tracker, connection = sm.Tracker(problem, "loss", every=1, run=writer), writer._connection
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.warns(RuntimeWarning, match="the disk is full"):
            go(tracker)
        strict = sm.Tracker(problem, "loss", every=1, run=writer, on_error="raise")
        with pytest.raises(OSError, match="the disk is full"):
            go(strict)
        connection.execute("PRAGMA max_page_count = 1000000")
    assert len(tracker.series("loss")) == 300
    assert any("the disk is full" in event.text for event in tracker.events)


def test_a_loss_with_history_is_taken_without_a_warning():
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    tracker = sm.Tracker(problem, ["loss"], every=1)
    torch.set_warn_always(True)  # else torch warns once in a process, perhaps before this test
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tracker.step(loss=torch.tensor(1.5, requires_grad=True) * 2)
    finally:
        torch.set_warn_always(False)
    assert [row.value for row in tracker.series("training_loss")] == [3.0]


def test_measure_takes_one_name_as_the_tracker_does():
    problem = sm.Problem(model_of("plain"), nn.CrossEntropyLoss(), data())
    assert list(sm.measure(problem, "loss")) == ["loss"]
