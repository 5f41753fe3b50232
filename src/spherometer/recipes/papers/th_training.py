"""Our evaluation of paper A in training: the slope that a fit forces (TH-4), the variation of the Jacobian (TH-5)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from spherometer.figures.panels import Panel, Panels, over_seeds
from spherometer.recipes.claims import Claim, Inequality
from spherometer.recipes.ends import label_panel
from spherometer.recipes.margins import above, every, falling_throughout, rising_throughout
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run, training_run
from spherometer.records import RunWriter
from spherometer.sweeps import Job
from spherometer.theory import jacobian_variation
from spherometer.training.assembly import assemble
from spherometer.training.evaluation import evaluate
from spherometer.training.settings import Settings
from spherometer.zoo import random_subset

BOUND, JACOBIAN = "sharpening_bound", "softmax_input_jacobian_norm"
RADIUS = 0.25  # of the balls; two digits are about 2 apart


@recipe(
    "TH-4",
    "fitting forces a network to be steep",
    finding="the lower bound on ‖J‖ + V of Theorem 5.1 climbs as the loss falls, and the Jacobian norm with it",
    minutes=1,
)
def forced_slope(scale: Scale) -> Experiment:
    """The sharpening bound and the softmaxed Jacobian norm over gradient descent; A Thm 5.1, Q74."""
    seeds = range(at_scale(scale, smoke=2, laptop=5, paper=5))
    return Experiment(
        runs=[_tracked(scale, seed) for seed in seeds],
        claims=[
            Inequality(
                "printed ≤ pairwise ≤ steepest secant at every measurement",
                _ordered,
                error=1e-6,
                unit="output / input",
                source="TH-4; A Thm 5.1, T47",
            ),
            Claim(
                "the bound climbs during training",
                lambda results: _climb(results.curve(BOUND, part="pairwise")),
                unit="output / input",
                source="TH-4; A Thm 5.1",
            ),
            Claim(
                "the Jacobian norm climbs during training",
                lambda results: _climb(results.curve(JACOBIAN)),
                unit="output / input",
                source="TH-4; A Sec 5",
            ),
        ],
        figure=_slope_figure,
        departures=["our own: paper A plots the Jacobian norm, not its lower bound; digits-mlp by full-batch descent"],
    )


@recipe(
    "TH-5",
    "what the Jacobian norm leaves out",
    finding="where ‖J‖ falls with the batch size and the gap rises, the variation V of the Jacobian explains it (G6)",
    minutes=2,
)
def variation(scale: Scale) -> Experiment:
    """V on balls around training samples from both sides, for networks trained with three batch sizes; Eq 5, gap G6."""
    seeds = range(at_scale(scale, smoke=2, laptop=3, paper=5))
    batches = at_scale(scale, smoke=(16, 64), laptop=(16, 64, 256), paper=(16, 64, 256))
    return Experiment(
        runs=[_trained(scale, batch, seed) for batch in batches for seed in seeds],
        claims=[
            Inequality(
                "what was met is at most what is certified, for every network",
                lambda results: np.array(results.final("variation_upper")) - np.array(results.final("variation_lower")),
                source="TH-5; Q72",
            ),
            Claim(
                "‖J‖ falls with the batch size",
                partial(falling_throughout, name="jacobian", over="batch"),
                unit="ln of the factor at the weakest step",
                source="TH-5; A Sec 6, gap G6",
            ),
            Claim(
                "the generalisation gap is larger with the largest batch than with the smallest",
                partial(above, name="gap", here={"batch": batches[-1]}, there={"batch": batches[0]}),
                unit="loss",
                source="TH-5; gap G6",
            ),
            Claim(
                "V rises with the batch size",
                partial(rising_throughout, name="variation_lower", over="batch"),
                unit="ln of the factor at the weakest step",
                source="TH-5; gap G6",
            ),
        ],
        figure=_variation_figure,
        departures=[
            "our own: paper A names V as the reason and does not measure it",
            f"digits-mlp instead of ResNet-18, learning rate 0.1, until the loss is 0.01; balls of radius {RADIUS:g}",
        ],
    )


def perform(settings: Mapping[str, Any], folder: Path) -> None:
    """The run function of TH-5: train, then V from both sides, the largest over samples."""
    parts = assemble(Settings.of(settings["training"]))
    for _ in parts.training.run(parts.num_steps):
        pass
    model: nn.Module = parts.training.model.eval()
    chosen = random_subset(parts.train, settings["num"], seed=0)
    found = jacobian_variation(model, chosen.inputs, RADIUS)
    assert found.upper is not None
    losses = [evaluate(model, part.tensors, parts.loss).loss for part in (parts.train, parts.test)]
    values = {
        "variation_lower": float(found.lower.max()),
        "variation_upper": float(found.upper.max()),
        "jacobian": float(found.jacobians.max()),
        "gap": losses[1] - losses[0],
    }
    with RunWriter(folder, settings=settings, seed=parts.settings.loop.seed, title="variation", resume=True) as run:
        run.write(parts.num_steps, values)


def _tracked(scale: Scale, seed: int) -> Run:
    return training_run(
        {"seed": seed},
        data={"data": "digits", "num": at_scale(scale, smoke=100, laptop=500, paper=1437)},
        model={"model": "digits-mlp"},
        method={"learning_rate": 0.5},
        loop={"steps": at_scale(scale, smoke=40, laptop=600, paper=5000)},
        measurement={
            "track": [BOUND, JACOBIAN],
            "track_every": at_scale(scale, smoke=10, laptop=20, paper=50),
            "track_num": at_scale(scale, smoke=50, laptop=300, paper=1000),
        },
    )


def _trained(scale: Scale, batch: int, seed: int) -> Run:
    training = {
        "data": {"data": "digits", "num": at_scale(scale, smoke=100, laptop=1000, paper=1437)},
        "model": {"model": "digits-mlp"},
        "loop": {
            "steps": at_scale(scale, smoke=100, laptop=6000, paper=50_000),
            "stop_loss": 0.01,  # of all, as in A B.2 (L34)
            "stop_every": 20,
            "batch_size": batch,
            "seed": seed,
        },
    }
    settings = {"training": training, "num": at_scale(scale, smoke=5, laptop=50, paper=500)}
    return Run({"batch": batch, "seed": seed}, Job(f"{__name__}:perform", settings, f"batch {batch}, seed {seed}"))


def _ordered(results: Results) -> list[float]:
    names = ("printed", "pairwise", "secant")
    runs = zip(*(results.curve(BOUND, part=name) for name in names), strict=True)
    return every(np.diff([values for _, values in run], axis=0).ravel() for run in runs)


def _climb(curves: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    return [float(values[-1] - values[0]) for _, values in curves]


def _slope_figure(results: Results) -> Panels:
    bounds = [("pairwise", "Theorem 5.1, pairwise", "solid"), ("secant", "steepest secant", "dashed")]
    series = [over_seeds(results.curve(BOUND, part=part), label, style=style) for part, label, style in bounds]
    series.append(over_seeds(results.curve(JACOBIAN), "max ‖J‖, softmaxed"))
    losses = [over_seeds(results.curve("train_loss"), "training loss")]
    return Panels(
        [
            Panel("slopes", "iteration", "output / input", series),
            Panel("training loss", "iteration", "loss", losses, log_y=True),
        ],
        columns=2,
        caption="How steep the fit forces the softmaxed network to be, and how steep it is; mean over seeds.",
    )


def _variation_figure(results: Results) -> Panels:
    lines = (("V, certified", "variation_upper"), ("V, met", "variation_lower"), ("‖J‖", "jacobian"), ("gap", "gap"))
    panels = [
        label_panel(results, title, name, "batch", "batch size", [("", {})], log_y=title.startswith("V"))
        for title, name in lines
    ]
    return Panels(panels, columns=2, caption="Largest over training samples; mean and standard deviation over seeds.")
