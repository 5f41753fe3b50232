"""Normal data, which paper A leaves out because its support is not compact (gap G5)."""

from __future__ import annotations

import math

from scipy.stats import chi2

from spherometer.theory import arguments
from spherometer.theory.radius import Form
from spherometer.theory.supports import Support


class TruncatedGaussian(Support):
    """The standard normal distribution of R^d inside the ball of radius R that holds all but `tail` of it.

    Where r ≤ 2R the part of B(x, r) inside holds a ball of radius r/2, and the density is least at R:
    Φ(r) = v_d (r/2)^d (2π)^{−d/2} e^{−R²/2} / (1 − tail), v_d the volume of the unit ball. N samples of the whole
    normal lie inside with probability at least 1 − N·tail; what is said about them then adds N·tail to ε, and a mean
    over the whole normal adds the part of the tail.

    Example:
        >>> print(TruncatedGaussian(1, tail=0.01).radius(1000, 0.1))
        solved: 1.07
        >>> TruncatedGaussian(1, tail=0.01)
        TruncatedGaussian of dimension 1 and diameter 5.152
    """

    detour = 1.0

    def __init__(self, dimension: int, tail: float = 1e-4) -> None:
        self.dimension = arguments.whole("dimension", dimension)
        self.tail = arguments.probability("tail", tail)
        self.reach = math.sqrt(float(chi2.isf(tail, dimension)))
        self.diameter = 2 * self.reach
        self._log_constant = (
            -dimension * math.log(2) * 1.5 - math.lgamma(dimension / 2 + 1) - self.reach**2 / 2 - math.log1p(-tail)
        )

    def ball_probability(self, radius: float) -> float:
        """Φ, which stays from r = 2R on."""
        return (
            math.exp(self._log_constant + self.dimension * math.log(min(radius, self.diameter))) if radius > 0 else 0.0
        )

    def inverse(self, level: float, form: Form) -> tuple[float, str]:  # noqa: ARG002  both forms share Φ
        """(level/Φ(1))^{1/d}, right up to the diameter."""
        ball = math.exp((math.log(level) - self._log_constant) / self.dimension)
        return (
            ball,
            "" if ball <= self.diameter else f"the ball must be at most {self.diameter:.3g} wide, got {ball:.3g}",
        )
