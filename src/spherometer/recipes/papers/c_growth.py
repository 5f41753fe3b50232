"""Paper C: logits and weights grow while gradient descent trains (C-F12 .. F14)."""

from __future__ import annotations

from functools import partial
from math import log, nan

import numpy as np

from spherometer.figures.panels import Panel, Panels, over_seeds
from spherometer.recipes.claims import Claim
from spherometer.recipes.papers.c_impurity import descents
from spherometer.recipes.papers.c_runs import departures
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Curve, Results


@recipe(
    "C-F12",
    "logits and weights grow in training",
    finding="‖z‖, |1̂ᵀz| and ‖θ‖ all increase",
    minutes=3,
)
def growth(scale: Scale, *, early: bool = False) -> Experiment:
    """Mean logit norm, its part along 1̂ and the weight norm over the steps of C-F1's runs; C Figs 12-13, Q10-Q11."""
    until = at_scale(scale, smoke=10, laptop=100, paper=200) if early else None
    what = {"logit_norm": "⟨‖z‖⟩", "logit_sum": "⟨|1̂ᵀz|⟩", "weight_norm": "‖θ‖"}
    source = "C-F13" if early else "C-F12"
    return Experiment(
        runs=descents(scale),
        claims=[
            Claim(
                f"{symbol} increases{' early in training' if early else ''}",
                partial(_growth, name=name, until=until),
                unit="ln of end over start",
                source=source,
            )
            for name, symbol in what.items()
        ],
        figure=partial(_growth_figure, what=what, until=until),
        departures=departures(scale, "cnn6", *_steps_shown(scale, early), descent=True),
    )


def _steps_shown(scale: Scale, early: bool) -> list[str]:
    if scale == "paper":
        return ["the first 200 steps: how many are early is not in the text"] if early else []
    return [f"the paper shows every {'step' if early else 'tenth step'}"]


def _until(curve: Curve, until: int | None) -> Curve:
    steps, values = curve
    kept = steps <= (np.inf if until is None else until)
    return steps[kept], values[kept]


def _growth(results: Results, *, name: str, until: int | None, part: str = "") -> list[float]:
    found = [_until(curve, until)[1] for curve in results.curve(name, part=part)]
    return [log(values[-1] / values[0]) if len(values) and values[0] > 0 < values[-1] else nan for values in found]


def _growth_figure(results: Results, *, what: dict[str, str], until: int | None) -> Panels:
    panels = [
        Panel(symbol, "step", symbol, [over_seeds([_until(curve, until) for curve in results.curve(name)], symbol)])
        for name, symbol in what.items()
    ]
    return Panels(panels, caption="Sizes of logits and weights in full-batch training; mean and deviation over seeds.")


@recipe("C-F14", "every layer's weights grow", finding="the norms of all six layers increase", minutes=3)
def layer_growth(scale: Scale) -> Experiment:
    """The Frobenius norm of every weight tensor over the steps of C-F1's runs; C Fig 14, Q11."""

    def margins(results: Results) -> list[float]:
        rows = [_growth(results, name="parameter_norms", until=None, part=part) for part in _weights(results)]
        return [min(column) for column in zip(*rows, strict=True)]

    def figure(results: Results) -> Panels:
        panels = [
            Panel(f"layer {place}", "step", "‖W‖_F", [over_seeds(results.curve("parameter_norms", part=part), part)])
            for place, part in enumerate(_weights(results), start=1)
        ]
        return Panels(panels, caption="Norms of the weights of each layer in full-batch training.")

    return Experiment(
        runs=descents(scale),
        claims=[
            Claim(
                "the norms of the weights of all layers increase",
                margins,
                unit="ln of end over start, the least of all layers",
                source="C-F14",
            )
        ],
        figure=figure,
        departures=departures(
            scale, "cnn6", *([] if scale == "paper" else ["three layers instead of six"]), descent=True
        ),
    )


def _weights(results: Results) -> list[str]:
    """Names of the weights, from the first run that has any."""
    norms = next(filter(None, results.parts("parameter_norms")), {})
    return [part for part in norms if part.endswith("weight")]


variant("C-F13", growth, "logits and weights grow from the first steps on", early=True)
