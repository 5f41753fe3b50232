"""Convolutions whose gradient in their input takes less work: C backward passes to the activations are made of these.

oneDNN multiplies nine times for each pixel and pair of channels of a 3 x 3 convolution. With many channels fewer
multiplications do, as products of matrices over all samples (`minimal_filtering`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import Node
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from spherometer.operators.convolution import PLAIN, Geometry, as_called
from spherometer.operators.max_pooling import LastRelu, Window, pooling
from spherometer.operators.minimal_filtering import PIECE, Lifts, Tiling, tiling_of
from spherometer.operators.workspace import Workspace

_aten = torch.ops.aten

MIN_CHANNELS = 128  # on both sides: with fewer, lifting the images costs what the products save
MIN_TILES = 64  # rows of the products: with fewer, reading the lifted weights costs more
MIN_PIXELS = 8  # that a tile has to tell, of its 16


class QuickInputGradient(TorchFunctionMode):
    """Inside, 3 x 3 convolutions with many channels are differentiable in their input alone, and that quickly.

    So is a max pooling right after a relu. Values are those of PyTorch, gradients too up to rounding (3e-6 in the place
    of 1e-6). Covered are float32 images on a CPU that lie channels last; everything else is left to PyTorch. Only the
    forward pass has to run inside. Weights are lifted once for all passes inside the same mode.

    Args:
        skipping: gradients at the outputs of convolutions are not wanted. Where a relu and a max pooling follow, these
            would be the largest of all; all three are differentiated in one go then, a few samples at a time.
            `skipped` are the nodes whose gradients miss what took that way.
    """

    def __init__(self, *, skipping: bool = False) -> None:
        super().__init__()
        self.skipping, self.skipped = skipping, list[Node | None]()
        self._lifts = Lifts()
        self._relu = LastRelu()
        self._convolved: _Convolved | None = None  # the last one

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        """The twin with a quick gradient where there is one, else the function."""
        options = options or {}
        result = None
        if function is torch.conv2d:
            result = self._convolution(function, arguments, options)
        if function in (functional.max_pool2d, torch.max_pool2d):
            result = self._max_pool(*pooling(*arguments, **options))
        if result is None:
            result = function(*arguments, **options)
        self._relu.hear(function, arguments, result)
        return result

    def _max_pool(self, images: Tensor, window: Window | None) -> Tensor | None:
        given = self._relu.before(images)
        if given is None or window is None:
            return None
        result: Tensor
        if self._convolved is not None and self._convolved.gave(given):
            self.skipped.append(given.grad_fn)
            result = _PooledConvolution.apply(self._convolved.input, images.detach(), window, self._convolved.back)
        else:
            result = _PooledRelu.apply(given, images.detach(), window)
        return result

    def _convolution(self, function: Callable[..., Tensor], arguments: tuple[Any, ...], options: Any) -> Tensor:
        x, w, b, geometry = as_called(*arguments, **options)
        back = None if geometry is None else self._back(x, w, geometry)
        if back is None or back.tiling is None:
            result = function(*arguments, **options)
        else:
            result = _Convolution.apply(x, None if b is None else b.detach(), back)
        self._convolved = None
        if self.skipping and back is not None and x.requires_grad:
            self._convolved = _Convolved(x, result, result._version, back)
        return result

    def _back(self, x: Tensor, w: Tensor, geometry: Geometry) -> _Back:
        tiling = _tiling(x) if geometry == PLAIN and _is_covered(x, w) else None
        with torch.no_grad():
            return _Back(w.detach(), geometry, tiling, None if tiling is None else self._lifts.of(w, tiling))


@dataclass(frozen=True)
class _Back:
    """The way from the gradient at the output of a convolution to that at its input."""

    weight: Tensor
    geometry: Geometry
    tiling: Tiling | None
    lifted: Tensor | None

    def __call__(self, g: Tensor, x: Tensor | None = None) -> Tensor:
        """Images of the input are needed where there are no tiles, for their size."""
        if self.tiling is not None:
            dx, _ = self.tiling.gradients(g, None, self.lifted, Workspace())
        else:
            dx, _, _ = _aten.convolution_backward(g, x, self.weight, None, *self.geometry, [True, False, False])
        assert dx is not None
        return dx

    @property
    def num_weights(self) -> int:
        """Numbers that are read for each piece of images."""
        return (self.weight if self.lifted is None else self.lifted).numel()


class _Convolved(NamedTuple):
    """A convolution that was made, with the version of its output: what is added in place has a gradient too."""

    input: Tensor
    output: Tensor
    version: int
    back: _Back

    def gave(self, images: Tensor) -> bool:
        """Whether these images are its output, as it was."""
        return images is self.output and images._version == self.version


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
    """The max pooling of y = relu(x)."""

    @staticmethod
    def forward(context: Any, x: Tensor, y: Tensor, window: Window) -> Tensor:  # noqa: ARG004
        result, places = _aten.max_pool2d_with_indices(y, *window)
        context.window = window
        context.save_for_backward(y, result, places)
        return result

    @staticmethod
    def backward(context: Any, g: Tensor) -> Any:
        return _before_relu(context.window, g, *context.saved_tensors), None, None


def _before_relu(window: Window, g: Tensor, y: Tensor, result: Tensor, places: Tensor) -> Tensor:
    """The gradient in x of the max pooling of relu(x): the few numbers it leaves say where the slope is zero."""
    slope = _aten.threshold_backward(g, result, 0)
    return _aten.max_pool2d_with_indices_backward(slope, y, *window, places)


class _PooledConvolution(Function):
    """The max pooling of y = relu(x * w + b), and a way back to x that passes the large images piece by piece."""

    @staticmethod
    def forward(context: Any, x: Tensor, y: Tensor, window: Window, back: _Back) -> Tensor:
        result, places = _aten.max_pool2d_with_indices(y, *window)
        context.window, context.back = window, back
        context.save_for_backward(x, y, result, places)
        return result

    @staticmethod
    def backward(context: Any, g: Tensor) -> Any:
        x, y, result, places = context.saved_tensors
        step = max(1, max(PIECE, context.back.num_weights // 2) // y[0].numel())
        pieces = zip(*(images.split(step) for images in (x, g, y, result, places)), strict=True)
        parts = [context.back(_before_relu(context.window, *images), given) for given, *images in pieces]
        return torch.cat(parts), None, None, None


class _Convolution(Function):
    """y = x * w + b with 3 x 3 weights and one pixel of padding, and a way of its own back to x."""

    @staticmethod
    def forward(context: Any, x: Tensor, b: Tensor | None, back: _Back) -> Tensor:
        context.back = back
        return torch.conv2d(x, back.weight, b, padding=1)

    @staticmethod
    def backward(context: Any, g: Tensor) -> Any:
        return context.back(g), None, None
