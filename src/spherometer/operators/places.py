"""Products of matrices, one for each place of a tiling, by the library that is quicker at them.

Images are (places, tiles, channels) in any order of memory, best as (tiles, places, channels); weights are
(places, outputs, inputs).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# With AVX-512 oneDNN convolves twice as fast as without, while MKL's products of matrices stay what they are on some
# processors. A convolution of single pixels with a group of channels for each place is a product for each place too,
# measured 1.3 to 2.4 times as fast there unless few tiles or large weights make its own copy of the weights weigh.
WIDE_VECTORS = torch.backends.cpu.get_cpu_capability() == "AVX512"
MIN_TILES, MAX_WEIGHT = 64, 5 * 2**20


def to_outputs(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Σ x ŵ' over pairs of images and weights, in one piece of memory."""
    total = None
    for images, weight in pairs:
        if _convolves(images, weight):
            product = _convolved(images, weight, transposed=False)
            total = product if total is None else total.add_(product)
        else:
            total = images @ weight.mT if total is None else total.baddbmm_(images, weight.mT)
    assert total is not None
    return total


def to_inputs(slopes: Tensor, weight: Tensor) -> Tensor:
    """g ŵ."""
    return _convolved(slopes, weight, transposed=True) if _convolves(slopes, weight) else slopes @ weight


def _convolves(images: Tensor, weight: Tensor) -> bool:
    covered = WIDE_VECTORS and images.device.type == "cpu" and images.dtype == torch.float32
    return covered and images.shape[1] >= MIN_TILES and weight.numel() <= MAX_WEIGHT


def _convolved(images: Tensor, weight: Tensor, *, transposed: bool) -> Tensor:
    places, tiles, channels = images.shape
    pixels = images.transpose(0, 1).reshape(1, tiles, 1, places * channels).permute(0, 3, 1, 2)
    kernels = weight.reshape(-1, weight.shape[2], 1, 1)
    product = torch.ops.aten.convolution(pixels, kernels, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], places)
    return product.permute(0, 2, 3, 1).reshape(tiles, places, -1).transpose(0, 1)
