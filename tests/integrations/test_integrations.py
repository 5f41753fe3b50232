"""The tracker in other people's loops gives what it gives in a plain one."""

from __future__ import annotations

import csv
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spherometer as sm
from spherometer.integrations import CSVSink, MLflowSink, TensorBoardSink, WandbSink
from spherometer.records import RunReader


def data():
    stream = torch.Generator().manual_seed(0)
    return torch.randn(32, 4, generator=stream), torch.randint(0, 3, (32,), generator=stream)


def fresh_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def plain_rows() -> dict[int, float]:
    """Sharpness by step of four epochs of plain SGD with batches of 16, measured every second step."""
    model, (inputs, targets) = fresh_model(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    tracker = sm.Tracker(sm.Problem(model, nn.CrossEntropyLoss(), (inputs, targets)), every=2, rtol=1e-4)
    for _ in range(4):
        for start in (0, 16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[start : start + 16]), targets[start : start + 16]).backward()
            optimizer.step()
            tracker.step(optimizer)
    return {row.step: row.value for row in tracker.series("sharpness")}


def test_ignite_gives_the_rows_of_a_plain_loop(tmp_path):
    from ignite.engine import Engine

    from spherometer.integrations.ignite import attach_tracker

    model, pair = fresh_model(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    def update(_, batch):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    engine = Engine(update)
    probes = ["sharpness", sm.Probe("impurity", every="epoch")]
    tracker = sm.Tracker(sm.Problem(model, nn.CrossEntropyLoss(), pair), probes, every=2, rtol=1e-4, run=tmp_path)
    attach_tracker(tracker, engine, optimizer)
    engine.run(DataLoader(TensorDataset(*pair), batch_size=16), max_epochs=4)
    assert {row.step: row.value for row in tracker.series("sharpness")} == pytest.approx(plain_rows(), rel=5e-4)
    assert [row.step for row in tracker.series("impurity")] == [2, 4, 6, 8]
    assert len(tracker.series("training_loss")) > 0
    assert RunReader(tmp_path).state == "done"


def test_an_exception_in_ignite_ends_the_run_as_failed(tmp_path):
    from ignite.engine import Engine

    from spherometer.integrations.ignite import attach_tracker

    def update(*_):
        raise RuntimeError("no more")

    model = fresh_model()
    tracker = sm.Tracker(sm.Problem(model, nn.CrossEntropyLoss(), data()), run=tmp_path)
    engine = Engine(update)
    attach_tracker(tracker, engine, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="no more"):
        engine.run([0], max_epochs=1)
    assert RunReader(tmp_path).state == "failed"


@pytest.mark.filterwarnings("ignore")
def test_lightning_gives_the_rows_of_a_plain_loop_also_with_accumulated_gradients(tmp_path):
    from spherometer.integrations.lightning import LightningTracker

    # isort: split
    from lightning.pytorch import LightningModule, Trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = fresh_model()

        def forward(self, inputs):
            return self.network(inputs)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.2)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    for size, accumulated in ((16, 1), (8, 2)):
        module, pair = Module(), data()
        problem = sm.Problem(module, nn.CrossEntropyLoss(), pair)
        tracker = sm.Tracker(problem, every=2, rtol=1e-4, run=tmp_path / str(size), on_error="raise")
        callback = LightningTracker(tracker)
        trainer = Trainer(
            max_epochs=4, callbacks=[callback], accumulate_grad_batches=accumulated, accelerator="cpu",
            enable_model_summary=False, **quiet,
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(*pair), batch_size=size))
        assert {row.step: row.value for row in tracker.series("sharpness")} == pytest.approx(plain_rows(), rel=5e-4)
        assert tracker.series("stability_threshold")[-1].value == pytest.approx(10)
        assert RunReader(tmp_path / str(size)).state == "done"
    other = LightningTracker(sm.Tracker(problem))
    other.load_state_dict(callback.state_dict())
    assert other.tracker.number == 8


def test_tensorboard_holds_the_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path)
    sink.log({"sharpness": 2.0, "sharpness/error": 0.1}, 10)
    sink.log({"sharpness": 3.0}, 20)
    sink.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(entry.step, entry.value) for entry in found.Scalars("sharpness")] == [(10, 2.0), (20, 3.0)]


def test_csv_is_continued(tmp_path):
    for step in (1, 2):
        CSVSink(tmp_path / "deep" / "log.csv").log({"loss": 0.5, "a,b": 1.0}, step)
    with (tmp_path / "deep" / "log.csv").open(newline="") as stream:
        lines = list(csv.reader(stream))
    assert lines == [
        ["step", "name", "value"],
        *[[str(k), n, v] for k in (1, 2) for n, v in (("loss", "0.5"), ("a,b", "1.0"))],
    ]


def test_wandb_and_mlflow_get_what_their_interfaces_take(monkeypatch):
    told = []

    class Stand:
        def log(self, values):
            told.append(values)

        def log_metrics(self, values, step):
            told.append((values, step))

    WandbSink(Stand()).log({"loss": 1.0}, 5)
    MLflowSink(Stand()).log({"top:num=2/λ1": 1.0}, 5)
    assert told == [{"loss": 1.0, "tracker_step": 5}, ({"top_num_2/λ1": 1.0}, 5)]
    for name, sink in (("wandb", WandbSink), ("mlflow", MLflowSink)):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(ImportError, match=f"pip install {name}"):
            sink()
