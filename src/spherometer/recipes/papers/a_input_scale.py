"""Paper A, C.2: the scale of the inputs parts Jacobian norm and sharpness (A-F30, A-F31)."""

from __future__ import annotations

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, over_seeds
from spherometer.recipes.claims import Claim
from spherometer.recipes.margins import above, falling, rising
from spherometer.recipes.papers.a_networks import JACOBIAN
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Curve, Results, Run, training_run

RATE, SCALES, FEATURES = 0.2, (0.5, 1.0, 1.5), "feature_norms"
SMALL, LARGE = {"scale": SCALES[0]}, {"scale": SCALES[-1]}


@recipe(
    "A-F30",
    "smaller inputs: more growth of the Jacobian, less sharpening",
    finding="smaller scale: more growth of the Jacobian norm but less sharpening; larger scale: larger features",
    minutes=1,
)
def input_scale(scale: Scale, *, activation: str = "relu") -> Experiment:
    """GD on standardised inputs times 0.5, 1 and 1.5: loss, sharpness and Jacobian norm; A C.2, 5.3 item 3."""
    seeds = range(at_scale(scale, smoke=2, laptop=5, paper=5))
    source, unit = "A-F30, A-F31; 5.3 item 3", "ln of the factor from scale 0.5 to 1.5"
    return Experiment(
        runs=[_run(scale, activation, factor, seed) for factor in SCALES for seed in seeds],
        claims=[
            Claim(
                "the smaller the inputs, the more the Jacobian norm grows from start to end",
                lambda results: falling(results, JACOBIAN, over="scale", how=lambda values: values[-1] / values[0]),
                unit=f"{unit} of ‖J‖ end / start",
                source=source,
            ),
            Claim(
                "the smaller the inputs, the less the sharpness rises above its start",
                lambda results: above(results, "sharpness", here=LARGE, there=SMALL, how=_rise),
                unit="rise of λ₁ at scale 1.5 less that at 0.5",
                source=source,
            ),
            Claim(
                "the larger the inputs, the larger the features of the hidden layers at the end",
                lambda results: rising(results, hidden_features, over="scale"),
                unit=f"{unit} of the mean feature norm",
                source=source,
            ),
        ],
        figure=_figure,
        departures=_departures(scale),
    )


def _rise(values: np.ndarray) -> float:
    """From the start to the peak; none is a rise of zero, which has no logarithm."""
    return float(values.max() - values[0])


def hidden_features(results: Results, **labels: object) -> list[float]:
    """The mean spectral norm of the features that enter the layers after the first, one for each seed; Q13."""
    found = results.parts(f"final_{FEATURES}", **labels)
    return [float(np.mean(list(norms.values())[1:])) for norms in found]


def _run(scale: Scale, activation: str, factor: float, seed: int) -> Run:
    paper = scale == "paper"
    return training_run(
        {"scale": factor, "seed": seed},
        data={
            "data": "cifar10" if paper else "digits",
            "num": at_scale(scale, smoke=100, laptop=500, paper=5000),
            "standardise": "componentwise",
            "input_scale": factor,
        },
        model={"model": "fcn3-cifar" if paper else "fcn3-mnist", "activation": activation},
        method={"learning_rate": RATE},
        loop={"steps": at_scale(scale, smoke=20, laptop=300, paper=300), "evaluate_every": 100},
        measurement={
            "track": ["loss", "sharpness", JACOBIAN, FEATURES],
            "track_every": at_scale(scale, smoke=5, laptop=15, paper=5),
            "track_num": at_scale(scale, smoke=100, laptop=300, paper=None),
            "measure": [FEATURES],
        },
    )


def _feature_curves(results: Results, factor: float) -> list[Curve]:
    """The same mean over the iterations."""
    found = results.vectors(FEATURES, scale=factor)
    means = [{step: np.mean(list(norms.values())[1:]) for step, norms in steps.items()} for steps in found]
    return [(np.array([*curve]), np.array([*curve.values()])) for curve in means]


def _figure(results: Results) -> Panels:
    factors = sorted(results.values("scale"))

    def panel(title: str, name: str, **options: object) -> Panel:
        series = [over_seeds(results.curve(name, scale=factor), f"scale {factor:g}") for factor in factors]
        return Panel(title, "iteration", title, series, **options)  # type: ignore[arg-type]

    features = [over_seeds(_feature_curves(results, factor), f"scale {factor:g}") for factor in factors]

    return Panels(
        [
            panel("loss", "loss", log_y=True),
            panel("sharpness", "sharpness", lines=[Line("2/lr", y=2 / RATE)]),
            panel("Jacobian norm", JACOBIAN, log_y=True),
            Panel("mean feature norm of the hidden layers", "iteration", "feature norm", features),
        ],
        columns=2,
        caption="Gradient descent on inputs times a factor; mean and standard deviation over seeds.",
    )


def _departures(scale: Scale) -> list[str]:
    told = ["logit Jacobian (Q71: the text does not say)", "less sharpening: the rise of λ₁ from its start to its peak"]
    if scale == "paper":
        return told
    return [
        *told,
        "a 64-200-200-10 network on the first 500 digits instead of 3072-200-200-10 on 5,000 CIFAR-10 images",
    ]


variant(
    "A-F31",
    input_scale,
    "smaller inputs: more growth of the Jacobian, less sharpening; with tanh",
    minutes=1,
    activation="tanh",
)
