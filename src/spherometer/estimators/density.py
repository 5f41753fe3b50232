"""The whole spectrum at a glance: density and moments by stochastic Lanczos quadrature."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from spherometer.estimators.basis import Basis
from spherometer.estimators.matrices import MatrixLike, SymmetricMatrix, smallest_form
from spherometer.estimators.randomness import child_stream, rademacher
from spherometer.estimators.samples import student_factor
from spherometer.values import Estimate

DEFAULT_WIDTH = 0.01  # of the kernel, in units of the range of the spectrum


@dataclass(frozen=True, eq=False)
class SpectralDensity:
    """Quadrature of the spectrum seen by several random unit vectors: Σ_j w_j f(t_j) ≈ v'f(A)v, and E[v'f(A)v] = tr
    f(A) / n.

    `nodes` and `weights` are (num_vectors, num_steps) in float64, nodes ascending, weights summing to one in each
    row; where a Krylov space was exhausted early the row is filled up with nodes of weight zero. Directions of weights
    that no sample sees (`CurvatureOperator.core`) are one more node, at zero.

    Example:
        >>> spectral_density(torch.diag(torch.arange(9.0)), num_vectors=2, num_steps=3)
        SpectralDensity of 9 rows: 2 vectors x 3 steps (6 products)
    """

    nodes: Tensor
    weights: Tensor
    num_rows: int
    products: int
    seconds: float

    def __repr__(self) -> str:
        num_vectors, num_steps = self.nodes.shape
        size = f"{num_vectors} vector{'' if num_vectors == 1 else 's'} x {num_steps} steps"
        return f"SpectralDensity of {self.num_rows:,} rows: {size} ({self.products:,} products)"

    def moment(self, power: int) -> Estimate:
        """tr A^k = n · mean over probes of Σ_j w_j t_j^k; each probe is exact for k ≤ 2·num_steps − 1 (D-e15, T21).

        Example:
            >>> round(float(spectral_density(torch.eye(5)).moment(2)), 6)
            5.0
        """
        return self._over_probes(self.num_rows * (self.weights * self.nodes**power).sum(1))

    def on(self, grid: Tensor, *, width: float | None = None) -> Estimate:
        """The density at the points of `grid`, Σ_j w_j N(x; t_j, width²), with a standard error over the probes; it
        integrates to one.

        The width is one hundredth of the spectrum's range unless given: a detail narrower than that is not resolved.
        """
        width = self.default_width if width is None else width
        if not width > 0:
            raise ValueError(f"expected a positive width of the kernel, got {width}")
        distance = (grid.double()[:, None, None] - self.nodes) / width  # (num_points, num_vectors, num_steps)
        kernel = torch.exp(-0.5 * distance.square()) / (width * (2 * torch.pi) ** 0.5)
        return self._over_probes((self.weights * kernel).sum(2).T)

    def grid(self, num_points: int = 400) -> Tensor:
        """Evenly spaced points over the spectrum and three default widths beyond."""
        low, high = self.limits
        margin = 3 * self.default_width
        return torch.linspace(low - margin, high + margin, num_points, dtype=torch.float64)

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest Ritz value of all probes, which lie inside the spectrum (T22)."""
        return float(self.nodes.min()), float(self.nodes.max())

    @property
    def default_width(self) -> float:
        """A hundredth of the range, or of the size of the only eigenvalue."""
        low, high = self.limits
        return DEFAULT_WIDTH * ((high - low) or abs(high) or 1.0)

    def _over_probes(self, samples: Tensor) -> Estimate:
        count = len(samples)
        spread = samples.std(0) if count > 1 else torch.zeros_like(samples[0])
        error = student_factor(count - 1) * spread / count**0.5 if count > 1 else spread + torch.inf
        mean = samples.mean(0)
        plain = mean.ndim == 0
        return Estimate(
            float(mean) if plain else mean, float(error) if plain else error,
            "standard error", "random vectors", self.products, self.seconds,
        )  # fmt: skip


