"""Paper C, Setting 1: plain gradient descent, no augmentation, no smoothing, and the runs that figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spherometer.recipes.papers.c_curves import NORM, ONES, PROJECTED
from spherometer.recipes.recipe import Scale, at_scale
from spherometer.recipes.results import Run, training_run

FASTER = {"paper": 1, "laptop": 2.5, "smoke": 5}  # small networks on few samples stand larger learning rates
DESCENT_FASTER = {"paper": 1, "laptop": 2, "smoke": 5}  # of gradient descent, on twice the samples: it must reach 2/η
SMALLER = {"paper": 1, "laptop": 4, "smoke": 8}  # and see few samples in all: batches shrink with them
DESCENT_SAMPLES = 1000  # of gradient descent at laptop scale
DESCENT_EVERY = {"paper": 1, "laptop": 20, "smoke": 2}  # steps between two of its measurements
SCALARS = ("loss", "sharpness", "impurity", NORM, PROJECTED, ONES)

CIFAR = {"data": "cifar10", "standardise": "channelwise"}
FEW = {"data": "cifar10", "num": 500, "num_test": 500, "standardise": "channelwise"}
DIGITS = {"data": "digits", "num": 500, "standardise": "channelwise"}
SMOKE: tuple[Mapping[str, Any], Mapping[str, Any]] = (
    {"data": "digits", "num": 100, "num_test": 100},
    {"model": "digits-mlp", "width": 16},
)

NETWORKS: dict[str, dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "cnn6": {"paper": (CIFAR, {"model": "cnn6"}), "laptop": (FEW, {"model": "fcn3-cifar", "width": 32})},
    "vgg11": {"paper": (CIFAR, {"model": "vgg11"}), "laptop": (FEW, {"model": "fcn3-cifar", "width": 32, "depth": 5})},
    "vgg11-cifar100": {
        "paper": ({**CIFAR, "data": "cifar100"}, {"model": "vgg11"}),
        "laptop": (FEW, {"model": "fcn3-cifar", "width": 32, "depth": 5, "activation": "tanh"}),
    },
    "resnet20": {
        "paper": (CIFAR, {"model": "resnet20-plain"}),
        "laptop": (DIGITS, {"model": "digits-resnet8", "batchnorm": False}),
    },
    "fcn3": {
        "paper": ({"data": "mnist", "standardise": "channelwise"}, {"model": "fcn3-mnist"}),
        "laptop": (DIGITS, {"model": "fcn3-mnist", "width": 64}),
    },
}
STAND_IN = {
    "cnn6": "a 3072-32-32-10 network on {num} images of CIFAR-10 instead of 6CNN on 50,000",
    "vgg11": "a 3072-32-32-32-32-10 network on {num} images of CIFAR-10 instead of VGG-11 on 50,000",
    "vgg11-cifar100": "a tanh network 3072-32-32-32-32-10 on {num} images of CIFAR-10 instead of VGG-11 on CIFAR-100",
    "resnet20": "a narrow ResNet-8 without batch norm on {num} digits instead of ResNet-20 on CIFAR-10",
    "fcn3": "a 64-64-64-10 network on {num} digits instead of 784-200-200-10 on MNIST",
}


def rates(scale: Scale, given: Sequence[float]) -> list[float]:
    """The paper's learning rates as this scale uses them."""
    return [FASTER[scale] * rate for rate in given]


def descent_rates(scale: Scale, given: Sequence[float]) -> list[float]:
    """The same for full-batch gradient descent."""
    return [DESCENT_FASTER[scale] * rate for rate in given]


