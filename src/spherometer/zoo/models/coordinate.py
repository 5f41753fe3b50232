"""Coordinate networks x -> y with the two initialisations of L32.  A C.3."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from spherometer.zoo.models.dense import dense
from spherometer.zoo.models.parts import InputShape, ModelError, check_sizes

LOW_FREQUENCY_STD = 0.035  # gives the printed first-layer norm 0.56 at width 256 (A-e11)


def coordinate_network(
    *,
    num_classes: int = 1,
    input_shape: InputShape = (1,),
    width: int = 256,
    depth: int = 4,
    activation: str = "gaussian",
    frequency: Literal["default", "low"] = "default",
) -> nn.Sequential:
    """Four layers of width 256 (inferred, A-e11); `frequency="low"` draws the first weights from N(0, 0.035²).

    With Gaussian activation PyTorch's default is the paper's high-frequency start; with ReLU it is the low one, and the
    high one comes from `pretrain_on_sine`.
    """
    if frequency not in ("default", "low"):
        raise ModelError(f"expected frequency 'default' or 'low', got {frequency!r}")
    model = dense(num_classes=num_classes, input_shape=input_shape, width=width, depth=depth, activation=activation)
    if frequency == "low":
        first = next(module for module in model if isinstance(module, nn.Linear))
        nn.init.normal_(first.weight, std=LOW_FREQUENCY_STD)
    return model


def pretrain_on_sine(
    model: nn.Module, *, num_steps: int = 10_000, learning_rate: float = 1e-4, num_points: int = 256
) -> float:
    """Fits sin(6πx) on [-1, 1] by Adam, in place: the high-frequency start of the ReLU net (L32); returns the loss."""
    check_sizes(num_steps=num_steps, num_points=num_points)
    parameter = next(model.parameters())
    points = torch.linspace(-1, 1, num_points, dtype=parameter.dtype, device=parameter.device)[:, None]
    values = torch.sin(6 * math.pi * points)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    loss = torch.zeros(())
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = (model(points) - values).square().mean()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return loss.item()
