"""Orthonormal vectors that grow one by one: the memory of every Krylov method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ROWS_PER_CHUNK = 8
COLUMNS_PER_SLICE = 1 << 16
ENOUGH = (
    0.5**0.5
)  # Daniel, Gragg, Kaufman, Stewart (1976): a vector that lost less than this of its length is orthogonal


class Basis:
    """Orthonormal rows, kept in chunks so that growing never copies; every operation on all of them is one GEMV per
    chunk.
    """

    def __init__(
        self, num_columns: int, *, dtype: torch.dtype, device: torch.device, rows_per_chunk: int = ROWS_PER_CHUNK
    ) -> None:
        self.size = 0
        self._num_columns, self._dtype, self._device, self._rows = num_columns, dtype, device, rows_per_chunk
        self._chunks: list[Tensor] = []

    def __getitem__(self, index: int) -> Tensor:
        return self._chunks[index // self._rows][index % self._rows]

    def append(self, vector: Tensor, scale: float = 1.0) -> None:
        """Take `vector * scale`, which must be a unit vector orthogonal to all others."""
        if self.size == len(self._chunks) * self._rows:
            self._chunks.append(torch.empty(self._rows, self._num_columns, dtype=self._dtype, device=self._device))
        self.size += 1
        torch.mul(vector, scale, out=self[self.size - 1])

    def orthogonalise(self, vector: Tensor, near: Sequence[int] = ()) -> tuple[np.ndarray, float]:
        """Remove from `vector`, in place, its part in the span: the coefficients V v removed, and the norm left.

        The rows `near` carry almost all of that part in a Lanczos step. Taking them off first makes the one pass over
        all rows that follows accurate enough almost always, where a plain Gram-Schmidt needs a second one.
        """
        coefficients = np.zeros(self.size)
        for row in near:
            coefficients[row] = float(self[row] @ vector)
            vector.sub_(self[row], alpha=coefficients[row])
        norm = float(torch.linalg.vector_norm(vector))
        for _ in range(3):
            before = norm
            coefficients += self._remove(vector)
            norm = float(torch.linalg.vector_norm(vector))
            if norm >= ENOUGH * before:
                break
        return coefficients, norm

    def combine(self, coefficients: np.ndarray) -> Tensor:
        """(n, k) columns V' C for coefficients C (m, k) on the first m rows."""
        weights = torch.as_tensor(coefficients, dtype=self._dtype, device=self._device)
        total = torch.zeros(self._num_columns, weights.shape[1], dtype=self._dtype, device=self._device)
        for first, chunk in self._filled(weights.shape[0]):
            total.addmm_(chunk.T, weights[first : first + len(chunk)])
        return total

    def rotate(self, coefficients: np.ndarray) -> None:
        """Replace the first m rows by the k <= m rows C' V and let the rows after them follow up; needs no second
        basis.
        """
        weights = torch.as_tensor(coefficients.T.copy(), dtype=self._dtype, device=self._device)  # (k, m)
        kept, replaced = weights.shape
        for left in range(0, self._num_columns, COLUMNS_PER_SLICE):
            window = slice(left, left + COLUMNS_PER_SLICE)
            new = weights @ torch.cat([chunk[:, window] for _, chunk in self._filled(replaced)])
            for row in range(kept):
                self[row][window] = new[row]
        for offset, row in enumerate(range(replaced, self.size)):
            self[kept + offset].copy_(self[row])
        self.size += kept - replaced

    def swap(self, first: int, second: int) -> None:
        """Exchange two rows."""
        held = self[first].clone()
        self[first].copy_(self[second])
        self[second].copy_(held)

    def _remove(self, vector: Tensor) -> np.ndarray:
        chunks = self._filled(self.size)
        parts = [chunk @ vector for _, chunk in chunks]  # all coefficients first: classical, not modified, Gram-Schmidt
        for (_, chunk), part in zip(chunks, parts, strict=True):
            vector.addmv_(chunk.T, part, alpha=-1.0)
        return torch.cat(parts).double().cpu().numpy() if parts else np.zeros(0)

    def _filled(self, size: int) -> list[tuple[int, Tensor]]:
        starts = range(0, size, self._rows)
        return [(first, self._chunks[first // self._rows][: size - first]) for first in starts]
