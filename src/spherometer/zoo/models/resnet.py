"""Residual networks with the activation after the addition: ResNet-20 and relatives, ResNet-18 for small images.

He et al. (2016). Names of the weights are those of akamaster/pytorch_resnet_cifar10 and kuangliu/pytorch-cifar.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from spherometer.zoo.models.parts import (
    InputShape,
    ModelError,
    check_image_shape,
    check_sizes,
    initialise_convolutions,
    make_norm,
)


class PadShortcut(nn.Module):
    """Option A: every second pixel, and zeros for the channels that are new; no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, inputs: Tensor) -> Tensor:
        """Subsampled and padded."""
        small = inputs[:, :, :: self.stride, :: self.stride]
        return nn.functional.pad(small, (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, shortcut: nn.Module, batchnorm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = make_norm(outputs, batchnorm=batchnorm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = make_norm(outputs, batchnorm=batchnorm)
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """One residual step."""
        inner = torch.relu(self.bn1(self.conv1(inputs)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(inputs))


class ResNet(nn.Module):
    """conv1, bn1, layer1 ..., global average, linear; each later stage halves the image and doubles the channels."""

    def __init__(
        self,
        blocks: tuple[int, ...],
        *,
        channels: int,
        width: int,
        num_classes: int,
        shortcut: Literal["pad", "project"],
        batchnorm: bool,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = make_norm(width, batchnorm=batchnorm)
        self.num_stages = len(blocks)
        inputs = width
        for stage, count in enumerate(blocks):
            outputs, stride = width * 2**stage, 1 if stage == 0 else 2
            steps = []
            for step in [stride] + [1] * (count - 1):
                skip = _shortcut(inputs, outputs, step, shortcut, batchnorm)
                steps.append(BasicBlock(inputs, outputs, step, shortcut=skip, batchnorm=batchnorm))
                inputs = outputs
            self.add_module(f"layer{stage + 1}", nn.Sequential(*steps))
        self.linear = nn.Linear(inputs, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, num_classes)."""
        hidden = torch.relu(self.bn1(self.conv1(inputs)))
        for stage in range(self.num_stages):
            hidden = self.get_submodule(f"layer{stage + 1}")(hidden)
        outputs: Tensor = self.linear(hidden.mean(dim=(2, 3)))
        return outputs


def _shortcut(inputs: int, outputs: int, stride: int, kind: str, batchnorm: bool) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity() if kind == "pad" else nn.Sequential()
    if kind == "pad":
        return PadShortcut(inputs, outputs, stride)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), make_norm(outputs, batchnorm=batchnorm)
    )


def cifar_resnet(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (3, 32, 32),
    depth: int = 20,
    width: int = 16,
    batchnorm: bool = True,
) -> ResNet:
    """Three stages of (depth - 2) / 6 blocks, option-A shortcuts: ResNet-20 of C, 269,722, without norm 268,346."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    if depth < 8 or (depth - 2) % 6:
        raise ModelError(f"expected a depth of 8, 14, 20, 26, 32, ... (6n + 2), got {depth}")
    model = ResNet(
        ((depth - 2) // 6,) * 3,
        channels=channels,
        width=width,
        num_classes=num_classes,
        shortcut="pad",
        batchnorm=batchnorm,
    )
    initialise_convolutions(model, fan="fan_in")
    nn.init.kaiming_normal_(model.linear.weight)
    return model


def resnet18(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (3, 32, 32),
    width: int = 64,
    batchnorm: bool = True,
) -> ResNet:
    """Four stages of two blocks, projection shortcuts, PyTorch's initialisation: ResNet18 of A, 11,173,962."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    return ResNet(
        (2, 2, 2, 2),
        channels=channels,
        width=width,
        num_classes=num_classes,
        shortcut="project",
        batchnorm=batchnorm,
    )
