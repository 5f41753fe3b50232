"""What is known of a matrix that changes a little from one call to the next, made to agree with what is seen of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from spherometer.estimators.matrices import SymmetricMatrix

GROWTH = 0.02  # what an eigenvalue may have gained on the largest since the last call, at least
CALMING = 0.9  # of what it may have gained, from call to call, when the largest moves steadily
LOOK_AGAIN = 0.8  # of the largest eigenvalue: ceiling of the unseen after a look that could not exclude as much
LEAST_BEYOND = 0.5  # of the largest eigenvalue: least ceiling of the unseen
NUM_SLICES = 64  # of long rows, for inner products
INDEPENDENT = 1e3  # least eigenvalue of a Gram matrix, in units of ε, that counts as a direction of its own


@dataclass(frozen=True, eq=False)
class Nearby:
    """What is known of a nearby matrix.

    Args:
        vectors: (n, k) orthonormal columns near its first eigenvectors, the first one leading.
        values: (k,) what the eigenvalue along each is taken to be; inf where nothing is known.
        ceilings: (k, k) a matrix that lies above all that A may be by now among them.
        beyond: how large v'Av may be by now along any other.
        scout: (n,) a vector that is multiplied in every second call and so turns to what was never seen.
        calls: how often the matrix was followed.
        rounding: what the arithmetic does to the eigenvalue, relative to it, as last measured.
        change: of the largest eigenvalue at the last call, relative to it.
        pace: what another may gain on it from call to call: as much as that change has lately changed.
        frame: stands for the coordinates of the vectors.
    """

    vectors: Tensor
    values: Tensor
    ceilings: Tensor
    beyond: float
    scout: Tensor | None = None
    calls: int = 0
    rounding: float | None = None
    change: float = 0.0
    pace: float = GROWTH
    frame: float = SymmetricMatrix.frame

    @classmethod
    def unknown(cls, vectors: Tensor) -> Nearby:
        """Vectors without values: good starts, and no more."""
        values = torch.full((vectors.shape[1],), torch.inf, dtype=torch.float64)
        return cls(vectors, values, torch.diag(values), torch.inf)


@dataclass(frozen=True, eq=False)
class Seen:
    """Orthonormal rows V and their products VA; the Ritz values in them, largest first, with the vectors V'S."""

    basis: Tensor
    images: Tensor
    values: np.ndarray
    coordinates: np.ndarray
    all_around: bool  # by a search that could have seen everything


def renewed(before: Nearby, seen: Seen, kept: int) -> Nearby:
    """The remembered spectrum, made to agree with what was seen, and raised to what it may be at the next call."""
    vectors, values, ceilings, dropped = _corrected(before, seen, kept)
    top = values[0] = seen.values[0]
    change = float(top / before.values[0] - 1)
    pace = max(GROWTH, abs(change - before.change), CALMING * before.pace)  # a steady rise lifts all of them
    growth = (1 + pace) * max(1.0, 1 + change)
    raised = ceilings + np.diag((growth - 1) * np.maximum(np.abs(ceilings.diagonal()), LEAST_BEYOND * top))
    beyond = growth * max(LOOK_AGAIN * top if before.beyond > top else before.beyond, dropped)
    return replace(
        before,
        vectors=vectors,
        values=torch.as_tensor(values),
        ceilings=torch.as_tensor(raised),
        beyond=float(top if seen.all_around else beyond),
        change=change,
        pace=pace,
    )


def _corrected(before: Nearby, seen: Seen, kept: int) -> tuple[Tensor, np.ndarray, np.ndarray, float]:
    """Of all that is known and seen, the vectors that should be kept, with values and ceilings; and the ceiling of what
    is dropped.

    What A is taken to be, and what lies above it, become the symmetric matrices nearest to what they were that have
    the products seen (Powell). The top eigenvector of the first leads. In its complement, the ceilings' own
    eigenvectors say what to drop, and the vectors kept are made eigenvectors of what A is taken to be.
    """
    size = float(torch.linalg.vector_norm(seen.images, dim=1).max())
    parts = before.vectors.T.to(seen.basis), seen.basis, seen.images
    scales = np.repeat([1.0, 1.0, 1 / size], [len(part) for part in parts])
    lengths, turn = np.linalg.eigh(scales[:, None] * _gram(parts) * scales)
    apart = lengths > INDEPENDENT * torch.finfo(seen.basis.dtype).eps * lengths.max()
    lengths, turn = np.sqrt(lengths[apart]), turn[:, apart]
    ends = np.cumsum([len(part) for part in parts])[:-1]
    remembered, basis, images = np.split(lengths[:, None] * turn.T, ends, axis=1)  # in an orthonormal basis

    def agreeing(matrix: Tensor) -> np.ndarray:
        old = remembered @ matrix.cpu().numpy() @ remembered.T
        wrong = (size * images - old @ basis) @ basis.T
        return old + wrong + wrong.T - basis @ (basis.T @ wrong)

    model = agreeing(torch.diag(before.values))
    vectors = np.linalg.eigh(model)[1]
    first = int(np.argmax(np.abs(basis @ seen.coordinates[:, 0] @ vectors)))
    others = np.delete(vectors, first, axis=1)
    highest, frame = np.linalg.eigh(others.T @ agreeing(before.ceilings) @ others)
    highest, dropped = highest[-kept + 1 :], highest[: -kept + 1]
    others = others @ frame[:, -kept + 1 :]
    values, frame = np.linalg.eigh(others.T @ model @ others)
    chosen = np.column_stack([vectors[:, first], others @ frame[:, ::-1]])
    ceilings = np.pad((frame[:, ::-1].T * highest) @ frame[:, ::-1], ((1, 0), (1, 0)))
    weights = np.split(scales[:, None] * (turn / lengths) @ chosen, ends)
    return _combined(weights, parts), np.append(0.0, values[::-1]), ceilings, dropped.max(initial=0.0)


def _gram(parts: Sequence[Tensor]) -> np.ndarray:
    """All inner products of the rows of some tensors."""
    ends = np.cumsum([len(part) for part in parts])
    places = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    gram = np.empty((ends[-1], ends[-1]))
    for (row, one), (column, other) in combinations_with_replacement(zip(places, parts, strict=True), 2):
        gram[row, column] = inner_products(one, other)
        gram[column, row] = gram[row, column].T
    return gram


def inner_products(one: Tensor, other: Tensor) -> np.ndarray:
    """XY' of few long rows, in slices: one matrix product of such a shape is slower."""
    length = one.shape[1] // NUM_SLICES * NUM_SLICES
    first, second = (rows[:, :length].unflatten(1, (NUM_SLICES, -1)).transpose(0, 1) for rows in (one, other))
    rest = one[:, length:] @ other[:, length:].T
    return (torch.bmm(first, second.mT).sum(0, dtype=torch.float64) + rest).cpu().numpy()


def _combined(weights: Sequence[np.ndarray], parts: Sequence[Tensor]) -> Tensor:
    """The columns Σ X'C over some tensors X of rows, each with coefficients C."""
    total = torch.as_tensor(weights[0].T.copy()).to(parts[0]) @ parts[0]
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        total.addmm_(torch.as_tensor(weight.T.copy()).to(part), part)
    return total.T
