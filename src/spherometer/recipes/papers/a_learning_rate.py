"""Paper A, B.2: learning rate and batch size (A-F3, A-F4, A-F12 .. A-F19)."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

from spherometer.figures.panels import Panels
from spherometer.recipes.claims import Claim
from spherometer.recipes.ends import gap, label_panel
from spherometer.recipes.margins import Quantity, averaged, falling_throughout, rising_throughout
from spherometer.recipes.papers.a_networks import (
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

QUANTITIES: dict[str, Quantity] = {"sharpness": SHARPNESS, "Jacobian norm": f"final_{JACOBIAN}", "gap": gap}
STOP = {"cifar10": 0.01, "cifar100": 0.02}  # the mean of ten training losses, L34


@recipe(
    "A-F3",
    "a larger learning rate ends flatter and smoother",
    finding="larger learning rate, smaller sharpness, Jacobian norm and gap",
    minutes=1,
)
def learning_rate(scale: Scale, *, network: str = "resnet18", data: str = "cifar10") -> Experiment:
    """Learning rate on the x axis, a line for each batch size, where the training loss is below 0.01; A B.2."""
    _, batches, runs = _runs(scale, network, data)
    return Experiment(
        runs=runs,
        claims=[
            Claim(
                f"a larger learning rate gives a smaller {name}",
                averaged(partial(falling_throughout, name=quantity, over="rate"), "batch"),
                unit="ln of the factor at the weakest step, mean over batch sizes",
                source="A-F3, A-F12 .. A-F15",
            )
            for name, quantity in QUANTITIES.items()
        ],
        figure=lambda results: _figure(results, "rate", "learning rate", "batch", "batch size {:g}", batches),
        departures=_departures(scale, network, data),
    )


@recipe(
    "A-F4",
    "a larger batch ends sharper and rougher",
    finding="larger batch, larger sharpness, Jacobian norm and gap; at the largest rate the norm of ResNet18 falls",
    minutes=1,
)
def batch_size(scale: Scale, *, network: str = "resnet18", data: str = "cifar10") -> Experiment:
    """Batch size on the x axis, a line for each learning rate, from the runs of A-F3; A B.2."""
    rates, _, runs = _runs(scale, network, data)
    *slow, fast = rates
    unit = "ln of the factor at the weakest step"
    source = "A-F4, A-F16 .. A-F19"
    exception = network == "resnet18"
    return Experiment(
        runs=runs,
        claims=[
            *(
                Claim(
                    f"at the smaller learning rates a larger batch gives a larger {name}",
                    averaged(partial(rising_throughout, name=quantity, over="batch"), "rate", slow),
                    unit=f"{unit}, mean over learning rates",
                    source=source,
                )
                for name, quantity in QUANTITIES.items()
            ),
            Claim(
                f"at the largest learning rate the Jacobian norm {'falls' if exception else 'rises'} with the batch",
                averaged(
                    partial(
                        falling_throughout if exception else rising_throughout, name=f"final_{JACOBIAN}", over="batch"
                    ),
                    "rate",
                    [fast],
                ),
                unit=unit,
                source=source,
            ),
            Claim(
                "at the largest learning rate the gap rises with the batch",
                averaged(partial(rising_throughout, name=gap, over="batch"), "rate", [fast]),
                unit=unit,
                source=source,
            ),
        ],
        figure=lambda results: _figure(results, "batch", "batch size", "rate", "lr {:g}", rates),
        departures=_departures(scale, network, data),
    )


def _runs(scale: Scale, network: str, data: str) -> tuple[tuple[float, ...], tuple[int, ...], list[Run]]:
    """Learning rates, batch sizes and the runs of all pairs of them."""
    rates = at_scale(scale, smoke=(0.1, 0.3), laptop=(0.03, 0.1, 0.3), paper=(0.001, 0.01, 0.1))
    batches = at_scale(scale, smoke=(32, 128), laptop=(8, 32, 128), paper=(64, 128, 256, 512, 1024))
    seeds = range(at_scale(scale, smoke=1, laptop=3, paper=5))
    return rates, batches, [_run(scale, network, data, *chosen) for chosen in product(rates, batches, seeds)]


def _run(scale: Scale, network: str, data: str, rate: float, batch: int, seed: int) -> Run:
    rule = {"stop_loss": STOP[data], "stop_every": at_scale(scale, smoke=5, laptop=10, paper=100)}
    quiet = {} if scale == "paper" else {"evaluate_every": 1000}
    return training_run(
        {"rate": rate, "batch": batch, "seed": seed},
        data=data_of(scale, data),
        model=model_of(scale, network),
        method={"learning_rate": rate, "weight_decay": 1e-4},
        loop=rule | {"steps": at_scale(scale, smoke=50, laptop=4000, paper=1_000_000), "batch_size": batch} | quiet,
        measurement={
            "measure": [JACOBIAN, SOFTMAXED],
            "measure_batch_statistics": ["sharpness"],
            "measure_num": at_scale(scale, smoke=100, laptop=200, paper=2000),
        },
    )


def _figure(results: Results, over: str, x_label: str, label: str, words: str, levels: Any) -> Panels:
    lines = [(words.format(level), {label: level}) for level in levels]
    shown = QUANTITIES | {"softmaxed Jacobian norm": f"final_{SOFTMAXED}"}
    panels = [
        label_panel(results, name, quantity, over, x_label, lines, log_y=name == "sharpness" and over == "batch")
        for name, quantity in shown.items()
    ]
    caption = (
        "SGD with a constant learning rate until the training loss is small; mean and standard deviation over seeds."
    )
    return Panels(panels, columns=4, caption=caption)


def _departures(scale: Scale, network: str, data: str) -> list[str]:
    told = [
        "no momentum: the text names none",
        "networks with batch norm, sharpness with batch norm in training mode",
        "logit Jacobian; the softmaxed one is shown beside it (Q71: the text does not say)",
        *smaller_setting(scale, network, data),
    ]
    if scale == "paper":
        return [*told, "at most 1,000,000 steps"]
    return [
        *told,
        "learning rates 0.03, 0.1, 0.3 instead of 0.001, 0.01, 0.1 and batches of 8, 32, 128 instead of 64 .. 1024",
        "the stop rule looks every 10 steps instead of every 100; at most 4,000 steps",
    ]


for place, (network, data) in enumerate(product(("resnet18", "vgg11"), ("cifar10", "cifar100"))):
    where = f"{NAMES[network]}, {NAMES[data]}"
    variant(
        f"A-F{12 + place}",
        learning_rate,
        f"a larger learning rate ends flatter and smoother: {where}",
        network=network,
        data=data,
    )
    variant(
        f"A-F{16 + place}",
        batch_size,
        f"a larger batch ends sharper and rougher: {where}",
        finding=None
        if network == "resnet18"
        else "larger batch, larger sharpness, Jacobian norm and gap; the norm of VGG11 has no exception",
        network=network,
        data=data,
    )
