"""What learns what in paper B: the paper's own, and the stand-ins of the smaller scales."""

from __future__ import annotations

from typing import Any

from spherometer.recipes.recipe import Scale

Tables = dict[str, dict[str, Any]]  # of settings

LEARNERS: dict[str, dict[Scale, Tables]] = {
    "vgg11": {
        "paper": {"data": {"data": "cifar10", "classes": (0, 1)}, "model": {"model": "vgg11"}},
        "laptop": {"data": {"data": "digits", "classes": (3, 8)}, "model": {"model": "digits-cnn"}},
        "smoke": {"data": {"data": "digits", "classes": (3, 8)}, "model": {"model": "digits-cnn", "width": 4}},
    },
    "mlp4": {
        "paper": {"data": {"data": "fashion-mnist"}, "model": {"model": "mlp4"}},
        "laptop": {"data": {"data": "digits", "num": 1000}, "model": {"model": "mlp4", "width": 64}},
        "smoke": {"data": {"data": "digits", "num": 200}, "model": {"model": "mlp4", "width": 32}},
    },
    "lenet": {
        "paper": {"data": {"data": "cifar10"}, "model": {"model": "lenet"}},
        "laptop": {"data": {"data": "cifar10", "num": 300, "num_test": 1000}, "model": {"model": "lenet"}},
        "smoke": {"data": {"data": "digits", "num": 200}, "model": {"model": "digits-cnn", "width": 4}},
    },
}
FASTER = {"vgg11": 1, "mlp4": 4, "lenet": 1}  # so many times the paper's rates, to interpolate in so few iterations
STAND_INS = {
    "vgg11": "digits-cnn on the digits 3 and 8 instead of VGG-11 on two classes of CIFAR-10",
    "mlp4": "four layers of width 64 on 1,000 digits instead of FashionMNIST",
    "lenet": "300 images of CIFAR-10 instead of 50,000",
}


def rate_at(scale: Scale, network: str, rate: float) -> float:
    """The learning rate of the paper, or what stands in for it."""
    return rate if scale == "paper" else round(FASTER[network] * rate, 4)


def open_choices(network: str) -> list[str]:
    """What the text leaves open and is chosen here at the paper's scale."""
    chosen = {
        "vgg11": ["classes airplane and automobile (not in the text)"],
        "mlp4": ["hidden width 256 (not in the text)"],
        "lenet": [],
    }
    return [
        "100,000 iterations (the text says only that they are more than 50,000)",
        "inputs as they are, from 0 to 1, not standardised (not in the text)",
        *chosen[network],
    ]
