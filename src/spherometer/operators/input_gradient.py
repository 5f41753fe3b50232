"""Convolutions whose gradient in their input takes less work: C backward passes to the activations are made of these.

oneDNN multiplies nine times for each pixel and pair of channels of a 3 x 3 convolution. With many channels fewer
multiplications do, as products of matrices over all samples: four where an image has 2 x 2 pixels, 2.25 in larger ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from spherometer.operators.convolution import Geometry, as_called

MIN_CHANNELS = 256  # on both sides: with fewer, turning the images costs what the products save
MIN_TILES = 64  # rows of the products: with fewer, reading the turned weights costs more
MIN_PIXELS = 8  # that a tile has to tell, of its 16
PLAIN = Geometry([1, 1], [1, 1], [1, 1], transposed=False, output_padding=[0, 0], groups=1)

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
        return _Tiled(weight)
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
    """Tiles of 4 x 4 pixels by minimal filtering: y = A'((Gw) ⊙ (B'x)) along both axes, 36 products for 16 pixels.

    The six numbers x, correlated with the three weights w, give the four numbers y. Winograd (1980), Lavin and Gray
    (2016).
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @cached_property
    def _kernels(self) -> Tensor:  # (36, channels of the output, channels of the input)
        taps = self._weight.flip(2, 3).permute(2, 3, 0, 1)
        return (_G @ taps.reshape(9, -1)).unflatten(1, taps.shape[2:])

    def __call__(self, g: Tensor) -> Tensor:
        num, _, height, width = g.shape
        size = (num, ceil(height / 4), ceil(width / 4))
        products = torch.bmm((_B @ _tiles(g, *size)).unflatten(1, (-1, g.shape[1])), self._kernels)
        pixels = (_A @ products.flatten(1)).view(4, 4, *size, -1).permute(2, 3, 0, 4, 1, 5)
        images = pixels.flatten(3, 4).flatten(1, 2)[:, :height, :width]
        return images.contiguous().permute(0, 3, 1, 2)


def _tiles(g: Tensor, num: int, rows: int, columns: int) -> Tensor:
    """The 6 x 6 pixels below each tile of 4 x 4, (36, samples x tiles x channels)."""
    images = g.permute(0, 2, 3, 1)
    below, right = 4 * rows - images.shape[1] + 1, 4 * columns - images.shape[2] + 1
    padded = functional.pad(images, (0, 0, 1, right, 1, below))
    steps = padded.stride()
    shape, strides = (6, 6, num, rows, columns, g.shape[1]), (*steps[1:3], steps[0], 4 * steps[1], 4 * steps[2], 1)
    return padded.as_strided(shape, strides).reshape(36, -1)


def _both_axes(matrix: list[list[float]]) -> Tensor:
    tensor = torch.tensor(matrix, dtype=torch.float32)
    return torch.kron(tensor, tensor)


_A = _both_axes([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])
_B = _both_axes(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
_G = _both_axes(
    [[6 / 24, 0, 0], [-4 / 24, -4 / 24, -4 / 24], [-4 / 24, 4 / 24, -4 / 24], [1 / 24, 2 / 24, 4 / 24],
     [1 / 24, -2 / 24, 4 / 24], [0, 0, 1]]
)  # fmt: skip
