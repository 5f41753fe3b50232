"""One face for every matrix an estimator may be given: ours, curvlinops', SciPy's, a dense tensor or array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from spherometer.estimators.randomness import rademacher


class MatrixLike(Protocol):
    """All that is asked of an operator: a shape, and a product with a vector or a block of columns.

    It may also have `dtype`, `device` and `symmetric`, and these methods, which make estimates cheaper or more
    honest: `start()` a likely start vector, `rounding(columns)` the errors of v'Av due to the arithmetic, `core()` a
    smaller matrix with the same eigenvalues but for zeros, `exact_trace()`, `exact_diagonal()`, and
    `trace_samples(number, draw)` if `knows_samples`.
    """

    @property
    def shape(self) -> Any: ...  # noqa: D102

    def __matmul__(self, columns: Any) -> Any: ...


class SymmetricMatrix:
    """A symmetric matrix known by its products, which are counted: one product is one column.

    Example:
        >>> matrix = SymmetricMatrix(torch.eye(3))
        >>> matrix.apply(torch.ones(3, 2)).sum(), matrix.products
        (tensor(6.), 2)
    """

    num_zeros = 0  # eigenvalues of the operator that the matrix does without
    frame = 0.0  # stands for the coordinates of its vectors

    def __init__(self, operator: MatrixLike) -> None:
        self.num_rows = _checked_size(operator)
        _check_symmetry(operator)
        self.speaks_numpy = _speaks_numpy(operator)
        self.dtype, self.device = _arithmetic(operator)
        self.products = 0
        self._operator = operator

    @property
    def epsilon(self) -> float:
        """Distance from one to the next number of the matrix' arithmetic."""
        return torch.finfo(self.dtype).eps

    def floor(self, size: float) -> float:
        """What the arithmetic makes of a matrix of this size: dot products of length n in precision ε lose some ε√n.

        A difference of two large matrices is no more exact than these.
        """
        largest = float(max(size, getattr(self._operator, "terms_norm", 0.0)))
        return self.epsilon * (50 + 0.1 * self.num_rows**0.5) * largest

    def apply(self, columns: Tensor) -> Tensor:
        """(n, k) -> (n, k), or (n,) -> (n,); what comes back is finite, detached, of our dtype and device."""
        self.products += 1 if columns.ndim == 1 else columns.shape[1]
        if self.speaks_numpy:
            product = torch.as_tensor(np.asarray(self._operator @ columns.cpu().numpy()))
        else:
            product = self._operator @ columns
        product = product.detach().to(dtype=self.dtype, device=self.device)
        if product.shape != columns.shape:
            raise ValueError(
                f"expected a product of shape {tuple(columns.shape)}, got {tuple(product.shape)}: check its @"
            )
        if not bool(torch.isfinite(product.sum())) and not bool(torch.isfinite(product).all()):
            raise FloatingPointError(
                "the operator returned a product with inf or nan: check weights and data, or measure in float64"
            )
        return product

    def project(self, vector: Tensor) -> Tensor:
        """The part of a vector in the space the matrix acts on: all of it."""
        return vector

    def lift(self, columns: Tensor) -> Tensor:
        """Vectors of the operator from vectors of the matrix."""
        return columns

    def drop(self, columns: Tensor) -> Tensor:
        """Vectors of the matrix from vectors of the operator."""
        return columns

    def start(self) -> Tensor | None:
        """The operator's own idea of a vector along the top eigenvectors (for a Hessian: the gradient), if it has
        one.
        """
        suggestion = self._ask("start")
        return None if suggestion is None else suggestion.detach().to(dtype=self.dtype, device=self.device)

    def rounding(self, columns: Tensor) -> np.ndarray:
        """The errors (k,) of v'Av due to the operator's arithmetic for unit columns (n, k): zero if it knows none."""
        errors = self._ask("rounding", columns)
        return np.zeros(columns.shape[1]) if errors is None else np.abs(torch.as_tensor(errors).cpu().double().numpy())

    def core(self) -> Any:
        """A smaller matrix with the same eigenvalues but for zeros, if the operator knows one."""
        return self._ask("core")

    def exact_trace(self) -> float | None:
        """The trace without any product, if the operator knows a way."""
        value = self._ask("exact_trace")
        return None if value is None else float(value)

    @property
    def knows_samples(self) -> bool:
        """Whether `trace_samples` can be asked for."""
        return bool(getattr(self._operator, "knows_samples", False))

    def trace_samples(self, number: int, stream: Generator) -> np.ndarray:
        """Independent numbers, each for the price of a product, whose expectation is the trace."""
        self.products += number

        def signs(shape: Sequence[int]) -> Tensor:
            drawn = rademacher(prod(shape), 1, dtype=self.dtype, stream=stream)
            return drawn.reshape(tuple(shape)).to(self.device)

        return np.asarray(self._ask("trace_samples", number, signs).cpu().double())

    def exact_diagonal(self) -> Tensor | None:
        """The diagonal without any product, if the operator knows a way."""
        return self._ask("exact_diagonal")

    def _ask(self, question: str, *arguments: Any) -> Any:
        answer: Callable[..., Any] | None = getattr(self._operator, question, None)
        return answer(*arguments) if callable(answer) else None


