"""Residual networks with the activation before the convolution: PreAct ResNet-18, PreResNet-164, Wide ResNets.

He et al. (2016), Identity mappings in deep residual networks; Zagoruyko, Komodakis (2016), Wide residual networks.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Plan:
    """What distinguishes the members of the family."""

    blocks: tuple[int, ...]  # per stage
    stem: int  # channels after the first convolution
    outputs: tuple[int, ...]  # channels per stage
    bottleneck: bool = False  # 1x1, 3x3, 1x1 instead of two 3x3
    shared_activation: bool = True  # a projection starts from norm and relu of the input, not from the input
    final_norm: bool = True  # norm and relu before the average
    batchnorm: bool = True
    bias: bool = False  # of the convolutions


class PreActivationBlock(nn.Module):
    """shortcut + conv(relu(norm(conv(relu(norm(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int, plan: Plan) -> None:
        super().__init__()
        inner = outputs // 4 if plan.bottleneck else outputs
        shapes = [(inputs, inner, 3, stride), (inner, outputs, 3, 1)]
        if plan.bottleneck:
            shapes = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
        self.norms = nn.ModuleList(make_norm(shape[0], batchnorm=plan.batchnorm) for shape in shapes)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(source, target, kernel, stride=step, padding=kernel // 2, bias=plan.bias)
            for source, target, kernel, step in shapes
        )
        projects = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=plan.bias) if projects else None
        self.shared_activation = plan.shared_activation

    def forward(self, inputs: Tensor) -> Tensor:
        """One residual step."""
        first = hidden = torch.relu(self.norms[0](inputs))
        for place, convolution in enumerate(self.convolutions):
            if place:
                hidden = torch.relu(self.norms[place](hidden))
            hidden = convolution(hidden)
        if self.shortcut is None:
            return hidden + inputs
        return hidden + self.shortcut(first if self.shared_activation else inputs)


class PreActivationNet(nn.Module):
    """conv1, layers, norm, global average, linear."""

    def __init__(self, plan: Plan, *, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, plan.stem, 3, padding=1, bias=plan.bias)
        inputs, stages = plan.stem, []
        for stage, (count, outputs) in enumerate(zip(plan.blocks, plan.outputs, strict=True)):
            steps = []
            for stride in [1 if stage == 0 else 2] + [1] * (count - 1):
                steps.append(PreActivationBlock(inputs, outputs, stride, plan))
                inputs = outputs
            stages.append(nn.Sequential(*steps))
        self.layers = nn.Sequential(*stages)
        self.final_norm = make_norm(inputs, batchnorm=plan.batchnorm) if plan.final_norm else None
        self.linear = nn.Linear(inputs, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, num_classes)."""
        hidden = self.layers(self.conv1(inputs))
        if self.final_norm is not None:
            hidden = torch.relu(self.final_norm(hidden))
        outputs: Tensor = self.linear(hidden.mean(dim=(2, 3)))
        return outputs


def preact_resnet18(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (3, 32, 32),
    width: int = 64,
    batchnorm: bool = True,
) -> PreActivationNet:
    """PreAct ResNet-18 of C as in kuangliu/pytorch-cifar, without a final norm: 11,171,146."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    outputs = (width, 2 * width, 4 * width, 8 * width)
    plan = Plan((2, 2, 2, 2), width, outputs, final_norm=False, batchnorm=batchnorm)
    return PreActivationNet(plan, channels=channels, num_classes=num_classes)


def preresnet(
    *,
    num_classes: int = 100,
    input_shape: InputShape = (3, 32, 32),
    depth: int = 164,
    width: int = 16,
    batchnorm: bool = True,
) -> PreActivationNet:
    """Bottleneck blocks, (depth - 2) / 9 per stage: PreResNet-164 of D, 1,726,388 for 100 classes."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    if depth < 11 or (depth - 2) % 9:
        raise ModelError(f"expected a depth of 11, 20, 29, ..., 164 (9n + 2), got {depth}")
    plan = Plan(
        ((depth - 2) // 9,) * 3,
        width,
        (4 * width, 8 * width, 16 * width),
        bottleneck=True,
        shared_activation=False,
        batchnorm=batchnorm,
    )
    model = PreActivationNet(plan, channels=channels, num_classes=num_classes)
    initialise_convolutions(model)
    return model


def wide_resnet(
    *,
    num_classes: int = 10,
    input_shape: InputShape = (3, 32, 32),
    depth: int = 28,
    width: int = 10,
    batchnorm: bool = True,
    bias: bool = False,
) -> PreActivationNet:
    """WRN-depth-width: `width` is the widening factor; D's has convolution biases (36,546,980 for 100 classes)."""
    channels = check_image_shape(input_shape)[0]
    check_sizes(width=width)
    if depth < 10 or (depth - 4) % 6:
        raise ModelError(f"expected a depth of 10, 16, 22, 28, 34, 40 (6n + 4), got {depth}")
    outputs = (16 * width, 32 * width, 64 * width)
    plan = Plan(((depth - 4) // 6,) * 3, 16, outputs, batchnorm=batchnorm, bias=bias)
    model = PreActivationNet(plan, channels=channels, num_classes=num_classes)
    initialise_convolutions(model)
    nn.init.zeros_(model.linear.bias)
    return model
