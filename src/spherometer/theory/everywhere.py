"""Lipschitz constants that hold on the whole space."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spherometer.theory.chain import segments
from spherometer.theory.reading import ReadingError, Step, product_constant
from spherometer.theory.slope_certificate import slope_certificate

ROUNDING = 1e-9  # relative room above every certified number: sums of up to a million terms in float64


@dataclass(frozen=True)
class Everywhere:
    """The product of layer norms, and the certificate by slopes where the network is a chain and small enough."""

    product: float
    slopes: float | None

    @property
    def smallest(self) -> float:
        """The better of the two."""
        return self.product if self.slopes is None else min(self.product, self.slopes)


def everywhere(steps: list[Step], num_inputs: int) -> Everywhere:
    """Both constants of a network as it was read."""
    product = product_constant(steps) * (1 + ROUNDING)
    try:
        found = segments(steps, num_inputs)
    except ReadingError:  # too large for matrices
        found = None
    if found is None:
        return Everywhere(product, None)
    chains, constant = found
    return Everywhere(product, constant * math.prod(slope_certificate(chain) for chain in chains) * (1 + ROUNDING))
