"""The largest eigenvalue of a matrix that changes a little from one call to the next, as in training."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Generator, Tensor

from spherometer.estimators.extremes import estimate_of, searched
from spherometer.estimators.krylov import Krylov
from spherometer.estimators.matrices import Complement, MatrixLike, SymmetricMatrix, smallest_form
from spherometer.estimators.nearby import LEAST_BEYOND, Nearby, Seen, inner_products, renewed
from spherometer.estimators.randomness import child_stream, unit_vector
from spherometer.estimators.search import FEW_ROWS, RISK, UNRESOLVED, Answer, Search
from spherometer.estimators.unseen import least_mass, surely_seen
from spherometer.values import Estimate

KEPT = 10  # vectors remembered: the outliers of a network are about as many as its classes
FAR = 0.3  # residual of the last vectors, relative to the eigenvalue, at which they are of no use (met: up to 0.21)
MOST_PRODUCTS = 10  # beyond this a full search is the better use of products
NEAREST = 0.03  # least distance from the eigenvalue, relative to it, that a correction divides by
LOOK_PRODUCTS = 8  # spent at most on a look for what was never seen
LOOK_FROM = 0.95  # of the largest eigenvalue: ceiling of the unseen from which on it is looked for
MARGIN = 1.1  # how far above the Ritz values of a look an eigenvalue is excluded
COARSE = 0.5  # least error in units of rtol: what was not looked at may lie so far above the ceilings
ROUNDED_EVERY = 8  # calls


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
    suffice, and where the top has fallen below what may be unseen, the search is a full one; where the last vectors are
    no longer near any eigenvector, two products tell, and it begins from nothing.

    Sources: Davidson (1975); the update of M by what was multiplied: Powell's symmetric Broyden formula (1970).

    Example:
        >>> nearby = None
        >>> for matrix in matrices:
        ...     estimate, nearby = follow(matrix, nearby)
    """
    estimate, known = _estimated(smallest_form(operator), nearby, rtol, memory, seed)
    if float(torch.as_tensor(estimate.value)) > 0 or known.frame == SymmetricMatrix.frame:
        return estimate, known
    # What the core does without is larger.
    whole, known = _estimated(SymmetricMatrix(operator), None, rtol, memory, seed)
    return replace(whole, products=whole.products + estimate.products, seconds=whole.seconds + estimate.seconds), known


def _estimated(
    matrix: SymmetricMatrix, nearby: Nearby | None, rtol: float, memory: float, seed: int
) -> tuple[Estimate, Nearby]:
    began = time.perf_counter()
    kept = int(np.clip(memory / (6 * matrix.num_rows * matrix.dtype.itemsize), 3, KEPT))
    known = _in_coordinates(matrix, nearby)
    if known is not None and _worth_following(known):
        condition = f"followed: a bound if no other eigenvalue has gained more than {100 * known.pace:.2g} % on it"
        answer, vector, known = _followed(matrix, known, rtol, kept, seed)
        if answer is not None and known is not None:
            return replace(estimate_of(answer, matrix, began, matrix.lift(vector)), note=condition), known
    start = None if known is None else known.vectors[:, :3]
    answer, search = searched(matrix, rtol=rtol, start=start, memory=memory, seed=seed)
    seen = _all_around(search, kept)
    estimate = estimate_of(answer, matrix, began, matrix.lift(seen.basis[:1].T.clone()))
    if known is not None and _worth_following(known) and seen.values[0] > 0:
        return estimate, renewed(known, seen, kept)
    values = torch.tensor(seen.values)
    return estimate, Nearby(seen.basis.T, values, torch.diag(values), float(seen.values[0]), frame=matrix.frame)


def _in_coordinates(matrix: SymmetricMatrix, nearby: Nearby | None) -> Nearby | None:
    """What is known in the coordinates of this matrix; vectors of the whole operator without values are turned."""
    if nearby is None or (nearby.frame == matrix.frame and len(nearby.vectors) == matrix.num_rows):
        return nearby
    whole = nearby.frame == SymmetricMatrix.frame and len(nearby.vectors) == matrix.num_rows + matrix.num_zeros
    return replace(Nearby.unknown(matrix.drop(nearby.vectors)), frame=matrix.frame) if whole else None


def _followed(
    matrix: SymmetricMatrix, known: Nearby, rtol: float, kept: int, seed: int
) -> tuple[Answer | None, Tensor, Nearby | None]:
    """The answer with its vector, if there is one, and what is known now: nothing, if the matrix is another one."""
    # Each call draws its own: what has no share in one random vector has some in the next.
    beyond, scout = (child_stream(seed, f"{purpose} {known.calls}") for purpose in ("beyond", "scout"))
    looked = _with_beyond(matrix, known, beyond)
    subspace = _Subspace(matrix, looked, rtol, newcomer=looked is not known)
    if subspace.lengths[0] > FAR * abs(subspace.top):
        return None, subspace.vector(), None
    answer, vector = subspace.run(), subspace.vector()
    if subspace.top <= 0:
        return None, vector, known
    if looked is known and known.beyond > subspace.top:
        answer = None
    return answer, vector, subspace.scouted(renewed(looked, subspace.seen, kept), scout)


