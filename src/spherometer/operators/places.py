"""Products of matrices, one for each place of a tiling, by the library that is quicker at them.

Images are (places, tiles, channels) in any order of memory, best as (tiles, places, channels); weights are
(places, outputs, inputs).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from spherometer.operators import products

# With AVX-512 oneDNN convolves twice as fast as without, while MKL's products of matrices stay what they are on some
# processors. A convolution of single pixels with a group of channels for each place is a product for each place too,
# measured 1.3 to 2.4 times as fast there unless there are few tiles. Where a single weight is so large that its own
# copy of it weighs, one product of oneDNN after the other is 1.4 to 2 times as fast.
MIN_TILES, LARGE_WEIGHT = 64, 512 * 512


def to_outputs(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Σ x ŵ' over pairs of images and weights, in one piece of memory."""
    total = None
    for images, weight in pairs:
        if _convolves(images, weight):
            convolved = _convolved(images, weight, transposed=False)
            total = convolved if total is None else total.add_(convolved)
        else:
            total = _sum(total, images, weight.mT)
    assert total is not None
    return total


def to_inputs(slopes: Tensor, weight: Tensor) -> Tensor:
    """g ŵ."""
    return _convolved(slopes, weight, transposed=True) if _convolves(slopes, weight) else _sum(None, slopes, weight)


def add_to_weight(total: Tensor, slopes: Tensor, images: Tensor, *, fresh: bool) -> None:
    """g'x, added to what is there unless that is fresh memory."""
    if _are_many(slopes) and _is_large(total):
        _one_by_one(total, slopes.mT, images, fresh=fresh)
    else:
        total.baddbmm_(slopes.mT, images, beta=0 if fresh else 1)


def _sum(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """The products of images and weights, added to a total if there is one."""
    if not (_are_many(left) and _is_large(right)):
        return left @ right if total is None else total.baddbmm_(left, right)
    result = left.new_empty(left.shape[1], len(left), right.shape[2]).transpose(0, 1) if total is None else total
    _one_by_one(result, left, right, fresh=total is None)
    return result


def _one_by_one(total: Tensor, left: Tensor, right: Tensor, *, fresh: bool) -> None:
    for place in range(len(total)):
        found = products.product(left[place], right[place])
        if fresh:
            total[place] = found
        else:
            total[place] += found


def _convolves(images: Tensor, weight: Tensor) -> bool:
    return _are_many(images) and not _is_large(weight)


def _are_many(images: Tensor) -> bool:
    covered = products.WIDE_VECTORS and images.device.type == "cpu" and images.dtype == torch.float32
    return covered and images.shape[1] >= MIN_TILES


def _is_large(weight: Tensor) -> bool:
    return weight.shape[1:].numel() >= LARGE_WEIGHT


def _convolved(images: Tensor, weight: Tensor, *, transposed: bool) -> Tensor:
    places, tiles, channels = images.shape
    pixels = images.transpose(0, 1).reshape(1, tiles, 1, places * channels).permute(0, 3, 1, 2)
    kernels = weight.reshape(-1, weight.shape[2], 1, 1)
    result = torch.ops.aten.convolution(pixels, kernels, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], places)
    return result.permute(0, 2, 3, 1).reshape(tiles, places, -1).transpose(0, 1)
