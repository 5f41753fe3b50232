"""Paper A, B.1: full-batch gradient descent with label smoothing (A-F1, A-F6 .. A-F11)."""

from __future__ import annotations

from functools import partial

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, over_seeds
from spherometer.recipes.claims import Claim
from spherometer.recipes.margins import falling
from spherometer.recipes.papers.a_networks import SOFTMAXED, curve_model_of, data_of, smaller_curve_setting
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Results, Run, training_run

SMOOTHINGS = (0.0, 0.5, 0.75)
SHARPNESS = "batch/sharpness"
MOST = 20_000  # iterations of the paper scale
TIME = 60  # of the laptop: learning rate times steps


@recipe(
    "A-F1",
    "label smoothing tames sharpening",
    finding="more smoothing, smaller final Jacobian norm and less sharpening",
    minutes=0.5,
)
def label_smoothing(scale: Scale, *, network: str = "vgg11", learning_rate: float = 0.08) -> Experiment:
    """GD on smoothed labels: loss, sharpness and softmaxed Jacobian norm over the iterations; A B.1, 5.3 item 2."""
    seeds = range(at_scale(scale, smoke=2, laptop=5, paper=5))
    plan = partial(_run, scale, network, learning_rate)

    def then(results: Results) -> list[Run]:
        """The smoothed runs take as many iterations as the unsmoothed one needed for 99 % accuracy, where it did."""
        lengths = dict(zip(seeds, results.last_step(smoothing=0.0), strict=True))
        return [plan(smoothing, seed, lengths[seed]) for smoothing in SMOOTHINGS[1:] for seed in seeds if lengths[seed]]

    unit = "ln of the factor from α = 0 to α = 0.75"
    return Experiment(
        runs=[plan(smoothing, seed) for smoothing in (SMOOTHINGS if scale != "paper" else (0.0,)) for seed in seeds],
        then=then if scale == "paper" else None,
        claims=[
            Claim(
                "more smoothing gives a smaller softmaxed Jacobian norm at the end",
                lambda results: falling(results, SOFTMAXED, over="smoothing"),
                unit=unit,
                source="A-F1; 5.3 item 2",
            ),
            Claim(
                "more smoothing gives a lower peak of the sharpness",
                lambda results: falling(results, SHARPNESS, over="smoothing", how=np.max),
                unit=unit,
                source="A-F1; 5.3 item 2",
            ),
        ],
        figure=partial(smoothing_figure, rate=learning_rate),
        departures=_departures(scale, network),
    )


def _run(scale: Scale, network: str, rate: float, smoothing: float, seed: int, steps: int | None = None) -> Run:
    paper = scale == "paper"
    loop = {"steps": steps or at_scale(scale, smoke=20, laptop=round(TIME / rate), paper=MOST), "evaluate_every": 100}
    if paper:
        loop |= {"ghost_size": 5000}
    if paper and steps is None:
        loop |= {"stop_accuracy": 0.99, "stop_every": 1}
    return training_run(
        {"smoothing": smoothing, "seed": seed},
        data=data_of(scale, "cifar10", "componentwise"),
        model=curve_model_of(scale, network),
        objective={"label_smoothing": smoothing},
        method={"learning_rate": rate},
        loop=loop,
        measurement={
            "track": ["loss", SOFTMAXED],
            "track_batch_statistics": ["sharpness"],
            "track_every": at_scale(scale, smoke=5, laptop=round(TIME / rate / 20), paper=5),
            "track_num": at_scale(scale, smoke=100, laptop=200, paper=2500),
        },
    )


def smoothing_figure(results: Results, *, rate: float) -> Panels:
    """Loss, sharpness and softmaxed Jacobian norm over the iterations, a line for each degree of smoothing."""
    edge = [Line("2/lr", y=2 / rate)]
    return Panels(
        [
            smoothing_panel(results, "loss − label entropy", "loss", log_y=True),
            smoothing_panel(results, "sharpness", SHARPNESS, lines=edge),
            smoothing_panel(results, "softmaxed Jacobian norm", SOFTMAXED, log_y=True),
        ],
        caption="Full-batch gradient descent with label smoothing α; mean and standard deviation over seeds.",
    )


def smoothing_panel(results: Results, title: str, name: str, **options: object) -> Panel:
    """A tracked quantity over the iterations, a line for each degree of smoothing."""
    series = [
        over_seeds(results.curve(name, smoothing=smoothing), f"α = {smoothing:g}")
        for smoothing in sorted(results.values("smoothing"))
    ]
    return Panel(title, "iteration", title, series, **options)  # type: ignore[arg-type]


def _departures(scale: Scale, network: str) -> list[str]:
    axis = "the loss on a logarithmic axis: chosen here"
    if scale == "paper":
        return [
            "measured every 5 iterations (the text says 5, 10 or 20)",
            f"{MOST:,} iterations at most where the unsmoothed run does not come to 99 % accuracy: chosen here",
            axis,
        ]
    return [
        axis,
        *smaller_curve_setting(scale, network, "cifar10"),
        f"{TIME} / learning rate iterations for all instead of those that bring the unsmoothed run to 99 % accuracy",
    ]


MINUTES = (("vgg11", (0.5, 0.5, 0.6)), ("resnet18", (2.2, 5, 11)))  # smaller rates take more steps
for number, (network, learning_rate, minutes) in enumerate(
    [
        (network, rate, minutes)
        for network, times in MINUTES
        for rate, minutes in zip((0.08, 0.04, 0.02), times, strict=True)
    ],
    start=6,
):
    variant(
        f"A-F{number}",
        label_smoothing,
        f"label smoothing tames sharpening: {network}, learning rate {learning_rate:g}",
        minutes=minutes,
        network=network,
        learning_rate=learning_rate,
    )
