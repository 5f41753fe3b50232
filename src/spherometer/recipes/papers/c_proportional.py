"""Paper C, App G: ‖H‖ moves with ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖², and gradient descent goes to the edge (C-F15 .. F21)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import exp, nan
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, over_seeds
from spherometer.recipes.claims import AnyClaim, Claim, Near
from spherometer.recipes.margins import falling
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
    weighted_ones,
)
from spherometer.recipes.papers.c_runs import batches, departures, descent_rates, descent_run, seeds
from spherometer.recipes.papers.c_stochastic import stochastic_run
from spherometer.recipes.recipe import Experiment, Scale, recipe, variant
from spherometer.recipes.results import Curve, Results, Run

TOGETHER = 0.5  # correlation of the logarithms over training: "proportional"
ARRIVED, HOVERING = 0.9, 0.25


@recipe(
    "C-F15",
    "the sharpness follows impurity times Jacobian to the edge of stability",
    finding="‖H‖ proportional to ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖²; it rises to 2/η and hovers",
    minutes=5,
)
def proportional(
    scale: Scale,
    *,
    source: str = "C-F15",
    network: str = "cnn6",
    learning_rates: Sequence[float] = (0.02, 0.04, 0.08),
    batch_sizes: Sequence[int] = (),
    edge: bool = True,
) -> Experiment:
    """‖H‖ and ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖² over the steps, for several rates of GD or batches of SGD; C Figs 15-21, 5.3 item 1."""
    used = descent_rates(scale, learning_rates)
    claims: list[AnyClaim] = [
        Claim(
            "the sharpness is proportional to ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖² over training",
            partial(_together, curves=weighted_ones),
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
                lambda results: [1 - value for value in _over_threshold(results, np.max, np.max)],
                unit="1 − largest η‖H‖/2 over rates and steps",
                source=source,
            )
        )
    if batch_sizes:
        claims.append(
            Claim(
                "the constant of proportionality is larger for smaller batches",
                lambda results: falling(results, _constants, over="batch"),
                unit="ln of the factor from the largest to the smallest batch",
                source=source,
            )
        )
    return Experiment(
        runs=_runs(scale, network, used, batches(scale, batch_sizes)),
        claims=claims if len(batch_sizes) != 1 else claims[:1],
        figure=_figure,
        departures=departures(scale, network, *_thresholds(edge), descent=True),
    )


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
            lambda results: _over_threshold(results, np.max, np.min),
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
            lambda results: falling(results, partial(_level, name="sharpness"), over="rate"),
            unit="ln of the factor from the largest to the smallest rate",
            source=source,
        ),
    ]
    if projected:
        found.append(
            Claim(
                "the same holds with ‖Π⟨J⟩‖², which no shift of the logits changes (C-e8)",
                partial(_together, curves=weighted_projected),
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


def _together(results: Results, *, curves: Any) -> list[float]:
    rows = [
        [
            log_correlation(sharpness, other)
            for sharpness, other in zip(results.curve("sharpness", **labels), curves(results, **labels), strict=True)
        ]
        for labels in settings_of(results)
    ]
    return [float(np.mean(column)) for column in zip(*rows, strict=True)]


def _over_threshold(results: Results, over_steps: Any, over_rates: Any) -> list[float]:
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


def _constants(results: Results, **labels: Any) -> list[float]:
    """exp of the mean over training of ln(‖H‖/(⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖²)), one for each seed."""
    pairs = zip(results.curve("sharpness", **labels), weighted_ones(results, **labels), strict=True)
    return [_constant(sharpness, other) for sharpness, other in pairs]


def _constant(sharpness: Curve, other: Curve) -> float:
    _, ratios = combined(sharpness, other, lambda x, y: np.log(np.abs(x / y)))
    return exp(float(np.mean(ratios))) if len(ratios) else nan


def _figure(results: Results) -> Panels:
    panels = []
    for labels in settings_of(results):
        others = weighted_ones(results, **labels)
        constants = _constants(results, **labels)
        fitted = [scaled(curve, constant) for curve, constant in zip(others, constants, strict=True)]
        size = f", batch {labels['batch']}" if "batch" in labels else ""
        panels.append(
            Panel(
                f"η = {labels['rate']:g}{size}",
                "step",
                "‖H‖",
                [
                    over_seeds(results.curve("sharpness", **labels), "‖H‖"),
                    over_seeds(fitted, "c ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖²", style="dashed"),
                ],
                lines=[Line("2/η", y=2 / labels["rate"])],
            )
        )
    return Panels(panels, caption="Sharpness, and impurity times Jacobian with a constant c fitted to each run.")


EASY = {"finding": "proportional too; on MNIST the sharpness never reaches 2/η"}
SAME = {"finding": "‖H‖ proportional to ⟨λ⁽¹⁾⟩‖⟨J⟩1̂‖²"}
BY_BATCH = {"finding": "proportional, with a larger constant for smaller batches"}
FOLLOWS = "the sharpness follows impurity times Jacobian"
variant(
    "C-F16",
    proportional,
    f"{FOLLOWS} in a deeper network",
    **SAME,
    source="C-F16",
    network="vgg11",
    learning_rates=(0.04, 0.08),
    edge=False,
)
variant(
    "C-F17",
    proportional,
    f"{FOLLOWS} in a residual network",
    **SAME,
    source="C-F17",
    network="resnet20",
    learning_rates=(0.04,),
    batch_sizes=(128,),
    edge=False,
)
variant(
    "C-F18",
    proportional,
    f"{FOLLOWS} at every batch size",
    **BY_BATCH,
    source="C-F18",
    learning_rates=(0.04,),
    batch_sizes=(512, 128, 32),
    edge=False,
)
variant(
    "C-F19",
    proportional,
    f"{FOLLOWS} over long training",
    **BY_BATCH,
    source="C-F19",
    network="vgg11",
    learning_rates=(0.04,),
    batch_sizes=(512, 128, 32),
    edge=False,
)
variant(
    "C-F20",
    proportional,
    f"{FOLLOWS} with a hundred classes",
    **BY_BATCH,
    source="C-F20",
    network="vgg11-cifar100",
    learning_rates=(0.1,),
    batch_sizes=(128, 64, 32),
    edge=False,
)
variant("C-F21", proportional, f"{FOLLOWS} on an easy task", **EASY, source="C-F21", network="fcn3", edge=False)
