"""The relu without a second derivative: PyTorch's is a tensor of zeros, which is then added to others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_aten = torch.ops.aten


class _Relu(Function):
    """y = max(x, 0)."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        y = torch.relu(x)
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return _masked(gradients[0], *context.saved_tensors)


class _Masked(Function):
    """g where y > 0, zero elsewhere, as a function of g alone."""

    @staticmethod
    def forward(context: Any, g: Tensor, y: Tensor) -> Tensor:
        context.save_for_backward(y)
        return _aten.threshold_backward(g, y, 0)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return _masked(gradients[0], *context.saved_tensors), None


def _masked(g: Tensor, y: Tensor) -> Tensor:
    """By the bare function where no further derivative is to come, which `torch.func.vmap` can follow too."""
    return _Masked.apply(g, y) if torch.is_grad_enabled() else _aten.threshold_backward(g, y, 0)


def rectified(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return _Relu.apply(x)


def relu(input: Tensor, inplace: bool = False) -> Tensor | None:  # noqa: A002
    """The twin of `torch.nn.functional.relu`; None for a call that it leaves to that."""
    return None if inplace else rectified(input)
