"""Paper C: a run that ends with m of each sample on the planes of two class means (C-F9 left, C-F31)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spherometer.metrics.class_means import ClassMeans
from spherometer.metrics.measure import bench_for
from spherometer.metrics.registry import parse
from spherometer.problems import Problem
from spherometer.recipes.papers.c_geometry import geometry_settings
from spherometer.recipes.papers.c_runs import plain_run
from spherometer.recipes.recipe import Scale
from spherometer.recipes.results import Results, Run
from spherometer.records import RunReader, RunWriter, read_tensors
from spherometer.sweeps import Job
from spherometer.training.assembly import assemble
from spherometer.training.runs import WEIGHTS, train_in_folder
from spherometer.training.settings import Settings
from spherometer.zoo import random_subset

PAIRS = ((5, 1), (0, 8), (1, 9), (5, 3), (4, 2))  # of C Figs 9 and 31
SAMPLES = {"smoke": 50, "laptop": 500, "paper": 5000}


def plane_run(scale: Scale, network: str, step: int) -> Run:
    """The training of the geometry runs' first seed up to a step, then the coordinates of m."""
    options = {**geometry_settings(scale, network), "steps": step}
    training = plain_run(scale, network, {"seed": 0}, **options, track_num=None).job.settings
    settings = {"training": training, "pairs": [list(pair) for pair in PAIRS], "samples": SAMPLES[scale]}
    return Run({"plane": step, "seed": 0}, Job(f"{__name__}:perform", settings, f"class planes at step {step}"))


def perform(settings: Mapping[str, Any], folder: Path) -> None:
    """Train, then write an array (n, 3) for each pair of classes: two coordinates of m and the predicted class."""
    wanted = Settings.of(settings["training"])
    with RunWriter(folder, settings=settings, seed=wanted.loop.seed, resume=RunReader(folder).exists) as run:
        train_in_folder(wanted, folder / "training", show=False)
        parts = assemble(wanted)
        model = parts.training.model
        trained = read_tensors(folder / "training" / WEIGHTS)
        model.load_state_dict({name: torch.from_numpy(block) for name, block in trained.items()})
        data = random_subset(parts.train, min(settings["samples"], len(parts.train)), seed=wanted.loop.seed)
        problem = Problem(model, parts.loss, data.tensors)
        means = bench_for(problem, {"class_mean_cosines": parse("class_mean_cosines")}).shared(ClassMeans)
        arrays = {f"plane {one}-{other}": on_plane(means, one, other) for one, other in settings["pairs"]}
        run.write(wanted.loop.steps or 0, arrays=arrays)


def on_plane(means: ClassMeans, one: int, other: int) -> np.ndarray:
    """Coordinates of m for the samples predicted as either class, in the plane of the two means: (n, 3).

    The first axis is the mean of `one`, the second what is left of the mean of `other`; ⟨m, e⟩ = √λ⁽¹⁾ q⁽¹⁾'(J e).
    """
    basis, _ = torch.linalg.qr(means.means[:, [one, other]].double())
    basis = basis * torch.where((basis * means.means[:, [one, other]]).sum(0) < 0, -1.0, 1.0)
    logits = means.logits
    value, vector = logits.top
    weights = value.sqrt()[:, None] * vector
    columns = [
        (weights * (logits.jacobian @ axis.to(logits.jacobian.dtype)).view_as(weights).double()).sum(1)
        for axis in basis.unbind(1)
    ]
    table = torch.stack([*columns, means.predicted.double()], 1)
    kept = (means.predicted == one) | (means.predicted == other)
    return table[kept].cpu().numpy()


def coordinates(results: Results, pair: tuple[int, int]) -> np.ndarray:
    """What `perform` wrote for a pair of classes."""
    planes = [run for run in results.runs if "plane" in run.labels]
    (found,) = results.arrays(f"plane {pair[0]}-{pair[1]}", **planes[0].labels)
    return next(iter(found.values())) if found else np.zeros((0, 3))
