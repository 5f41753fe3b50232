"""A subspace that learns the ends of a spectrum: Lanczos, from one vector or from a block, with thick restarts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.linalg
import torch
from torch import Generator, Tensor

from spherometer.estimators.basis import Basis
from spherometer.estimators.matrices import Complement, SymmetricMatrix
from spherometer.estimators.randomness import unit_vector


@dataclass(frozen=True)
class Ritz:
    """Eigenpairs of V A V': values θ ascending, coordinates S of the vectors V'S, residual norms ‖A V's − θ V's‖."""

    values: np.ndarray  # (m,)
    coordinates: np.ndarray  # (m, m)
    residuals: np.ndarray  # (m,)


class Krylov:
    """Orthonormal rows V of which the first `done` have met the matrix: A V[:done]' = V' H, so that residuals are
    exact.

    H is (size, done). The rows beyond `done` are pending: one of them makes this Lanczos, k of them band Lanczos
    (Ruhe 1979). Kept Ritz vectors after a restart (Wu and Simon 2000), a block of warm vectors and a fresh random
    vector all fit the same equation.
    """

    def __init__(self, matrix: SymmetricMatrix | Complement, stream: Generator) -> None:
        self.matrix, self.stream = matrix, stream
        self.basis = Basis(matrix.num_rows, dtype=matrix.dtype, device=matrix.device)
        self.done = 0
        self._projected = np.zeros((16, 16))

    @property
    def size(self) -> int:
        """Number of orthonormal vectors held, pending ones included."""
        return self.basis.size

    @property
    def invariant(self) -> bool:
        """Nothing is pending: the subspace is mapped into itself, and its eigenvalues are eigenvalues of the matrix."""
        return self.done == self.size

    @property
    def complete(self) -> bool:
        """The subspace is the whole space."""
        return self.done == self.matrix.num_rows

    def add(self, vector: Tensor) -> bool:
        """Orthonormalise a vector and let it wait for its product; False if it lies in the span already."""
        vector = vector.to(dtype=self.matrix.dtype, device=self.matrix.device, copy=True)
        length = float(torch.linalg.vector_norm(vector))
        _, norm = self.basis.orthogonalise(vector)
        if length == 0 or norm <= 1e3 * self.matrix.epsilon * length:
            return False
        self.basis.append(vector, 1 / norm)
        self._make_room()
        return True

    def add_random(self) -> None:
        """A fresh direction, next to be multiplied: what an invariant subspace or a missed eigenvector asks for."""
        draw = partial(unit_vector, self.matrix.num_rows, dtype=self.matrix.dtype, stream=self.stream)
        while not self.add(self.matrix.project(draw().to(self.matrix.device))):
            pass  # only in a space of few dimensions can a random vector fall into the span
        self.bring_forward()

    def bring_forward(self) -> None:
        """Let the newest pending vector be the next to be multiplied."""
        newest = self.size - 1
        if self.done < newest:
            self.basis.swap(self.done, newest)
            self._projected[[self.done, newest]] = self._projected[[newest, self.done]]

    def step(self) -> None:
        """One product: the next pending vector enters the subspace, and what its product adds to the span becomes
        pending.
        """
        current = self.done
        product = self.matrix.apply(self.basis[current])
        length = float(torch.linalg.vector_norm(product))
        near = [row for row in (current, current - 1) if row >= 0]
        coefficients, norm = self.basis.orthogonalise(product, near)
        self._projected[: self.size, current] = coefficients
        self.done += 1
        # What is left below rounding is noise, which is no better a direction than a random vector drawn on purpose.
        if norm > 10 * self.matrix.epsilon * max(length, self._scale()) and self.size < self.matrix.num_rows:
            self.basis.append(product, 1 / norm)
            self._make_room()
            self._projected[self.size - 1, current] = norm

    def ritz(self) -> Ritz:
        """Rayleigh-Ritz in the subspace: the small symmetric eigenproblem, in float64."""
        square = self._projected[: self.done, : self.done]
        largest = np.abs(square).max()
        if np.abs(square - square.T).max() > 0.05 * largest + self.matrix.floor(largest):
            raise ValueError(
                "expected a symmetric matrix, got products that are not those of one: measure A'A or (A + A')/2"
            )
        values, coordinates = scipy.linalg.eigh((square + square.T) / 2)
        leak = self._projected[self.done : self.size, : self.done] @ coordinates
        return Ritz(values, coordinates, np.linalg.norm(leak, axis=0))

    def restart(self, ritz: Ritz, keep: np.ndarray) -> None:
        """Shrink the subspace to the kept Ritz vectors and the pending ones; the residuals stay what they are."""
        coordinates = ritz.coordinates[:, keep]
        leak = self._projected[self.done : self.size, : self.done] @ coordinates
        self.basis.rotate(coordinates)
        self.done = len(keep)
        self._projected[:] = 0
        self._projected[: self.done, : self.done] = np.diag(ritz.values[keep])
        self._projected[self.done : self.size, : self.done] = leak

    def vectors(self, coordinates: np.ndarray) -> Tensor:
        """(n, k) Ritz vectors, of unit length, from their coordinates (done, k)."""
        vectors = self.basis.combine(coordinates)
        return vectors / torch.linalg.vector_norm(vectors, dim=0)

    def images(self, coordinates: np.ndarray) -> Tensor:
        """(n, k) products of the matrix with the vectors of these coordinates, for which none are needed any more."""
        return self.basis.combine(self._projected[: self.size, : self.done] @ coordinates)

    def recurrence(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Diagonal α and subdiagonal β of the Lanczos chain that began at row `first`; the last β leads out of the
        subspace.
        """
        rows = np.arange(first, self.done)
        beyond = (
            np.append(self._projected, np.zeros((1, self._projected.shape[1])), axis=0)
            if self.invariant
            else self._projected
        )
        return self._projected[rows, rows], np.abs(beyond[rows + 1, rows])

    def _scale(self) -> float:
        return float(np.abs(self._projected[: self.done, : self.done]).max())

    def _make_room(self) -> None:
        if self.size >= len(self._projected):
            larger = np.zeros((2 * self.size, 2 * self.size))
            larger[: len(self._projected), : len(self._projected)] = self._projected
            self._projected = larger
