"""Fully connected networks: softmax regression, the perceptrons of the papers, deep linear nets."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import nn

from spherometer.zoo.models.parts import InputShape, check_sizes, make_activation


def perceptron(
    widths: tuple[int, ...],
    *,
    num_classes: int = 10,
    input_shape: InputShape = (1, 28, 28),
    activation: str = "relu",
    bias: bool = True,
) -> nn.Sequential:
    """Linear layers input - widths[0] - ... - num_classes, with the activation between."""
    sizes = [math.prod(input_shape), *widths, num_classes]
    check_sizes(**{f"layer {place}": size for place, size in enumerate(sizes)})
    layers: list[nn.Module] = [nn.Flatten()]
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        if place:
            layers.append(make_activation(activation))
        layers.append(nn.Linear(inputs, outputs, bias=bias))
    return nn.Sequential(*layers)


def dense(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (1, 28, 28),
    width: int = 200,
    depth: int = 3,
    activation: str = "relu",
    bias: bool = True,
) -> nn.Sequential:
    """`depth` linear layers, hidden widths equal: the 3FCN of C, the small network of A C.2, the MLPs of B and D."""
    check_sizes(width=width, depth=depth)
    return perceptron(
        (width,) * (depth - 1), num_classes=num_classes, input_shape=input_shape, activation=activation, bias=bias
    )


def bottleneck_perceptron(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (1, 28, 28),
    width: int = 100,
    activation: str = "relu",
    bias: bool = True,
) -> nn.Sequential:
    """784-10-100-10, the reading of D's "hidden 100" that gives its 9,960 parameters (D-e9)."""
    return perceptron((10, width), num_classes=num_classes, input_shape=input_shape, activation=activation, bias=bias)
