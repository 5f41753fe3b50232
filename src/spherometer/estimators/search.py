"""When Lanczos may stop: bounds on the errors, a look for missed eigenvalues, and what is said when the goal was not
reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from spherometer.estimators.krylov import Krylov, Ritz
from spherometer.estimators.matrices import Complement, SymmetricMatrix
from spherometer.estimators.unseen import least_mass, surely_seen

Which = Literal["largest", "smallest", "both", "magnitude"]

UNRESOLVED = 1 / 2  # least error in units of the residual, see `error_bounds`
RESOLUTION = 0.1  # least error in units of rtol: an eigenvalue missed beside a converged one does not show
FEW_ROWS = 2000  # below this size products are cheap, and nothing is taken on trust
RISK = 0.05  # accepted chance that the random start vector has too small a share of an eigenvector for it to be seen
RISK_COMPLEMENT = 0.01  # the same for the vector sent through the complement
SLACK_ALONE = 0.2  # one eigenvalue wanted: nothing further out than this, relative to it, was missed
SLACK_COMPLEMENT = (0.01, 0.05)  # the same after a look into the complement: twice rtol, within these limits
MAX_CHECKS = 15  # products spent on one look into the complement


@dataclass(frozen=True)
class Answer:
    """Wanted Ritz values in the order asked for, bounds on their errors, and what went wrong."""

    values: np.ndarray
    errors: np.ndarray
    complaint: str


def error_bounds(ritz: Ritz) -> np.ndarray:
    """|λ_i − θ_i| ≤ min(r_i, max(r_i²/gap_i, r_i/2)) with gap_i the distance to the nearest other Ritz value less
    that one's own residual.

    The textbook's r²/gap is right when the gap is one between *eigenvalues*. A pair of eigenvalues that Lanczos has not
    told apart yet looks like a single Ritz value far from its neighbours: its r is about their distance, and r²/gap far
    too small. On spectra of small networks the plain r²/gap was broken in 5 % of runs, by up to 3 % of λ at a claimed
    0.1 %; with the floor r/2 in 0.2 %, and in 2 % where the top pair is 3 % apart. No rule that stops after a few
    products can do without such a remainder, since a start vector may have almost no share of an eigenvector.
    """
    values, residuals = ritz.values, ritz.residuals
    if len(values) < 2:
        return residuals.copy()
    apart = np.abs(values[:, None] - values[None, :]) - residuals[None, :]
    np.fill_diagonal(apart, np.inf)
    gaps = apart.min(axis=1)
    corrected = np.divide(residuals**2, gaps, out=np.full_like(residuals, np.inf), where=gaps > 0)
    return np.minimum(residuals, np.maximum(corrected, UNRESOLVED * residuals))


class Search:
    """One run towards the wanted eigenvalues. State lives here because products are few and dear: nothing is computed
    twice.
    """

    def __init__(
        self, matrix: SymmetricMatrix, krylov: Krylov, num: int, which: Which, rtol: float, limit: int, memory: float
    ) -> None:
        self.krylov, self.num, self.which, self.rtol, self.limit = krylov, num, which, rtol, limit
        self.matrix = matrix
        self.count = 2 * num if which == "both" else num
        vector_bytes = self.matrix.num_rows * self.matrix.dtype.itemsize
        self.capacity = max(2 * self.count + 4, int(memory // vector_bytes))
        self.share_of_chance: float | None = (
            1.0  # randomness in the start vector; None: a trusted start, or restarted since
        )
        self.num_given = 1
        self.rounding: np.ndarray | None = None

    def run(self) -> Answer:
        """Expand, look, stop; the answer is the last look."""
        while self.matrix.products < self.limit and not self.krylov.complete:
            self._expand()
            if self._due() and self._solved() and self._nothing_missed():
                return self._answer(verified=True)
        return self._answer(verified=self.krylov.complete)

    def vectors(self, number: int) -> Tensor:
        """(n, number) Ritz vectors: the wanted ones in the order of the answer, then those that come next, as far as
        there are any.
        """
        ritz = self.krylov.ritz()
        chosen = self._chosen(ritz)
        further = [index for index in self._outermost(ritz, len(ritz.values)) if index not in chosen]
        return self.krylov.vectors(ritz.coordinates[:, [*chosen, *further][:number]])

    def _expand(self) -> None:
        krylov = self.krylov
        if krylov.invariant:
            krylov.add_random()
        self._shrink(room=1)
        krylov.step()

    def _shrink(self, room: int) -> None:
        """Restart with the better half of the Ritz vectors if `room` more vectors would not fit into the memory."""
        krylov = self.krylov
        keep = max(self.count + 1, (self.count + krylov.done) // 2)
        if krylov.size + room > self.capacity and keep < krylov.done:
            ritz = krylov.ritz()
            krylov.restart(ritz, np.sort(self._outermost(ritz, keep)))
            self.share_of_chance = None

    def _due(self) -> bool:
        """Look after every step at first, and later at every twentieth part: the small eigenproblem must stay small
        change.
        """
        done = self.krylov.done
        enough = max(self.count, self.num_given, 2 if self.share_of_chance is None else 3)
        return self.krylov.invariant or (done >= enough and done % (1 + done // 20) == 0)

    def _solved(self) -> bool:
        """The wanted errors leave room for the rounding, or are half the target where rounding alone uses it up."""
        if self.krylov.done < self.count:
            return False
        ritz = self.krylov.ritz()
        chosen = self._chosen(ritz)
        targets = self._targets(ritz)[chosen]
        errors = self._errors(ritz, chosen)
        if (errors > targets).any():
            self.rounding = None
            return False
        if self.rounding is None:
            self.rounding = self._rounding(ritz, chosen)
        hopeless = self.rounding > 0.8 * targets  # no product will bring the sum below the target
        return bool((errors <= np.where(hopeless, targets / 2, targets - self.rounding)).all())

    def _nothing_missed(self) -> bool:
        """The top alone, from a start vector with chance in it, is trusted to its own chain; all else is looked into.

        A single warm vector follows its old eigenvector through a crossing, where a block of them has the rivals in it;
        the lower end of a Hessian is a dense edge, with small residuals long before the extreme one is found; and in a
        small matrix the look costs nothing.
        """
        trusted = self.num == 1 and self.which == "largest" and (self.share_of_chance is not None or self.num_given > 1)
        if trusted and self.matrix.num_rows > FEW_ROWS:
            return self._nothing_far_out()
        return self._complement_is_clean()

    def _nothing_far_out(self) -> bool:
        """One eigenvalue at an end: the chain itself tells whether one far beyond it could have stayed hidden."""
        if self.share_of_chance is None or self.krylov.invariant:
            return True
        mass = least_mass(self.matrix.num_rows, share=self.share_of_chance, risk=RISK)
        ritz = self.krylov.ritz()
        return self._sees_all(self.krylov, ritz.values[self._chosen(ritz)], mass, SLACK_ALONE)

    def _complement_is_clean(self) -> bool:
        """A fresh random vector, orthogonal to the wanted Ritz vectors only, must bring nothing new to light.

        A single start vector meets one vector only of each eigenspace, so this is the one way to find the copies; and
        what the run so far has pending, but not multiplied, may be the very eigenvector it has missed.
        """
        krylov = self.krylov
        ritz = krylov.ritz()
        chosen = self._chosen(ritz)
        if self.matrix.num_rows == self.count:
            return krylov.complete
        chain = Krylov(Complement(self.matrix, krylov.vectors(ritz.coordinates[:, chosen])), krylov.stream)
        chain.add_random()
        mass, slack = least_mass(self.matrix.num_rows, risk=RISK_COMPLEMENT), np.clip(2 * self.rtol, *SLACK_COMPLEMENT)
        for _ in range(MAX_CHECKS):
            if self.matrix.products >= self.limit:
                return False
            chain.step()
            found = chain.ritz()
            rivals = self._rivals(found.values, ritz.values[chosen], self._targets(ritz)[chosen])
            if len(rivals):
                self._take_in(chain.vectors(found.coordinates[:, rivals]))
                return False
            if chain.invariant or self._sees_all(chain, ritz.values[chosen], mass, slack):
                return True
        return True

    def _rivals(self, values: np.ndarray, wanted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Which of some Ritz values from elsewhere lie further out than the innermost wanted ones."""
        if self.which == "magnitude":
            return np.flatnonzero(np.abs(values) > np.abs(wanted[-1]) + targets[-1])
        above = values > wanted[self.num - 1] + targets[self.num - 1]
        below = values < wanted[-self.num] - targets[-self.num]
        return np.flatnonzero({"largest": above, "smallest": below, "both": above | below}[self.which])

    def _take_in(self, vectors: Tensor) -> None:
        """Let what was found elsewhere be the next to be multiplied."""
        for vector in vectors.T:
            if self.krylov.add(vector):
                self.krylov.bring_forward()
        self.share_of_chance, self.rounding = None, None

    def _sees_all(self, chain: Krylov, wanted: np.ndarray, mass: float, slack: float) -> bool:
        """Nothing further out than the wanted values by `slack` of them can hide from a chain with a random start."""
        alphas, betas = chain.recurrence(0)
        inner = np.abs(wanted).min() if self.which == "magnitude" else None
        top = inner if inner is not None else wanted[self.num - 1]
        bottom = -inner if inner is not None else wanted[-self.num]
        least = 0.1 * np.abs(wanted).max()  # an end of the spectrum at zero has no size of its own to compare with
        return (
            self.which == "smallest" or surely_seen(alphas, betas, top + slack * max(abs(top), least), mass=mass)
        ) and (
            self.which == "largest" or surely_seen(-alphas, betas, -bottom + slack * max(abs(bottom), least), mass=mass)
        )

    def _outermost(self, ritz: Ritz, number: int) -> np.ndarray:
        """Indices of the `number` Ritz values nearest to the wanted end or ends, the outermost first."""
        ascending = np.arange(len(ritz.values))
        if self.which == "largest":
            return ascending[::-1][:number]
        if self.which == "smallest":
            return ascending[:number]
        if self.which == "magnitude":
            return np.argsort(-np.abs(ritz.values), kind="stable")[:number]
        high = (number + 1) // 2
        return np.concatenate([ascending[::-1][:high], ascending[: number - high][::-1]])

    def _errors(self, ritz: Ritz, chosen: np.ndarray) -> np.ndarray:
        """Bounds for the wanted values, rounding apart; none claims to resolve what nobody tried to resolve."""
        resolved = 0.0 if self.krylov.invariant else RESOLUTION * self.rtol
        bounds = np.maximum(error_bounds(ritz)[chosen], self._reach(ritz, chosen))
        return np.maximum(bounds, resolved * np.abs(ritz.values[chosen]))

    def _reach(self, ritz: Ritz, chosen: np.ndarray) -> np.ndarray:
        """How far the error bounds of Ritz values that were not chosen reach past each wanted one; negative if not at
        all.
        """
        others = np.setdiff1d(np.arange(len(ritz.values)), chosen)
        if len(others) == 0:
            return np.zeros(len(chosen))
        wanted, rivals, bounds = ritz.values[chosen], ritz.values[others], error_bounds(ritz)[others]
        if self.which == "magnitude":
            return (np.abs(rivals) + bounds).max() - np.abs(wanted)
        high = {"largest": self.count, "smallest": 0, "both": self.num}[self.which]
        above, below = (rivals + bounds).max() - wanted, wanted - (rivals - bounds).min()
        return np.concatenate([above[:high], below[high:]])

    def _chosen(self, ritz: Ritz) -> np.ndarray:
        """Indices of the wanted Ritz values, in the order of the answer."""
        chosen = self._outermost(ritz, self.count)
        return chosen[::-1] if self.which == "smallest" else chosen

    def _targets(self, ritz: Ritz) -> np.ndarray:
        return np.maximum(self.rtol * np.abs(ritz.values), 4 * self.matrix.floor(np.abs(ritz.values).max()))

    def _rounding(self, ritz: Ritz, chosen: np.ndarray) -> np.ndarray:
        vectors = self.krylov.vectors(ritz.coordinates[:, chosen])
        return np.maximum(self.matrix.floor(np.abs(ritz.values).max()), self.matrix.rounding(vectors))

    def _answer(self, *, verified: bool) -> Answer:
        ritz = self.krylov.ritz()
        chosen = self._chosen(ritz)
        rounding = self._rounding(ritz, chosen) if self.rounding is None else self.rounding
        errors, targets = self._errors(ritz, chosen) + rounding, self._targets(ritz)[chosen]
        return Answer(
            ritz.values[chosen], errors, self._complaint(ritz.values[chosen], errors, targets, rounding, verified)
        )

    def _complaint(
        self, values: np.ndarray, errors: np.ndarray, targets: np.ndarray, rounding: np.ndarray, verified: bool
    ) -> str:
        if (errors <= targets).all():
            advice = f"raise max_products above {self.limit} to look for eigenvalues that were missed"
            return (
                ""
                if verified
                else f"the errors are within rtol={self.rtol:g}, but the look for missed ones was cut short: {advice}"
            )
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = float(np.nanmax(np.where(errors > targets, errors / np.abs(values), 0.0)))
        blame = rounding > 0.8 * targets
        advice = (
            "measure in float64" if blame[errors > targets].any() else f"raise max_products above {self.limit}, or rtol"
        )
        products = self.matrix.products
        return f"asked for rtol={self.rtol:g}, reached {reached:.2g} after {products} products: {advice}"
