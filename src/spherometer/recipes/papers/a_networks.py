"""The networks and data of paper A by scale: its own, and what stands in for them on a laptop."""

from __future__ import annotations

from typing import Any

from spherometer.recipes.recipe import Scale, at_scale

JACOBIAN, SOFTMAXED = "input_jacobian_norm", "softmax_input_jacobian_norm"
SHARPNESS, GAUSS_NEWTON = "final_batch_sharpness", "final_batch_gauss_newton_norm"
PAPER = {
    ("vgg11", True): "vgg11-bn",
    ("vgg11", False): "vgg11",
    ("resnet18", True): "resnet18",
    ("resnet18", False): "resnet18-plain",
}
SMALL = {"vgg11": {"model": "digits-cnn", "width": 8}, "resnet18": {"model": "digits-resnet8", "width": 4}}
SAMPLES = {"cifar10": 256, "cifar100": 128}  # fewer for each class, as in CIFAR-100
NAMES = {"vgg11": "VGG11", "resnet18": "ResNet18", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def model_of(scale: Scale, network: str, *, batchnorm: bool = True) -> dict[str, Any]:
    """The table of the model."""
    return {"model": PAPER[network, batchnorm]} if scale == "paper" else SMALL[network] | {"batchnorm": batchnorm}


def data_of(scale: Scale, data: str, standardise: str = "channelwise") -> dict[str, Any]:
    """The table of the data."""
    if scale == "paper":
        return {"data": data, "standardise": standardise}
    return {"data": "digits", "num": at_scale(scale, smoke=100, laptop=SAMPLES[data], paper=None)}


def smaller_setting(scale: Scale, network: str, data: str, *, batchnorm: bool = True) -> list[str]:
    """What differs from the paper in network and data; nothing at paper scale."""
    if scale == "paper":
        return []
    small, num = SMALL[network], at_scale(scale, smoke=100, laptop=SAMPLES[data], paper=0)
    with_norm = "with" if batchnorm else "without"
    return [
        f"{small['model']} of width {small['width']} {with_norm} batch norm on {num} digits in place of "
        f"{NAMES[network]} on {NAMES[data]}; inputs in [0, 1], not standardised"
    ]
