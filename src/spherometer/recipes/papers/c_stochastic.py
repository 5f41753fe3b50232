"""Paper C, Setting 1: runs with small batches that several figures share (C-F17 .. F20, F24, F25), and ρ_B of SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spherometer.recipes.papers.c_curves import scaled
from spherometer.recipes.papers.c_runs import DESCENT_SAMPLES, SCALARS, descent_run, descent_steps, plain_run
from spherometer.recipes.recipe import Scale, at_scale
from spherometer.recipes.results import Curve, Results, Run

SAMPLES = {"smoke": 100, "laptop": DESCENT_SAMPLES, "paper": 50_000}
LONG = ("vgg11", "vgg11-cifar100")  # shown over epochs, one point for each


def stochastic_run(scale: Scale, network: str, rate: float, batch: int, seed: int) -> Run:
    """SGD with everything C's App G and H draw; `batch` of all samples is gradient descent, shared with its figures."""
    labels = {"network": network, "rate": rate, "batch": batch, "seed": seed}
    if batch >= SAMPLES[scale]:
        return Run(labels, descent_run(scale, network, rate, seed).job)
    length = _epochs(scale, batch) if network in LONG else _steps(scale, network)
    measured = {"track": [*SCALARS, ratio_request(scale, batch)], **length}
    return plain_run(scale, network, labels, rate=rate, batch=batch, num=DESCENT_SAMPLES, **measured)


def ratio_request(scale: Scale, batch: int) -> str:
    """ρ_B as it is tracked; at paper scale on a part of the samples, where B of all of them is as with replacement."""
    return f"gradient_ratio:batch_size={batch}" + (":replacement=true" if scale == "paper" else "")


def thresholds(results: Results, scale: Scale, labels: Mapping[str, Any]) -> list[Curve]:
    """2ρ_B/η over the steps, below which a step of SGD lowers the expected loss (C Prop 5.2, Q50), for each seed."""
    curves = results.curve(ratio_request(scale, labels["batch"]), **labels)
    return [scaled(curve, 2 / labels["rate"]) for curve in curves]


def lengths(scale: Scale, network: str, sizes: Sequence[int]) -> list[str]:
    """How long the runs are, and on what ρ_B is measured, where that is not the paper's."""
    if scale == "smoke":
        return []
    said = {
        "cnn6": {"laptop": "the first 250 steps instead of 500, measured at every tenth"},
        "resnet20": {"laptop": "the first 500 steps instead of 1,000, measured at every tenth"},
        "vgg11": {"laptop": "40 epochs instead of 100, measured once in each"},
        "vgg11-cifar100": {
            "laptop": "40 epochs, measured once in each: how many are shown is not in the text",
            "paper": "100 epochs, measured once in each: how many are shown is not in the text",
        },
    }[network].get(scale)
    long = f"gradient descent for {descent_steps(scale, network):,} steps, batches for as many epochs as in C-F19"
    whole = [f"{long}: not in the text"] if SAMPLES[scale] in sizes else []
    return [*([said] if said else []), *whole, *ratio_said(scale)]


def ratio_said(scale: Scale) -> list[str]:
    """On what ρ_B is measured, where that is not all samples."""
    return ["ρ_B by the closed form with replacement: on 5,000 of 50,000 samples"] if scale == "paper" else []


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
