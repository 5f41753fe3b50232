"""Paper C, App H: larger steps and smaller batches keep ‖⟨J⟩1̂‖² small while ⟨λ⁽¹⁾⟩ is large (C-F22 .. F25)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, over_seeds
from spherometer.recipes.claims import AnyClaim, Claim, Near
from spherometer.recipes.margins import falling, numbers, rising
from spherometer.recipes.papers.c_curves import IMPURE, ONES, plateau, square
from spherometer.recipes.papers.c_edge import edge_claims, settings_of
from spherometer.recipes.papers.c_runs import batches, departures, descent_rates, descent_run, seeds
from spherometer.recipes.papers.c_stochastic import SAMPLES, stochastic_run
from spherometer.recipes.recipe import Experiment, Scale, recipe, variant
from spherometer.recipes.results import Results

SMOOTH = {"smoke": 2, "laptop": 5, "paper": 20}  # points of the running mean; the paper's is not in the text
ABOUT = 0.25
REGULARISED: Any = partial(plateau, name=ONES, squared=True)


@recipe(
    "C-F22",
    "larger steps regularise the Jacobian",
    finding="larger learning rate, smaller ‖⟨J⟩1̂‖² in the active regularisation period",
    minutes=7,
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
    claims: list[AnyClaim] = _claims(source, sizes, whole)
    return Experiment(
        runs=runs,
        claims=claims + (edge_claims(source) if network == "cnn6" else []),
        figure=partial(_figure, smooth=SMOOTH[scale]),
        departures=departures(
            scale,
            network,
            "the period is taken from where the sharpness has reached 90 % of its highest value: chosen here",
            f"curves are running means over {SMOOTH[scale]} points: the paper's smoothing is not in the text",
            descent=True,
        ),
    )


def _claims(source: str, sizes: list[int], whole: int) -> list[AnyClaim]:
    if not sizes:
        return [
            Claim(
                "the larger the learning rate, the smaller ‖⟨J⟩1̂‖² in the active regularisation period",
                lambda results: falling(results, REGULARISED, over="rate"),
                unit="ln of the factor from the smallest to the largest rate",
                source=f"{source}; 5.3 item 6",
            )
        ]
    smaller: AnyClaim = Claim(
        "the smaller the batch, the smaller ‖⟨J⟩1̂‖² in the active regularisation period",
        lambda results: rising(results, REGULARISED, over="batch"),
        unit="ln of the factor from the smallest to the largest batch",
        source=f"{source}; 5.3 item 6",
    )
    if whole not in sizes:
        return [smaller]
    middle = sorted(sizes)[-2]
    return [
        smaller,
        Near(
            f"batches of {middle} are as good as the whole: ρ_B ≈ 1",
            lambda results: list(
                np.log(numbers(results, REGULARISED, batch=middle) / numbers(results, REGULARISED, batch=whole))
            ),
            target=0.0,
            tolerance=ABOUT,
            source=source,
        ),
    ]


def _figure(results: Results, *, smooth: int) -> Panels:
    groups = settings_of(results)
    by = "batch" if "batch" in groups[0] else "rate"
    names = {"batch": "batch", "rate": "η ="}

    def panel(title: str, name: str, *, squared: bool = False, lines: Sequence[Line] = ()) -> Panel:
        series = []
        for place, labels in enumerate(groups):
            curves = results.curve(name, **labels)
            curves = [square(curve) for curve in curves] if squared else curves
            series.append(over_seeds(curves, f"{names[by]} {labels[by]:g}", smooth, colour=place))
        return Panel(title, "step", title, series, lines=lines)

    edges = [Line(f"2/{rate:g}", y=2 / rate, colour=place) for place, rate in enumerate(results.values("rate"))]
    return Panels(
        [
            panel("‖H‖", "sharpness", lines=edges),
            panel("‖⟨J⟩1̂‖²", ONES, squared=True),
            panel("⟨λ⁽¹⁾⟩", "impurity", lines=[Line("end of the period", y=IMPURE)]),
        ],
        caption="Sharpness, mean Jacobian along 1̂ and impurity; running means, mean and deviation over seeds.",
    )


STEPS = "larger steps regularise the Jacobian"
variant(
    "C-F23",
    regularised,
    f"{STEPS} and keep the sharpness at 2/η",
    source="C-F23",
    network="cnn6",
    learning_rates=(0.02, 0.04, 0.08),
)
variant(
    "C-F24",
    regularised,
    "smaller batches regularise the Jacobian, large ones as little as all",
    finding="B = 512 ≈ GD; smaller batches lower",
    source="C-F24",
    learning_rates=(0.04,),
    batch_sizes=(50_000, 512, 32),
)
variant(
    "C-F25",
    regularised,
    "smaller batches regularise the Jacobian with a hundred classes",
    finding="smaller batch, smaller ‖⟨J⟩1̂‖² in the active regularisation period",
    source="C-F25",
    network="vgg11-cifar100",
    learning_rates=(0.1,),
    batch_sizes=(128, 64, 32),
)
