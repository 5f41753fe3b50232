"""The intrinsic dimension of a dataset from distances to nearest neighbours, to plug into a delta-good radius.

Both estimators take the distribution as even within reach of the neighbours. Their bars hold the scatter over data
samples only: edges, curvature and noise shift the value itself, and more so in high dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.theory import arguments
from spherometer.theory.neighbours import nearest_neighbours
from spherometer.values import Estimate


def two_nearest_neighbours(points: Tensor) -> Estimate:
    """d = (N − 1) / Σ_i log(r_{i2}/r_{i1}) (Facco et al. 2017, by maximum likelihood as in Denti et al. 2022).

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> plane = torch.rand(2000, 2, generator=generator, dtype=torch.float64) @ torch.ones(2, 5).double().triu()
        >>> round(float(two_nearest_neighbours(plane)))
        2
    """
    return levina_bickel(points, num_neighbours=2)


def levina_bickel(points: Tensor, num_neighbours: int = 10) -> Estimate:
    """d = (N(k−1) − 1) / Σ_i Σ_{j<k} log(r_{ik}/r_{ij}) (Levina and Bickel 2004, pooled as MacKay and Ghahramani 2005).

    Points that share neighbours have correlated logarithms: the error bar spreads each residual over its point and the
    k neighbours before squaring, so that shared neighbours add up.
    """
    arguments.whole("num_neighbours", num_neighbours, least=2)
    given = arguments.rows("points", points)
    different = torch.unique(given, dim=0)
    if len(different) <= num_neighbours:
        raise ValueError(
            f"{num_neighbours} neighbours need at least {num_neighbours + 1} different points, got {len(different)}"
        )
    distances, neighbours = nearest_neighbours(different, different, num_neighbours, same=True)
    logarithms = distances.log()
    means = (logarithms[:, -1:] - logarithms[:, :-1]).mean(1)
    if not float(means.sum()) > 0:
        raise ValueError("every point has all its neighbours at one distance (a lattice?): the dimension is undefined")
    terms = len(means) * (num_neighbours - 1)
    value = (terms - 1) / (float(means.sum()) * (num_neighbours - 1))
    error = value**2 * _scatter(means - means.mean(), neighbours) / len(means)
    twins = len(given) - len(different)
    note = f"{num_neighbours} neighbours of {len(different)} points" + (
        f", {twins} equal ones left out" if twins else ""
    )
    return Estimate(value, error, "standard error", "data sample", note=note)


def _scatter(residuals: Tensor, neighbours: Tensor) -> float:
    """Standard deviation of Σ_i e_i, where points i and j are correlated by the share of their neighbours in common."""
    piles = residuals.clone()
    for column in neighbours.T:
        piles.index_add_(0, column, residuals)
    return float(piles.square().sum() / (neighbours.shape[1] + 1)) ** 0.5
