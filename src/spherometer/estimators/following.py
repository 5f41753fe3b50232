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
from spherometer.estimators.search import FEW_ROWS, RISK, UNRESOLVED, Answer, Search
from spherometer.estimators.unseen import least_mass, surely_seen
from spherometer.values import Estimate

KEPT = 10  # vectors remembered: the outliers of a network are about as many as its classes
GROWTH = 0.02  # what an eigenvalue may have gained on the largest since the last call, at least
CALMING = 0.9  # of what it may have gained, from call to call, when the largest moves steadily
MOST_PRODUCTS = 10  # beyond this a full search is the better use of products
NEAREST = 0.03  # least distance from the eigenvalue, relative to it, that a correction divides by
LOOK_PRODUCTS = 8  # spent at most on a look for what was never seen
LOOK_FROM = 0.95  # of the largest eigenvalue: ceiling of the unseen from which on it is looked for
LOOK_AGAIN = 0.8  # ceiling it is given for the next calls when the look could not exclude as much
LEAST_BEYOND = 0.5  # least ceiling it is given
MARGIN = 1.1  # how far above the Ritz values of a look an eigenvalue is excluded
COARSE = 0.5  # least error in units of rtol: what was not looked at may lie so far above the ceilings
ROUNDED_EVERY = 8  # calls
INDEPENDENT = 1e3  # least eigenvalue of a Gram matrix, in units of ε, that counts as a direction of its own


