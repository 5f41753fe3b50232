"""The same function with other weights: Dinh's reparametrisation (L33)."""

from __future__ import annotations

import copy
from math import isfinite

import torch
from torch import nn

from spherometer.zoo.models.parts import ModelError


def rescale_layers(model: nn.Module, first: str, second: str, factor: float) -> nn.Module:
    """A copy with layer `first` times `factor` and the weight of `second` divided by it.  Dinh et al. (2017).

    The function stays the same where what lies between is positively homogeneous: ReLU and max pooling are, tanh and
    batch norm are not.
    """
    if not (isfinite(factor) and factor > 0):
        raise ModelError(f"expected a positive finite factor, got {factor}")
    copied = copy.deepcopy(model)
    modules = dict(copied.named_modules())
    for name in (first, second):
        if not isinstance(modules.get(name), nn.Linear | nn.Conv2d):
            raise ModelError(f"expected the name of a linear or convolutional layer, got {name!r}")
    with torch.no_grad():
        for parameter in modules[first].parameters(recurse=False):
            parameter.mul_(factor)
        modules[second].get_parameter("weight").div_(factor)
    return copied
