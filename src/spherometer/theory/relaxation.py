"""What the neurons of a chain can do while the input stays in a ball: intervals by linear bands (CROWN, DeepPoly).

Every activation is enclosed in a band a z + c ± r; substituting layer by layer back to the input gives a linear
function whose extremes over an l2 ball are known (Zhang et al. 2018; Singh et al. 2019). Plain intervals are
intersected.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.theory.activations import Range
from spherometer.theory.chain import Chain

ROUNDING = 1e-11  # by which an interval is widened, relative to the sum of its terms' sizes

Band = tuple[Tensor, Tensor, Tensor]


def neuron_ranges(chain: Chain, points: Tensor, radius: float) -> list[Range]:
    """[low, high] of the input of every activation over the balls around `points` (n, d), each (n, width)."""
    narrow = chain.narrowed.weights[0]
    weight, offset = chain.weights[0], chain.offsets[0]
    first = points @ weight.T + offset
    reach = radius * narrow.norm(dim=1) + ROUNDING * (
        points.norm(dim=1, keepdim=True) * narrow.norm(dim=1) + offset.abs()
    )
    ranges, bands = [(first - reach, first + reach)], list[Band]()
    for place in range(1, len(chain.activations)):
        activation, (low, high) = chain.activations[place - 1], ranges[-1]
        bands.append(activation.band(low, high))
        boxes = activation.values(low, high)
        size = torch.maximum(boxes[0].abs(), boxes[1].abs()) @ chain.weights[place].T.abs() + chain.offsets[place].abs()
        slack = (ROUNDING + activation.gap) * (size + 1)
        plain = _from_boxes(boxes, chain.weights[place], chain.offsets[place])
        linear = _from_bands(chain, bands, place, first, radius * narrow)
        ranges.append((torch.maximum(plain[0], linear[0]) - slack, torch.minimum(plain[1], linear[1]) + slack))
    return ranges


def _from_boxes(boxes: Range, weight: Tensor, offset: Tensor) -> Range:
    middle, half = (boxes[0] + boxes[1]) / 2, (boxes[1] - boxes[0]) / 2
    centre, spread = middle @ weight.T + offset, half @ weight.T.abs()
    return centre - spread, centre + spread


def _from_bands(chain: Chain, bands: list[Band], place: int, first: Tensor, reach: Tensor) -> Range:
    """Substitute back from layer `place` to the first activation, whose inputs move by `reach` times the unit ball."""
    coefficients = chain.weights[place].expand(len(first), -1, -1)
    centre, spread = chain.offsets[place].expand(len(first), -1), torch.zeros((), dtype=first.dtype)
    for layer in range(place - 1, -1, -1):
        slope, offset, radius = bands[layer]
        centre = centre + _times(coefficients, offset)
        spread = spread + _times(coefficients.abs(), radius)
        coefficients = coefficients * slope[:, None, :]
        if layer:
            centre = centre + _times(coefficients, chain.offsets[layer])
            coefficients = coefficients @ chain.weights[layer]
    centre = centre + _times(coefficients, first)
    spread = spread + (coefficients @ reach).norm(dim=2)
    return centre - spread, centre + spread


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors.expand(len(matrices), -1)[:, :, None])[:, :, 0]
