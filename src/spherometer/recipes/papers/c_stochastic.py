"""Paper C, Setting 1: the runs with small batches that several figures share (C-F17 .. F20, F24, F25)."""

from __future__ import annotations

from typing import Any

from spherometer.recipes.papers.c_runs import DESCENT_SAMPLES, SCALARS, descent_run, plain_run
from spherometer.recipes.recipe import Scale, at_scale
from spherometer.recipes.results import Run

SAMPLES = {"smoke": 100, "laptop": DESCENT_SAMPLES, "paper": 50_000}
LONG = ("vgg11", "vgg11-cifar100")  # shown over epochs, one point for each


def stochastic_run(scale: Scale, network: str, rate: float, batch: int, seed: int) -> Run:
    """SGD with everything C's App G and H draw; `batch` of all samples is gradient descent, shared with its figures."""
    labels = {"network": network, "rate": rate, "batch": batch, "seed": seed}
    if batch >= SAMPLES[scale]:
        return Run(labels, descent_run(scale, network, rate, seed).job)
    length = _epochs(scale, batch) if network in LONG else _steps(scale, network)
    measured = {"track": list(SCALARS), **length}
    return plain_run(scale, network, labels, rate=rate, batch=batch, num=DESCENT_SAMPLES, **measured)


def _epochs(scale: Scale, batch: int) -> dict[str, Any]:
    """100 epochs at paper scale, every 97, 388 or 1552 steps for batches of 512, 128 or 32 (C Fig 19)."""
    if scale == "paper":
        every = 97 * 512 // batch
        return {"steps": 100 * every, "track_every": every}
    every = -(-SAMPLES[scale] // batch)
    return {"steps": at_scale(scale, smoke=5, laptop=40, paper=100) * every, "track_every": every}


def _steps(scale: Scale, network: str) -> dict[str, Any]:
    """The first 500 steps of 6CNN (C Fig 18), 1000 of ResNet-20 (C Fig 17)."""
    paper = {"cnn6": 500, "resnet20": 1000}[network]
    steps = at_scale(scale, smoke=20, laptop=paper // 2, paper=paper)
    return {"steps": steps, "track_every": at_scale(scale, smoke=2, laptop=10, paper=1)}
