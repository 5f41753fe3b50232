"""Paper C, App G: ‖H‖ moves with ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖², and gradient descent goes to the edge (C-F15 .. F21)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from math import exp, nan
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, over_seeds
from spherometer.recipes.claims import AnyClaim, Claim
from spherometer.recipes.margins import falling_throughout
from spherometer.recipes.papers.c_curves import (
    combined,
    scaled,
    weighted_ones,
)
from spherometer.recipes.papers.c_edge import (
    ARRIVED,
    HOVERING,
    TOGETHER,
    edge_claims,
    over_threshold,
    settings_of,
    together,
)
from spherometer.recipes.papers.c_runs import batches, departures, descent_rates, descent_run, descent_steps, seeds
from spherometer.recipes.papers.c_stochastic import lengths, stochastic_run, thresholds
from spherometer.recipes.recipe import Experiment, Scale, recipe, variant
from spherometer.recipes.results import Curve, Results, Run


@recipe(
    "C-F15",
    "the sharpness follows impurity times Jacobian to the edge of stability",
    finding="‖H‖ proportional to ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖²; it rises to 2/η and hovers",
    minutes=7,
)
def proportional(
    scale: Scale,
    *,
    source: str = "C-F15",
    network: str = "cnn6",
    learning_rates: Sequence[float] = (0.02, 0.04, 0.08),
    batch_sizes: Sequence[int] = (),
    edge: bool = True,
    windows: Mapping[str, Sequence[tuple[int, int]]] | None = None,
) -> Experiment:
    """‖H‖ and ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖² over the steps, for several rates of GD or batches of SGD; C Figs 15-21, 5.3 item 1."""
    used = descent_rates(scale, learning_rates)
    claims: list[AnyClaim] = [
        Claim(
            "the sharpness is proportional to ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖² over training",
            partial(together, curves=weighted_ones),
            least=TOGETHER,
            unit="correlation of the logarithms over the steps, mean over settings",
            source=source,
        )
    ]
    if edge:
        claims += edge_claims(source, projected=True)
    if network == "fcn3":
        claims.append(
            Claim(
                "on this easy task the sharpness never reaches 2/η",
                lambda results: [1 - value for value in over_threshold(results, np.max, np.max)],
                unit="1 − largest η‖H‖/2 over rates and steps",
                source=source,
            )
        )
    if batch_sizes:
        claims.append(
            Claim(
                "the constant of proportionality is larger for smaller batches",
                lambda results: falling_throughout(results, _constants, over="batch"),
                unit="ln of the factor from one batch size to the next, the weakest",
                source=source,
            )
        )
    return Experiment(
        runs=_runs(scale, network, used, batches(scale, batch_sizes)),
        claims=claims if len(batch_sizes) != 1 else claims[:1],
        figure=partial(_figure, windows=windows[scale] if windows else (), scale=scale),
        departures=departures(
            scale,
            network,
            *_thresholds(edge),
            *_beyond(scale, network, windows[scale] if windows else ()),
            descent=True,
            length=lengths(scale, network, batch_sizes) if batch_sizes else None,
        ),
    )


def _beyond(scale: Scale, network: str, windows: Sequence[tuple[int, int]]) -> list[str]:
    """What is judged and not shown."""
    shown, steps = max((high for _, high in windows), default=sys.maxsize), descent_steps(scale, network)
    return [f"judged over all {steps:,} steps, of which {shown:,} are shown as in the paper"] if shown < steps else []


def _thresholds(edge: bool) -> list[str]:
    said = [f"'proportional' is judged by a correlation of the logarithms above {TOGETHER}: chosen here"]
    return (
        [*said, f"'rises to' means {ARRIVED} of 2/η, 'hovers' a mean within {HOVERING:.0%} of it: chosen here"]
        if edge
        else said
    )


def _runs(scale: Scale, network: str, used: list[float], sizes: list[int]) -> list[Run]:
    if not sizes:
        return [descent_run(scale, network, rate, seed) for rate in used for seed in seeds(scale)]
    return [stochastic_run(scale, network, used[0], size, seed) for size in sizes for seed in seeds(scale)]


def _constants(results: Results, **labels: Any) -> list[float]:
    """exp of the mean over training of ln(‖H‖/(⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖²)), one for each seed."""
    pairs = zip(results.curve("sharpness", **labels), weighted_ones(results, **labels), strict=True)
    return [_constant(sharpness, other) for sharpness, other in pairs]


def _constant(sharpness: Curve, other: Curve) -> float:
    _, ratios = combined(sharpness, other, lambda x, y: np.log(np.abs(x / y)))
    return exp(float(np.mean(ratios))) if len(ratios) else nan


def _figure(results: Results, *, windows: Sequence[tuple[int, int]], scale: Scale) -> Panels:
    panels = [
        _panel(results, labels, window, scale)
        for labels in settings_of(results)
        for window in windows or ((0, sys.maxsize),)
    ]
    caption = "Sharpness, and impurity times Jacobian with a constant c fitted to each run."
    return Panels(panels, columns=len(windows) or 3, caption=caption)


def _panel(results: Results, labels: Mapping[str, Any], window: tuple[int, int], scale: Scale) -> Panel:
    """Both curves between two steps; the constant is that of the whole run."""
    curves, others = results.curve("sharpness", **labels), weighted_ones(results, **labels)
    constants = [_constant(sharpness, other) for sharpness, other in zip(curves, others, strict=True)]
    fitted = [scaled(curve, constant) for curve, constant in zip(others, constants, strict=True)]
    size = f", batch {labels['batch']}" if "batch" in labels else ""
    zoom = f", from step {window[0]}" if window[0] else ""
    return Panel(
        f"η = {labels['rate']:g}{size}{zoom}",
        "step",
        "‖H‖",
        [
            over_seeds([_between(curve, *window) for curve in curves], "‖H‖"),
            over_seeds([_between(curve, *window) for curve in fitted], "c ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖²", style="dashed"),
            *([over_seeds(thresholds(results, scale, labels), "2ρ_B/η", style="dotted")] if size else []),
        ],
        lines=[Line("2/η", y=2 / labels["rate"])],
    )


def _between(curve: Curve, low: int, high: int) -> Curve:
    steps, values = curve
    chosen = (steps >= low) & (steps <= high)
    return steps[chosen], values[chosen]


FOLLOWS = "the sharpness follows impurity times Jacobian"
SAME = "‖H‖ proportional to ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖²"
EASY = "proportional too; on MNIST the sharpness never reaches 2/η"
BY_BATCH = "proportional, with a larger constant for smaller batches"
DEEPER = {"smoke": ((0, 20), (10, 20)), "laptop": ((0, 500), (250, 500)), "paper": ((0, 1000), (500, 1000))}
for name, minutes, where, finding, network, learning_rates, batch_sizes in (
    ("C-F16", 1, "in a deeper network", SAME, "vgg11", (0.04, 0.08), ()),
    ("C-F17", 3, "in a residual network", SAME, "resnet20", (0.04,), (128,)),
    ("C-F18", 2, "at every batch size", BY_BATCH, "cnn6", (0.04,), (512, 128, 32)),
    ("C-F19", 2, "over long training", BY_BATCH, "vgg11", (0.04,), (512, 128, 32)),
    ("C-F20", 5, "with a hundred classes", BY_BATCH, "vgg11-cifar100", (0.1,), (128, 64, 32)),
    ("C-F21", 3, "on an easy task", EASY, "fcn3", (0.02, 0.04, 0.08), ()),
):
    variant(
        name,
        proportional,
        f"{FOLLOWS} {where}",
        finding=finding,
        minutes=minutes,
        source=name,
        network=network,
        learning_rates=learning_rates,
        batch_sizes=batch_sizes,
        edge=False,
        windows=DEEPER if name == "C-F16" else None,
    )
