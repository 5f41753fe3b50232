"""The tracker in other people's loops gives what it gives in a plain one."""

from __future__ import annotations

import csv
import logging
from types import SimpleNamespace

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


def micro_losses(num: int, size: int) -> list[float]:
    """Of the first `num` pieces of so many samples, at the first weights."""
    model, (inputs, targets) = fresh_model(), data()
    pieces = list(zip(inputs.split(size), targets.split(size), strict=True))[:num]
    return [float(nn.functional.cross_entropy(model(one), other).detach()) for one, other in pieces]


def test_ignite_counts_updates_of_accumulated_gradients_and_tells_their_mean_loss():
    from ignite.engine import create_supervised_trainer

    from spherometer.integrations.ignite import attach_tracker

    model, pair = fresh_model(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    engine = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), gradient_accumulation_steps=2)
    tracker = sm.Tracker(sm.Problem(model, nn.CrossEntropyLoss(), pair), every=2, rtol=1e-4)
    attach_tracker(tracker, engine, optimizer)
    engine.run(DataLoader(TensorDataset(*pair), batch_size=8), max_epochs=4)
    assert tracker.number == 8
    assert {row.step: row.value for row in tracker.series("sharpness")} == pytest.approx(plain_rows(), rel=5e-4)
    assert tracker.series("training_loss")[0].value == pytest.approx(sum(micro_losses(2, 8)) / 2, rel=1e-6)


def test_ignite_hears_of_every_update_an_engine_makes_and_of_none_it_does_not():
    from ignite.engine import Engine

    from spherometer.integrations.ignite import attach_tracker

    model = fresh_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(engine, _):
        for _ in range((2, 0, 1)[engine.state.iteration - 1]):
            optimizer.step()
        return {"no": "number"}

    engine, tracker = Engine(update), sm.Tracker(sm.Problem(model, nn.CrossEntropyLoss(), data()), every=1)
    attach_tracker(tracker, engine, optimizer)
    engine.run([0, 0, 0], max_epochs=1)
    assert [row.step for row in tracker.series("sharpness")] == [2, 3]
    optimizer.step()  # after the run: nobody listens
    assert tracker.number == 3


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
        told = tracker.series("training_loss")[0].value
        assert told == pytest.approx(sum(micro_losses(accumulated, size)) / accumulated, rel=1e-6)
    other = LightningTracker(sm.Tracker(problem))
    other.load_state_dict(callback.state_dict())
    assert other.tracker.number == 8
    resumed = SimpleNamespace(global_step=8, accumulate_grad_batches=2, optimizers=[])
    other.on_train_start(resumed, module)
    other.on_train_batch_end(resumed, module, {"loss": torch.tensor(1.0)}, None, 0)  # half of the next update
    assert not other.tracker.rows


def hf_trainer(folder, tracker, model, num_steps):
    from spherometer.integrations.huggingface import TrainerTracker

    # isort: split
    from transformers import Trainer, TrainingArguments

    class Plain(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return nn.functional.cross_entropy(model(inputs["x"]), inputs["labels"])

    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=num_steps, per_device_train_batch_size=16, learning_rate=0.2, optim="sgd",
        lr_scheduler_type="constant", max_grad_norm=0.0, logging_steps=1, save_steps=4, report_to=[], use_cpu=True,
        disable_tqdm=True, remove_unused_columns=False, save_total_limit=1,
    )  # fmt: skip
    rows = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
    return Plain(model=model, args=arguments, train_dataset=rows, callbacks=[TrainerTracker(tracker)])


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_steps_by_updates_and_resumes_with_the_tracker_it_had(tmp_path):
    def run(folder, num_steps, resume=False):
        model = fresh_model()
        probes = ["sharpness", sm.Probe("impurity", every="epoch")]
        problem = sm.Problem(model, nn.CrossEntropyLoss(), data())
        tracker = sm.Tracker(problem, probes, every=2, rtol=1e-4, on_error="raise")
        hf_trainer(folder, tracker, model, num_steps).train(resume_from_checkpoint=resume)
        return tracker

    whole = run(tmp_path / "whole", 8)
    assert [row.step for row in whole.series("sharpness")] == [1, 2, 4, 6, 8]
    assert [row.step for row in whole.series("impurity")] == [2, 4, 6, 8]
    assert whole.series("stability_threshold")[-1].value == pytest.approx(10)
    assert whole.series("training_loss")
    run(tmp_path / "broken", 4)
    resumed = run(tmp_path / "broken", 8, resume=True)
    expected = [(row.step, row.value, row.products) for row in whole.series("sharpness") if row.step > 4]
    assert [(row.step, row.value, row.products) for row in resumed.series("sharpness")] == expected
    assert resumed.number == 8


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
