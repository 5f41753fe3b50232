"""A probe with batch norm in another mode than its tracker's problem."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spherometer as sm
from spherometer.training.tracking import Probe, Tracker


def test_a_probe_may_use_the_statistics_of_its_batch():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    data = torch.randn(12, 4, generator=generator).double() + 2, torch.randint(3, (12,), generator=generator)
    problem = sm.Problem(model, nn.CrossEntropyLoss(), data)
    tracker = Tracker(problem, ["sharpness", Probe("sharpness", 1, batchnorm="train", name="batch")], every=1)
    tracker.step()
    (running,), (batch,) = tracker.series("sharpness"), tracker.series("batch/sharpness")
    for row, mode in ((running, "eval"), (batch, "train")):
        truth = sm.measure(sm.Problem(model, nn.CrossEntropyLoss(), data, batchnorm=mode), "sharpness")
        assert row.value == pytest.approx(float(truth["sharpness"]), rel=0.02)
    assert abs(batch.value / running.value - 1) > 0.1
