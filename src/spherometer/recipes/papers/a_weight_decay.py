"""Paper A: weight decay makes the minimum sharper and better (A-F2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

from spherometer.figures.panels import Panels
from spherometer.recipes.claims import Claim, Correlation
from spherometer.recipes.ends import R_OVER_SETTINGS, gap, label_panel, over_settings
from spherometer.recipes.margins import Quantity, above, averaged, larger, smaller
from spherometer.recipes.papers.a_networks import JACOBIAN, SHARPNESS, SOFTMAXED, data_of, model_of, smaller_setting
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run, training_run

NORM = f"final_{JACOBIAN}"
NEAR_ZERO = 0.01  # training loss that counts as near zero, as in paper B's recipes


@recipe(
    "A-F2",
    "without weight decay flat minima generalise worse",
    finding="without weight decay near-zero loss and sharpness, but larger Jacobian norm and gap",
    minutes=10,
)
def weight_decay(scale: Scale) -> Experiment:
    """Weight decay on the x axis, a line for each learning rate, at the end of 90 epochs; A Fig 2, 5.3 item 4."""
    decays = at_scale(scale, smoke=(0.0, 1e-2), laptop=(0.0, 3e-4, 1e-3, 3e-3), paper=(0.0, 1e-5, 1e-4, 5e-4, 1e-3))
    rates = at_scale(scale, smoke=(0.1,), laptop=(0.1,), paper=(0.1, 0.01, 0.001))
    seeds = range(at_scale(scale, smoke=2, laptop=4, paper=5))
    none, most = {"weight_decay": 0.0}, {"weight_decay": decays[-1]}

    def claim(sentence: str, compare: Callable[..., list[float]], quantity: Quantity) -> Claim:
        source = "A-F2; 5.3 item 4"
        unit = f"ln of the factor between weight decay 0 and {decays[-1]:g}, mean over learning rates"
        margins = averaged(partial(compare, name=quantity, here=none, there=most), "rate")
        return Claim(sentence, margins, unit=unit, source=source)

    return Experiment(
        runs=[_run(scale, *chosen) for chosen in product(decays, rates, seeds)],
        claims=[
            claim("without weight decay the sharpness is smaller", smaller, SHARPNESS),
            claim("without weight decay the Jacobian norm is larger", larger, NORM),
            claim("without weight decay the gap is larger", larger, gap),
            Claim(
                "without weight decay the training loss is near zero",
                averaged(_below_near_zero, "rate"),
                unit=f"{NEAR_ZERO:g} − loss, mean over learning rates",
                source="A-F2",
            ),
            Claim(
                "the most weight decay gives a better test accuracy than none",
                averaged(partial(above, name="final_test_accuracy", here=most, there=none), "rate"),
                unit="share of the test set, mean over learning rates",
                source="5.3 item 4",
            ),
            Correlation(
                "the gap goes with the Jacobian norm",
                lambda results: (over_settings(results, NORM), over_settings(results, gap)),
                sign=1,
                unit=R_OVER_SETTINGS,
                source="A-F2",
            ),
            Correlation(
                "the gap goes against the sharpness",
                lambda results: (over_settings(results, SHARPNESS), over_settings(results, gap)),
                sign=-1,
                unit=R_OVER_SETTINGS,
                source="A-F2",
            ),
        ],
        figure=lambda results: _figure(results, rates),
        departures=_departures(scale),
    )


def _below_near_zero(results: Results, rate: float) -> list[float]:
    return [NEAR_ZERO - loss for loss in results.final("final_train_loss", weight_decay=0.0, rate=rate)]


def _run(scale: Scale, decay: float, rate: float, seed: int) -> Run:
    return training_run(
        {"weight_decay": decay, "rate": rate, "seed": seed},
        data=data_of(scale, "cifar10"),
        model=model_of(scale, "resnet18"),
        method={
            "learning_rate": rate,
            "momentum": 0.9,
            "weight_decay": decay,
            "schedule": "steps",
            "milestones": at_scale(scale, smoke=(3,), laptop=(50, 80), paper=(50, 80)),
        },
        loop={
            "epochs": at_scale(scale, smoke=5, laptop=90, paper=90),
            "batch_size": at_scale(scale, smoke=64, laptop=64, paper=128),
            "evaluate_every": at_scale(scale, smoke=None, laptop=100, paper=None),
        },
        measurement={
            "measure": [JACOBIAN, SOFTMAXED],
            "measure_batch_statistics": ["sharpness"],
            "measure_num": at_scale(scale, smoke=100, laptop=200, paper=1000),
        },
    )


def _figure(results: Results, rates: tuple[float, ...]) -> Panels:
    lines = [(f"lr {rate:g}", {"rate": rate}) for rate in rates]
    wanted: list[tuple[str, Quantity]] = [
        ("Jacobian norm", NORM),
        ("sharpness", SHARPNESS),
        ("gap", gap),
        ("softmaxed Jacobian norm", f"final_{SOFTMAXED}"),
        ("training loss", "final_train_loss"),
        ("test accuracy", "final_test_accuracy"),
    ]
    return Panels(
        [
            label_panel(results, title, name, "weight_decay", "weight decay", lines, log_y=title != "test accuracy")
            for title, name in wanted
        ],
        caption="The end of 90 epochs with weight decay; mean and standard deviation over seeds.",
    )


def _departures(scale: Scale) -> list[str]:
    return [
        "the grids of weight decays and learning rates are not in the text: chosen here (A-e13)",
        "all but the accuracy on logarithmic axes: chosen here",
        f"a loss near zero is one below {NEAR_ZERO:g}: chosen here",
        "the data set is not named in the caption: CIFAR-10 from the context (A-e14)",
        *smaller_setting(scale, "resnet18", "cifar10"),
        *([] if scale == "paper" else ["batches of 64 instead of 128; one learning rate"]),
    ]
