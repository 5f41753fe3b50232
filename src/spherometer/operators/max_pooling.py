"""Max pooling whose derivatives of every order stay channels last: PyTorch's second ones do not, and copy twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spherometer.operators.convolution import per_axis


class _MaxPool(Function):
    """y = x at the places of the largest numbers."""

    @staticmethod
    def forward(context: Any, x: Tensor, *window: Any) -> Tensor:
        y, places = torch.ops.aten.max_pool2d_with_indices(x, *window)
        context.places, context.size = places.permute(0, 2, 3, 1).flatten(1, 2), x.shape[2:]
        return y

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return _Spread.apply(gradients[0], context.places, context.size), *[None] * 5


class _Spread(Function):
    """Numbers (samples, channels, ...) brought back to the places they were taken from, added up where these meet."""

    @staticmethod
    def forward(context: Any, values: Tensor, places: Tensor, size: torch.Size) -> Tensor:
        context.places, context.out_size = places, values.shape[2:]
        flat = values.new_zeros(len(values), size.numel(), values.shape[1])
        flat.scatter_add_(1, places, _pixels(values))
        return flat.unflatten(1, size).permute(0, 3, 1, 2)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return _Taken.apply(gradients[0], context.places, context.out_size), None, None


class _Taken(Function):
    """The transpose: numbers of an image at these places."""

    @staticmethod
    def forward(context: Any, image: Tensor, places: Tensor, size: torch.Size) -> Tensor:
        context.places, context.in_size = places, image.shape[2:]
        return _pixels(image).gather(1, places).unflatten(1, size).permute(0, 3, 1, 2)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        return _Spread.apply(gradients[0], context.places, context.in_size), None, None


def _pixels(image: Tensor) -> Tensor:
    """(samples, pixels, channels)."""
    return image.permute(0, 2, 3, 1).flatten(1, 2)


def max_pool(
    input: Tensor,  # noqa: A002 (the names are those of torch.max_pool2d)
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """The twin of `torch.max_pool2d` for images that lie channels last; None for a call that it leaves to it."""
    if return_indices or input.dim() != 4 or not input.is_contiguous(memory_format=torch.channels_last):
        return None
    window = (per_axis(numbers, 2) for numbers in (kernel_size, stride or kernel_size, padding, dilation))
    return _MaxPool.apply(input, *window, ceil_mode)
