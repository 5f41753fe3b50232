"""Convolutions whose gradient in their input takes less work: C backward passes to the activations are made of these.

oneDNN multiplies nine times for each pixel and pair of channels of a 3 x 3 convolution. With many channels fewer
multiplications do, as products of matrices over all samples (`minimal_filtering`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from spherometer.operators.convolution import PLAIN, Geometry, as_called
from spherometer.operators.max_pooling import Window, pooling
from spherometer.operators.minimal_filtering import Lifts, Tiling, tiling_of

_aten = torch.ops.aten

MIN_CHANNELS = 128  # on both sides: with fewer, lifting the images costs what the products save
MIN_TILES = 64  # rows of the products: with fewer, reading the lifted weights costs more
MIN_PIXELS = 8  # that a tile has to tell, of its 16


class QuickInputGradient(TorchFunctionMode):
    """Inside, 3 x 3 convolutions with many channels are differentiable in their input alone, and that quickly.

    So is a max pooling right after a relu. Values are those of PyTorch, gradients too up to rounding (3e-6 in the place
    of 1e-6). Covered are float32 images on a CPU that lie channels last; everything else is left to PyTorch. Only the
    forward pass has to run inside. Weights are lifted once for all passes inside the same mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lifts = Lifts()
        self._relu: tuple[Tensor | None, Tensor | None] = (None, None)  # what the last one was given, and what it gave

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        """The twin with a quick gradient where there is one, else the function."""
        options = options or {}
        result = None
        if function is torch.conv2d:
            result = self._convolution(*as_called(*arguments, **options))
        elif function in (functional.max_pool2d, torch.max_pool2d):
            result = self._max_pool(*pooling(*arguments, **options))
        if result is None:
            result = function(*arguments, **options)
        is_relu = function in (functional.relu, torch.relu) and arguments
        self._relu = (arguments[0], result) if is_relu else (None, None)
        return result

    def _max_pool(self, images: Tensor, window: Window | None) -> Tensor | None:
        given, activated = self._relu
        if given is None or images is not activated or images is given or window is None or not given.requires_grad:
            return None
        result: Tensor = _PooledRelu.apply(given, images.detach(), window)
        return result

    def _convolution(self, x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry | None) -> Tensor | None:
        tiling = _tiling(x) if geometry == PLAIN and _is_covered(x, w) else None
        if tiling is None:
            return None
        with torch.no_grad():
            lifted = self._lifts.of(w, tiling)
        result: Tensor = _Convolution.apply(x, w.detach(), None if b is None else b.detach(), lifted, tiling)
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


def _tiling(images: Tensor) -> Tiling | None:
    """Tiles that images fill well enough."""
    height, width = images.shape[2:]
    num_tiles = ceil(height / 4) * ceil(width / 4)
    fits = len(images) * num_tiles >= MIN_TILES and height * width >= MIN_PIXELS * num_tiles
    return tiling_of(4, height, width) if fits or height == width == 2 else None


class _PooledRelu(Function):
    """The max pooling of y = relu(x): the few numbers it leaves say by themselves where the slope is zero."""

    @staticmethod
    def forward(context: Any, x: Tensor, y: Tensor, window: Window) -> Tensor:  # noqa: ARG004
        result, places = _aten.max_pool2d_with_indices(y, *window)
        context.window = window
        context.save_for_backward(y, result, places)
        return result

    @staticmethod
    def backward(context: Any, g: Tensor) -> Any:
        y, result, places = context.saved_tensors
        slope = _aten.threshold_backward(g, result, 0)
        return _aten.max_pool2d_with_indices_backward(slope, y, *context.window, places), None, None


class _Convolution(Function):
    """y = x * w + b with 3 x 3 weights and one pixel of padding, and a way of its own back to x."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None, lifted: Tensor, tiling: Tiling) -> Tensor:
        context.lifted, context.tiling = lifted, tiling
        return torch.conv2d(x, w, b, padding=1)

    @staticmethod
    def backward(context: Any, g: Tensor) -> Any:
        return context.tiling.gradients(g, None, context.lifted)[0], *[None] * 4