def _worth_following(known: Nearby) -> bool:
    """There are values, and so many rows that products are dear."""
    return known.vectors.shape[0] > FEW_ROWS and known.vectors.shape[1] > 1 and bool(0 < known.values[0] < torch.inf)


def _with_beyond(matrix: SymmetricMatrix, known: Nearby, stream: Generator) -> Nearby:
    """If something never seen could be at the top by now: the largest of it, found by Lanczos from a random vector.

    In the complement of what is remembered there are no outliers but new ones, and few products tell.
    """
    top = float(known.values[0])
    if known.beyond < LOOK_FROM * top:
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
        ceiling = torch.inf
    vectors = torch.cat([columns, chain.vectors(ritz.coordinates[:, -1:])], 1)
    values = torch.tensor([*known.values.tolist(), ritz.values[-1]])
    ceilings = torch.block_diag(known.ceilings.cpu(), torch.tensor(newcomer))
    return replace(known, vectors=vectors, values=values, ceilings=ceilings, beyond=float(ceiling))


def _all_around(search: Search, kept: int) -> Seen:
    """The outermost Ritz pairs of a full search."""
    ritz = search.krylov.ritz()
    first = np.argsort(-ritz.values)[:kept]
    vectors, images = (of(ritz.coordinates[:, first]) for of in (search.krylov.vectors, search.krylov.images))
    return Seen(vectors.T, images.T, ritz.values[first], np.eye(len(first)), all_around=True)


class _Subspace:
    """Orthonormal rows V with their products VA, and the Ritz pairs θ, X = S'V with residuals R = S'VA − θS'V."""

    def __init__(self, matrix: SymmetricMatrix, nearby: Nearby, rtol: float, *, newcomer: bool) -> None:
        self.matrix, self.nearby, self.rtol = matrix, nearby, rtol
        self.known = nearby.vectors.T.to(dtype=matrix.dtype, device=matrix.device)
        self.values, self.ceilings = nearby.values.cpu().numpy(), nearby.ceilings.cpu().numpy()
        self.looked_at = np.zeros(len(self.known), dtype=bool)
        self.basis = self.images = self.known[:0]
        self._look_at(0)
        scout = None if nearby.scout is None or nearby.calls % 2 == 0 else nearby.scout.to(self.known)
        self.scouts = scout is not None and self._grow(scout)
        if not self.scouts:
            self._look_at(self._rival())
        if newcomer:
            self._look_at(len(self.known) - 1)
        self._solve()

    @cached_property
    def rounding(self) -> float:
        """What the arithmetic does to the eigenvalue, relative to it; measured now and then: it hardly changes."""
        known = self.nearby.rounding
        if known is None or self.nearby.calls % ROUNDED_EVERY == 0:
            known = float(self.matrix.rounding(self.vector())[0]) / self.top
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

    def vector(self) -> Tensor:
        """(n, 1) the top Ritz vector."""
        return self.basis.T @ torch.as_tensor(self.seen.coordinates[:, :1]).to(self.basis)

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
        met = 2 * float(self.basis[1] @ self.images[1]) > known.beyond
        return replace(known, scout=scout, beyond=self.top if met else known.beyond)

    def _rival(self) -> int:
        """The vector, of those not looked at, with the largest part in what may be highest."""
        left = np.flatnonzero(~self.looked_at)
        return int(left[np.argmax(np.abs(np.linalg.eigh(self.ceilings[np.ix_(left, left)])[1][:, -1]))])

    def _highest(self) -> float:
        """The highest that v'Av may be along what was not looked at, the unknown apart."""
        left = np.flatnonzero(~self.looked_at)
        return float(np.linalg.eigvalsh(self.ceilings[np.ix_(left, left)])[-1]) if len(left) else -np.inf

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
        projected = inner_products(self.images, self.basis)
        values, coordinates = np.linalg.eigh((projected + projected.T) / 2)
        values, coordinates = values[::-1].copy(), coordinates[:, ::-1].copy()
        self.seen = Seen(self.basis, self.images, values, coordinates, all_around=False)
        self.top = float(values[0])
        turn = torch.as_tensor(coordinates.T.copy()).to(self.basis)
        scale = torch.as_tensor(values[:, None]).to(self.basis)
        self.residuals = torch.addmm(turn @ self.images, scale * turn, self.basis, alpha=-1)
        self.lengths = torch.linalg.vector_norm(self.residuals, dim=1).cpu().double().numpy()
        self.upper = self.seen.values + UNRESOLVED * self.lengths

    def _error(self) -> float:
        """How far above the top Ritz value θ an eigenvalue may lie: the larger one of [[θ, r], [r, c]], where c is
        above all that is not the top vector, as far as is known.
        """
        rest = min(max(self._highest(), self.nearby.beyond, *self.upper[1:]), self.top)
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
        gaps = torch.as_tensor(np.minimum(self.values - top, -NEAREST * top)).to(inside)
        return (inside / gaps + inside / top) @ self.known - residual / top
