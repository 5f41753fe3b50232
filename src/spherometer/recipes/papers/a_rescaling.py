"""Dinh's rescaling moves sharpness and trace, and leaves the measures of T41 alone (A-DINH)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from spherometer.figures.panels import Panel, Panels, over_seeds
from spherometer.metrics import measure
from spherometer.problems import Problem
from spherometer.recipes.claims import Claim, Inequality
from spherometer.recipes.margins import every
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run
from spherometer.records import RunReader, RunWriter
from spherometer.sweeps import Job
from spherometer.training.assembly import assemble
from spherometer.training.settings import Settings
from spherometer.zoo import rescale_layers

KEPT = (
    "loss",
    "mls",
    "log_volume",
    "participation_ratio",
    "input_invariant_mls",
    "normalised_mls",
    "adaptive_sharpness",
    "relative_flatness",
    "matrix_normalised_sharpness",
)
MOVED = ("hessian_trace", "sharpness", "jacobian_sharpness", "nmls")
SAME = 1e-6  # of the value, in double precision
FACTOR, FACTORS = "factor", (0.1, 0.3, 1.0, 3.0, 10.0)  # no powers of two, which would be exact


@recipe(
    "A-DINH",
    "rescaling layers moves the sharpness and not the function",
    finding="Tr H and λ₁ change arbitrarily; the invariant measures of T41 do not",
    minutes=0.5,
)
def rescaling(scale: Scale) -> Experiment:
    """A trained ReLU network with its first layer times a factor, its last divided by it; L33, T41, 5.3 item 11."""
    factors = at_scale(scale, smoke=(0.3, 1.0, 3.0), laptop=FACTORS, paper=FACTORS)
    seeds = range(at_scale(scale, smoke=2, laptop=5, paper=5))
    source = "T41; 5.3 item 11"
    return Experiment(
        runs=[_run(scale, factors, seed) for seed in seeds],
        claims=[
            *(
                Claim(
                    f"rescaling moves {_word(name)} by more than a factor of 2",
                    partial(_spread, name=name),
                    unit="ln of the largest over the smallest value",
                    least=np.log(2),
                    source=source,
                )
                for name in MOVED
            ),
            *(
                Inequality(
                    f"rescaling leaves {_word(name)} the same",
                    partial(_slack, name=name),
                    source=source,
                )
                for name in KEPT
            ),
        ],
        figure=_figure,
        departures=_departures(scale),
    )


def rescale(settings: Mapping[str, Any], folder: Path) -> None:
    """The run: train, then measure the network after each rescaling; step k has the rows of the k-th factor."""
    wanted = Settings.of(settings["training"])
    parts = assemble(wanted)
    with RunWriter(
        folder, settings=settings, seed=wanted.loop.seed, title="rescaling", resume=RunReader(folder).exists
    ) as run:
        for _ in parts.training.run(parts.num_steps):
            pass
        model = parts.training.model.double()
        inputs, targets = parts.train.tensors
        data = inputs[: settings["num"]].double(), targets[: settings["num"]]
        for place, factor in enumerate(settings["factors"]):
            twin: nn.Module = model
            for first, second in pairwise(settings["layers"]):
                twin = rescale_layers(twin, first, second, factor)
            found = measure(Problem(twin, parts.loss, data), [*KEPT, *MOVED], seed=wanted.loop.seed)
            run.write(place, {FACTOR: factor} | {name: entry.estimate for name, entry in found.items()})


def _run(scale: Scale, factors: tuple[float, ...], seed: int) -> Run:
    paper = scale == "paper"
    training = Settings.of(
        {
            "data": {
                "data": "cifar10" if paper else "digits",
                "num": at_scale(scale, smoke=100, laptop=500, paper=5000),
            },
            "model": {"model": "fcn3-cifar"} if paper else {"model": "fcn3-mnist", "width": 64},
            "method": {"learning_rate": 0.2},
            "loop": {"steps": at_scale(scale, smoke=20, laptop=300, paper=300), "seed": seed},
        }
    )
    settings = {
        "training": training.checked().differences(),
        "factors": list(factors),
        "layers": ["1", "3", "5"],
        "num": at_scale(scale, smoke=30, laptop=100, paper=1000),
    }
    return Run({"seed": seed}, Job(f"{__name__}:rescale", settings, f"seed {seed}"))


def _spread(results: Results, *, name: str) -> list[float]:
    return results.reduce(name, lambda values: np.log(values.max() / values.min()))


def _slack(results: Results, *, name: str) -> list[float]:
    """The allowed change less the change from the unscaled network, at each factor of each seed, of the value."""
    curves = zip(results.curve(FACTOR), results.curve(name), strict=True)
    return every(SAME - np.abs(values / values[factors == 1.0] - 1) for (_, factors), (_, values) in curves)


def _word(name: str) -> str:
    return name.replace("_", " ")


def _figure(results: Results) -> Panels:
    def panel(title: str, y_label: str, names: tuple[str, ...], change: Callable[[np.ndarray], np.ndarray]) -> Panel:
        series = []
        for name in names:
            curves = [
                (np.log10(factors), change(values / values[list(factors).index(1.0)]))
                for (_, factors), (_, values) in zip(results.curve(FACTOR), results.curve(name), strict=True)
            ]
            series.append(over_seeds(curves, _word(name)))
        return Panel(title, "log₁₀ of the factor of the first layer", y_label, series, log_y=True)

    def distance(ratios: np.ndarray) -> np.ndarray:
        return np.maximum(np.abs(ratios - 1), np.finfo(float).eps)

    return Panels(
        [
            panel("what moves", "value / value at factor 1", MOVED, lambda ratios: ratios),
            panel("what stays", "relative change, from 2e-16 on", KEPT, distance),
        ],
        columns=2,
        caption="The same function with other weights: the first layer times a factor, the last divided by it.",
    )


def _departures(scale: Scale) -> list[str]:
    told = ["no figure of the paper: the statement of T41 on a trained network of ours"]
    return told if scale == "paper" else [*told, "a 64-64-64-10 ReLU network on digits"]
