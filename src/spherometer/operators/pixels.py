"""Images that lie channels last, as rows of pixels and back, without a copy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def pixels_of(images: Tensor) -> Tensor:
    """(samples, channels, height, width) -> (samples, pixels, channels)."""
    return images.permute(0, 2, 3, 1).reshape(len(images), -1, images.shape[1])


def images_of(pixels: Tensor, size: Sequence[int]) -> Tensor:
    """The way back, to images of this height and width."""
    return pixels.view(len(pixels), *size, pixels.shape[2]).permute(0, 3, 1, 2)
