"""The balls around the samples on which the theorems of paper A stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spherometer.theory.covering import CoveringRadius
from spherometer.theory.statement import Hypothesis
from spherometer.theory.supports import Support


@dataclass(frozen=True)
class Cover:
    """The radius of the balls as printed and as proved, what each rests on, and how far round the support leads.

    Example:
        >>> Cover.of_support(Cube(2), num_samples=200, epsilon=0.1).corrected
        0.42...
    """

    printed: float
    corrected: float
    detour: float | None  # longest way inside the support over the straight distance; None: not known
    printed_facts: tuple[Hypothesis, ...]
    corrected_facts: tuple[Hypothesis, ...]

    @classmethod
    def of_support(cls, support: Support, num_samples: int, epsilon: float) -> Cover:
        """Of independent samples of a known support; the corrected radius is the solved one."""
        radii = support.radii(num_samples, epsilon)
        range_of = radii.printed.reason or f"δ = {radii.printed.formula:.4g}"
        proof = "at least the solved radius" if radii.printed_is_proved else "less than was proved: A-e1, A-e3"
        solved = radii.solved.reason or f"δ = {radii.solved.value:.4g} with probability {1 - epsilon:g}"
        return cls(
            radii.printed.value,
            radii.solved.value,
            support.detour,
            (
                Hypothesis("radius formula in range", radii.printed.in_range, range_of),
                Hypothesis("radius proved", radii.printed_is_proved or not radii.printed.in_range, proof),
            ),
            (Hypothesis("balls cover the support", True, solved),),
        )

    @classmethod
    def of_probes(cls, found: CoveringRadius) -> Cover:
        """Of samples of an unknown support, by held-out probes: all but a share of the distribution is covered."""
        reason = f"{found.confidence:.0%} sure that all but {found.uncovered:.2g} of the distribution is covered"
        fact = Hypothesis("balls cover the support", None, reason)
        return cls(found.value, found.value, None, (fact,), (fact,))

    @property
    def convex(self) -> Hypothesis:
        """What Theorems 4.3 and 5.1 need and do not say (A-e6)."""
        if self.detour is None:
            return Hypothesis("support convex", None, "nothing is known about the support: A-e6")
        if self.detour == 1:
            return Hypothesis("support convex", True, "the segment between two points stays inside")
        return Hypothesis("support convex", False, f"{self._ways}: A-e6")

    @property
    def connected(self) -> Hypothesis:
        """What their corrected forms need."""
        name = "ways inside the support bounded"
        if self.detour is None:
            return Hypothesis(name, None, "nothing is known about the support: A-e6")
        return Hypothesis(name, math.isfinite(self.detour), self._ways)

    @property
    def _ways(self) -> str:
        if self.detour == math.inf:
            return "it falls into pieces"
        return f"ways inside it are at most {self.detour:.4g} times as long as the distance"
