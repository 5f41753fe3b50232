"""Paper C, Sec 5: what step and batch size do to the three phases of ‖⟨J⟩‖² (C-F5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from spherometer.figures.panels import Line, Panel, Panels, Series
from spherometer.recipes.claims import Claim
from spherometer.recipes.margins import falling_throughout, rising_throughout
from spherometer.recipes.papers.c_curves import IMPURE, NORM, end_of_regularisation, plateau, square, value_at
from spherometer.recipes.papers.c_phases import (
    FASTER,
    SIZES,
    clipped,
    phase_lengths,
    phase_rates,
    phase_run,
    phase_seeds,
)
from spherometer.recipes.papers.c_runs import batches, departures
from spherometer.recipes.papers.c_stochastic import thresholds
from spherometer.recipes.recipe import Experiment, Scale, recipe
from spherometer.recipes.results import Curve, Results

SMOOTH = {"smoke": 2, "laptop": 5, "paper": 20}


@recipe(
    "C-F5",
    "larger steps and smaller batches: flatter, smaller Jacobian",
    finding="larger lr or smaller B: lower sharpness plateau and lower ‖⟨J⟩‖² at the end of the ARP",
    minutes=15,
)
def steps_and_batches(scale: Scale) -> Experiment:
    """C-F4 for three learning rates and for three batch sizes, smoothed; C Fig 5, 5.3 item 6."""
    used, sizes = phase_rates(scale), batches(scale, SIZES)
    pairs = [(rate, sizes[0]) for rate in used] + [(used[0], size) for size in sizes[1:]]

    def both(what: Any, sentence: str, unit: str) -> list[Claim]:
        source = "C-F5; 5.3 item 6"
        return [
            Claim(
                f"the larger the learning rate, the {sentence}",
                lambda results: falling_throughout(results, what, over="rate", batch=sizes[0]),
                unit=f"{unit} from one rate to the next, the weakest",
                source=source,
            ),
            Claim(
                f"the smaller the batch, the {sentence}",
                lambda results: rising_throughout(results, what, over="batch", rate=used[0]),
                unit=f"{unit} from one batch size to the next, the weakest",
                source=source,
            ),
        ]

    return Experiment(
        runs=[phase_run(scale, rate, size, seed) for rate, size in pairs for seed in phase_seeds(scale)],
        claims=[
            *both(_norm_at_the_end, "smaller ‖⟨J⟩‖² at the end of the ARP", "ln of the factor"),
            *both(plateau, "lower the plateau of the sharpness", "ln of the factor"),
        ],
        figure=partial(_figure, used=used, sizes=sizes, scale=scale),
        departures=departures(
            scale,
            "cnn6",
            *phase_lengths(scale),
            f"running means over {SMOOTH[scale]} points",
            "drawn over the samples seen, so that all batch sizes share an axis: the paper's axis is not in the text",
            faster=FASTER,
            num_seeds="six",
        ),
    )


def _norm_at_the_end(results: Results, **labels: Any) -> list[float]:
    """‖⟨J⟩‖² where ⟨λ⁽¹⁾⟩ falls below 0.25."""
    pairs = zip(results.curve(NORM, **labels), results.curve("impurity", **labels), strict=True)
    return [value_at(square(norm), end_of_regularisation(impurity)) for norm, impurity in pairs]


def _figure(results: Results, *, used: Sequence[float], sizes: Sequence[int], scale: Scale) -> Panels:
    rows: list[dict[str, dict[str, Any]]] = [
        {f"η = {rate:g}": {"rate": rate, "batch": sizes[0]} for rate in used},
        {f"B = {size}": {"rate": used[0], "batch": size} for size in sizes},
    ]
    return Panels(
        [panel for groups in rows for panel in _row(results, groups, scale)],
        caption="Top: learning rates; bottom: batch sizes. Running means over seeds. Dotted: 2ρ_B/η.",
    )


def _row(results: Results, groups: Mapping[str, Mapping[str, Any]], scale: Scale) -> list[Panel]:
    """‖⟨J⟩‖², ‖H‖ with its thresholds and ⟨λ⁽¹⁾⟩ of some settings by name."""

    def series(curves: Callable[..., Sequence[Curve]], before: str = "", style: str = "solid") -> list[Series]:
        return [
            clipped(_over_samples(curves(**labels), labels), before + name, SMOOTH[scale], style=style, colour=place)
            for place, (name, labels) in enumerate(groups.items())
        ]

    norms = series(lambda **labels: [square(curve) for curve in results.curve(NORM, **labels)])
    sharpness = series(partial(results.curve, "sharpness"))
    edges = series(lambda **labels: thresholds(results, scale, labels), "2ρ_B/η, ", "dotted")
    rates = dict.fromkeys(labels["rate"] for labels in groups.values())
    lines = [Line(f"2/{rate:g}", y=2 / rate, colour=place) for place, rate in enumerate(rates)]
    impurity = series(partial(results.curve, "impurity"))
    return [
        Panel("‖⟨J⟩‖²", "samples seen", "‖⟨J⟩‖²", norms),
        Panel("‖H‖", "samples seen", "‖H‖", [*sharpness, *edges], lines=lines),
        Panel("⟨λ⁽¹⁾⟩", "samples seen", "⟨λ⁽¹⁾⟩", impurity, lines=[Line("end of the ARP", y=IMPURE)]),
    ]


def _over_samples(curves: Sequence[Curve], labels: Mapping[str, Any]) -> list[Curve]:
    return [(steps * labels["batch"], values) for steps, values in curves]
