"""Dimensions and norms of representations: matrices of n samples and d features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spherometer.estimators import eigenvalues

MAX_DENSE = 2048  # rows of a Gram matrix whose eigenvalues are taken all at once


def naive_ratio(matrix: Tensor) -> float:
    """(Tr S)² / Tr(S²) of the sample covariance S; nan where nothing varies."""
    gram = _varying(matrix)
    return math.nan if gram is None else (float(gram.trace()) / float(gram.norm())) ** 2


def corrected_ratio(matrix: Tensor) -> float:
    """(Tr Σ)² / Tr(Σ²) from unbiased estimates of both; needs four samples.

    Tr(Σ²) by the unbiased HSIC of the linear kernel with itself (Song et al. 2012, Eq 5), (Tr Σ)² by the mean of
    ¼ ‖x_i−x_j‖² ‖x_k−x_l‖² over four different samples. Chun et al. (2025) correct in the same way.
    """
    num, kernel = len(matrix), _varying(matrix)
    if num < 4 or kernel is None:
        return math.nan
    lengths = kernel.diagonal().clone()
    apart = (-2 * kernel).add_(lengths).add_(lengths[:, None]).clamp_min_(0)  # ‖x_i − x_j‖²
    total, rows = apart.sum(), apart.sum(1)
    traces = (total.square() - 4 * rows.square().sum() + 2 * apart.norm().square()) / 4
    hollow = kernel.fill_diagonal_(0)
    sums = hollow.sum(1)
    squares = hollow.norm().square() + hollow.sum().square() / ((num - 1) * (num - 2)) - 2 / (num - 2) * sums @ sums
    denominator = float(squares) / (num * (num - 3))
    numerator = float(traces) / (num * (num - 1) * (num - 2) * (num - 3))
    return numerator / denominator if denominator > 0 else math.nan


def spectral_norm(matrix: Tensor) -> tuple[float, float]:
    """The largest singular value with a bound on its error (0 when it was found directly)."""
    smaller = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    gram = _gram(smaller)
    if len(gram) <= MAX_DENSE:
        return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(gram)[-1]))), 0.0
    found = eigenvalues(gram, rtol=1e-6)
    value = math.sqrt(float(torch.as_tensor(found.value)[0]))
    return value, float(torch.as_tensor(found.error)[0]) / (2 * value) if value else 0.0


def _gram(matrix: Tensor) -> Tensor:
    """X X' in double precision, block by block of columns: no second copy of a large matrix."""
    total = torch.zeros(len(matrix), len(matrix), dtype=torch.float64, device=matrix.device)
    for columns in matrix.split(8192, dim=1):
        wide = columns.double()
        total.addmm_(wide, wide.T)
    return total.cpu()


def _varying(matrix: Tensor) -> Tensor | None:
    """The Gram matrix of the samples less their mean, or None when they are all equal within rounding."""
    gram = _gram(matrix)
    total, means = float(gram.trace()), gram.mean(0)
    gram.sub_(means).sub_(means[:, None]).add_(means.mean())  # in place: of many samples there is room for few copies
    return gram if float(gram.trace()) > 1e-12 * total else None
