"""Paper A, section 5: wide networks sharpen less, linearised ones not at all (A-S5)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Panel, Panels, over_seeds
from spherometer.recipes.claims import Claim, Near
from spherometer.recipes.ends import over_label
from spherometer.recipes.margins import falling, levels_of, numbers
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run, training_run

SPEED = 0.8  # learning rate times √width: the sharpness at the start grows about like that
STILL = 0.01  # a linearised network's λ₁ moves by no more than its accuracy


@recipe(
    "A-S5",
    "wide networks sharpen less, linearised ones not at all",
    finding="the wider, the less the sharpness rises; models that are linear in their weights keep it",
    minutes=10,
)
def width(scale: Scale) -> Experiment:
    """GD on half the squared error: how far the sharpness rises, for networks and their linearisations; 5.3 item 9."""
    widths = at_scale(scale, smoke=(8, 32), laptop=(16, 128, 1024), paper=(64, 512, 4096))
    seeds = range(at_scale(scale, smoke=2, laptop=5, paper=5))
    kinds = (False, True)
    source = "A section 5; 5.3 item 9"
    return Experiment(
        runs=[_run(scale, size, kind, seed) for size in widths for kind in kinds for seed in seeds],
        claims=[
            Claim(
                "the wider the network, the less its sharpness rises",
                lambda results: falling(results, rise, over="width", linearised=False),
                unit=f"ln of the factor of the rise from width {widths[0]} to {widths[-1]}",
                source=source,
            ),
            Near(
                "the sharpness of a linearised network stays where it starts",
                lambda results: np.mean([np.log(_rises(results, size, True)) for size in widths], axis=0),
                target=0.0,
                tolerance=STILL,
                unit="ln of the rise, mean over widths",
                source=source,
            ),
            Claim(
                "at every width the network sharpens and its linearisation does not: smallest difference over widths",
                lambda results: list(np.min([_beyond(results, size) for size in widths], axis=0)),
                unit="ln of the factor between the two rises",
                source=source,
            ),
        ],
        figure=_figure,
        departures=_departures(scale),
    )


def rise(results: Results, **labels: Any) -> list[float]:
    """The geometric mean of the sharpness over the last third of training over that of the first, one for each seed.

    The value at the start is left out. A largest ratio to an earlier value would be above 1 by noise alone.
    """

    def ratio(values: np.ndarray) -> float:
        logs = np.log(values[1:])
        third = max(1, len(logs) // 3)
        return float(np.exp(logs[-third:].mean() - logs[:third].mean()))

    return results.reduce("sharpness", ratio, **labels)


def _rises(results: Results, size: int, linearised: bool) -> np.ndarray:
    return numbers(results, rise, width=size, linearised=linearised)


def _beyond(results: Results, size: int) -> np.ndarray:
    return np.log(_rises(results, size, False)) - np.log(_rises(results, size, True))


def _run(scale: Scale, size: int, linearised: bool, seed: int) -> Run:
    paper = scale == "paper"
    return training_run(
        {"width": size, "linearised": linearised, "seed": seed},
        data={
            "data": "cifar10" if paper else "digits",
            "num": at_scale(scale, smoke=100, laptop=100, paper=5000),
            "standardise": "componentwise",
        },
        model={
            "model": "fcn3-cifar" if paper else "fcn3-mnist",
            "width": size,
            "depth": 2,
            "activation": "tanh",
            "linearised": linearised,
        },
        objective={"loss": "half-squared-error"},
        method={"learning_rate": at_scale(scale, smoke=SPEED, laptop=SPEED, paper=SPEED / 10) / size**0.5},
        loop={"steps": at_scale(scale, smoke=20, laptop=1200, paper=10_000), "evaluate_every": 400},
        measurement={"track": ["loss", "sharpness"], "track_every": at_scale(scale, smoke=5, laptop=60, paper=100)},
    )


def _figure(results: Results) -> Panels:
    sizes = levels_of(results, "width")

    def panel(title: str, name: str) -> Panel:
        series = [
            over_seeds(
                results.curve(name, width=size, linearised=linearised),
                f"width {size}{', linearised' if linearised else ''}",
                style="dashed" if linearised else "solid",
                colour=place,
            )
            for linearised in (False, True)
            for place, size in enumerate(sizes)
        ]
        return Panel(title, "iteration", title, series, log_y=True)

    over = partial(over_label, results, rise, "width")
    rises = [over("network", linearised=False), over("linearised", linearised=True, style="dashed")]
    names = [str(size) for size in sizes]
    return Panels(
        [
            panel("loss", "loss"),
            panel("sharpness", "sharpness"),
            Panel("sharpening", "width", "rise of the sharpness", rises, x_names=names),
        ],
        caption="Gradient descent on networks (solid) and their linearisations at the start (dashed).",
    )


def _departures(scale: Scale) -> list[str]:
    told = ["the paper states this in words: network, data, widths and learning rate are chosen here"]
    told.append("half the squared error, for which the Hessian of a linear model is constant")
    told.append(
        "one hidden layer, and a learning rate in inverse proportion to the root of its width, so that all train at "
        "about the same speed"
    )
    told.append(
        "the rise is from the mean over the first third of training to that over the last, without the start: the "
        "residual part of the Hessian falls in the first steps"
    )
    return told if scale == "paper" else [*told, "100 digits"]
