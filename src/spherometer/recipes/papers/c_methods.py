"""Paper C, Settings 1-4 (Tables 3 and 4): the trainings that compare SGD, SAM, ASAM and EJR, and what is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spherometer.recipes.ends import finite
from spherometer.recipes.margins import numbers
from spherometer.recipes.recipe import Scale, at_scale
from spherometer.recipes.results import Results, Run, training_run

ACCURACY = "final_test_accuracy"
SIMPLE_RATES = {"smoke": (0.03, 0.3), "laptop": (0.03, 0.1, 0.3), "paper": (0.003, 0.01, 0.03, 0.1, 0.3)}
FULL_RATES = {"smoke": (0.03, 0.3), "laptop": (0.1,), "paper": (0.01, 0.03, 0.1, 0.3)}
ASCENT_RADII = {  # Table 3: CIFAR-10, CIFAR-100
    "cifar10": {"sam": 0.05, "asam": 0.5, "ejr": 2.0},
    "cifar100": {"sam": 0.1, "asam": 1.0, "ejr": 4.0},
}
NARROWER = 10  # radii of the small networks: their weights are about ten times shorter
_SMALL = {"model": "digits-cnn", "width": 8}
METHODS = ("SGD", "SAM", "ASAM", "EJR")
PENALISED = {"gradient norm": "gradient-norm", "input Jacobian": "input-jacobian"}  # compared in the text of Sec 5.3


def simple_run(
    scale: Scale, rate: float, method: str, seed: int, *, coefficient: float = 0.01, whole: bool = False, **labels: Any
) -> Run:
    """SimpleCNN in Setting 1 (no augmentation, constant rate, until convergence); EJR is the simple one, L8."""
    batch = None if whole else at_scale(scale, smoke=16, laptop=32, paper=128)
    loop: dict[str, Any] = {"steps": at_scale(scale, smoke=10, laptop=1000, paper=100_000), "batch_size": batch}
    if whole and scale == "paper":
        loop["ghost_size"] = 5000
    if scale != "paper":
        loop["evaluate_every"] = max(1, loop["steps"] // 20)
    penalised = method == "EJR" and coefficient > 0
    return training_run(
        {"rate": rate, "method": method, "whole": whole, **labels, "seed": seed},
        data=at_scale(
            scale,
            smoke={"data": "digits", "num": 64, "num_test": 100},
            laptop={"data": "digits", "num": 200},
            paper={"data": "cifar10", "standardise": "channelwise"},
        ),
        model=at_scale(scale, smoke=_SMALL, laptop=_SMALL, paper={"model": "simple-cnn"}),
        objective={"penalty": "mean-jacobian", "coefficient": coefficient} if penalised else {},
        method={"learning_rate": rate, **_ascent(scale, method, "cifar10")},
        loop=loop,
    )


def _ascent(scale: Scale, method: str, data: str) -> dict[str, Any]:
    if method not in ("SAM", "ASAM"):
        return {}
    return {"method": method.lower(), "rho": _radius(scale, ASCENT_RADII[data][method.lower()])}


def _radius(scale: Scale, radius: float) -> float:
    return radius if scale == "paper" else radius / NARROWER


def wide_run(
    scale: Scale,
    method: str,
    seed: int,
    *,
    data: str = "cifar10",
    model: str = "wrn-28-10",
    setting: int = 2,
    epochs: int = 400,
    rho: float | None = None,
    mu: float | None = None,
    **labels: Any,
) -> Run:
    """A wide residual network in Setting 2 (multi-step) or 3 (cosine): smoothing 0.1, momentum, decay, augmentation.

    `epochs` and `rho` are the paper's; a small network takes a tenth of each.
    """
    used = wide_epochs(scale, epochs)
    kinds = {"SAM": "sam", "ASAM": "asam", "EJR": "ejr", "EJR.v2": "ejr-v2"}
    chosen: dict[str, Any] = {
        "method": kinds.get(method, "plain"),
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
    }
    if method in kinds:
        chosen["rho"] = _radius(scale, ASCENT_RADII[data][kinds[method].removesuffix("-v2")] if rho is None else rho)
    if mu is not None:
        chosen["mu"] = mu
    if setting == 3:
        chosen["schedule"] = "cosine"
    else:
        marks = [max(1, round(share * used)) for share in (0.3, 0.6, 0.8)]
        chosen |= {"schedule": "steps", "milestones": sorted(set(marks)), "factor": 0.2}
    loop: dict[str, Any] = {
        "epochs": used,
        "batch_size": at_scale(scale, smoke=32, laptop=32, paper=256 if model == "wrn-28-2" else 128),
    }
    if scale == "paper":
        loop["augment"] = 1.0
    return training_run(
        {
            "method": method,
            "data": data,
            "model": model,
            "epochs": epochs,
            "rho": rho,
            "mu": mu,
            **labels,
            "seed": seed,
        },
        data=at_scale(
            scale,
            smoke={"data": "digits", "num": 64, "num_test": 100},
            laptop={"data": "digits", "num": 300},
            paper={"data": data, "standardise": "channelwise"},
        ),
        model={"model": model} if scale == "paper" else {"model": "digits-resnet8"},
        objective={"label_smoothing": 0.1} | ({"penalty": PENALISED[method]} if method in PENALISED else {}),
        method=chosen,
        loop=loop,
    )


def wide_epochs(scale: Scale, epochs: int) -> int:
    """So many as this scale makes of the paper's."""
    return int(at_scale(scale, smoke=2, laptop=epochs // 10, paper=epochs))


def simple_departures(scale: Scale) -> list[str]:
    """Of the SimpleCNN rows."""
    if scale == "paper":
        return [
            "100,000 steps: the text says until convergence, below that",
            "inputs standardised by channel: chosen here, not in the text",
        ]
    return [
        "a small convolutional network on 200 digits instead of SimpleCNN on CIFAR-10; plain inputs",
        "1,000 steps of batches of 32 instead of 128",
        f"learning rates {', '.join(f'{rate:g}' for rate in SIMPLE_RATES[scale])} of the paper's five",
    ]


def full_batch_departures(scale: Scale) -> list[str]:
    """Of the rows in full batches."""
    if scale == "paper":
        return []
    return [f"full batches at the rate {', '.join(f'{rate:g}' for rate in FULL_RATES[scale])} of the paper's four"]


def wide_departures(scale: Scale) -> list[str]:
    """Of the wide residual networks."""
    if scale == "paper":
        return ["inputs standardised by channel: chosen here, not in the text"]
    return [
        "a narrow ResNet-8 on 300 digits instead of a wide residual network on CIFAR",
        "no augmentation: a mirrored digit is no digit",
        f"epochs and radii 1/{NARROWER} of the paper's, batches of 32",
    ]


def percent(results: Results, quantity: str = ACCURACY, **labels: Any) -> np.ndarray:
    """Accuracies in per cent, one for each seed."""
    return 100 * numbers(results, quantity, **labels)


def percents(results: Results, **labels: Any) -> list[float]:
    """The same of test accuracies, for figures over a label."""
    return [float(value) for value in percent(results, **labels)]


def better(
    results: Results, *, here: Mapping[str, Any], there: Mapping[str, Any], quantity: str = ACCURACY
) -> list[float]:
    """Percentage points by which one setting is better, seed by seed."""
    return [float(one) for one in percent(results, quantity, **here) - percent(results, quantity, **there)]


def mean_better(
    results: Results, cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], quantity: str = ACCURACY
) -> list[float]:
    """`better`, averaged over pairs of settings."""
    rows = [better(results, here=here, there=there, quantity=quantity) for here, there in cases]
    return [float(np.mean(column)) for column in zip(*rows, strict=True)]


def error_reduction(results: Results, *, here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str, str]:
    """Δ and ERR = 100 Δ/(100 − base) of mean accuracies, as the paper's tables have them (Q7)."""
    before, after = (finite(percent(results, **labels)) for labels in (there, here))
    if not len(before) or not len(after):
        return "missing", "missing"
    base = float(before.mean())
    change = float(after.mean()) - base
    return f"{change:+.2f}", f"{100 * change / (100 - base):.2f}" if base < 100 else "-"
