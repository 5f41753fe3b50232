"""The diagonal of a matrix known by its action."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from spherometer.estimators.accuracy import check_rtol
from spherometer.estimators.matrices import MatrixLike, SymmetricMatrix
from spherometer.estimators.quadratic import BLOCK, MIN_SAMPLES, SMALL, identity_blocks, missed
from spherometer.estimators.randomness import child_stream, rademacher
from spherometer.estimators.samples import student_factor
from spherometer.values import Estimate, Status


def diagonal(
    operator: MatrixLike, *, rtol: float = 0.1, max_products: int = 1000, small: int = SMALL, seed: int = 0
) -> Estimate:
    """diag A = E[v ∘ Av] for independent signs v, with a standard error for each entry; stops at ‖error‖ ≤
    rtol·‖diagonal‖.

    An operator that knows its diagonal is asked first; a matrix of up to `small` rows, or with fewer rows than probes
    are needed, is read off column by column. Bekas, Kokiopoulou, Saad (2007).

    Example:
        >>> diagonal(torch.tensor([[2.0, 1.0], [1.0, 3.0]])).value
        tensor([2., 3.])
    """
    began = time.perf_counter()
    check_rtol(rtol)
    if max_products < MIN_SAMPLES:
        raise ValueError(f"expected max_products >= {MIN_SAMPLES}, got {max_products}: fewer give no error bar")
    matrix = SymmetricMatrix(operator)
    known = matrix.exact_diagonal()
    if known is not None:
        return Estimate(known, torch.zeros_like(known), seconds=time.perf_counter() - began)
    if matrix.num_rows <= small:
        return _read_off(matrix, began)
    return _sampled(matrix, rtol, max_products, seed, began)


def _sampled(matrix: SymmetricMatrix, rtol: float, limit: int, seed: int, began: float) -> Estimate:
    stream = child_stream(seed, "diagonal")
    moments = _Moments(torch.zeros(matrix.num_rows, dtype=matrix.dtype, device=matrix.device))
    goal = MIN_SAMPLES
    while True:
        while moments.count < goal:
            columns = rademacher(matrix.num_rows, min(BLOCK, goal - moments.count), dtype=matrix.dtype, stream=stream)
            columns = columns.to(matrix.device)
            moments.add(columns * matrix.apply(columns))
        error = moments.error()
        noise, length = float(error.norm()), float(moments.mean.norm())
        signal = math.sqrt(
            max(length**2 - noise**2, 0.0)
        )  # the noise makes the estimated diagonal longer than the true one
        if noise <= max(rtol * signal, matrix.epsilon * length) or matrix.products >= limit:
            break
        needed = 1.05 * moments.count * (noise / (rtol * signal)) ** 2 if signal > 0 else math.inf
        if needed > matrix.num_rows <= limit - matrix.products:
            return _read_off(matrix, began)
        goal = int(min(max(needed, moments.count + 1), 4 * moments.count, limit))
    reached = noise <= max(rtol * signal, matrix.epsilon * length)
    return Estimate(
        moments.mean,
        error,
        "standard error",
        "random vectors",
        matrix.products,
        time.perf_counter() - began,
        Status() if reached else missed(rtol, signal, noise, matrix.products),
    )


class _Moments:
    """Mean and spread of each entry over columns that come in blocks (Chan, Golub, LeVeque 1983): three vectors,
    however many columns.
    """

    def __init__(self, zeros: Tensor) -> None:
        self.count, self.mean, self._squares = 0, zeros, zeros.clone()

    def add(self, block: Tensor) -> None:
        """Take in the columns (n, k)."""
        size = block.shape[1]
        centre = block.mean(1)
        shift = centre - self.mean
        total = self.count + size
        self._squares += (block - centre[:, None]).square().sum(1) + shift.square() * (self.count * size / total)
        self.mean = self.mean + shift * (size / total)
        self.count = total

    def error(self) -> Tensor:
        """Standard error of each mean, widened for the number of samples."""
        return (self._squares / (self.count * (self.count - 1))).sqrt() * student_factor(self.count - 1)


def _read_off(matrix: SymmetricMatrix, began: float) -> Estimate:
    entries = [matrix.apply(columns)[rows].diagonal() for rows, columns in identity_blocks(matrix)]
    value = torch.cat(entries)
    return Estimate(value, torch.zeros_like(value), products=matrix.products, seconds=time.perf_counter() - began)
