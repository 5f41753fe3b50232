"""Trace and Frobenius norm: sums over the whole spectrum, from a few random products."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from spherometer.estimators.accuracy import check_rtol
from spherometer.estimators.matrices import MatrixLike, SymmetricMatrix
from spherometer.estimators.randomness import child_stream, rademacher
from spherometer.estimators.samples import enough, mean_and_error
from spherometer.values import Estimate, Status

NUM_PILOT = 12  # probes before anything is decided
MIN_SAMPLES = 12  # of a finished estimate: with fewer, the error bar itself is too uncertain
SMALL = 128  # up to this size the exact sum is cheaper than an honest sample
BLOCK = 32  # columns sent to the operator at once
Draw = Callable[[int], np.ndarray]  # so many independent samples of the sum


def trace(
    operator: MatrixLike, *, rtol: float = 0.02, max_products: int = 1000, memory: float = 4e9, seed: int = 0
) -> Estimate:
    """tr A = E[v'Av] for independent signs v; stops when the standard error of the mean is below rtol of it.

    An operator that knows its trace is asked first; a small matrix is summed up. One that is a mean over samples, A =
    ⟨A_i⟩, may know how to give each sample signs of its own, ⟨v_i'A_i v_i⟩: the price is the same, and the spread that
    of many probes. Where plain probes (Hutchinson 1989) would be many, and the images of a pilot show that few
    directions carry the matrix, these directions Q are summed exactly and only the rest is sampled: tr A = tr Q'AQ +
    E[v'(I−QQ')A(I−QQ')v], with probes that are independent of Q, hence without bias (Meyer, Musco, Musco, Woodruff
    2021; the size of Q adapts as in Persson, Cortinovis, Kressner 2022). `memory` limits the size of Q.

    A trace that cancels to almost zero cannot be had to a relative precision: the status then says what was reached.

    Example:
        >>> trace(torch.diag(torch.arange(5.0))).value
        10.0
    """
    began = time.perf_counter()
    matrix = _checked(operator, rtol, max_products)
    known = matrix.exact_trace()
    if known is not None:
        return Estimate(known, seconds=time.perf_counter() - began)
    estimate = _Sampler(matrix, TRACE, rtol, max_products, memory, seed).estimate()
    return replace(estimate, seconds=time.perf_counter() - began)


def frobenius(
    operator: MatrixLike, *, rtol: float = 0.02, max_products: int = 1000, memory: float = 4e9, seed: int = 0
) -> Estimate:
    """‖A‖_F = √tr A² with tr A² = E‖Av‖² for independent signs v, in the way of `trace`; error by the delta method.

    Example:
        >>> frobenius(torch.diag(torch.tensor([3.0, 4.0]))).value
        5.0
    """
    began = time.perf_counter()
    matrix = _checked(operator, rtol, max_products)
    # d√x = dx / 2√x: half the relative error of the square, which may therefore be twice as large.
    square = _Sampler(matrix, SQUARE, 2 * rtol, max_products, memory, seed).estimate()
    value = math.sqrt(max(float(square.value), 0.0))
    error = float(square.error) / (2 * value) if value > 0 else math.sqrt(float(square.error))
    status = square.status if square.status else missed(rtol, value, error, square.products)
    return replace(square, value=value, error=error, status=status, seconds=time.perf_counter() - began)


def missed(rtol: float, value: float, error: float, products: int) -> Status:
    """What to say when the standard error did not come down to rtol."""
    reached = error / abs(value) if value else math.inf
    return Status(
        False,
        f"asked for rtol={rtol:g}, reached {reached:.2g} after {products} products: ask for a larger rtol, or call the "
        "estimator with a larger max_products (the cost grows as 1/rtol²); a sum that cancels to almost zero has no "
        "relative precision",
    )


@dataclass(frozen=True)
class SpectralSum:
    """A sum over the spectrum, from columns v and their images Av, both (n, k)."""

    name: str
    form: Callable[[Tensor, Tensor], Tensor]  # k values, of which the expectation over random v is the sum
    within: Callable[[Tensor, Tensor], float]  # of orthonormal columns Q: what (I−QQ')A(I−QQ') lacks of the sum
    deepened: bool  # whether the directions Q are refined by a second block of the Krylov space of A


def _inner(columns: Tensor, images: Tensor) -> Tensor:
    return (columns * images).sum(0, dtype=torch.float64)


TRACE = SpectralSum("trace", _inner, lambda columns, images: float(_inner(columns, images).sum()), deepened=False)
SQUARE = SpectralSum(
    "frobenius",
    lambda _, images: _inner(images, images),
    # ‖A‖² = 2‖AQ‖² − ‖Q'AQ‖² + ‖(I−QQ')A(I−QQ')‖²: projecting on both sides leaves the least to chance.
    lambda columns, images: float(2 * _inner(images, images).sum() - (columns.T @ images).double().square().sum()),
    # Squares make one half-captured outlier dominate the rest: a tail that a dozen samples do not show. Measured on
    # spectra with ten outliers, z-scores of the plain directions spread by 1.5, those of the deepened ones by 1.1.
    deepened=True,
)


def _checked(operator: MatrixLike, rtol: float, max_products: int) -> SymmetricMatrix:
    check_rtol(rtol)
    if max_products < NUM_PILOT + MIN_SAMPLES:
        least = NUM_PILOT + MIN_SAMPLES
        raise ValueError(f"expected max_products >= {least}, got {max_products}: fewer give no honest error bar")
    return SymmetricMatrix(operator)


class _Sampler:
    """One run of the estimator: pilot, choice of the way, samples until the error bar is short enough."""

    def __init__(
        self, matrix: SymmetricMatrix, goal: SpectralSum, rtol: float, limit: int, memory: float, seed: int
    ) -> None:
        self.matrix, self.goal, self.rtol, self.limit = matrix, goal, rtol, limit
        column_bytes = matrix.num_rows * matrix.dtype.itemsize
        self.max_sketch = int(memory // (4 * column_bytes))  # AV, a copy while it grows, Q and AQ
        self.pilot_stream = child_stream(seed, f"{goal.name}/pilot")
        self.stream = child_stream(seed, f"{goal.name}/probes")

    def estimate(self) -> Estimate:
        """The sum, by the way that is predicted to be the cheapest."""
        if self.matrix.num_rows <= min(SMALL, self.limit):
            return self._summed()
        if self.goal is TRACE and self.matrix.knows_samples:
            return self._sampled(np.zeros(0), 0.0, partial(self.matrix.trace_samples, stream=self.stream))
        images, samples = self._pilot()
        plain = max(0.0, self._needed(*mean_and_error(samples), len(samples)) - len(samples))
        deflated = len(samples) + max(MIN_SAMPLES, _unexplained(images) * plain)
        if self._sum_is_cheaper(min(plain, deflated)):
            return self._summed()
        if plain <= deflated or deflated > self._left:
            return self._sampled(samples, 0.0, partial(self._plain, None))
        directions = torch.linalg.qr(images).Q
        images = self.matrix.apply(directions)
        if self.goal.deepened and 2 * len(samples) <= min(self.max_sketch, self._left):
            further = torch.linalg.qr(torch.cat([directions, images], 1)).Q[:, len(samples) :]
            directions = torch.cat([directions, further], 1)
            images = torch.cat([images, self.matrix.apply(further)], 1)
        return self._sampled(np.zeros(0), self.goal.within(directions, images), partial(self._plain, directions))

    def _pilot(self) -> tuple[Tensor, np.ndarray]:
        """Images (n, k) and samples of k probes; more of them as long as that promises to save more than it costs."""
        images, samples = self._draw(NUM_PILOT, self.pilot_stream)
        while True:
            size = len(samples)
            rest = _unexplained(images) * self._needed(*mean_and_error(samples), size)
            too_many = 3 * size + MIN_SAMPLES > min(
                self.matrix.num_rows, self.limit - 2 * size
            )  # drawn, and sent again
            if rest < 4 * size or 2 * size > self.max_sketch or too_many:
                return images, samples
            more_images, more_samples = self._draw(size, self.pilot_stream)
            images, samples = torch.cat([images, more_images], 1), np.concatenate([samples, more_samples])

    def _draw(
        self, number: int, stream: torch.Generator, directions: Tensor | None = None
    ) -> tuple[Tensor, np.ndarray]:
        matrix = self.matrix
        columns = rademacher(matrix.num_rows, number, dtype=matrix.dtype, stream=stream).to(matrix.device)
        if directions is None:
            images = matrix.apply(columns)
        else:
            columns = columns - directions @ (directions.T @ columns)
            images = matrix.apply(columns)
            images = images - directions @ (directions.T @ images)
        return images, self.goal.form(columns, images).cpu().numpy()

    def _plain(self, directions: Tensor | None, number: int) -> np.ndarray:
        return self._draw(number, self.stream, directions)[1]

    def _sampled(self, first: np.ndarray, exact: float, draw: Draw) -> Estimate:
        """Independent samples until the error bar is short enough.

        Stopping where the spread happens to look small favours small values, since mean and spread of a skew quantity
        go together. So the first samples suffice only if they are far better than needed; otherwise at least as many
        again follow, in few rounds with some reserve; or the exact sum, once that is cheaper.
        """
        samples = first if len(first) else self._more(first, MIN_SAMPLES, draw)
        needed = self._needed(*self._reading(samples, exact), len(samples))
        if self._sum_is_cheaper(needed - len(samples)):
            return self._summed()
        if 2 * needed > len(samples):
            samples = self._more(samples, math.ceil(min(max(1.2 * needed, 2 * MIN_SAMPLES), self.limit)), draw)
        while (needed := self._enough(samples, exact)) > len(samples) and self._left > 0:
            if self._sum_is_cheaper(needed - len(samples)):
                return self._summed()
            goal = math.ceil(min(1.2 * needed, 4 * len(samples)))
            samples = self._more(samples, goal, draw)
        value, error = self._reading(samples, exact)
        reached = self._needed(value, error, len(samples)) <= len(samples)
        status = Status() if reached else missed(self.rtol, value, error, self.matrix.products)
        return Estimate(value, error, "standard error", "random vectors", self.matrix.products, status=status)

    def _more(self, samples: np.ndarray, goal: int, draw: Draw) -> np.ndarray:
        """The samples filled up to the goal, or as far as the budget goes."""
        missing = min(goal - len(samples), self._left)
        while missing > 0:
            block = draw(min(BLOCK, missing))
            samples, missing = np.concatenate([samples, block]), missing - len(block)
        return samples

    def _sum_is_cheaper(self, missing: float) -> bool:
        """Whether the exact sum is affordable and costs less than the samples still missing."""
        return missing > self.matrix.num_rows <= self._left

    @property
    def _left(self) -> int:
        return self.limit - self.matrix.products

    def _enough(self, samples: np.ndarray, exact: float) -> float:
        """How many samples short error bars and heavy tails ask for."""
        value, error = self._reading(samples, exact)
        tails = enough(samples, MIN_SAMPLES) if error > self._rounding(value) else 0
        return max(self._needed(value, error, len(samples)), tails)

    def _reading(self, samples: np.ndarray, exact: float) -> tuple[float, float]:
        """The sum and its standard error, which is never below the rounding."""
        mean, error = mean_and_error(samples)
        return exact + mean, max(error, self._rounding(abs(exact) + abs(mean)))

    def _rounding(self, size: float) -> float:
        return self.matrix.epsilon * self.matrix.num_rows**0.5 * abs(size)

    def _needed(self, value: float, error: float, size: int) -> float:
        """How many samples until error ≤ rtol·|value|, when `size` of them gave this error."""
        target = self.rtol * abs(value)
        if error == 0:
            return 0.0
        return size * (error / target) ** 2 if target > 0 else math.inf

    def _summed(self) -> Estimate:
        """Exactly, by one product for each column of the identity."""
        total = 0.0
        for _, columns in identity_blocks(self.matrix):
            total += float(self.goal.form(columns, self.matrix.apply(columns)).sum())
        return Estimate(total, products=self.matrix.products)


def identity_blocks(matrix: SymmetricMatrix) -> list[tuple[slice, Tensor]]:
    """The columns of the identity in blocks, each with the rows in which its ones stand."""
    ones = torch.eye(matrix.num_rows, dtype=matrix.dtype, device=matrix.device)
    starts = range(0, matrix.num_rows, BLOCK)
    return [(slice(first, first + BLOCK), ones[:, first : first + BLOCK]) for first in starts]


def _unexplained(images: Tensor) -> float:
    """The share of ‖A‖_F² outside the span of the images AV: each image against all others, which is 1/(G⁻¹)_jj of
    their Gram matrix G and costs no product.
    """
    gram = (images.T @ images).double()
    gram /= gram.diagonal().sum().clamp_min(torch.finfo(torch.float64).tiny)
    ridge = torch.finfo(images.dtype).eps * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float((1 / torch.linalg.inv(gram + ridge).diagonal()).sum())