@dataclass(frozen=True, eq=False)
class Nearby:
    """What is known of a nearby matrix.

    Args:
        vectors: (n, k) orthonormal columns near its first eigenvectors, the first one leading.
        ceilings: (k + 1,) how large the eigenvalue along each may be by now, which is also what it is taken to be; in
            the last entry any other; inf where nothing is known.
        scout: (n,) a vector that is multiplied in every second call and so turns to what was never seen.
        calls: how often the matrix was followed.
        rounding: what the arithmetic does to the eigenvalue, relative to it, as last measured.
        change: of the largest eigenvalue at the last call, relative to it.
        pace: what another may gain on it from call to call: as much as that change has lately changed.
    """

    vectors: Tensor
    ceilings: Tensor
    scout: Tensor | None = None
    calls: int = 0
    rounding: float | None = None
    change: float = 0.0
    pace: float = GROWTH

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
    products. The error is max(√(gap²/4 + r²) − gap/2, r/2), where the gap is that to the nearest other Ritz value or to
    the ceiling of what was not multiplied, if that is higher. It rests on ceilings, which rise from call to call,
    until the vector is multiplied again, by the unsteadiness of the top eigenvalue and 2 % at least.

    What has no share in any vector that is known can hide from three products. In every second call a scout takes the
    place of the strongest rival: one step of power iteration in the complement, which an eigenvalue of the size of the
    largest turns around within about eight calls. When the scout has seen something, and at the latest when the ceiling
    of the unseen comes near the top (after 9 to 33 calls), Lanczos looks into the complement. Where ten products do not
    suffice, and where the top has fallen below what may be unseen, the search is a full one.

    Sources: Davidson (1975); the update of M by what was multiplied: Powell's symmetric Broyden formula (1970).

    Example:
        >>> nearby = None
        >>> for matrix in matrices:
        ...     estimate, nearby = follow(matrix, nearby)
    """
    began = time.perf_counter()
    matrix = SymmetricMatrix(operator)
    kept = int(np.clip(memory / (6 * matrix.num_rows * matrix.dtype.itemsize), 3, KEPT))
    known = nearby if nearby is not None and len(nearby.vectors) == matrix.num_rows else None
    if known is not None and _worth_following(known):
        condition = f"followed: a bound if no other eigenvalue has gained more than {100 * known.pace:.2g} % on it"
        answer, vector, known = _followed(matrix, known, rtol, kept, seed)
        if answer is not None:
            return replace(estimate_of(answer, matrix, began, vector), note=condition), known
    start = None if known is None else known.vectors[:, :3]
    answer, search = searched(matrix, rtol=rtol, start=start, memory=memory, seed=seed)
    seen = _all_around(search, kept)
    estimate = estimate_of(answer, matrix, began, seen.vectors[:1].T.clone())
    if known is not None and _worth_following(known) and seen.values[0] > 0:
        return estimate, _renewed(known, seen, kept)
    return estimate, Nearby(seen.vectors.T, torch.tensor([*seen.values, seen.values[0]]))


def _followed(
    matrix: SymmetricMatrix, known: Nearby, rtol: float, kept: int, seed: int
) -> tuple[Answer | None, Tensor, Nearby]:
    """The answer with its vector, if there is one, and what is known now."""
    looked = _with_beyond(matrix, known, child_stream(seed, "beyond"))
    subspace = _Subspace(matrix, looked, rtol)
    answer = subspace.run()
    vector = subspace.seen.vectors[:1].T.clone()
    if subspace.top <= 0:
        return None, vector, known
    if looked is known and known.ceilings[-1] > subspace.top:
        answer = None
    return answer, vector, subspace.scouted(_renewed(looked, subspace.seen, kept), child_stream(seed, "scout"))


def _worth_following(known: Nearby) -> bool:
    """There are values, and so many rows that products are dear."""
    return known.vectors.shape[0] > FEW_ROWS and known.vectors.shape[1] > 1 and bool(0 < known.ceilings[0] < torch.inf)


def _with_beyond(matrix: SymmetricMatrix, known: Nearby, stream: Generator) -> Nearby:
    """If something never seen could be at the top by now: the largest of it, found by Lanczos from a random vector.

    In the complement of what is remembered there are no outliers but new ones, and few products tell.
    """
    top = float(known.ceilings[0])
    if known.ceilings[-1] < LOOK_FROM * top:
        return known
    columns = known.vectors.to(dtype=matrix.dtype, device=matrix.device)
    chain = Krylov(Complement(matrix, columns), stream)
    chain.add_random()
    mass = least_mass(matrix.num_rows, risk=RISK)
    for _ in range(LOOK_PRODUCTS):
        chain.step()
        ritz = chain.ritz()
        ceiling, newcomer = max(MARGIN * ritz.values[-1], LEAST_BEYOND * top), ritz.values[-1] + ritz.residuals[-1]
        if surely_seen(*chain.recurrence(0), ceiling, mass=mass) or newcomer < matrix.floor(top):
            break
    else:
        ceiling = max(ceiling, top)
    vectors = torch.cat([columns, chain.vectors(ritz.coordinates[:, -1:])], 1)
    ceilings = [*known.ceilings[:-1].tolist(), newcomer, ceiling]
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
    """The remembered spectrum, made to agree with what was seen, and raised to what it may be at the next call."""
    known, ceilings = before.vectors.T.to(seen.vectors), before.ceilings.cpu().numpy()
    space, values, coordinates = _corrected(known, ceilings[:-1], seen)
    top = seen.values[0]
    change = float(top / ceilings[0] - 1)
    pace = max(GROWTH, abs(change - before.change), CALMING * before.pace)  # a steady rise lifts all of them
    growth = (1 + pace) * max(1.0, 1 + change)
    raised = values + (growth - 1) * np.maximum(np.abs(values), LEAST_BEYOND * top)
    beyond = growth * (LOOK_AGAIN * top if ceilings[-1] > top else ceilings[-1])
    beyond = top if seen.all_around else max(beyond, raised[kept:].max(initial=0.0))
    vectors = (torch.as_tensor(coordinates[:, :kept].T.copy()).to(space) @ space).T
    raised = torch.as_tensor(np.concatenate([[top], raised[1:kept], [beyond]]))
    return replace(before, vectors=vectors, ceilings=raised, change=change, pace=pace)


def _corrected(known: Tensor, values: np.ndarray, seen: _Seen) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Rows that span all that is known and seen, and in them the eigenpairs of the symmetric matrix nearest to M that
    has the products seen (Powell): that of the top vector first, then the largest.
    """
    size = float(torch.linalg.vector_norm(seen.images, dim=1).max())
    space = torch.cat([known, seen.vectors, seen.images / size])
    lengths, turn = np.linalg.eigh((space @ space.T).cpu().double().numpy())
    apart = lengths > INDEPENDENT * torch.finfo(space.dtype).eps * lengths.max()
    lengths, turn = np.sqrt(lengths[apart]), turn[:, apart]
    ends = len(known), len(known) + len(seen.vectors)
    remembered, basis, images = np.split(lengths[:, None] * turn.T, ends, axis=1)  # in an orthonormal basis
    model = (remembered * values) @ remembered.T
    wrong = (size * images - model @ basis) @ basis.T
    found, vectors = np.linalg.eigh(model + wrong + wrong.T - basis @ (basis.T @ wrong))
    first = int(np.argmax(np.abs(basis[:, 0] @ vectors)))
    order = [first, *(index for index in np.argsort(-found) if index != first)]
    return space, found[order], (turn / lengths) @ vectors[:, order]


