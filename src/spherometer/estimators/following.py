"""The largest eigenvalue of a matrix that changes a little from one call to the next, as in training."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Generator, Tensor

from spherometer.estimators.extremes import estimate_of, searched
from spherometer.estimators.krylov import Krylov
from spherometer.estimators.matrices import Complement, MatrixLike, SymmetricMatrix
from spherometer.estimators.randomness import child_stream, unit_vector
from spherometer.estimators.search import FEW_ROWS, RESOLUTION, RISK, UNRESOLVED, Answer, Search, floor
from spherometer.estimators.unseen import least_mass, surely_seen
from spherometer.values import Estimate

KEPT = 10  # vectors remembered: the outliers of a network are about as many as its classes
GROWTH = 0.02  # what an eigenvalue nobody looked at may have gained on the largest since the last call
MOST_PRODUCTS = 10  # beyond this a full search is the better use of products
NEAREST = 0.03  # least distance from the eigenvalue, relative to it, that a correction divides by
LEAST_BEYOND = 0.5  # what a look leaves unseen at most, relative to the largest eigenvalue
MOST_LOOKS = 8  # products spent on a look for what was never seen
ROUNDED_EVERY = 8  # calls
MARGIN = 1.1  # how far above a Ritz value of such a look an eigenvalue is excluded
INDEPENDENT = 1e-6  # least eigenvalue of a Gram matrix of unit vectors that counts as a direction of its own


@dataclass(frozen=True, eq=False)
class Nearby:
    """What is known of a nearby matrix.

    Args:
        vectors: (n, k) orthonormal columns near its first eigenvectors, the first one leading.
        ceilings: (k + 1,) how large the eigenvalue along each may be by now, in the last entry any other; inf where
            nothing is known.
        scout: (n,) a vector that is multiplied in every second call and so turns to what was never seen.
        calls: how often the matrix was followed.
        rounding: what the arithmetic does to the eigenvalue, relative to it, as last measured.
    """

    vectors: Tensor
    ceilings: Tensor
    scout: Tensor | None = None
    calls: int = 0
    rounding: float | None = None

    @classmethod
    def unknown(cls, vectors: Tensor) -> Nearby:
        """Vectors without values: good starts, and no more."""
        return cls(vectors, torch.full((vectors.shape[1] + 1,), torch.inf, dtype=torch.float64))


def follow(
    operator: MatrixLike, nearby: Nearby | None = None, *, rtol: float = 1e-2, memory: float = 4e9, seed: int = 0
) -> tuple[Estimate, Nearby]:
    """The largest eigenvalue, and what the next call should know; three products where the matrix has changed little.

    The last top vector, and every other that may have overtaken it since, are multiplied afresh; the subspace then
    grows by Davidson's corrections (M − θ)^(−1) r, where M is the remembered spectrum. Eigenvalues crowd near the top
    and their vectors turn into one another from step to step: M tells them apart at once, where Lanczos needs many
    products. The error is max(r²/gap, r/2) as in `eigenvalues`, where the gap is that to the nearest other Ritz value
    or to the ceiling of what was not multiplied, if that is higher. A ceiling rises with each call that does not look,
    by 2 % more than the top eigenvalue.

    What has no share in any vector that is known can hide from three products. In every second call a scout takes the
    place of the strongest rival: one step of power iteration in the complement, which an eigenvalue of the size of the
    largest turns around within about eight calls. When the scout has seen something, or after 35 calls at most, Lanczos
    looks into the complement. Where ten products do not suffice, the search is a full one.

    Sources: Davidson (1975); the update of M by what was multiplied: Powell's symmetric Broyden formula (1970).

    Example:
        >>> nearby = None
        >>> for matrix in matrices:
        ...     estimate, nearby = follow(matrix, nearby)
    """
    began = time.perf_counter()
    matrix = SymmetricMatrix(operator)
    kept = int(np.clip(memory / (4 * matrix.num_rows * matrix.dtype.itemsize), 3, KEPT))
    known = nearby if nearby is not None and len(nearby.vectors) == matrix.num_rows else None
    if known is not None and _worth_following(known):
        known = _with_beyond(matrix, known, child_stream(seed, "beyond"))
        subspace = _Subspace(matrix, known, rtol)
        answer = subspace.run()
        if subspace.top > 0:
            known = subspace.scouted(_renewed(known, subspace.seen, kept), child_stream(seed, "scout"))
        if answer is not None:
            return estimate_of(answer, matrix, began, subspace.seen.vectors[:1].T), known
    start = None if known is None else known.vectors[:, :3]
    answer, search = searched(matrix, rtol=rtol, start=start, memory=memory, seed=seed)
    found = search.vectors(kept)
    if known is not None and _worth_following(known) and answer.values[0] > 0:
        return estimate_of(answer, matrix, began, found[:, :1]), _renewed(known, _all_around(search, kept), kept)
    values = np.sort(search.krylov.ritz().values)[::-1][:kept]
    return estimate_of(answer, matrix, began, found[:, :1]), Nearby(found, torch.tensor([*values, values[0]]))


def _worth_following(known: Nearby) -> bool:
    """There are values, and so many rows that products are dear."""
    return known.vectors.shape[0] > FEW_ROWS and known.vectors.shape[1] > 1 and bool(0 < known.ceilings[0] < torch.inf)


def _with_beyond(matrix: SymmetricMatrix, known: Nearby, stream: Generator) -> Nearby:
    """If something never seen could be at the top by now: the largest of it, found by Lanczos from a random vector.

    In the complement of what is remembered there are no outliers but new ones, and few products tell.
    """
    top = float(known.ceilings[0])
    if known.ceilings[-1] < top:
        return known
    chain = Krylov(Complement(matrix, known.vectors.to(matrix.device)), stream)
    chain.add_random()
    mass, ceiling = least_mass(matrix.num_rows, risk=RISK), top
    for _ in range(MOST_LOOKS):
        chain.step()
        ritz = chain.ritz()
        ceiling = max(MARGIN * ritz.values[-1], LEAST_BEYOND * top)
        if surely_seen(*chain.recurrence(0), ceiling, mass=mass):
            break
    else:
        ceiling = top
    vector = chain.vectors(ritz.coordinates[:, -1:])
    newcomer = ritz.values[-1] + ritz.residuals[-1]
    ceilings = [*known.ceilings[:-1].tolist(), newcomer, min(ceiling, top / MARGIN)]
    vectors = torch.cat([known.vectors, vector.to(known.vectors)], 1)
    return replace(known, vectors=vectors, ceilings=torch.tensor(ceilings, dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class _Seen:
    """Ritz values, largest first, with orthonormal vectors X as rows and their products XA."""

    values: np.ndarray
    vectors: Tensor
    images: Tensor
    all_around: bool  # by a search that could have seen everything


def _all_around(search: Search, kept: int) -> _Seen:
    """The outermost Ritz pairs of a full search."""
    ritz = search.krylov.ritz()
    first = np.argsort(-ritz.values)[:kept]
    vectors, images = (of(ritz.coordinates[:, first]) for of in (search.krylov.vectors, search.krylov.images))
    return _Seen(ritz.values[first], vectors.T, images.T, all_around=True)


def _renewed(before: Nearby, seen: _Seen, kept: int) -> Nearby:
    """The remembered spectrum, made to agree with what was seen, and raised where nobody looked.

    Powell's formula: the symmetric matrix nearest to the model M that has the products seen.
    """
    rows, values = seen.vectors, seen.values
    known, ceilings = before.vectors.T.to(rows), before.ceilings.numpy()
    growth = (1 + GROWTH) * max(1.0, values[0] / ceilings[0])
    space = torch.cat([known, rows, seen.images / values[0]])  # all about as long
    lengths, turn = np.linalg.eigh((space @ space.T).double().cpu().numpy())
    apart = lengths > INDEPENDENT * lengths.max()
    lengths, turn = np.sqrt(lengths[apart]), turn[:, apart]
    ends = len(known), len(known) + len(rows)
    remembered, basis, images = np.split(lengths[:, None] * turn.T, ends, axis=1)  # coordinates in the whole space
    model = (remembered * ceilings[:-1]) @ remembered.T
    wrong = (values[0] * images - model @ basis) @ basis.T
    found, vectors = np.linalg.eigh(model + wrong + wrong.T - basis @ (basis.T @ wrong))
    first = int(np.argmax(np.abs(basis[:, 0] @ vectors)))
    order = [first, *(index for index in np.argsort(-found) if index != first)][:kept]
    unseen = np.clip(1 - ((basis.T @ vectors[:, order]) ** 2).sum(0), 0, 1)
    beyond = values[0] if seen.all_around else growth * ceilings[-1]  # a full search stops at its goal: look next time
    raised = found[order] + (growth**unseen - 1) * np.maximum(np.abs(found[order]), LEAST_BEYOND * values[0])
    raised[0] = values[0]
    weights = torch.as_tensor(((turn / lengths) @ vectors[:, order]).T).to(rows)
    return replace(before, vectors=(weights @ space).T, ceilings=torch.as_tensor(np.append(raised, beyond)))


class _Subspace:
    """Orthonormal rows V with their products VA, and the Ritz pairs θ, X = S'V with residuals R = XA − θX."""

    def __init__(self, matrix: SymmetricMatrix, nearby: Nearby, rtol: float) -> None:
        self.matrix, self.nearby, self.rtol = matrix, nearby, rtol
        self.known = nearby.vectors.T.to(dtype=matrix.dtype, device=matrix.device)
        self.ceilings = nearby.ceilings.numpy()
        self.basis = self.images = self.known[:0]
        self.looked_at = np.zeros(len(self.known), dtype=bool)
        self.scout = nearby.scout if nearby.calls % 2 else None

    @cached_property
    def rounding(self) -> float:
        """What the arithmetic does to the eigenvalue: measured afresh now and then, since it hardly changes."""
        known = self.nearby.rounding
        if known is None or self.nearby.calls % ROUNDED_EVERY == 0:
            known = float(self.matrix.rounding(self.seen.vectors[:1].T)[0]) / self.top
        return max(floor(self.matrix, self.seen.values), known * self.top)

    def run(self) -> Answer | None:
        """Look at the first vector, at its strongest rival or the scout, then correct; None if that is not enough."""
        self._look_at(0)
        if self.scout is None or not self._grow(self.scout.to(self.known)):
            self._look_at(self._rival())
        while True:
            self._solve()
            if not self.top > 0:
                return None
            target = max(self.rtol * self.top, 4 * floor(self.matrix, self.seen.values))
            error = self._error()
            if self._highest() > self.top + target and not self.looked_at.all():
                grown = self._look_at(self._rival())
            elif error <= target and error + self.rounding <= target:
                return Answer(self.seen.values[:1].copy(), np.array([error + self.rounding]), "")
            else:
                grown = self._grow(self._correction())
            if not grown or len(self.basis) > MOST_PRODUCTS:
                return None

    def scouted(self, known: Nearby, stream: Generator) -> Nearby:
        """The scout one step further, half of it drawn afresh; if it has met more than there should be, a look is
        due.
        """
        chance = unit_vector(self.matrix.num_rows, dtype=self.matrix.dtype, stream=stream).to(self.known.device)
        known = replace(known, calls=known.calls + 1, rounding=self.rounding / self.top)
        if self.scout is None:
            return replace(known, scout=chance if known.scout is None else known.scout)
        image = self.images[1] - (self.known @ self.images[1]) @ self.known
        scout = image / torch.linalg.vector_norm(image).clamp_min(self.matrix.epsilon) + chance
        ceilings = known.ceilings.clone()
        if 2 * float(self.basis[1] @ self.images[1]) > ceilings[-1]:
            ceilings[-1] = self.top
        return replace(known, scout=scout, ceilings=ceilings)

    def _rival(self) -> int:
        """The vector with the highest ceiling of those not looked at."""
        return int(np.argmax(np.where(self.looked_at, -np.inf, self.ceilings[:-1])))

    def _highest(self) -> float:
        """The highest ceiling of what was not looked at, the unknown apart."""
        return float(np.max(self.ceilings[:-1][~self.looked_at], initial=-np.inf))

    def _look_at(self, index: int) -> bool:
        self.looked_at[index] = True
        return self._grow(self.known[index])

    def _grow(self, vector: Tensor) -> bool:
        """Multiply the part of a vector outside the subspace; False if there is none."""
        length = float(torch.linalg.vector_norm(vector))
        for _ in range(2):
            vector = vector - (self.basis @ vector) @ self.basis
        norm = float(torch.linalg.vector_norm(vector))
        if not norm > 1e3 * self.matrix.epsilon * length:
            return False
        vector = vector / norm
        self.basis = torch.cat([self.basis, vector[None]])
        self.images = torch.cat([self.images, self.matrix.apply(vector)[None]])
        return True

    def _solve(self) -> None:
        """Rayleigh-Ritz in the subspace."""
        projected = (self.images @ self.basis.T).double().cpu().numpy()
        values, coordinates = np.linalg.eigh((projected + projected.T) / 2)
        turn = torch.as_tensor(coordinates[:, ::-1].T.copy()).to(self.basis)
        self.seen = _Seen(values[::-1].copy(), turn @ self.basis, turn @ self.images, all_around=False)
        self.top = float(self.seen.values[0])
        scale = torch.as_tensor(self.seen.values).to(self.basis)
        self.residuals = torch.addcmul(self.seen.images, scale[:, None], self.seen.vectors, value=-1)
        self.lengths = torch.linalg.vector_norm(self.residuals, dim=1).double().cpu().numpy()
        self.upper = self.seen.values + UNRESOLVED * self.lengths

    def _error(self) -> float:
        """How far above the top Ritz value θ an eigenvalue may lie: the larger one of [[θ, r], [r, c]], where c is
        above all that is not the top vector, as far as is known.
        """
        rest = min(max(self._highest(), self.ceilings[-1], *self.upper[1:]), self.top)
        residual = self.lengths[0]
        gap = self.top - rest
        above = (gap**2 / 4 + residual**2) ** 0.5 - gap / 2
        return max(above, UNRESOLVED * residual, RESOLUTION * self.rtol * self.top, self.upper.max() - self.top)

    def _correction(self) -> Tensor:
        """(M − θ)^(−1) r, M the remembered spectrum and zero outside of it, for the pair that may be the largest."""
        pair = int(np.argmax(self.upper))
        top, residual = float(self.seen.values[pair]), self.residuals[pair]
        inside = self.known @ residual
        gaps = torch.as_tensor(np.minimum(self.ceilings[:-1] - top, -NEAREST * top)).to(inside)
        return (inside / gaps + inside / top) @ self.known - residual / top