class CoreMatrix(SymmetricMatrix):
    """The core of an operator, which has all its eigenvalues but zeros.

    Example:
        >>> matrix = smallest_form(Hessian(problem))
        >>> matrix.lift(torch.ones(matrix.num_rows, 1))
    """

    def __init__(self, core: Any, num_rows: int) -> None:
        super().__init__(core)
        self.num_zeros, self.frame = num_rows - self.num_rows, core.frame

    def lift(self, columns: Tensor) -> Tensor:
        """Vectors of the operator from those of its core."""
        return self._operator.lift(columns)  # type: ignore[attr-defined]

    def drop(self, columns: Tensor) -> Tensor:
        """The part of the operator's vectors that its core acts on."""
        return self._operator.drop(columns)  # type: ignore[attr-defined]


def smallest_form(operator: MatrixLike, *, least: int = 1) -> SymmetricMatrix:
    """The core of the operator if it has one with at least so many rows, else all of it."""
    matrix = SymmetricMatrix(operator)
    core = matrix.core()
    return matrix if core is None or core.shape[0] < least else CoreMatrix(core, matrix.num_rows)


class Complement:
    """P A P with P = I − QQ' for orthonormal columns Q: the matrix in the space that Q leaves; products are A's own."""

    def __init__(self, matrix: SymmetricMatrix, columns: Tensor) -> None:
        self._matrix, self._columns = matrix, torch.linalg.qr(columns).Q
        self.num_rows, self.dtype, self.device = matrix.num_rows, matrix.dtype, matrix.device
        self.epsilon, self.floor = matrix.epsilon, matrix.floor

    def apply(self, vector: Tensor) -> Tensor:
        """The product with a vector that lies in the space itself."""
        return self.project(self._matrix.apply(vector))

    def project(self, vector: Tensor) -> Tensor:
        """The part of a vector in the space; twice, since once leaves a rounding error of the part taken off."""
        for _ in range(2):
            vector = vector - self._columns @ (self._columns.T @ vector)
        return vector


def _checked_size(operator: MatrixLike) -> int:
    shape = tuple(int(length) for length in operator.shape)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise ValueError(f"expected a square matrix, got shape {shape}: for a rectangular J measure J'J or J J'")
    return shape[0]


def _check_symmetry(operator: MatrixLike) -> None:
    """Believe what the operator declares; look ourselves where the entries lie open."""
    declared = getattr(operator, "symmetric", None)
    if isinstance(operator, Tensor | np.ndarray):
        dense = torch.as_tensor(operator).detach()
        if dense.is_complex():
            raise ValueError("expected a real symmetric matrix, got complex entries: measure its real embedding")
        scale = float(dense.abs().max())
        declared = bool(((dense - dense.T).abs().max() <= 1e-4 * scale).item()) or not np.isfinite(scale)
    if declared is False:
        raise ValueError("expected a symmetric matrix, got one that is not: measure A'A or (A + A')/2 instead")


def _speaks_numpy(operator: MatrixLike) -> bool:
    return not isinstance(operator, Tensor) and isinstance(getattr(operator, "dtype", None), np.dtype)


def _arithmetic(operator: MatrixLike) -> tuple[torch.dtype, torch.device]:
    """Where and how precise vectors are; half precision is lifted, since a basis in it is not orthogonal."""
    dtype = getattr(operator, "dtype", None)
    if isinstance(dtype, np.dtype):
        dtype = torch.float32 if dtype == np.float32 else torch.float64
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        dtype = torch.float64
    device = getattr(operator, "device", None)
    return (torch.float32 if dtype.itemsize < 4 else dtype), torch.device(
        device if isinstance(device, torch.device) else "cpu"
    )