class _Subspace:
    """Orthonormal rows V with their products VA, and the Ritz pairs θ, X = S'V with residuals R = XA − θX."""

    def __init__(self, matrix: SymmetricMatrix, nearby: Nearby, rtol: float) -> None:
        self.matrix, self.nearby, self.rtol = matrix, nearby, rtol
        self.known = nearby.vectors.T.to(dtype=matrix.dtype, device=matrix.device)
        self.ceilings = nearby.ceilings.cpu().numpy()
        self.looked_at = np.zeros(len(self.known), dtype=bool)
        self.basis = self.images = self.known[:0]
        self._look_at(0)
        scout = None if nearby.scout is None or nearby.calls % 2 == 0 else nearby.scout.to(self.known)
        self.scouts = scout is not None and self._grow(scout)
        if not self.scouts:
            self._look_at(self._rival())
        self._solve()

    @cached_property
    def rounding(self) -> float:
        """What the arithmetic does to the eigenvalue, relative to it; measured now and then: it hardly changes."""
        known = self.nearby.rounding
        if known is None or self.nearby.calls % ROUNDED_EVERY == 0:
            known = float(self.matrix.rounding(self.seen.vectors[:1].T)[0]) / self.top
        return max(self.matrix.floor(np.abs(self.seen.values).max()) / self.top, known)

    def run(self) -> Answer | None:
        """Look at rivals and correct until the error is small enough; None if that does not lead there."""
        while self.top > 0:
            target = max(self.rtol * self.top, 4 * self.matrix.floor(np.abs(self.seen.values).max()))
            error, rounding = self._error(), self.rounding * self.top
            if error + rounding <= target:
                return Answer(self.seen.values[:1].copy(), np.array([error + rounding]), "")
            if rounding > 0.8 * target or len(self.basis) == MOST_PRODUCTS:
                return None
            rival = self._highest() > self.top + target / 2
            if not (self._look_at(self._rival()) if rival else self._grow(self._correction())):
                return None
            self._solve()
        return None

    def scouted(self, known: Nearby, stream: Generator) -> Nearby:
        """The scout one step further, half of it drawn afresh; if it has met more than there should be, a look is
        due.
        """
        known = replace(known, calls=known.calls + 1, rounding=self.rounding)
        if not self.scouts and known.scout is not None:
            return known
        chance = unit_vector(self.matrix.num_rows, dtype=self.matrix.dtype, stream=stream).to(self.known.device)
        if not self.scouts:
            return replace(known, scout=chance)
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
        projected = (self.images @ self.basis.T).cpu().double().numpy()
        values, coordinates = np.linalg.eigh((projected + projected.T) / 2)
        turn = torch.as_tensor(coordinates[:, ::-1].T.copy()).to(self.basis)
        self.seen = _Seen(values[::-1].copy(), turn @ self.basis, turn @ self.images, all_around=False)
        self.top = float(self.seen.values[0])
        scale = torch.as_tensor(self.seen.values).to(self.basis)
        self.residuals = torch.addcmul(self.seen.images, scale[:, None], self.seen.vectors, value=-1)
        self.lengths = torch.linalg.vector_norm(self.residuals, dim=1).cpu().double().numpy()
        self.upper = self.seen.values + UNRESOLVED * self.lengths

    def _error(self) -> float:
        """How far above the top Ritz value θ an eigenvalue may lie: the larger one of [[θ, r], [r, c]], where c is
        above all that is not the top vector, as far as is known.
        """
        rest = min(max(self._highest(), self.ceilings[-1], *self.upper[1:]), self.top)
        residual = self.lengths[0]
        gap = self.top - rest
        above = (gap**2 / 4 + residual**2) ** 0.5 - gap / 2
        further = max(self._highest(), self.upper.max()) - self.top
        return max(above, further, UNRESOLVED * residual, COARSE * self.rtol * self.top)

    def _correction(self) -> Tensor:
        """(M − θ)^(−1) r, M the remembered spectrum and zero outside of it, for the pair that may be the largest."""
        pair = int(np.argmax(self.upper))
        top, residual = max(float(self.seen.values[pair]), NEAREST * self.top), self.residuals[pair]
        inside = self.known @ residual
        gaps = torch.as_tensor(np.minimum(self.ceilings[:-1] - top, -NEAREST * top)).to(inside)
        return (inside / gaps + inside / top) @ self.known - residual / top
