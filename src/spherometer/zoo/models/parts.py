"""The small parts that several architectures share: activations, shape checks, initialisation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from spherometer.theory.activations import gaussian, register_activation
from spherometer.zoo.names import suggest

InputShape = tuple[int, ...]


class ModelError(ValueError):
    """A model that cannot be built; the message is one line: what was expected, what was found, what to do."""


class Gaussian(nn.Module):
    """exp(-x² / (2 scale²)), the activation of the coordinate networks of A C.3 (its scale is not in the text)."""

    def __init__(self, scale: float = 0.1) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        """Elementwise."""
        return torch.exp(-0.5 * (inputs / self.scale) ** 2)


register_activation(Gaussian, lambda module: gaussian(module.scale))

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gaussian": Gaussian,
    "identity": nn.Identity,
}


def make_activation(name: str) -> nn.Module:
    """A fresh activation module; never in place, so that it can be differentiated twice."""
    if name not in ACTIVATIONS:
        raise ModelError(f"no activation called {name!r}; {suggest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def make_norm(channels: int, *, batchnorm: bool) -> nn.Module:
    """Batch normalisation, or nothing."""
    return nn.BatchNorm2d(channels) if batchnorm else nn.Identity()


def check_image_shape(input_shape: InputShape) -> InputShape:
    """Convolutions want (channels, height, width)."""
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ModelError(
            f"expected images of shape (channels, height, width), got {tuple(input_shape)}; use a dense net"
        )
    return input_shape


def check_sizes(**sizes: int) -> None:
    """Widths, depths and counts are at least one."""
    for name, size in sizes.items():
        if size < 1:
            raise ModelError(f"expected {name} of at least 1, got {size}")


def flat_size(features: nn.Module, input_shape: InputShape) -> int:
    """How many numbers `features` makes of one input, found on the meta device without computing anything."""
    shadow = copy.deepcopy(features).to("meta")
    try:
        return math.prod(shadow(torch.empty(1, *input_shape, device="meta")).shape[1:])
    except RuntimeError:
        size = "x".join(str(side) for side in input_shape[1:])
        raise ModelError(f"images of {size} are too small for this architecture; use a smaller one") from None


def initialise_convolutions(model: nn.Module, *, fan: str = "fan_out") -> None:
    """Normal weights of variance 2 / fan and zero biases in every convolution.  He et al. (2015)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")  # type: ignore[arg-type]
            if module.bias is not None:
                nn.init.zeros_(module.bias)
