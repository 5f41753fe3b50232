"""What a training's settings ask to be measured: a tracker on the way, a set of quantities at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from spherometer.estimators import spectral_density
from spherometer.metrics import measure
from spherometer.operators import Hessian
from spherometer.problems import Problem
from spherometer.records import RunWriter
from spherometer.training.assembly import Assembly
from spherometer.training.tracking import Every, Probe, Schedule, Tracker
from spherometer.training.tracking.schedules import Within
from spherometer.values import Estimate
from spherometer.zoo import random_subset

Mode = Literal["eval", "train"]  # of batch norm
SPECTRUM_VECTORS = 4
BATCH_STATISTICS = "batch"  # before the names of rows with batch norm in training mode
FULL_PASS = 1000  # samples in a batch of a measurement on more than that


def try_options(parts: Assembly) -> None:
    """Measure what is asked for with options once, so that a wrong one is told before anything is written."""
    wanted = parts.settings.measurement
    if any(":" in name for name in (*wanted.track, *wanted.track_batch_statistics, *wanted.track_example)):
        tracker = tracker_of(parts, None)
        assert tracker is not None
        tracker.step(parts.training.optimizer, step=0)
    _measured_at_the_end(parts, parts.training.model, lambda name: ":" in name)


def tracker_of(parts: Assembly, run: RunWriter | None) -> Tracker | None:
    """The tracker that the settings ask for, writing into the run; None where they ask for nothing."""
    wanted = parts.settings.measurement
    asked = (*wanted.track, *wanted.track_batch_statistics, *wanted.track_example)
    if not asked and wanted.trajectory is None:
        return None
    schedule: Schedule = Every(wanted.track_every)
    if wanted.track_within:
        schedule = Within(schedule, wanted.track_within)
    problem = _problem(parts, parts.training.model, wanted.track_num, "eval")
    probes = [Probe(wanted.track or ("loss",), schedule)]
    if wanted.track_batch_statistics:
        whole = _problem(parts, parts.training.model, wanted.track_num, "train").data
        probes.append(
            Probe(wanted.track_batch_statistics, schedule, data=whole, batchnorm="train", name=BATCH_STATISTICS)
        )
    if wanted.track_example:
        one = tuple(part[:1].to(problem.device) for part in parts.train.tensors)
        probes.append(Probe(wanted.track_example, schedule, data=one, name="example"))
    return Tracker(
        problem, probes, run=run, trajectory=wanted.trajectory, on_error="raise", seed=parts.settings.loop.seed
    )


def final_rows(parts: Assembly, model: nn.Module) -> tuple[dict[str, Estimate], dict[str, Any]]:
    """Quantities of the trained model by name, and the quadrature of its Hessian's spectrum where it is wanted."""
    wanted, seed = parts.settings.measurement, parts.settings.loop.seed
    rows = _measured_at_the_end(parts, model)
    arrays: dict[str, Any] = {}
    modes: tuple[tuple[str, int, Mode], ...] = (
        ("", wanted.spectrum, "eval"),
        ("batch_", wanted.batch_spectrum, "train"),
    )
    for prefix, num_steps, mode in modes:
        if num_steps:
            matrix = Hessian(_problem(parts, model, wanted.measure_num, mode))
            density = spectral_density(matrix, num_vectors=SPECTRUM_VECTORS, num_steps=num_steps, seed=seed)
            arrays |= {f"{prefix}spectrum_nodes": density.nodes, f"{prefix}spectrum_weights": density.weights}
    return rows, arrays


def _measured_at_the_end(
    parts: Assembly, model: nn.Module, chosen: Callable[[str], bool] = lambda _: True
) -> dict[str, Estimate]:
    """Estimates by name, those on batch statistics with a word before it; all, or those whose names are chosen."""
    wanted, rows = parts.settings.measurement, dict[str, Estimate]()
    modes: tuple[tuple[str, tuple[str, ...], Mode], ...] = (
        ("", wanted.measure, "eval"),
        ("batch_", wanted.measure_batch_statistics, "train"),
    )
    for prefix, asked, mode in modes:
        if names := list(filter(chosen, asked)):
            problem = _problem(parts, model, wanted.measure_num, mode)
            found = measure(problem, names, seed=parts.settings.loop.seed)
            rows |= {f"{prefix}{name}": entry.estimate for name, entry in found.items()}
    return rows


def _problem(parts: Assembly, model: nn.Module, num: int | None, batchnorm: Mode) -> Problem:
    """The training loss on clean training samples: all, or so many drawn by the seed."""
    data = parts.train
    if num is not None and num < len(data):
        data = random_subset(data, num, seed=parts.settings.loop.seed)
    device = next(model.parameters()).device
    inputs, targets = (part.to(device) for part in data.tensors)
    if batchnorm == "train" or len(inputs) <= FULL_PASS:
        return Problem(model, parts.loss, (inputs, targets), batchnorm=batchnorm)
    batches = list(zip(torch.split(inputs, FULL_PASS), torch.split(targets, FULL_PASS), strict=True))
    return Problem(model, parts.loss, batches, batchnorm=batchnorm)
