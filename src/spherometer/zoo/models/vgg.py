"""VGG for small images.  Simonyan, Zisserman (2015), with the 512-512-512-C classifier usual on CIFAR."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from spherometer.zoo.models.parts import (
    InputShape,
    ModelError,
    check_image_shape,
    check_sizes,
    flat_size,
    initialise_convolutions,
    make_activation,
)

# Convolutions in each of the five stages; a stage ends with pooling and has width x (1, 2, 4, 8, 8) channels.
STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class VGG(nn.Module):
    """Convolutional `features`, then a `classifier`; no dropout."""

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, num_classes)."""
        outputs: Tensor = self.classifier(self.features(inputs).flatten(1))
        return outputs


def vgg(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (3, 32, 32),
    depth: int = 11,
    width: int = 64,
    batchnorm: bool = False,
    activation: str = "relu",
    head: Literal["mlp", "linear"] = "mlp",
) -> VGG:
    """VGG-11, 13, 16 or 19, convolutions with bias; `head="linear"` has one linear layer instead of three."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    if depth not in STAGES:
        raise ModelError(f"expected a VGG depth of {', '.join(str(known) for known in STAGES)}, got {depth}")
    layers: list[nn.Module] = []
    for count, factor in zip(STAGES[depth], (1, 2, 4, 8, 8), strict=True):
        for _ in range(count):
            norm = [nn.BatchNorm2d(factor * width)] if batchnorm else []
            layers += [nn.Conv2d(channels, factor * width, 3, padding=1), *norm, make_activation(activation)]
            channels = factor * width
        layers.append(nn.MaxPool2d(2))
    features = nn.Sequential(*layers)
    initialise_convolutions(features)
    return VGG(features, _classifier(flat_size(features, input_shape), 8 * width, num_classes, activation, head))


def _classifier(inputs: int, hidden: int, num_classes: int, activation: str, head: str) -> nn.Module:
    if head == "linear":
        return nn.Linear(inputs, num_classes)
    if head != "mlp":
        raise ModelError(f"expected head 'mlp' or 'linear', got {head!r}")
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        make_activation(activation),
        nn.Linear(hidden, hidden),
        make_activation(activation),
        nn.Linear(hidden, num_classes),
    )