def batches(scale: Scale, given: Sequence[int]) -> list[int]:
    """The paper's batch sizes as this scale uses them."""
    return [size // SMALLER[scale] for size in given]


def seeds(scale: Scale) -> range:
    """Of each setting; the paper shows one run of each."""
    return range(at_scale(scale, smoke=2, laptop=3, paper=3))


def parts_of(scale: Scale, network: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The tables of data and model that stand for a network of the paper."""
    return SMOKE if scale == "smoke" else NETWORKS[network][scale]


def plain_run(
    scale: Scale,
    network: str,
    labels: Mapping[str, Any],
    *,
    rate: float,
    steps: int,
    batch: int | None = None,
    loss: str = "auto",
    num: int | None = None,
    **measurement: Any,
) -> Run:
    """A run of Setting 1: constant rate, no momentum, no decay; `rate` and `batch` are those that are used.

    `num` is the number of training samples at laptop scale, where it is another than 500.
    """
    data, model = parts_of(scale, network)
    if num is not None and scale == "laptop":
        data = {**data, "num": num}
    loop: dict[str, Any] = {"steps": steps, "batch_size": batch}
    if batch is None and scale == "paper":
        loop["ghost_size"] = 5000
    if scale != "paper":
        loop["evaluate_every"] = max(1, steps // 20)
    measurement.setdefault("track_num", at_scale(scale, smoke=None, laptop=None, paper=5000))
    return training_run(
        labels,
        data=data,
        model=model,
        objective={"loss": loss},
        method={"learning_rate": rate},
        loop=loop,
        measurement=measurement,
    )


def descent_run(scale: Scale, network: str, rate: float, seed: int) -> Run:
    """Full-batch gradient descent with everything C draws over its steps: C-F1, F3, F12-F16, F21-F24, F27."""
    return plain_run(
        scale,
        network,
        {"network": network, "rate": rate, "seed": seed},
        rate=rate,
        steps=descent_steps(scale, network),
        num=DESCENT_SAMPLES,
        track=[
            *SCALARS,
            "impurity_quantiles",
            "impurity_bounds",
            "logit_norm",
            "logit_sum",
            "weight_norm",
            "parameter_norms",
        ],
        track_example=["impurity_bounds"],
        track_every=DESCENT_EVERY[scale],
        trajectory=1,
    )


def descent_steps(scale: Scale, network: str) -> int:
    """How long gradient descent goes on: the paper says until convergence."""
    return int(at_scale(scale, smoke=20, laptop=500, paper=6000 if network == "cnn6" else 2000))


def descent_length(scale: Scale, *networks: str) -> str:
    """6,000 steps of gradient descent (vgg11: 2,000): the text says until convergence"""
    first, *others = networks
    rest = "".join(
        f", {network}: {descent_steps(scale, network):,}"
        for network in others
        if descent_steps(scale, network) != descent_steps(scale, first)
    )
    other = f" ({rest[2:]})" if rest else ""
    return f"{descent_steps(scale, first):,} steps of gradient descent{other}: the text says until convergence"


def departures(
    scale: Scale,
    network: str,
    *more: str,
    descent: bool = False,
    length: Sequence[str] | None = None,
    faster: Mapping[str, float] | None = None,
    num_seeds: str = "three",
) -> list[str]:
    """What all figures of Setting 1 leave open, and what is smaller at this scale.

    `descent` says that samples and rates are those of gradient descent; `length` tells how long its runs are, where
    not all are descents of this network.
    """
    factors: Mapping[str, float] = faster or (DESCENT_FASTER if descent else FASTER)
    common: list[str] = []
    if scale == "paper":
        common = [
            f"{num_seeds} seeds where the paper shows one run, so that claims can be judged",
            "inputs standardised by channel: chosen here, not in the text",
            "curvature on 5,000 samples (the text: 5-25 % of the data)",
        ]
    elif scale == "laptop":
        common = [
            STAND_IN[network].format(num=DESCENT_SAMPLES if descent else 500),
            f"learning rates {factors[scale]:g} times the paper's",
            f"batches, where there are, 1/{SMALLER[scale]} of the paper's",
        ]
    if length is None:
        length = [descent_length(scale, network)] if descent and scale != "smoke" else []
        length += [f"measured at every {DESCENT_EVERY[scale]}th step"] if descent and scale == "laptop" else []
    return [*common, *length, *more]
