"""Convolutions whose gradient in their input takes less work: C backward passes to the activations are made of these.

oneDNN multiplies nine times for each pixel and pair of channels of a 3 x 3 convolution. With many channels fewer
multiplications do, as products of matrices over all samples: four where an image has 2 x 2 pixels, and in larger ones
2.25 (`minimal_filtering`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from spherometer.operators.convolution import PLAIN, Geometry, as_called
from spherometer.operators.minimal_filtering import Tiling

MIN_CHANNELS = 128  # on both sides: with fewer, lifting the images costs what the products save
MIN_TILES = 64  # rows of the products: with fewer, reading the lifted weights costs more
MIN_PIXELS = 8  # that a tile has to tell, of its 16

Pull = Callable[[Tensor], Tensor]  # from the gradient of a convolution's output to that of its input


class QuickInputGradient(TorchFunctionMode):
    """Inside, 3 x 3 convolutions with many channels are differentiable in their input alone, and that quickly.

    Values are those of PyTorch, gradients too up to rounding (3e-6 in the place of 1e-6). Covered are float32 images on
    a CPU that lie channels last; everything else is left to PyTorch. Only the forward pass has to run inside.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        """The convolution with a quick gradient where there is one, else the function."""
        options = options or {}
        result = _convolution(*as_called(*arguments, **options)) if function is torch.conv2d else None
        return function(*arguments, **options) if result is None else result


def _convolution(images: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry | None) -> Tensor | None:
    covered = geometry == PLAIN and _is_covered(images, weight)
    pull = _pull(images, weight.detach()) if covered else None
    if pull is None:
        return None
    result: Tensor = _Convolution.apply(images, weight.detach(), None if bias is None else bias.detach(), pull)
    return result


def _is_covered(images: Tensor, weight: Tensor) -> bool:
    return (
        images.requires_grad
        and images.ndim == 4
        and images.dtype == weight.dtype == torch.float32
        and images.device.type == weight.device.type == "cpu"
        and images.is_contiguous(memory_format=torch.channels_last)
        and weight.shape[2:] == (3, 3)
        and min(weight.shape[:2]) >= MIN_CHANNELS
    )


def _pull(images: Tensor, weight: Tensor) -> Pull | None:
    height, width = images.shape[2:]
    num_tiles = ceil(height / 4) * ceil(width / 4)
    if max(height, width) <= 2:
        return _Unrolled(weight, height, width)
    if len(images) * num_tiles >= MIN_TILES and height * width >= MIN_PIXELS * num_tiles:
        return _Tiled(weight, height, width)
    return None


class _Convolution(Function):
    """y = x * w + b with 3 x 3 weights and one pixel of padding, and a way of its own back to x."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None, pull: Pull) -> Tensor:
        context.pull = pull
        return torch.conv2d(x, w, b, padding=1)

    @staticmethod
    def backward(context: Any, g: Tensor) -> Any:
        return context.pull(g), None, None, None


class _Unrolled:
    """Images of at most 2 x 2 pixels: one matrix, since every pixel sees every other through one tap."""

    def __init__(self, weight: Tensor, height: int, width: int) -> None:
        self._weight, self._size = weight, (height, width)

    @cached_property
    def _matrix(self) -> Tensor:  # (pixels x channels of the output, pixels x channels of the input)
        height, width = self._size
        taps = self._weight.permute(0, 2, 3, 1)
        seen = [taps[:, 1 - y : 1 - y + height, 1 - x : 1 - x + width] for y in range(height) for x in range(width)]
        return torch.stack(seen).reshape(len(seen) * len(taps), -1)

    def __call__(self, g: Tensor) -> Tensor:
        flat = g.permute(0, 2, 3, 1).reshape(len(g), -1) @ self._matrix
        return flat.view(len(g), *self._size, -1).permute(0, 3, 1, 2)


class _Tiled:
    """Tiles of 4 x 4 pixels, with weights that are lifted once."""

    def __init__(self, weight: Tensor, height: int, width: int) -> None:
        self._weight, self._tiling = weight, Tiling(4, height, width)

    @cached_property
    def _lifted(self) -> Tensor:
        return self._tiling.lift_weight(self._weight)

    def __call__(self, g: Tensor) -> Tensor:
        gradient, _ = self._tiling.gradients(g, None, self._lifted)
        assert gradient is not None
        return gradient
