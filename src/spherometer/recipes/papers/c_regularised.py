"""Paper C, App H: larger steps and smaller batches keep ‖⟨J⟩1̂‖² small while ⟨λ⁽¹⁾⟩ is large (C-F22 .. F25)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, Series, over_seeds
from spherometer.recipes.claims import AnyClaim, Claim, Near
from spherometer.recipes.margins import falling_throughout, larger, numbers, rising_throughout, weakest
from spherometer.recipes.papers.c_curves import IMPURE, ONES, plateau, square
from spherometer.recipes.papers.c_edge import edge_claims, settings_of
from spherometer.recipes.papers.c_runs import batches, departures, descent_rates, descent_run, seeds
from spherometer.recipes.papers.c_stochastic import SAMPLES, lengths, ratio_request, stochastic_run, thresholds
from spherometer.recipes.recipe import Experiment, Scale, recipe, variant
from spherometer.recipes.results import Results, Run

SMOOTH = {"smoke": 2, "laptop": 5, "paper": 20}  # points of the running mean; the paper's is not in the text
ABOUT = 0.25
REGULARISED: Any = partial(plateau, name=ONES, squared=True)


@recipe(
    "C-F22",
    "larger steps regularise the Jacobian",
    finding="larger learning rate, smaller ‖⟨J⟩1̂‖² in the active regularisation period",
    minutes=1,
)
def regularised(
    scale: Scale,
    *,
    source: str = "C-F22",
    network: str = "vgg11",
    learning_rates: Sequence[float] = (0.04, 0.08),
    batch_sizes: Sequence[int] = (),
) -> Experiment:
    """‖H‖, ‖⟨J⟩1̂‖² and ⟨λ⁽¹⁾⟩, smoothed, over learning rates or batch sizes; C Figs 22-25, 5.3 item 6."""
    used = descent_rates(scale, learning_rates)
    whole = SAMPLES[scale]
    sizes = [whole if size == 50_000 else size for size in batch_sizes]
    sizes = [size if size == whole else batches(scale, [size])[0] for size in sizes]
    if sizes:
        runs = [stochastic_run(scale, network, used[0], size, seed) for size in sizes for seed in seeds(scale)]
    else:
        runs = [descent_run(scale, network, rate, seed) for rate in used for seed in seeds(scale)]
    claims: list[AnyClaim] = _claims(source, scale, sizes)
    return Experiment(
        runs=runs,
        claims=claims + (edge_claims(source) if network == "cnn6" else []),
        figure=partial(_figure, scale=scale),
        departures=departures(
            scale,
            network,
            "the period is taken from where the sharpness has reached 90 % of its highest value: chosen here",
            *_smoothing(scale, runs),
            *(["over the logarithm of the step, so that long and short runs are seen; step 0 is not"] if sizes else []),
            *([f"'ρ_B ≈ 1' and 'as the whole' mean within {ABOUT:g}: chosen here"] if whole in sizes else []),
            descent=True,
            length=lengths(scale, network, sizes) if sizes else None,
        ),
    )


def _smoothing(scale: Scale, runs: Sequence[Run]) -> list[str]:
    """Over how many points, and steps where runs are not measured equally often."""
    every = [int(run.job.settings["measurement"]["track_every"]) for run in runs]
    steps = [f"{SMOOTH[scale] * one:,}" for one in dict.fromkeys(every)]
    spans = f" ({', '.join(steps)} steps, batch by batch)" if len(steps) > 1 else ""
    return [f"curves are running means over {SMOOTH[scale]} points{spans}: the paper's smoothing is not in the text"]


def _claims(source: str, scale: Scale, sizes: list[int]) -> list[AnyClaim]:
    if not sizes:
        return [
            Claim(
                "the larger the learning rate, the smaller ‖⟨J⟩1̂‖² in the active regularisation period",
                lambda results: falling_throughout(results, REGULARISED, over="rate"),
                unit="ln of the factor from one rate to the next, the weakest",
                source=f"{source}; 5.3 item 6",
            )
        ]
    if (whole := SAMPLES[scale]) not in sizes:
        return [
            Claim(
                "the smaller the batch, the smaller ‖⟨J⟩1̂‖² in the active regularisation period",
                lambda results: rising_throughout(results, REGULARISED, over="batch"),
                unit="ln of the factor from one batch size to the next, the weakest",
                source=f"{source}; 5.3 item 6",
            )
        ]
    smallest, *others = sorted(sizes)
    middle = others[-2]
    return [
        Claim(
            f"‖⟨J⟩1̂‖² in the active regularisation period is smaller with batches of {smallest} than with larger ones",
            lambda results: weakest(
                [larger(results, REGULARISED, here={"batch": size}, there={"batch": smallest}) for size in others]
            ),
            unit="ln of the factor, the weaker of both",
            source=f"{source}; 5.3 item 6",
        ),
        Near(
            f"batches of {middle} regularise ‖⟨J⟩1̂‖² as little as the whole",
            lambda results: list(
                np.log(numbers(results, REGULARISED, batch=middle) / numbers(results, REGULARISED, batch=whole))
            ),
            target=0.0,
            tolerance=ABOUT,
            unit="ln of the factor",
            source=source,
        ),
        Near(
            f"ρ_B of batches of {middle} is about 1",
            lambda results: plateau(results, ratio_request(scale, middle), batch=middle),
            target=1.0,
            tolerance=ABOUT,
            unit="mean over the active regularisation period",
            source=f"{source}; C Prop 5.2, Q49",
        ),
    ]


def _figure(results: Results, *, scale: Scale) -> Panels:
    groups = settings_of(results)
    by = "batch" if "batch" in groups[0] else "rate"
    names = {"batch": "batch", "rate": "η ="}

    def panel(title: str, name: str, *, squared: bool = False, lines: Sequence[Line] = ()) -> Panel:
        series = []
        for place, labels in enumerate(groups):
            curves = results.curve(name, **labels)
            curves = [square(curve) for curve in curves] if squared else curves
            series.append(over_seeds(curves, f"{names[by]} {labels[by]:g}", SMOOTH[scale], colour=place))
        return Panel(title, "step", title, series, log_x=by == "batch", lines=lines)

    def threshold(place: int, labels: Mapping[str, Any]) -> Series:
        curves = thresholds(results, scale, labels)
        return over_seeds(curves, f"2ρ_B/η, batch {labels['batch']:g}", SMOOTH[scale], style="dotted", colour=place)

    edges = [Line(f"2/{rate:g}", y=2 / rate, colour=place) for place, rate in enumerate(results.values("rate"))]
    batched = [(place, labels) for place, labels in enumerate(groups) if labels.get("batch", np.inf) < SAMPLES[scale]]
    sharpness = panel("‖H‖", "sharpness", lines=edges)
    return Panels(
        [
            replace(sharpness, series=[*sharpness.series, *(threshold(*entry) for entry in batched)]),
            panel("‖⟨J⟩1̂‖²", ONES, squared=True),
            panel("⟨λ⁽¹⁾⟩", "impurity", lines=[Line("end of the period", y=IMPURE)]),
        ],
        caption="Sharpness, mean Jacobian along 1̂ and impurity; running means, mean and deviation over seeds."
        + (" Dotted: 2ρ_B/η." if batched else ""),
    )


STEPS = "larger steps regularise the Jacobian"
variant(
    "C-F23",
    regularised,
    f"{STEPS} and keep the sharpness at 2/η",
    minutes=7,
    source="C-F23",
    network="cnn6",
    learning_rates=(0.02, 0.04, 0.08),
)
variant(
    "C-F24",
    regularised,
    "smaller batches regularise the Jacobian, large ones as little as all",
    finding="B = 512 ≈ GD; smaller batches lower",
    minutes=2,
    source="C-F24",
    learning_rates=(0.04,),
    batch_sizes=(50_000, 512, 32),
)
variant(
    "C-F25",
    regularised,
    "smaller batches regularise the Jacobian with a hundred classes",
    finding="smaller batch, smaller ‖⟨J⟩1̂‖² in the active regularisation period",
    minutes=5,
    source="C-F25",
    network="vgg11-cifar100",
    learning_rates=(0.1,),
    batch_sizes=(128, 64, 32),
)
