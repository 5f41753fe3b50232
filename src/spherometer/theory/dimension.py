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


def two_nearest_neighbours(points: Tensor, discard: float = 0.1) -> Estimate:
    """d from the ratios μ_i = r_{i2}/r_{i1}, whose distribution is F(μ) = 1 − μ^{−d} (Facco et al. 2017).

    The largest ratios are the least reliable; as in the paper the upper tenth is discarded: of its members only the
    number counts. With x_i = log μ_i ascending and r ratios kept, the likelihood is largest, without its bias, at
    d = (r − 1) / (Σ_{i≤r} x_i + (N − r) x_r) (Epstein and Sobel 1953), where the paper draws a line by least squares.

    Args:
        discard: share of the ratios that is discarded, 0 for none.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> plane = torch.rand(2000, 2, generator=generator, dtype=torch.float64) @ torch.ones(2, 5).double().triu()
        >>> round(float(two_nearest_neighbours(plane)))
        2
    """
    if not 0 <= discard < 1:
        raise ValueError(f"discard must be at least 0 and below 1, got {discard}")
    distances, neighbours, note = _distances(points, 2)
    ratios = (distances[:, 1] / distances[:, 0]).log()
    kept = max(2, len(ratios) - int(discard * len(ratios)))
    threshold = ratios.kthvalue(kept).values
    lengths = ratios.clamp_max(threshold)
    _refuse_lattice(float(lengths.sum()))
    value = (kept - 1) / float(lengths.sum())
    residuals = (ratios <= threshold).double() - value * lengths
    error = value * _scatter(residuals - residuals.mean(), neighbours) / kept
    return Estimate(
        value, error, "standard error", "data sample", note=f"{note}, {len(ratios) - kept} ratios discarded"
    )


def levina_bickel(points: Tensor, num_neighbours: int = 10) -> Estimate:
    """d = (N(k−1) − 1) / Σ_i Σ_{j<k} log(r_{ik}/r_{ij}) (Levina and Bickel 2004, pooled as MacKay and Ghahramani 2005).

    Points that share neighbours have correlated logarithms: the error bar spreads each residual over its point and the
    k neighbours before squaring, so that shared neighbours add up.

    Example:
        >>> round(float(levina_bickel(torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)))))
        2
    """
    arguments.whole("num_neighbours", num_neighbours, least=2)
    distances, neighbours, note = _distances(points, num_neighbours)
    logarithms = distances.log()
    means = (logarithms[:, -1:] - logarithms[:, :-1]).mean(1)
    _refuse_lattice(float(means.sum()))
    terms = len(means) * (num_neighbours - 1)
    value = (terms - 1) / (float(means.sum()) * (num_neighbours - 1))
    error = value**2 * _scatter(means - means.mean(), neighbours) / len(means)
    return Estimate(value, error, "standard error", "data sample", note=note)


def _distances(points: Tensor, num_neighbours: int) -> tuple[Tensor, Tensor, str]:
    """Distances to the nearest of the different points, which these are, and what was left out."""
    given = arguments.rows("points", points)
    different = torch.unique(given, dim=0)
    if len(different) <= num_neighbours:
        raise ValueError(
            f"{num_neighbours} neighbours need at least {num_neighbours + 1} different points, got {len(different)}"
        )
    distances, neighbours = nearest_neighbours(different, different, num_neighbours, same=True)
    twins = len(given) - len(different)
    left_out = f", {twins} equal ones left out" if twins else ""
    return distances, neighbours, f"{num_neighbours} neighbours of {len(different)} points{left_out}"


def _refuse_lattice(total: float) -> None:
    if not total > 0:
        raise ValueError("every point has all its neighbours at one distance (a lattice?): the dimension is undefined")


def _scatter(residuals: Tensor, neighbours: Tensor) -> float:
    """Standard deviation of Σ_i e_i, where points i and j are correlated by the share of their neighbours in common."""
    piles = residuals.clone()
    for column in neighbours.T:
        piles.index_add_(0, column, residuals)
    return float(piles.square().sum() / (neighbours.shape[1] + 1)) ** 0.5