def spectral_density(
    operator: MatrixLike, *, num_vectors: int = 4, num_steps: int = 80, memory: float = 4e9, seed: int = 0
) -> SpectralDensity:
    """Stochastic Lanczos quadrature with full reorthogonalisation: `num_steps` nodes and weights for each of
    `num_vectors` random vectors.

    The nodes are the Ritz values, the weights the squared first components of their coordinates (Golub and Meurant
    1994; Ubaru, Chen, Saad 2017). The chains go in step, so that the operator gets blocks of columns, as many as fit
    into `memory`.

    Example:
        >>> spectral_density(torch.diag(torch.arange(4.0)), num_vectors=1).nodes.shape
        torch.Size([1, 4])
    """
    began = time.perf_counter()
    if num_vectors < 1 or num_steps < 1:
        raise ValueError(f"expected num_vectors >= 1 and num_steps >= 1, got {num_vectors} and {num_steps}")
    matrix = smallest_form(operator)
    num_steps = min(num_steps, matrix.num_rows)
    chain_bytes = num_steps * matrix.num_rows * matrix.dtype.itemsize
    if chain_bytes > memory:
        raise ValueError(
            f"{num_steps} vectors of {matrix.num_rows} entries take {chain_bytes:.2g} bytes, memory is {memory:.2g}: "
            f"use num_steps={int(num_steps * memory // chain_bytes)} or raise memory"
        )
    stream, together = child_stream(seed, "spectral density"), int(memory // chain_bytes)
    quadratures: list[tuple[np.ndarray, np.ndarray]] = []
    while len(quadratures) < num_vectors:
        number = min(together, num_vectors - len(quadratures))
        probes = rademacher(matrix.num_rows, number, dtype=matrix.dtype, stream=stream).to(matrix.device)
        quadratures += _quadratures(matrix, probes, num_steps)
    nodes, weights = (torch.as_tensor(np.stack(rows)) for rows in zip(*quadratures, strict=True))
    num_rows = matrix.num_rows + matrix.num_zeros
    nodes, weights = _with_zeros(nodes, weights, matrix.num_zeros / num_rows)
    return SpectralDensity(nodes, weights, num_rows, matrix.products, time.perf_counter() - began)


def _with_zeros(nodes: Tensor, weights: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """One more node, for the eigenvalues that are known to be zero and take this share of all."""
    if not share:
        return nodes, weights
    zeros = nodes.new_zeros(len(nodes), 1)
    ascending, order = torch.cat([nodes, zeros], 1).sort(1)
    return ascending, torch.cat([(1 - share) * weights, zeros + share], 1).gather(1, order)


class _Chain:
    """One Lanczos recurrence: orthonormal vectors, diagonal α, subdiagonal β."""

    def __init__(self, probe: Tensor, num_steps: int) -> None:
        self.basis = Basis(len(probe), dtype=probe.dtype, device=probe.device, rows_per_chunk=num_steps)
        self.basis.append(probe, 1 / float(torch.linalg.vector_norm(probe)))
        self.alphas: list[float] = []
        self.betas: list[float] = []

    @property
    def alive(self) -> bool:
        return len(self.alphas) < self.basis.size

    def advance(self, image: Tensor, epsilon: float, *, last: bool) -> None:
        length = float(torch.linalg.vector_norm(image))
        current = self.basis.size - 1
        coefficients, norm = self.basis.orthogonalise(image, [current, current - 1] if current else [current])
        self.alphas.append(float(coefficients[current]))
        if not last and norm > 10 * epsilon * max(length, max(map(abs, self.alphas))):
            self.betas.append(norm)
            self.basis.append(image, 1 / norm)

    def quadrature(self, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        nodes, coordinates = eigh_tridiagonal(np.array(self.alphas), np.array(self.betas))
        missing = num_steps - len(nodes)
        return np.pad(nodes, (0, missing), mode="edge"), np.pad(coordinates[0] ** 2, (0, missing))


def _quadratures(matrix: SymmetricMatrix, probes: Tensor, num_steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    chains = [_Chain(probe, num_steps) for probe in probes.T]
    for step in range(num_steps):
        alive = [chain for chain in chains if chain.alive]
        if not alive:
            break
        images = matrix.apply(torch.stack([chain.basis[step] for chain in alive]).T)
        for chain, image in zip(alive, images.T, strict=True):
            chain.advance(image.contiguous(), matrix.epsilon, last=step == num_steps - 1)
    return [chain.quadrature(num_steps) for chain in chains]
