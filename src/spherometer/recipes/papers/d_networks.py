"""The networks of paper D, and what stands in for them at the smaller scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spherometer.recipes.claims import Near
from spherometer.recipes.recipe import Scale, at_scale
from spherometer.recipes.results import Results

Tables = Mapping[str, Mapping[str, Any]]  # of settings
PLAIN = "inputs as they are, from 0 to 1, not standardised, and no augmentation (not in the text)"

ONE_PASS = 500  # samples of a measurement at paper scale: batch norm in training mode needs all of them at once
MANY = 100  # Lanczos steps at paper scale
ABOUT = "'about so many times' means within a factor of √10 of it: chosen here"


def about(sentence: str, margins: Callable[[Results], list[float]], factor: float, source: str) -> Near:
    """ln of a factor is that of the paper up to half an order of magnitude."""
    return Near(sentence, margins, math.log(factor), math.log(10) / 2, unit="ln of the factor", source=source)


def measured_so(num: int | None, num_steps: int) -> list[str]:
    """On how many samples curvature is measured, where not on all, and from how much of the Krylov space."""
    from spherometer.training.instruments import SPECTRUM_VECTORS

    said = [f"curvature measured on {num:,} training samples in one pass instead of all"] if num is not None else []
    return [*said, f"spectra by {num_steps} Lanczos steps from {SPECTRUM_VECTORS} random vectors: not in the text"]


@dataclass(frozen=True)
class Network:
    """A network of the paper and its stand-in: what learns what, at which rate, for how long."""

    paper: Tables
    laptop: Tables
    smoke: Tables
    stand_in: str
    rates: tuple[float, float] = (0.1, 0.1)  # of the paper and of its stand-in
    epochs: tuple[int, int] = (300, 300)
    batchnorm: bool = False
    num_seeds: int = 3
    chosen: Sequence[str] = ()
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of the paper, by γ

    @property
    def prefix(self) -> str:
        """D measures batch norm in training mode (Figs 5-7)."""
        return "batch_" if self.batchnorm else ""

    def measured(self, scale: Scale) -> tuple[int | None, int]:
        """Samples (None is all) and Lanczos steps; fewer of both where batch norm is measured in two modes."""
        found: tuple[int | None, int] = at_scale(
            scale,
            smoke=(50, 8),
            laptop=(200, 25) if self.batchnorm else (500, 40),
            paper=(ONE_PASS if self.batchnorm else None, MANY),
        )
        return found


CIFAR100 = {"data": "cifar100"}
SMALL: Tables = {
    "data": {"data": "digits", "num": 200},
    "model": {"model": "digits-cnn", "width": 4, "batchnorm": True},
}
NETWORKS = {
    "softmax-regression": Network(
        paper={"data": {"data": "mnist", "num": 45_000}, "model": {"model": "softmax-regression"}},
        laptop={"data": {"data": "mnist", "num": 5000}, "model": {"model": "softmax-regression"}},
        smoke={"data": {"data": "digits", "num": 200}, "model": {"model": "digits-linear"}},
        stand_in="5,000 images of MNIST instead of 45,000",
        rates=(0.01, 0.1),
        epochs=(1000, 200),
        num_seeds=5,
        numbers={"test accuracy": (93.48, 94.0, 94.08), "λ₁": (12.26, 14.17, 15.84)},
    ),
    "mlp-10-100": Network(
        paper={"data": {"data": "mnist", "num": 45_000}, "model": {"model": "mlp-10-100"}},
        laptop={"data": {"data": "mnist", "num": 5000}, "model": {"model": "mlp-10-100"}},
        smoke={"data": {"data": "digits", "num": 200}, "model": {"model": "digits-mlp", "width": 16}},
        stand_in="5,000 images of MNIST instead of 45,000",
        rates=(0.01, 0.05),
        epochs=(50, 100),
        num_seeds=5,
        chosen=["784-10-100-10, which has the 9,960 parameters of the text (D-e9)"],
        numbers={"test accuracy": (94.4, 96.46, 96.7), "accuracy gap": (0.48, 0.51, 0.04)},
    ),
    "all-cnn-c": Network(
        paper={"data": CIFAR100, "model": {"model": "all-cnn-c"}},
        laptop={"data": {"data": "digits", "num": 1000}, "model": {"model": "digits-cnn"}},
        smoke={"data": {"data": "digits", "num": 200}, "model": {"model": "digits-cnn", "width": 4}},
        stand_in="digits-cnn, without batch norm too, on 1,000 digits instead of All-CNN-C on CIFAR-100 (All-CNN-C of "
        "width 16 stays at chance there)",
        rates=(0.01, 0.05),
        epochs=(300, 60),
        numbers={"train accuracy": (86.3, 87.9, 86.0), "accuracy gap": (32.4, 32.5, 31.1)},
    ),
    "preresnet164": Network(
        paper={"data": CIFAR100, "model": {"model": "preresnet164"}},
        laptop={"data": {"data": "digits", "num": 1000}, "model": {"model": "preresnet164", "depth": 11, "width": 4}},
        smoke=SMALL,
        chosen=["curvature with batch norm in training mode, as in D-F5: of D-F4 the text does not say"],
        stand_in="PreResNet-11 of width 4 on 1,000 digits instead of PreResNet-164 on CIFAR-100",
        epochs=(300, 60),
        batchnorm=True,
        numbers={"train accuracy": (99.987, 99.985, 99.87), "test accuracy": (72.78, 75.56, 76.76)},
    ),
    "wrn-28-10-bias": Network(
        paper={"data": CIFAR100, "model": {"model": "wrn-28-10-bias"}},
        laptop={"data": {"data": "digits", "num": 1000}, "model": {"model": "wrn-28-10-bias", "depth": 10, "width": 1}},
        smoke=SMALL,
        stand_in="WRN-10x1 on 1,000 digits instead of WRN-28x10 on CIFAR-100",
        epochs=(300, 40),
        batchnorm=True,
        numbers={"train accuracy": (99.984, 99.984, 99.982), "test accuracy": (75.2, 79.5, 80.6)},
    ),
}
