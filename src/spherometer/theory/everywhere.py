"""Lipschitz constants that hold on the whole space."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from spherometer.theory.chain import Chain, segments
from spherometer.theory.reading import ReadingError, Step, product_constant
from spherometer.theory.semidefinite import semidefinite_certificate
from spherometer.theory.slope_certificate import slope_certificate

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

    def whole(certificate: Callable[[Chain], float]) -> float:
        return constant * math.prod(map(certificate, chains)) * (1 + ROUNDING)

    best = whole(semidefinite_certificate) if semidefinite else None
    return Everywhere(product, whole(slope_certificate), best)
