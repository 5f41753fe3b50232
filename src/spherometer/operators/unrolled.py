"""Convolutions of small images in double precision, as one product of matrices for all samples.

oneDNN has none in double precision, and PyTorch's own reads the weights again for each sample: 1.3 to 7 times the time
where the weights are the larger part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from spherometer.operators.products import are_batched

if TYPE_CHECKING:
    from spherometer.operators.convolution import Geometry

CHANNELS_FOR_A_PIXEL = 8  # on either side, from which on it pays


def convolved(x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
    """x * w + b."""
    if not _is_small(x, w, geometry) or are_batched(x, w, b):
        return torch.ops.aten.convolution(x, w, b, *geometry)
    size = _output_size(x, w, geometry)
    columns = functional.unfold(x, *_window(w, geometry))
    product = w.flatten(1) @ columns.transpose(0, 1).flatten(1)
    images = _laid(product.view(-1, len(x), *size).transpose(0, 1), like=x)
    return images if b is None else images.add_(b.view(-1, 1, 1))


def input_gradient(g: Tensor, x: Tensor, w: Tensor, geometry: Geometry) -> Tensor | None:
    """The gradient of <g, x * w> in x, which is asked for its shape only; None where it is not quicker this way."""
    if not _is_small(x, w, geometry) or are_batched(g, x, w):
        return None
    columns = w.flatten(1).T @ g.transpose(0, 1).flatten(1)
    columns = columns.view(len(columns), len(g), -1).transpose(0, 1)
    return _laid(functional.fold(columns, tuple(x.shape[2:]), *_window(w, geometry)), like=x)


def _is_small(x: Tensor, w: Tensor, geometry: Geometry) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float64
        and x.dim() == 4
        and x.numel() > 0
        and not geometry.transposed
        and geometry.groups == 1
        and w.shape[2:].numel() > 1
        and min(w.shape[:2]) >= CHANNELS_FOR_A_PIXEL * x.shape[2:].numel()
    )


def _window(w: Tensor, geometry: Geometry) -> list[tuple[int, ...]]:
    """As `unfold` and `fold` want it."""
    return [tuple(entry) for entry in (w.shape[2:], geometry.dilation, geometry.padding, geometry.stride)]


def _output_size(x: Tensor, w: Tensor, geometry: Geometry) -> list[int]:
    axes = zip(x.shape[2:], w.shape[2:], *geometry[:3], strict=True)
    return [
        (length + 2 * padding - dilation * (size - 1) - 1) // stride + 1
        for length, size, stride, padding, dilation in axes
    ]


def _laid(images: Tensor, *, like: Tensor) -> Tensor:
    last = like.is_contiguous(memory_format=torch.channels_last)
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
