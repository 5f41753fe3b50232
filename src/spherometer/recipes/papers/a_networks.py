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
SMALL = {"vgg11": {"model": "digits-cnn", "width": 4}, "resnet18": {"model": "digits-resnet8", "width": 4}}
DENSE = {"model": "fcn3-mnist", "width": 64}  # for curves, which cost most and show the same in a dense network
SAMPLES = {"cifar10": 256, "cifar100": 128}  # fewer for each class, as in CIFAR-100
NAMES = {"vgg11": "VGG11", "resnet18": "ResNet18", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def model_of(scale: Scale, network: str, *, batchnorm: bool = True) -> dict[str, Any]:
    """The table of the model."""
    return {"model": PAPER[network, batchnorm]} if scale == "paper" else SMALL[network] | {"batchnorm": batchnorm}


def curve_model_of(scale: Scale, network: str) -> dict[str, Any]:
    """The table of the model of a curve that is tracked all the way: dense where the paper has VGG11."""
    return dict(DENSE) if scale != "paper" and network == "vgg11" else model_of(scale, network)


def data_of(scale: Scale, data: str, standardise: str = "channelwise") -> dict[str, Any]:
    """The table of the data."""
    if scale == "paper":
        return {"data": data, "standardise": standardise}
    return {"data": "digits", "num": at_scale(scale, smoke=100, laptop=SAMPLES[data], paper=None)}


def smaller_setting(scale: Scale, network: str, data: str, *, batchnorm: bool = True) -> list[str]:
    """What differs from the paper in network and data; nothing at paper scale."""
    if scale == "paper":
        return []
    small, with_norm = SMALL[network], "with" if batchnorm else "without"
    return [_in_place(scale, f"{small['model']} of width {small['width']} {with_norm} batch norm", network, data)]


def smaller_curve_setting(scale: Scale, network: str, data: str) -> list[str]:
    """The same for `curve_model_of`."""
    if scale == "paper" or network != "vgg11":
        return smaller_setting(scale, network, data)
    return [_in_place(scale, "a dense ReLU network 64-64-64-10 without batch norm", network, data)]


def _in_place(scale: Scale, words: str, network: str, data: str) -> str:
    num = at_scale(scale, smoke=100, laptop=SAMPLES[data], paper=0)
    return f"{words} on {num} digits in place of {NAMES[network]} on {NAMES[data]}; inputs in [0, 1], not standardised"
