"""Paper A, C.3: coordinate networks, where smooth need not be flat (A-F32, A-T1, A-T2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from spherometer.figures.panels import Panel, Panels, Series
from spherometer.metrics import measure
from spherometer.problems import Problem
from spherometer.recipes.claims import Claim, Near
from spherometer.recipes.ends import told
from spherometer.recipes.margins import larger, numbers, smaller
from spherometer.recipes.recipe import Experiment, Scale, Table, at_scale, recipe, variant
from spherometer.recipes.results import Results, Run
from spherometer.records import RunReader, RunWriter
from spherometer.sweeps import Job
from spherometer.zoo import build_model, coordinate_points, pretrain_on_sine

SLOPE, JACOBIAN = "final_slope", "final_input_jacobian_norm"  # the largest on the interval, and on the eight points
SHARPNESS, FIRST_LAYER = "final_sharpness", "final_first_layer_norm"
STARTS, ACTIVATIONS = ("high", "low"), ("gaussian", "relu")
MODELS = {
    ("gaussian", "high"): "coordinate-gaussian",
    ("gaussian", "low"): "coordinate-gaussian-low",
    ("relu", "high"): "coordinate-relu",  # pretrained on sin(6πx)
    ("relu", "low"): "coordinate-relu",
}
NUM_POINTS, LEARNING_RATE, MOMENTUM = 401, 1e-4, 0.9
PRINTED = {
    "gaussian": {
        "Jacobian norm": ("326.80 ± 182.51", "84.07 ± 49.30"),
        "sharpness": ("13517.61 ± 3871.97", "18353.54 ± 5751.98"),
        "first-layer norm": ("9.09 ± 0.34", "0.56 ± 0.02"),
    },
    "relu": {
        "Jacobian norm": ("121.59 ± 80.79", "42.96 ± 7.82"),
        "sharpness": ("14211.05 ± 4767.26", "9922.45 ± 3330.37"),
        "first-layer norm": ("9.61 ± 0.28", "9.56 ± 0.16"),
    },
}
ROWS = {"Jacobian norm": SLOPE, "sharpness": SHARPNESS, "first-layer norm": FIRST_LAYER}
SAME = 0.1  # of the logarithm: "nearly the same"
UNIT = "ln of the factor between the two starts"


@recipe(
    "A-F32",
    "a high-frequency start fits with oscillations",
    finding="high-frequency start, oscillating fit of the eight points",
    minutes=5,
)
def coordinate_fits(scale: Scale) -> Experiment:
    """The fits of eight points by Gaussian and ReLU networks from two starts; A Fig 32."""
    return Experiment(
        runs=[run for activation in ACTIVATIONS for run in _runs(scale, activation)],
        claims=[
            Claim(
                f"from the high-frequency start the fit of the {activation} network moves up and down more",
                partial(larger, name=variation, here=_labels(activation, "high"), there=_labels(activation, "low")),
                unit="ln of the factor of the total variation",
                source="A-F32",
            )
            for activation in ACTIVATIONS
        ],
        figure=partial(_figure, activations=ACTIVATIONS),
        departures=list(dict.fromkeys(line for activation in ACTIVATIONS for line in _departures(scale, activation))),
    )


@recipe(
    "A-T1",
    "Gaussian coordinate networks: the smoother one is sharper",
    finding="low-frequency start: smaller Jacobian norm and first layer, but larger sharpness",
    minutes=1,
)
def coordinate_table(scale: Scale, *, activation: str = "gaussian") -> Experiment:
    """Jacobian norm, sharpness and first-layer norm from two starts; A Tables 1 and 2, 5.3 item 10."""
    smooth_is_sharp, source = activation == "gaussian", "A-T1, A-T2; 5.3 item 10"
    here, there = _labels(activation, "low"), _labels(activation, "high")
    claims: list[Any] = [
        *(
            Claim(
                f"the low-frequency start ends with a smaller Jacobian norm on the {where}",
                partial(smaller, name=name, here=here, there=there),
                unit=UNIT,
                source=source,
            )
            for where, name in (("interval", SLOPE), ("eight points", JACOBIAN))
        ),
        Claim(
            f"the low-frequency start ends {'sharper' if smooth_is_sharp else 'flatter'}",
            partial(larger if smooth_is_sharp else smaller, name=SHARPNESS, here=here, there=there),
            unit=UNIT,
            source=source,
        ),
    ]
    if smooth_is_sharp:
        claims.append(
            Claim(
                "the low-frequency start ends with a smaller first layer",
                partial(smaller, name=FIRST_LAYER, here=here, there=there),
                unit=UNIT,
                source=source,
            )
        )
    else:
        claims.append(
            Near(
                "both starts end with nearly the same first-layer norm",
                partial(smaller, name=FIRST_LAYER, here=here, there=there),
                target=0.0,
                tolerance=SAME,
                unit=UNIT,
                source=source,
            )
        )
    return Experiment(
        runs=_runs(scale, activation),
        claims=claims,
        figure=partial(_figure, activations=(activation,)),
        departures=_departures(scale, activation),
        table=partial(_table, activation=activation),
    )


def fit(settings: Mapping[str, Any], folder: Path) -> None:
    """The run: eight points, full-batch gradient descent with momentum, and what is measured at the end."""
    with RunWriter(
        folder, settings=settings, seed=settings["seed"], title="coordinate network", resume=RunReader(folder).exists
    ) as run:
        model = build_model(MODELS[settings["activation"], settings["start"]], seed=settings["seed"])
        if settings["pretraining"]:
            run.write(0, {"pretraining_loss": pretrain_on_sine(model, num_steps=settings["pretraining"])})
        data, loss = coordinate_points().tensors, nn.MSELoss()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=settings.get("learning_rate", LEARNING_RATE), momentum=MOMENTUM
        )
        look = max(1, settings["steps"] // 10)
        for step in range(settings["steps"]):
            optimizer.zero_grad()
            value = loss(model(data[0]), data[1])
            value.backward()
            optimizer.step()
            if step % look == 0:
                run.write(step, {"loss": value.item()})
        found = measure(Problem(model, loss, data), ["loss", "sharpness", "input_jacobian_norm"], seed=settings["seed"])
        grid = torch.linspace(-1, 1, NUM_POINTS)[:, None]
        with torch.no_grad():
            curve = model(grid).flatten()
        slopes = Problem(model, loss, (grid, curve[:, None]))
        first = next(module for module in model.modules() if isinstance(module, nn.Linear))
        ends: dict[str, Any] = {f"final_{name}": entry.estimate for name, entry in found.items()}
        ends[SLOPE] = measure(slopes, "input_jacobian_norm")["input_jacobian_norm"].estimate
        ends[FIRST_LAYER] = float(torch.linalg.matrix_norm(first.weight.detach(), 2))
        run.write(settings["steps"], ends, arrays={"fit": curve})


def variation(results: Results, **labels: Any) -> list[float]:
    """The total variation of the fit on [-1, 1], one for each seed."""
    return [float(np.abs(np.diff(_last(fits))).sum()) if fits else np.nan for fits in results.arrays("fit", **labels)]


def _last(fits: dict[int, np.ndarray]) -> np.ndarray:
    return fits[max(fits)]


def _labels(activation: str, start: str) -> dict[str, Any]:
    return {"activation": activation, "start": start}


def _runs(scale: Scale, activation: str) -> list[Run]:
    seeds = range(at_scale(scale, smoke=2, laptop=4, paper=10))
    gaussian = activation == "gaussian"
    steps = at_scale(scale, smoke=100, laptop=3000, paper=10_000 if gaussian else 100_000)
    faster = {} if gaussian or scale == "paper" else {"learning_rate": 10 * LEARNING_RATE}
    pretraining = at_scale(scale, smoke=50, laptop=1000, paper=10_000)
    runs = []
    for start in STARTS:
        for seed in seeds:
            settings = _labels(activation, start) | {"steps": steps, "seed": seed} | faster
            settings |= {"pretraining": pretraining if (activation, start) == ("relu", "high") else 0}
            title = f"{activation}, {start}-frequency start, seed {seed}"
            runs.append(Run(_labels(activation, start) | {"seed": seed}, Job(f"{__name__}:fit", settings, title)))
    return runs


def _figure(results: Results, *, activations: tuple[str, ...]) -> Panels:
    points = coordinate_points()
    data = Series(
        "points", points.inputs.flatten().tolist(), points.targets.flatten().tolist(), style="markers", colour=2
    )
    grid, panels = np.linspace(-1, 1, NUM_POINTS), []
    for activation in activations:
        for colour, start in enumerate(STARTS):
            fits = [_last(found) for found in results.arrays("fit", **_labels(activation, start)) if found]
            curves = [
                Series(f"{start}-frequency start" if place == 0 else "", grid, curve, colour=colour)
                for place, curve in enumerate(fits[:3])
            ]
            panels.append(Panel(f"{activation}, {start}-frequency start", "x", "f(x)", [*curves, data]))
    return Panels(panels, columns=2, caption="Fits of eight points after training, three trials each.")


def _table(results: Results, *, activation: str) -> Table:
    def ours(name: str, start: str) -> str:
        return told(numbers(results, ROWS[name], **_labels(activation, start)))

    return Table(
        columns=("", "high, paper", "high, ours", "low, paper", "low, ours"),
        rows=[
            (name, high, ours(name, "high"), low, ours(name, "low"))
            for name, (high, low) in PRINTED[activation].items()
        ],
    )


def _departures(scale: Scale, activation: str) -> list[str]:
    told = [
        "the eight points are only in the picture: equally spaced, random values of ours",
        "mean squared error, width 256 and the standard deviation of the wide Gaussian are inferred (A-e11)",
        "Jacobian norm: the largest on the interval; on the eight points it is judged besides",
    ]
    if activation == "gaussian":
        told.append("Gaussian activation of scale 0.1: not in the text")
    else:
        told.append(f"'nearly the same' means within {SAME:g} of the logarithm: chosen here")
    if scale == "paper":
        long = "10,000 steps of pretraining on sin(6πx): how many is not in the text"
        return [*told, long] if activation == "relu" else told
    shorter = {
        "gaussian": "3,000 epochs instead of 10,000",
        "relu": "3,000 epochs at learning rate 0.001 instead of 100,000 at 0.0001, and 1,000 of pretraining",
    }
    return [*told, f"{shorter[activation]} for the {activation} network; 4 trials instead of 10"]


variant(
    "A-T2",
    coordinate_table,
    "ReLU coordinate networks: the smoother one is flatter",
    finding="low-frequency start: smaller Jacobian norm and smaller sharpness, first layers alike",
    activation="relu",
)
