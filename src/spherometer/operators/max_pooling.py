"""Max pooling whose derivatives of every order stay channels last: PyTorch's second ones do not, and copy twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from spherometer.operators.convolution import per_axis
from spherometer.operators.pixels import images_of, pixels_of
from spherometer.operators.relu import rectified


class Window(NamedTuple):
    """What `aten.max_pool2d_with_indices` wants to know besides the images, in its order."""

    size: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil_mode: bool


Move = Callable[[Tensor, Tensor, torch.Size], Tensor]


class _MaxPool(Function):
    """y = x at the places of the largest numbers."""

    @staticmethod
    def forward(context: Any, x: Tensor, window: Window) -> Tensor:
        y, places = torch.ops.aten.max_pool2d_with_indices(x, *window)
        context.save_for_backward(pixels_of(places))
        context.size = x.shape[2:]
        return y

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        (places,) = context.saved_tensors
        return _moved(gradients[0], places, context.size, _spread), None


class _Moved(Function):
    """Numbers of an image taken from some places, or spread over them: each is the transpose of the other."""

    @staticmethod
    def forward(context: Any, image: Tensor, places: Tensor, size: torch.Size, move: Move) -> Tensor:
        context.save_for_backward(places)
        context.size, context.back = image.shape[2:], _taken if move is _spread else _spread
        return move(image, places, size)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        (places,) = context.saved_tensors
        return _moved(gradients[0], places, context.size, context.back), None, None, None


def _moved(image: Tensor, places: Tensor, size: torch.Size, move: Move) -> Tensor:
    """By the bare function where no further derivative is to come, which `torch.func.vmap` can follow too."""
    return _Moved.apply(image, places, size, move) if torch.is_grad_enabled() else move(image, places, size)


def _taken(image: Tensor, places: Tensor, size: torch.Size) -> Tensor:
    return images_of(pixels_of(image).gather(1, places), size)


def _spread(image: Tensor, places: Tensor, size: torch.Size) -> Tensor:
    """Added up where places meet."""
    pixels = pixels_of(image)
    flat = pixels.new_zeros(len(image), size.numel(), image.shape[1])
    return images_of(flat.scatter_add_(1, places, pixels), size)


def pooling(
    input: Tensor,  # noqa: A002 (the names are those of torch.max_pool2d)
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Window | None]:
    """The images and the windows of a call of `torch.max_pool2d`; None unless the images lie channels last."""
    if return_indices or input.dim() != 4 or not input.is_contiguous(memory_format=torch.channels_last):
        return input, None
    sizes = [per_axis(size, 2) for size in (kernel_size, stride or kernel_size, padding, dilation)]
    return input, Window(sizes[0], sizes[1], sizes[2], sizes[3], ceil_mode)


class LastRelu:
    """The relu that was called last, as long as nothing else was: a max pooling of what it gave can go before it."""

    def __init__(self) -> None:
        self._given: Tensor | None = None
        self._gave: Tensor | None = None
        self._versions = (0, 0)

    def hear(self, function: Callable[..., Any], arguments: Sequence[Any], result: Any) -> None:
        """Remember a call of a relu that is to be derived, and forget it with the next call of any function."""
        self._given = self._gave = None
        if function not in (functional.relu, torch.relu) or not result.requires_grad:
            return
        if arguments and result is not arguments[0]:
            self._given, self._gave = arguments[0], result
            self._versions = arguments[0]._version, result._version

    def before(self, images: Tensor) -> Tensor | None:
        """What the relu was given, if it gave these images and neither was changed in place since."""
        if self._given is None or self._gave is None or images is not self._gave:
            return None
        return self._given if self._versions == (self._given._version, self._gave._version) else None


def max_pool(last: LastRelu, *arguments: Any, **options: Any) -> Tensor | None:
    """The twin of `torch.max_pool2d` for images that lie channels last; None for a call that it leaves to it.

    max(relu(x)) = relu(max(x)), with the same derivatives, and the relu then has fewer numbers to derive.
    """
    images, window = pooling(*arguments, **options)
    if window is None:
        return None
    before = last.before(images)
    return _MaxPool.apply(images, window) if before is None else rectified(_MaxPool.apply(before, window))
