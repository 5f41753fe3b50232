"""Paper A, C.1: SGD with label smoothing, the first steps and the last (A-F28, A-F29)."""

from __future__ import annotations

from functools import partial
from math import log

import numpy as np

from spherometer.figures.panels import Panels
from spherometer.recipes.claims import Claim, Near
from spherometer.recipes.margins import falling, last, smaller
from spherometer.recipes.papers.a_label_smoothing import SHARPNESS, SMOOTHINGS, smoothing_panel
from spherometer.recipes.papers.a_networks import SOFTMAXED, curve_model_of, data_of, smaller_curve_setting
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run, training_run

OUTPUT = "output_frobenius"
MEASURED = {"smoke": 100, "laptop": 150, "paper": 1000}  # samples
COLLAPSE = log(10)  # "to zero": at least ten times below the peak
LEVEL = log(1.5)  # "plateau": from one quarter of training to the next
SMOOTHED = SMOOTHINGS[1:]


@recipe(
    "A-F28",
    "label smoothing tames sharpening from the first epoch of SGD",
    finding="smoothing has the order of the full-batch case",
    minutes=1,
)
def first_steps(scale: Scale) -> Experiment:
    """SGD, batch 128, the first epoch: sharpness, softmaxed Jacobian norm and output norm; A Fig 28."""
    unit = "ln of the factor from α = 0 to α = 0.75"
    steps = at_scale(scale, smoke=20, laptop=160, paper=391)
    every = at_scale(scale, smoke=5, laptop=10, paper=5)
    return Experiment(
        runs=_runs(scale, {"steps": steps}, every),
        claims=[
            Claim(
                "more smoothing gives a smaller softmaxed Jacobian norm at the end of the first steps",
                lambda results: falling(results, SOFTMAXED, over="smoothing"),
                unit=unit,
                source="A-F28",
            ),
            Claim(
                "more smoothing gives a lower peak of the sharpness",
                lambda results: falling(results, SHARPNESS, over="smoothing", how=np.max),
                unit=unit,
                source="A-F28",
            ),
        ],
        figure=partial(_figure, caption="SGD in the first epoch, label smoothing α."),
        departures=_departures(scale, every, "160 steps (40 epochs) instead of the 391 of an epoch"),
    )


@recipe(
    "A-F29",
    "without smoothing long training flattens by growing outputs",
    finding="unsmoothed: output norm grows, sharpness and softmaxed Jacobian norm collapse; smoothed: a plateau",
    minutes=1,
)
def long_training(scale: Scale) -> Experiment:
    """SGD, batch 128, 90 epochs; A Fig 29, 5.3 item 4."""
    epochs = at_scale(scale, smoke=20, laptop=150, paper=90)
    every = at_scale(scale, smoke=10, laptop=30, paper=391)
    source = "A-F29; 5.3 item 4"
    names = {"sharpness": SHARPNESS, "softmaxed Jacobian norm": SOFTMAXED}
    return Experiment(
        runs=_runs(scale, {"epochs": epochs}, every),
        claims=[
            Claim(
                "without smoothing the output norm keeps growing: it is larger at the end than half-way",
                lambda results: results.reduce(OUTPUT, _second_half, smoothing=0.0),
                unit="ln of the factor from half-way to the end",
                source=source,
            ),
            *(
                Claim(
                    f"without smoothing the {word} falls to a tenth of its peak or less",
                    partial(_collapse, name=name),
                    unit="ln of the factor from the peak to the end",
                    least=COLLAPSE,
                    source=source,
                )
                for word, name in names.items()
            ),
            *(
                Claim(
                    f"with smoothing the {word} stays larger: α = 0 ends below α = 0.5 and below α = 0.75",
                    partial(_stays_larger, name=name),
                    unit="ln of the smaller factor",
                    source=source,
                )
                for word, name in names.items()
            ),
            *(
                Near(
                    f"with smoothing α = {smoothing:g} the {word} is on a plateau from half-way on",
                    partial(_late_change, name=name, smoothing=smoothing),
                    target=0.0,
                    tolerance=LEVEL,
                    unit="ln of the factor from the third quarter to the last",
                    source=source,
                )
                for word, name in names.items()
                for smoothing in SMOOTHED
            ),
        ],
        figure=partial(_figure, caption="SGD for long, label smoothing α.", log_y=True),
        departures=[
            *_departures(scale, every, "150 epochs of 4 steps instead of 90 of 391"),
            "a plateau: within a factor of 1.5 from the third quarter of training to the last; collapse: to a tenth of "
            "the peak; chosen here",
        ],
    )


def _runs(scale: Scale, length: dict[str, int], every: int) -> list[Run]:
    seeds = range(at_scale(scale, smoke=2, laptop=4, paper=5))
    return [
        training_run(
            {"smoothing": smoothing, "seed": seed},
            data=data_of(scale, "cifar10"),
            model=curve_model_of(scale, "vgg11"),
            objective={"label_smoothing": smoothing},
            method={"learning_rate": 0.1, "momentum": 0.9},
            loop=length | {"batch_size": at_scale(scale, smoke=64, laptop=64, paper=128), "evaluate_every": 400},
            measurement={
                "track": ["loss", SOFTMAXED, OUTPUT],
                "track_batch_statistics": ["sharpness"],
                "track_every": every,
                "track_num": MEASURED[scale],
            },
        )
        for smoothing in SMOOTHINGS
        for seed in seeds
    ]


def _second_half(values: np.ndarray) -> float:
    return log(values[-1] / values[len(values) // 2])


def _late_change(results: Results, *, name: str, smoothing: float) -> list[float]:
    """ln of the mean of a quantity over the last quarter of training over that over the quarter before."""

    def change(values: np.ndarray) -> float:
        quarter = max(1, len(values) // 4)
        return log(values[-quarter:].mean() / values[-2 * quarter : -quarter].mean())

    return results.reduce(name, change, smoothing=smoothing)


def _stays_larger(results: Results, *, name: str) -> list[float]:
    plain = {"smoothing": 0.0}
    return list(np.min([smaller(results, name, here=plain, there={"smoothing": one}) for one in SMOOTHED], axis=0))


def _collapse(results: Results, *, name: str) -> list[float]:
    return results.reduce(name, lambda values: np.log(values.max() / last(values)), smoothing=0.0)


def _figure(results: Results, *, caption: str, log_y: bool = False) -> Panels:
    return Panels(
        [
            smoothing_panel(results, "sharpness", SHARPNESS, log_y=log_y),
            smoothing_panel(results, "softmaxed Jacobian norm", SOFTMAXED, log_y=True),
            smoothing_panel(results, "output norm ‖F‖_F", OUTPUT),
        ],
        caption=f"{caption} Mean and standard deviation over seeds.",
    )


def _departures(scale: Scale, every: int, length: str) -> list[str]:
    told = [
        "learning rate 0.1 and smoothing 0, 0.5, 0.75 are not stated: those of B.1 and B.2 (A-e15)",
        "momentum 0.9, no weight decay and a constant rate: chosen here, not in the text",
        f"measured every {every} steps on {MEASURED[scale]:,} samples"
        + ("" if scale != "paper" else ", of which the text has the 5 steps" if every == 5 else ": not in the text"),
    ]
    return (
        told
        if scale == "paper"
        else [*told, *smaller_curve_setting(scale, "vgg11", "cifar10"), f"batches of 64 instead of 128; {length}"]
    )
