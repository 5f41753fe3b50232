"""Symmetric matrices with a spectrum of our choice."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """A dense float64 matrix with these eigenvalues and random eigenvectors."""
    size = len(values)
    vectors = torch.linalg.qr(torch.randn(size, size, generator=generator(seed), dtype=torch.float64)).Q
    matrix = (vectors * values.double()) @ vectors.T
    return (matrix + matrix.T) / 2


def uniform(low: float, high: float, size: int, seed: int = 1) -> Tensor:
    return low + (high - low) * torch.rand(size, generator=generator(seed), dtype=torch.float64)


def outliers_and_bulk(size: int = 400, bulk: float = 0.01) -> Tensor:
    """What Hessians of trained networks look like: a few outliers that fall fast, and a narrow bulk around zero."""
    outliers = torch.tensor([1.0, 0.6, 0.4, 0.3, 0.22, 0.15, 0.1, 0.08], dtype=torch.float64)
    return torch.cat([outliers, bulk * torch.randn(size - 8, generator=generator(2), dtype=torch.float64)])


def descending(values: Tensor) -> Tensor:
    return torch.sort(values.double(), descending=True).values


@dataclass
class Diagonal:
    """diag(values) as an operator with all the optional answers; estimators without them see None."""

    values: Tensor
    suggestion: Tensor | None = None
    rounding_error: float | None = None
    known_trace: float | None = None
    known_diagonal: Tensor | None = None
    symmetric: bool = True
    asked: list[str] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.values), len(self.values))

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def __matmul__(self, columns: Tensor) -> Tensor:
        self.asked.append("product")
        return self.values * columns if columns.ndim == 1 else self.values[:, None] * columns

    def start(self) -> Tensor | None:
        return self.suggestion

    def rounding(self, columns: Tensor) -> Tensor | None:
        assert ((columns.norm(dim=0) - 1).abs() < 1e-5).all()
        return None if self.rounding_error is None else torch.full((columns.shape[1],), self.rounding_error)

    def exact_trace(self) -> float | None:
        return self.known_trace

    def exact_diagonal(self) -> Tensor | None:
        return self.known_diagonal
