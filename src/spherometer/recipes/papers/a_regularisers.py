"""Paper A, B.3: label smoothing, mixup, augmentation and SAM by strength (A-F5, A-F20 .. A-F27)."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from spherometer.figures.panels import Panels
from spherometer.recipes.claims import Claim, Correlation, Stronger
from spherometer.recipes.ends import R_OVER_SETTINGS, gap, label_panel, over_settings
from spherometer.recipes.margins import Quantity, averaged, falling, larger, numbers, smaller
from spherometer.recipes.papers.a_networks import (
    GAUSS_NEWTON,
    JACOBIAN,
    NAMES,
    SHARPNESS,
    SOFTMAXED,
    data_of,
    model_of,
    smaller_setting,
)
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Results, Run, training_run

NORM = f"final_{JACOBIAN}"
SYMBOLS = {"label smoothing": "α", "mixup": "β", "augmentation": "p", "SAM": "ρ"}
DECAY = "weight decay"
SMOKE = dict.fromkeys(SYMBOLS, (0.0, 0.5)) | {"SAM": (0.0, 0.1)}
LAPTOP = {
    "label smoothing": (0.0, 0.25, 0.75),
    "mixup": (0.0, 0.25, 1.0),
    "augmentation": (0.0, 0.25, 1.0),
    "SAM": (0.0, 0.1, 0.3),
}
FULL = {
    "label smoothing": (0.0, 0.25, 0.5, 0.75),
    "mixup": (0.0, 0.25, 0.5, 0.75, 1.0),
    "augmentation": (0.0, 0.25, 0.5, 0.75, 1.0),
    "SAM": (0.0, 0.05, 0.1, 0.15, 0.2),
}
MAIN: dict[str, Quantity] = {"gap": gap, "Jacobian norm": NORM, "sharpness": SHARPNESS}
ALL: dict[str, Quantity] = {
    "gap": gap,
    "sharpness": SHARPNESS,
    "Jacobian norm": NORM,
    "Gauss-Newton norm": GAUSS_NEWTON,
    "training loss": "final_train_loss",
    "test accuracy": "final_test_accuracy",
}
DECAYS = {"smoke": (0.0, 1e-3), "paper": (0.0, 1e-4, 5e-4, 1e-3)}  # of the sweep over weight decay; not at laptop scale
USUAL = 5e-4  # weight decay of every other run
LOWERS = 0.1  # of ln ‖H‖: a smaller fall lowers nothing
CLOSE = 0.25  # "‖G‖ ≈ ‖H‖": within this of ln ‖G‖/‖H‖, on average


@recipe(
    "A-F5",
    "regularisers smooth the map, only SAM flattens the loss",
    finding="all techniques lower Jacobian norm and gap at least at first; only SAM lowers the sharpness",
    minutes=14,
)
def regularisers(scale: Scale) -> Experiment:
    """Strength of each technique on the x axis, a line for each learning rate: gap, Jacobian norm, sharpness; A Fig 5.

    5.3 item 12.
    """
    grid, rates, runs = _runs(scale, "resnet18", "cifar10", batchnorm=True)
    return Experiment(
        runs=runs,
        claims=[*_at_first(grid), *_sharpness_claims(grid), *_rises_again(grid)],
        figure=lambda results: _figure(results, MAIN, rates),
        departures=[
            f"a technique that lowers ln ‖H‖ by less than {LOWERS:g} does not lower it: chosen here",
            *_departures(scale, "resnet18", "cifar10", batchnorm=True),
        ],
    )


@recipe(
    "A-F20",
    "the gap follows the Jacobian norm more than the sharpness",
    finding="corr(J, gap) > corr(H, gap); ‖G‖ near ‖H‖; under SAM the Jacobian norm falls with the sharpness",
    minutes=1,
)
def correlations(scale: Scale, *, network: str = "vgg11", data: str = "cifar10", batchnorm: bool = False) -> Experiment:
    """All six panels for each technique, and how gap, Jacobian norm and sharpness go together; A B.3."""
    _, rates, runs = _runs(scale, network, data, batchnorm=batchnorm, decays=DECAYS.get(scale, ()))
    source = "A-F20 .. A-F27"
    return Experiment(
        runs=runs,
        claims=[
            Stronger(
                "the gap correlates more with the Jacobian norm than with the sharpness",
                lambda results: (
                    over_settings(results, NORM),
                    over_settings(results, SHARPNESS),
                    over_settings(results, gap),
                ),
                unit="difference of artanh r over settings, each the mean of its seeds",
                source=source,
            ),
            Claim(
                f"‖G‖ is near ‖H‖: |ln ‖G‖/‖H‖| is below {CLOSE:g} on average over the runs",
                _closeness,
                unit=f"{CLOSE:g} − mean |ln ‖G‖/‖H‖|",
                source=source,
            ),
            Correlation(
                "under SAM a smaller sharpness goes with a smaller Jacobian norm",
                lambda results: (
                    over_settings(results, SHARPNESS, technique="SAM"),
                    over_settings(results, NORM, technique="SAM"),
                ),
                sign=1,
                unit=R_OVER_SETTINGS,
                source=f"{source}; 5.3 item 12",
            ),
        ],
        figure=lambda results: _figure(results, ALL, rates),
        departures=[
            f"‖G‖ is near ‖H‖ where |ln ‖G‖/‖H‖| is below {CLOSE:g} on average: chosen here",
            *_departures(scale, network, data, batchnorm=batchnorm),
        ],
    )


def _runs(
    scale: Scale, network: str, data: str, *, batchnorm: bool, decays: tuple[float, ...] = ()
) -> tuple[dict[str, Any], tuple[float, ...], list[Run]]:
    """Strengths, learning rates, and a run for each; the one of strength 0 is shared by all techniques."""
    grid: dict[str, Any] = at_scale(scale, smoke=SMOKE, laptop=LAPTOP, paper=FULL)
    grid = grid | ({DECAY: decays} if decays else {})
    rates: tuple[float, ...] = at_scale(scale, smoke=(0.1,), laptop=(0.05,), paper=(0.1, 0.01, 0.001))
    seeds = range(at_scale(scale, smoke=1, laptop=5, paper=5))
    runs = [
        _run(scale, network, data, batchnorm, technique, strength, rate, seed)
        for technique, strengths in grid.items()
        for strength, rate, seed in product(strengths, rates, seeds)
    ]
    return grid, rates, runs


def _run(
    scale: Scale, network: str, data: str, batchnorm: bool, technique: str, strength: float, rate: float, seed: int
) -> Run:
    given = _given(scale, technique, strength)
    return training_run(
        {"technique": technique, "strength": strength, "rate": rate, "seed": seed},
        data=data_of(scale, data),
        model=model_of(scale, network, batchnorm=batchnorm),
        objective=given.get("objective", {}),
        method={
            "learning_rate": rate,
            "momentum": 0.9,
            "weight_decay": USUAL,
            "schedule": "steps",
            "milestones": at_scale(scale, smoke=(3,), laptop=(25, 40), paper=(50, 80)),
        }
        | given.get("method", {}),
        loop={
            "epochs": at_scale(scale, smoke=5, laptop=45, paper=90),
            "batch_size": at_scale(scale, smoke=64, laptop=64, paper=128),
            "evaluate_every": at_scale(scale, smoke=None, laptop=100, paper=None),
        }
        | given.get("loop", {}),
        measurement={
            "measure": [JACOBIAN, SOFTMAXED],
            "measure_batch_statistics": ["sharpness", "gauss_newton_norm"],
            "measure_num": at_scale(scale, smoke=100, laptop=200, paper=1000),
        },
    )


def _given(scale: Scale, technique: str, strength: float) -> dict[str, dict[str, Any]]:
    """What a technique changes in the settings; nothing at strength 0."""
    if technique == DECAY:
        return {"method": {"weight_decay": strength}}
    if not strength:
        return {}
    return {
        "label smoothing": {"objective": {"label_smoothing": strength}},
        "mixup": {"loop": {"mixup": strength}},
        "augmentation": {"loop": {"augment": strength, "padding": at_scale(scale, smoke=1, laptop=1, paper=4)}},
        "SAM": {"method": {"method": "sam", "rho": strength}},
    }[technique]


def _at_first(grid: dict[str, Any]) -> list[Claim]:
    """Each technique lowers Jacobian norm and gap at its smallest strength."""
    return [
        Claim(
            f"{technique} at {SYMBOLS[technique]} = {strengths[1]:g} lowers the {name}",
            averaged(
                partial(smaller, name=MAIN[name], here=_at(technique, strengths[1]), there=_at(technique, 0.0)), "rate"
            ),
            unit="ln of the factor to no regularisation, mean over learning rates",
            source="A-F5; 5.3 item 12",
        )
        for technique, strengths in grid.items()
        for name in ("Jacobian norm", "gap")
    ]


def _at(technique: str, strength: float) -> dict[str, Any]:
    return {"technique": technique, "strength": strength}


def _sharpness_claims(grid: dict[str, Any]) -> list[Claim]:
    def fall(results: Results, technique: str, rate: float) -> np.ndarray:
        return np.array(falling(results, SHARPNESS, over="strength", technique=technique, rate=rate))

    def beyond(results: Results, rate: float) -> list[float]:
        others = [fall(results, technique, rate) for technique in grid if technique != "SAM"]
        return list(fall(results, "SAM", rate) - np.max(others, axis=0))

    unit = "ln of the factor from strength 0 to the largest, mean over learning rates"
    return [
        Claim(
            "SAM lowers the sharpness",
            averaged(partial(falling, name=SHARPNESS, over="strength", technique="SAM"), "rate"),
            unit=unit,
            source="A-F5; 5.3 item 12",
        ),
        Claim(
            "SAM lowers the sharpness more than each other technique",
            averaged(beyond, "rate"),
            unit=unit,
            source="A-F5; 5.3 item 12",
        ),
        *(
            Claim(
                f"only SAM lowers it: {technique} lowers the sharpness by less than {1 - np.exp(-LOWERS):.0%}",
                averaged(partial(_kept, technique=technique), "rate"),
                unit=f"{LOWERS:g} − {unit}",
                source="A-F5; 5.3 item 12",
            )
            for technique in grid
            if technique != "SAM"
        ),
    ]


def _kept(results: Results, *, technique: str, rate: float) -> list[float]:
    return [LOWERS - fall for fall in falling(results, SHARPNESS, over="strength", technique=technique, rate=rate)]


def _rises_again(grid: dict[str, Any]) -> list[Claim]:
    """Measured on clean samples the Jacobian norm of strong mixing and cropping is large again."""
    return [
        Claim(
            f"the Jacobian norm rises again at large {SYMBOLS[technique]} of {technique}",
            averaged(
                partial(
                    larger,
                    name=NORM,
                    here=_at(technique, grid[technique][-1]),
                    there=_at(technique, grid[technique][len(grid[technique]) // 2]),
                ),
                "rate",
            ),
            unit="ln of the factor from the middle strength to the largest, mean over learning rates",
            source="A-F5",
        )
        for technique in ("mixup", "augmentation")
        if len(grid[technique]) > 2
    ]


def _closeness(results: Results) -> list[float]:
    seeds = sorted(results.values("seed"))
    distances = [np.log(numbers(results, GAUSS_NEWTON, seed=s) / numbers(results, SHARPNESS, seed=s)) for s in seeds]
    return [CLOSE - float(np.abs(distance).mean()) for distance in distances]


def _figure(results: Results, shown: dict[str, Quantity], rates: tuple[float, ...]) -> Panels:
    lines = [(f"lr {rate:g}", {"rate": rate}) for rate in rates]
    panels = [
        label_panel(results, name, quantity, "strength", f"{technique} {symbol}".strip(), lines, technique=technique)
        for technique, symbol in (SYMBOLS | {DECAY: ""}).items()
        for name, quantity in shown.items()
        if technique in results.values("technique")
    ]
    caption = "The end of training by strength of regularisation; measured on clean samples."
    return Panels(panels, columns=len(shown), caption=caption)


def _departures(scale: Scale, network: str, data: str, *, batchnorm: bool) -> list[str]:
    told = [
        "the grids of strengths are not in the text: chosen here (A-e13)",
        "mixup with β = 0 mixes nothing: the run without regularisation stands for it",
        "one mixing share for each batch (L14 leaves it open)",
        "logit Jacobian (Q71: the text does not say)",
        *smaller_setting(scale, network, data, batchnorm=batchnorm),
    ]
    if scale == "paper":
        open_bias = network == "resnet18" and not batchnorm
        return [*told, "convolutions without bias (not in the text)"] if open_bias else told
    return [
        *told,
        "45 epochs with steps at 25 and 40 instead of 90 with 50 and 80; one learning rate, 0.05; batches of 64"
        " instead of 128; crops by one pixel; no sweep over weight decay, for its time (A-F2 has one)",
        "SAM radii up to 0.3: a small network needs a larger radius for the same change of the loss",
    ]


for number, (data, network, batchnorm) in enumerate(
    product(("cifar10", "cifar100"), ("vgg11", "resnet18"), (False, True)), start=20
):
    if number > 20:
        variant(
            f"A-F{number}",
            correlations,
            "the gap follows the Jacobian norm more than the sharpness: "
            f"{NAMES[network]} {'with' if batchnorm else 'without'} batch norm, {NAMES[data]}",
            minutes=14 if number == 23 else None,  # which has the runs of A-F5
            network=network,
            data=data,
            batchnorm=batchnorm,
        )
