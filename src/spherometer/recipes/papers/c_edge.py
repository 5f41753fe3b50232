"""Paper C: gradient descent at the edge of stability, and what moves with the sharpness (5.3 item 1)."""

from __future__ import annotations

from functools import partial
from math import nan
from typing import Any

import numpy as np

from spherometer.recipes.claims import AnyClaim, Claim, Near
from spherometer.recipes.margins import falling_throughout
from spherometer.recipes.papers.c_curves import (
    PROJECTED,
    combined,
    first_step,
    log_correlation,
    mean_within,
    periods,
    plateau,
    scaled,
    square,
)
from spherometer.recipes.results import Curve, Results

TOGETHER = 0.5  # correlation of the logarithms over training: "proportional"
ARRIVED, HOVERING = 0.9, 0.25


def settings_of(results: Results) -> list[dict[str, Any]]:
    """What tells the runs apart besides the seed: one dictionary of labels for each setting."""
    found = [{name: value for name, value in run.labels.items() if name != "seed"} for run in results.runs]
    return [labels for place, labels in enumerate(found) if labels not in found[:place]]


def edge_claims(source: str, *, projected: bool = False) -> list[AnyClaim]:
    """Gradient descent: sharpness rises to 2/η, then hovers; the smaller η, the higher (5.3 item 1)."""
    source = f"{source}; 5.3 item 1"
    found: list[AnyClaim] = [
        Claim(
            "the sharpness rises to 2/η at every learning rate",
            lambda results: over_threshold(results, np.max, np.min),
            least=ARRIVED,
            unit="highest η‖H‖/2, the least over rates",
            source=source,
        ),
        Near(
            "from there on it hovers about 2/η",
            _hovering,
            target=1.0,
            tolerance=HOVERING,
            source=source,
        ),
        Claim(
            "the smaller the learning rate, the higher the plateau",
            lambda results: falling_throughout(results, partial(_level, name="sharpness"), over="rate"),
            unit="ln of the factor from one rate to the next, the weakest",
            source=source,
        ),
    ]
    if projected:
        found.append(
            Claim(
                "the same holds with ‖Π⟨J⟩‖², which no shift of the logits changes (C-e8)",
                partial(together, curves=weighted_projected),
                least=TOGETHER,
                unit="correlation of the logarithms over the steps, mean over settings",
                source="C-e8, gap G13: ours",
            )
        )
    return found


def weighted_projected(results: Results, **labels: Any) -> list[Curve]:
    """⟨λ⁽¹⁾⟩‖Π⟨J⟩‖²: as in App G, but blind to shifts of the logits (T19)."""
    pairs = zip(results.curve("impurity", **labels), results.curve(PROJECTED, **labels), strict=True)
    return [combined(impurity, square(norm)) for impurity, norm in pairs]


def together(results: Results, *, curves: Any) -> list[float]:
    """Correlation over the steps of ln ‖H‖ with ln of what `curves` gives, mean over settings, one for each seed."""
    rows = [
        [
            log_correlation(sharpness, other)
            for sharpness, other in zip(results.curve("sharpness", **labels), curves(results, **labels), strict=True)
        ]
        for labels in settings_of(results)
    ]
    return [float(np.mean(column)) for column in zip(*rows, strict=True)]


def over_threshold(results: Results, over_steps: Any, over_rates: Any) -> list[float]:
    """η‖H‖/2, reduced over the steps of each run and over the rates: one for each seed."""
    rows = [
        [rate / 2 * value for value in results.reduce("sharpness", over_steps, rate=rate)]
        for rate in results.values("rate")
    ]
    return [float(over_rates(column)) for column in zip(*rows, strict=True)]


def _hovering(results: Results) -> list[float]:
    """Mean of η‖H‖/2 from its first arrival at 90 % of the threshold to the end of the ARP, mean over rates."""
    rows = [
        [
            _after_arrival(scaled(curve, rate / 2), end)
            for curve, end in zip(_sharpness(results, rate), ends, strict=True)
        ]
        for rate in results.values("rate")
        for ends in [_ends(results, rate)]
    ]
    return [float(np.mean(column)) for column in zip(*rows, strict=True)]


def _sharpness(results: Results, rate: float) -> list[Curve]:
    return results.curve("sharpness", rate=rate)


def _ends(results: Results, rate: float) -> list[float]:
    """The end of the regularisation period; of the run where the loss has no impurity."""
    if not any(len(values) for _, values in results.curve("impurity", rate=rate)):
        return [float(steps[-1]) if len(steps) else nan for steps, _ in _sharpness(results, rate)]
    return [end for _, end in periods(results, rate=rate)]


def _after_arrival(curve: Curve, end: float) -> float:
    return mean_within(curve, first_step(curve, lambda seen: seen >= ARRIVED), end)


def _level(results: Results, *, name: str, **labels: Any) -> list[float]:
    """The plateau: the mean over the ARP, or over the second half of the run where the loss has no impurity."""
    if any(len(values) for _, values in results.curve("impurity", **labels)):
        return plateau(results, name, **labels)
    return [
        mean_within(curve, curve[0][-1] / 2, np.inf) if len(curve[0]) else nan
        for curve in results.curve(name, **labels)
    ]
