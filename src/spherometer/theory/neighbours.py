"""Distances to the nearest points, block by block: never all pairs in memory."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 4_000_000  # numbers held at once
SPARE = 3  # candidates beyond those asked for: inner products round, the final order is by true differences


def nearest_neighbours(queries: Tensor, points: Tensor, num: int = 1, *, same: bool = False) -> tuple[Tensor, Tensor]:
    """Ascending distances to the `num` nearest points, and which they are; `same`: queries are the points themselves.

    Candidates come from ‖q‖² + ‖p‖² − 2q'p in float64 after centring, their distances from the differences, so that a
    distance is that of a true pair; another pair can be nearer only by rounding, 1e-7 of the size of the data.
    """
    centre = points.mean(0)
    queries, points = queries - centre, points - centre
    lengths = points.square().sum(1)
    candidates = min(num + SPARE, len(points) - same)
    height = max(1, BLOCK // max(len(points), candidates * points.shape[1]))
    distances = queries.new_empty(len(queries), num)
    indices = torch.empty(len(queries), num, dtype=torch.long, device=queries.device)
    for start in range(0, len(queries), height):
        block = queries[start : start + height]
        scores = torch.addmm(lengths, block, points.T, alpha=-2)
        if same:
            own = torch.arange(len(block), device=block.device)
            scores[own, start + own] = torch.inf
        index = scores.topk(candidates, largest=False, sorted=False).indices
        apart, order = (block[:, None] - points[index]).norm(dim=2).sort(1)
        distances[start : start + height] = apart[:, :num]
        indices[start : start + height] = index.gather(1, order)[:, :num]
    return distances, indices
