"""Lipschitz constants that hold on the whole space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spherometer.theory.chain import segments
from spherometer.theory.reading import ReadingError, Step, product_constant
from spherometer.theory.semidefinite import improved
from spherometer.theory.slope_certificate import Descent, descend, normalised

ROUNDING = 1e-9  # relative room above every certified number: sums of up to a million terms in float64


@dataclass(frozen=True)
class Everywhere:
    """The product of layer norms, and the certificates by slopes where the network is a chain and small enough."""

    product: float
    slopes: float | None
    semidefinite: float | None = None

    @property
    def smallest(self) -> float:
        """The best of them."""
        return min(found for found in (self.product, self.slopes, self.semidefinite) if found is not None)


def everywhere(steps: list[Step], num_inputs: int, *, semidefinite: bool = False) -> Everywhere:
    """The constants of a network as it was read; a semidefinite program where it is asked for and can be had."""
    product = product_constant(steps) * (1 + ROUNDING)
    try:
        found = segments(steps, num_inputs)
    except ReadingError:  # too large for matrices
        found = None
    if found is None:
        if semidefinite:
            raise ReadingError(
                "a semidefinite program wants a small network without branches: ask for semidefinite=False"
            )
        return Everywhere(product, None)
    chains, constant = found
    units, norms = zip(*map(normalised, chains), strict=True) if chains else ((), ())
    if not (size := constant * math.prod(norms) * (1 + ROUNDING)):
        return Everywhere(product, 0.0, 0.0 if semidefinite else None)
    plain = [descend(unit) for unit in units]
    best = [improved(*pair) for pair in zip(units, plain, strict=True)] if semidefinite else None

    def whole(descents: Sequence[Descent]) -> float:
        return size * math.prod(descent.constant for descent in descents)

    return Everywhere(product, whole(plain), None if best is None else whole(best))
