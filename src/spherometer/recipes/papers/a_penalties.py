"""Paper A, App. D: penalties of the two Jacobians do the same (A-F33)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Panel, Panels
from spherometer.recipes.claims import Claim, Near
from spherometer.recipes.ends import gap, mean_line, over_label
from spherometer.recipes.margins import Quantity, averaged, falling, levels_of, numbers
from spherometer.recipes.papers.a_networks import JACOBIAN, NAMES, SHARPNESS, data_of, model_of, smaller_setting
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run, training_run

NORM = f"final_{JACOBIAN}"
PENALTIES = {"mean-jacobian": "Param.", "input-jacobian": "Input"}
COEFFICIENTS = {"mean-jacobian": (0.0, 1e-3, 1e-2, 1e-1), "input-jacobian": (0.0, 1e-6, 1e-5, 1e-4)}
ALIKE = 2.0  # factor that two penalties may differ by and still behave alike
REFERENCE = "reference"  # the label of the unpenalised run with the large learning rate
SHOWN: dict[str, Quantity] = {"Jacobian norm": NORM, "gap": gap}


@recipe(
    "A-F33",
    "penalising either Jacobian lowers Jacobian norm and gap",
    finding="both penalties lower Jacobian norm and gap, alike, towards the reference with the large learning rate",
    minutes=0.5,
)
def penalties(scale: Scale) -> Experiment:
    """A small constant learning rate with a penalty on the parameter or the input Jacobian; A Fig 33."""
    sets = ("cifar10", "cifar100") if scale == "paper" else ("cifar10",)
    seeds = range(at_scale(scale, smoke=2, laptop=4, paper=5))
    runs = [run for data in sets for seed in seeds for run in _runs(scale, data, seed)]
    return Experiment(
        runs=runs,
        claims=[
            *(
                Claim(
                    f"the {word} penalty {sentence.format(name)}",
                    averaged(partial(margins, quantity=quantity, penalty=penalty), "data"),
                    unit=unit,
                    source="A-F33",
                )
                for sentence, margins, unit in CLAIMED
                for penalty, word in PENALTIES.items()
                for name, quantity in SHOWN.items()
            ),
            *(
                Near(
                    f"both penalties lower the {name} alike, within a factor of {ALIKE:g}",
                    averaged(partial(_unlike, quantity=quantity), "data"),
                    target=0.0,
                    tolerance=float(np.log(ALIKE)),
                    unit="ln of the factor of Param. − that of Input, from no penalty to the largest coefficient",
                    source="A-F33",
                )
                for name, quantity in SHOWN.items()
            ),
        ],
        figure=_figure,
        departures=_departures(scale),
    )


def _runs(scale: Scale, data: str, seed: int) -> list[Run]:
    small = at_scale(scale, smoke=0.01, laptop=0.01, paper=0.001)
    epochs = at_scale(scale, smoke=5, laptop=45, paper=90)
    steps = {"schedule": "steps", "milestones": at_scale(scale, smoke=(3,), laptop=(15, 30), paper=(30, 60))}
    runs = [_run(scale, data, seed, epochs, {"learning_rate": 0.1} | steps, REFERENCE, 0.0)]
    for penalty, coefficients in COEFFICIENTS.items():
        chosen = coefficients[::3] if scale == "smoke" else coefficients
        runs += [_run(scale, data, seed, epochs, {"learning_rate": small}, penalty, strength) for strength in chosen]
    return runs


def _run(
    scale: Scale, data: str, seed: int, epochs: int, method: dict[str, Any], penalty: str, coefficient: float
) -> Run:
    return training_run(
        {"data": data, "penalty": penalty, "coefficient": coefficient, "seed": seed},
        data=data_of(scale, data),
        model=model_of(scale, "resnet18" if scale == "paper" else "vgg11"),
        objective={"penalty": penalty, "coefficient": coefficient} if coefficient else {},
        method=method | {"momentum": 0.9, "weight_decay": 5e-4},
        loop={
            "epochs": epochs,
            "batch_size": at_scale(scale, smoke=64, laptop=64, paper=128),
            "evaluate_every": at_scale(scale, smoke=None, laptop=100, paper=None),
        },
        measurement={
            "measure": [JACOBIAN],
            "measure_batch_statistics": ["sharpness"],
            "measure_num": at_scale(scale, smoke=100, laptop=200, paper=1000),
        },
    )


def _fall(results: Results, *, quantity: Quantity, penalty: str, data: str) -> list[float]:
    return falling(results, quantity, over="coefficient", penalty=penalty, data=data)


def _smallest_fall(results: Results, *, quantity: Quantity, penalty: str, data: str) -> list[float]:
    levels = levels_of(results, "coefficient", penalty=penalty)
    table = np.log([numbers(results, quantity, data=data, penalty=penalty, coefficient=level) for level in levels])
    return [float(fall) for fall in (-np.diff(table, axis=0)).min(0)]


def _unlike(results: Results, *, quantity: Quantity, data: str) -> list[float]:
    falls = [_fall(results, quantity=quantity, penalty=penalty, data=data) for penalty in PENALTIES]
    return [one - other for one, other in zip(*falls, strict=True)]


def _approach(results: Results, *, quantity: Quantity, penalty: str, data: str) -> list[float]:
    def size(**labels: Any) -> np.ndarray:
        return np.log(numbers(results, quantity, data=data, **labels))

    goal = size(penalty=REFERENCE)
    without, most = (size(penalty=penalty, coefficient=strength) for strength in _ends(results, penalty))
    return list(np.abs(without - goal) - np.abs(most - goal))


def _ends(results: Results, penalty: str) -> tuple[float, float]:
    levels = levels_of(results, "coefficient", penalty=penalty)
    return levels[0], levels[-1]


CLAIMED = (
    ("lowers the {}", _fall, "ln of the factor from no penalty to the largest coefficient"),
    (
        "brings the {} nearer to that of the large learning rate",
        _approach,
        "distance of its logarithm without penalty − with the largest",
    ),
    (
        "lowers the {} with every step of its coefficient",
        _smallest_fall,
        "ln of the factor at the step where it falls least",
    ),
)


def _figure(results: Results) -> Panels:
    shown = SHOWN | {"sharpness": SHARPNESS, "test accuracy": "final_test_accuracy"}
    where = ", ".join(NAMES[data] for data in results.values("data"))
    return Panels(
        [_panel(results, data, name, quantity) for data in results.values("data") for name, quantity in shown.items()],
        columns=len(shown),
        caption=f"Penalties at a small constant learning rate; setting of {where}. Dashed: the large learning rate.",
    )


def _panel(results: Results, data: str, name: str, quantity: Quantity) -> Panel:
    """A line for each penalty at its own coefficients, and the reference, which has none, with its spread."""
    axis = levels_of(results, "coefficient", data=data)
    drawn = partial(over_label, results, quantity, "coefficient", among=axis, data=data)
    series = [drawn(word, penalty=penalty) for penalty, word in PENALTIES.items()]
    series.append(drawn("large lr", penalty=REFERENCE, style="markers"))
    goal = mean_line("large lr, mean", numbers(results, quantity, data=data, penalty=REFERENCE))
    return Panel(name, "coefficient", name, series, lines=goal, x_names=[f"{level:g}" for level in axis])


def _departures(scale: Scale) -> list[str]:
    told = [
        "the grids of coefficients are not in the text: chosen here (A-e13)",
        f"'alike' means within a factor of {ALIKE:g}: chosen here",
        "ResNet18 with batch norm: the caption leaves the network open",
        "the Input penalty is the unbiased N·C‖u'J‖², squared (A-e9)",
        *(text.replace("VGG11", "ResNet18") for text in smaller_setting(scale, "vgg11", "cifar10")),
    ]
    if scale == "paper":
        return told
    return [
        *told,
        "only the setting of CIFAR-10; constant learning rate 0.01 instead of 0.001",
        "45 epochs with batches of 64, the reference's rate falls every 15, instead of 90 and 30",
    ]
