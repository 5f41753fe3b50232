"""Trace and Frobenius norm: sums over the whole spectrum, from a few random products."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from spherometer.estimators.matrices import MatrixLike, SymmetricMatrix
from spherometer.estimators.randomness import child_stream, rademacher
from spherometer.estimators.samples import mean_and_error
from spherometer.values import Estimate, Status

Form = Callable[
    [Tensor, Tensor], Tensor
]  # columns v and their images Av, both (n, k) -> k values whose expectation is the sum sought

NUM_PILOT = 12  # probes before anything is decided
MIN_SAMPLES = 12  # of the finished estimate: with fewer, the error bar itself is too uncertain (DESIGN.md section 4)
SMALL = 64  # up to this size the exact sum is cheaper than talking about it
BLOCK = 32  # columns sent to the operator at once


def trace(
    operator: MatrixLike, *, rtol: float = 0.02, max_products: int = 1000, memory: float = 4e9, seed: int = 0
) -> Estimate:
    """tr A = E[v'Av] for independent signs v; stops when the standard error of the mean is below rtol of it.

    An operator that knows its trace is asked first; a small matrix is summed up. Where plain probes (Hutchinson 1989)
    would be many and the images of the pilot show that few directions carry the matrix, these directions Q are summed
    exactly and only the rest is sampled, tr A = tr Q'AQ + E[v'(I−QQ')A(I−QQ')v], with probes independent of Q, hence
    without bias (Meyer, Musco, Musco, Woodruff 2021; size of Q chosen as in Persson, Cortinovis, Kressner 2022).

    A trace near zero, of an indefinite matrix, cannot be had to a relative precision: the status then says what was
    reached.

    Example:
        >>> trace(torch.diag(torch.arange(5.0))).value
        10.0
    """
    began = time.perf_counter()
    matrix = _checked(operator, rtol, max_products)
    known = matrix.exact_trace()
    if known is not None:
        return Estimate(known, seconds=time.perf_counter() - began)
    sampler = _Sampler(matrix, _trace_form, rtol, max_products, memory, seed, "trace")
    return sampler.estimate(began)


def frobenius(
    operator: MatrixLike, *, rtol: float = 0.02, max_products: int = 1000, memory: float = 4e9, seed: int = 0
) -> Estimate:
    """‖A‖_F = √tr A² with tr A² = E‖Av‖² for independent signs v, in the same way as `trace`; error by the delta
    method.

    Example:
        >>> frobenius(torch.diag(torch.tensor([3.0, 4.0]))).value
        5.0
    """
    began = time.perf_counter()
    matrix = _checked(operator, rtol, max_products)
    # d√x = dx / 2√x: half the relative error of the square, which may therefore be twice as large.
    sampler = _Sampler(matrix, _square_form, 2 * rtol, max_products, memory, seed, "frobenius")
    return _root(sampler.estimate(began), rtol)


def _trace_form(columns: Tensor, images: Tensor) -> Tensor:
    return (columns * images).sum(0, dtype=torch.float64)


def _square_form(columns: Tensor, images: Tensor) -> Tensor:  # noqa: ARG001
    return images.square().sum(0, dtype=torch.float64)


def _checked(operator: MatrixLike, rtol: float, max_products: int) -> SymmetricMatrix:
    if not 0 < rtol < 1:
        raise ValueError(f"expected 0 < rtol < 1, got {rtol}")
    if max_products < NUM_PILOT + MIN_SAMPLES:
        raise ValueError(
            f"expected max_products >= {NUM_PILOT + MIN_SAMPLES}, got {max_products}: fewer give no error bar"
        )
    return SymmetricMatrix(operator)


def _root(square: Estimate, rtol: float) -> Estimate:
    value = math.sqrt(max(float(square.value), 0.0))
    error = float(square.error) / (2 * value) if value > 0 else math.sqrt(float(square.error))
    complaint = "" if square.status else complain(rtol, value, error, square.products)
    return Estimate(
        value, error, square.kind, square.source, square.products, square.seconds, Status(not complaint, complaint)
    )


def complain(rtol: float, value: float, error: float, products: int) -> str:
    """What to say when the standard error did not come down to rtol."""
    reached = error / abs(value) if value else math.inf
    return (
        f"asked for rtol={rtol:g}, reached {reached:.2g} after {products} products: raise max_products "
        "(the cost grows as 1/rtol²), or ask for less; a sum that cancels to almost zero has no relative precision"
    )


class _Sampler:
    """One run of the estimator: pilot, choice of the way, samples until the error bar is short enough."""

    def __init__(
        self, matrix: SymmetricMatrix, form: Form, rtol: float, limit: int, memory: float, seed: int, name: str
    ) -> None:
        self.matrix, self.form, self.rtol, self.limit = matrix, form, rtol, limit
        self.max_sketch = int(
            memory // (4 * matrix.num_rows * matrix.dtype.itemsize)
        )  # V, AV, Q and AQ are held together
        self.pilot_stream, self.stream = child_stream(seed, f"{name}/pilot"), child_stream(seed, f"{name}/probes")

    def estimate(self, began: float) -> Estimate:
        """The sum, by the way that is predicted to be the cheapest."""
        if self.matrix.num_rows <= SMALL:
            return self._summed(began)
        images, samples = self._pilot()
        plain = self._needed(*mean_and_error(samples), len(samples))
        if min(plain, self.limit) > self.matrix.num_rows <= self.limit - self.matrix.products:
            return self._summed(began)
        if _worth_deflating(images, plain, self.limit - self.matrix.products):
            directions = torch.linalg.qr(images).Q
            directed = self.matrix.apply(directions)
            exact = float(self.form(directions, directed).sum())
            return self._sampled(began, np.zeros(0), exact, directions)
        return self._sampled(began, samples, 0.0, None)

    def _pilot(self) -> tuple[Tensor, np.ndarray]:
        """Images (n, k) and samples of k probes; more of them as long as that promises to save more than it costs."""
        images, samples = self._draw(NUM_PILOT, self.pilot_stream)
        while True:
            size = len(samples)
            rest = _unexplained(images) * self._needed(*mean_and_error(samples), size)
            if rest < 4 * size or 2 * size > self.max_sketch or 5 * size > self.limit:
                return images, samples
            more_images, more_samples = self._draw(size, self.pilot_stream)
            images, samples = torch.cat([images, more_images], 1), np.concatenate([samples, more_samples])

    def _draw(
        self, number: int, stream: torch.Generator, directions: Tensor | None = None
    ) -> tuple[Tensor, np.ndarray]:
        columns = rademacher(self.matrix.num_rows, number, dtype=self.matrix.dtype, stream=stream).to(
            self.matrix.device
        )
        if directions is not None:
            columns = columns - directions @ (directions.T @ columns)
        images = self.matrix.apply(columns)
        return images, self.form(columns, images).cpu().numpy()

    def _sampled(self, began: float, samples: np.ndarray, exact: float, directions: Tensor | None) -> Estimate:
        """Independent samples in a few growing rounds: a look after every single one would favour the lucky early
        stop.
        """
        goal = max(MIN_SAMPLES, len(samples))
        while True:
            while len(samples) < goal:
                number = min(BLOCK, goal - len(samples))
                samples = np.concatenate([samples, self._draw(number, self.stream, directions)[1]])
            mean, error = mean_and_error(samples)
            needed = self._needed(exact + mean, error, len(samples))
            affordable = len(samples) + self.limit - self.matrix.products
            if needed <= len(samples) or affordable <= len(samples):
                return self._report(began, exact + mean, error, needed <= len(samples))
            goal = min(max(len(samples) + 1, math.ceil(1.05 * needed)), 4 * len(samples), affordable)

    def _needed(self, value: float, error: float, num_samples: int) -> float:
        """Samples until error ≤ rtol·|value|; what the arithmetic cannot tell from zero needs no more than it has."""
        floor = self.matrix.epsilon * math.sqrt(num_samples) * error
        target = max(self.rtol * abs(value), floor)
        return num_samples if error <= target else num_samples * (error / target) ** 2

    def _report(self, began: float, value: float, error: float, reached: bool) -> Estimate:
        complaint = "" if reached else complain(self.rtol, value, error, self.matrix.products)
        return Estimate(
            value, error, "standard error", "random vectors", self.matrix.products,
            time.perf_counter() - began, Status(reached, complaint),
        )  # fmt: skip

    def _summed(self, began: float) -> Estimate:
        """Exactly, by one product for each column of the identity."""
        size, total = self.matrix.num_rows, 0.0
        for first in range(0, size, BLOCK):
            columns = torch.zeros(size, min(BLOCK, size - first), dtype=self.matrix.dtype, device=self.matrix.device)
            columns[first : first + columns.shape[1]].fill_diagonal_(1.0)
            total += float(self.form(columns, self.matrix.apply(columns)).sum())
        return Estimate(total, products=self.matrix.products, seconds=time.perf_counter() - began)


def _unexplained(images: Tensor) -> float:
    """The share of ‖A‖_F² outside the span of k images: each image against all others, 1 / (G⁻¹)_jj of its Gram
    matrix G; costs no product.
    """
    gram = (images.T @ images).double()
    gram /= gram.diagonal().sum().clamp_min(torch.finfo(torch.float64).tiny)
    ridge = torch.finfo(images.dtype).eps * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float((1 / torch.linalg.inv(gram + ridge).diagonal()).sum())


def _worth_deflating(images: Tensor, plain: float, budget: int) -> bool:
    """Whether Q plus samples of the rest is predicted to need fewer further products than plain samples."""
    size = images.shape[1]
    deflated = size + max(MIN_SAMPLES, _unexplained(images) * plain)
    return deflated < min(plain - size, budget)
