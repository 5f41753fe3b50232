"""Supports of a distribution and the radius at which N samples cover them (A Thm 4.2, Eq 6-7, with A-e1 .. A-e5).

The argument: let Φ(r) ≤ P[B(x, r)] for every x of the support. A maximal t-separated set E has at most 1/Φ(t/2)
points, because its balls of radius t/2 are disjoint. If each B(e, t) holds a sample, the samples cover the support at
radius 2t. A ball is missed with probability ≤ (1 − Φ(t))^N, so 2t is good when (1 − Φ(t))^N / Φ(t/2) ≤ ε.

- `printed`: t = Φ⁻¹(log(N/ε)/N); the paper counts 1/Φ(t) points instead (A-e1).
- `corrected`: t = Φ⁻¹((log(N/ε) + d log 2)/N), which is enough when Φ(t) ≤ 2^d Φ(t/2) and the numerator is ≥ 1 (A-e2).
- `solved`: the smallest t that satisfies the inequality itself, never above `corrected`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from scipy.special import betainc

from spherometer.theory import arguments
from spherometer.theory.radius import Form, Radii, Radius

MAX_SAMPLES = 2**1000


class Support(ABC):
    """Where the data lives: its dimension, its diameter and the least probability of a ball.

    `detour` is the longest way inside the support over the straight distance (A-e6): 1 where it is convex, infinite
    where it falls into pieces, None where nothing is known.
    """

    dimension: int
    diameter: float
    detour: float | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__} of dimension {self.dimension} and diameter {self.diameter:.4g}"

    @abstractmethod
    def ball_probability(self, radius: float) -> float:
        """Φ(r) ≤ P[B(x, r)] for every point x of the support; never decreasing in r."""

    @abstractmethod
    def inverse(self, level: float, form: Form) -> tuple[float, str]:
        """The ball radius t = Φ⁻¹(level) of the printed or corrected form, and why it is out of range, if it is."""

    def radius(self, num_samples: int, epsilon: float, form: Form = "solved") -> Radius:
        """The delta-good radius of `num_samples` independent samples in one form."""
        if arguments.whole("num_samples", num_samples) > MAX_SAMPLES:
            raise ValueError("num_samples must be at most 2^1000")
        arguments.probability("epsilon", epsilon)
        if form == "solved":
            ball = smallest(lambda t: self._enough(t, num_samples, epsilon), self.diameter)
            reason = "" if math.isfinite(ball) else "no ball has enough probability for so few samples"
            return Radius(form, 2 * ball, self.diameter, reason)
        if form not in ("printed", "corrected"):
            raise ValueError(f"form must be 'printed', 'corrected' or 'solved', got {form!r}")
        logarithm = math.log(num_samples) - math.log(epsilon)
        if form == "corrected":
            logarithm += self.dimension * math.log(2)
        ball, reason = self.inverse(logarithm / num_samples, form)
        if logarithm < 1:
            reason = f"the logarithm must be at least 1, got {logarithm:.3g}"
        return Radius(form, 2 * ball, self.diameter, reason)

    def radii(self, num_samples: int, epsilon: float) -> Radii:
        """All three forms side by side."""
        printed, corrected, solved = (
            self.radius(num_samples, epsilon, form) for form in ("printed", "corrected", "solved")
        )
        return Radii(printed, corrected, solved)

    def samples_needed(self, radius: float, epsilon: float, form: Form = "solved") -> int:
        """The smallest N whose delta-good radius is at most `radius`."""
        arguments.positive("radius", radius)
        most = 1
        while self.radius(most, epsilon, form).value > radius:
            most *= 2
            if most > MAX_SAMPLES:
                raise ValueError(f"a radius of {radius} in dimension {self.dimension} needs more than 1e301 samples")
        least = most // 2
        while most - least > 1:
            middle = (least + most) // 2
            if self.radius(middle, epsilon, form).value > radius:
                least = middle
            else:
                most = middle
        return most

    def pushed_by(self, lipschitz: float) -> Pushforward:
        """The image of the support under a map with this Lipschitz constant."""
        return Pushforward(self, lipschitz)

    def _enough(self, t: float, num_samples: int, epsilon: float) -> bool:
        """(1 − Φ(t))^N / Φ(t/2) ≤ ε."""
        full, half = self.ball_probability(t), self.ball_probability(t / 2)
        if half <= 0:
            return False
        return full >= 1 or num_samples * math.log1p(-full) - math.log(half) <= math.log(epsilon)


class Cube(Support):
    """Uniform on [0, 1]^d: Φ(r) = π^{d/2} r^d / (2^d Γ(d/2 + 1)), the ball at a corner, for r ≤ 1 (A Eq 6, A-e5).

    Example:
        >>> print(Cube(2).radii(200, 0.1))
        printed: 0.4399
        corrected: 0.4784
        solved: 0.42
    """

    detour = 1.0

    def __init__(self, dimension: int) -> None:
        self.dimension = arguments.whole("dimension", dimension)
        self.diameter = math.sqrt(dimension)
        self._log_constant = (
            dimension * math.log(math.pi) / 2 - dimension * math.log(2) - math.lgamma(dimension / 2 + 1)
        )

    def ball_probability(self, radius: float) -> float:
        """Φ of the corner ball; from r = 1 on it stays, a lower bound."""
        return math.exp(self._log_constant + self.dimension * math.log(min(radius, 1.0))) if radius > 0 else 0.0

    def inverse(self, level: float, form: Form) -> tuple[float, str]:  # noqa: ARG002  both forms share Φ
        """(level/Φ(1))^{1/d}, right up to 1."""
        ball = math.exp((math.log(level) - self._log_constant) / self.dimension)
        return ball, "" if ball <= 1 else f"the corner ball leaves the cube: δ/2 must be at most 1, got {ball:.3g}"


class Sphere(Support):
    """Uniform on the unit sphere S^d in R^{d+1}, distances along chords (A Eq 7).

    - ball_probability is exact: ½ I_{r² − r⁴/4}(d/2, ½) up to r = √2.
    - `printed`: Φ(r) = ½ (1−γ)^{d/2} r^d for r² < γ.
    - `corrected` (A-e3, A-e4): Φ(r) = c_d (1−γ)^{d/2} r^d with c_d = Γ((d+1)/2) / (2√π Γ(d/2+1)), for r² ≤ min(4γ, 2).

    `gamma=None` takes the γ that gives each form its smallest radius. Half a great circle is π/2 times its chord.
    """

    detour = math.pi / 2

    def __init__(self, dimension: int, gamma: float | None = None) -> None:
        self.dimension = arguments.whole("dimension", dimension)
        self.gamma = None if gamma is None else arguments.probability("gamma", gamma)
        self.diameter = 2.0
        log_ratio = math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2 + 1)
        self._constants = {"printed": 0.5, "corrected": math.exp(log_ratio) / (2 * math.sqrt(math.pi))}

    def ball_probability(self, radius: float) -> float:
        """The probability of a cap of this chord."""
        chord = min(max(radius, 0.0), 2.0)
        cap = 0.5 * float(betainc(self.dimension / 2, 0.5, min(chord**2 - chord**4 / 4, 1.0)))
        return cap if chord <= math.sqrt(2) else 1 - cap

    def inverse(self, level: float, form: Form) -> tuple[float, str]:
        """Solves Φ(r) = level and checks the range of r."""
        widest = 1.0 if form == "printed" else 4.0  # r² ≤ widest · γ
        flat = (level / self._constants[form]) ** (2 / self.dimension)  # (1−γ) r²
        gamma = self.gamma
        if gamma is None:
            if flat > widest / 4:
                return math.sqrt(2 * flat), f"too few samples: (1−γ)r² must be at most {widest / 4:g}, got {flat:.3g}"
            gamma = 2 * flat / widest / (1 + math.sqrt(1 - 4 * flat / widest))
        ball = math.sqrt(flat / (1 - gamma))
        limit = min(widest * gamma, 2.0) * (1 + 1e-12)
        if ball**2 > limit:
            return ball, f"too few samples: r² must be at most {limit:.3g} for γ = {gamma:.3g}, got {ball**2:.3g}"
        return ball, ""


class Manifold(Support):
    """Uniform on a support of which the user knows the smallest ball: Φ(r) = ball_volume(r)/volume (A Eq 12, A-e12).

    `dimension` enters `corrected` only, which holds where halving r divides the ball's volume by at most 2^dimension.
    `detour` is that of a support, 1 where it is convex.

    Example:
        >>> circle = Manifold(lambda r: 4 * math.asin(min(r, 2) / 2), dimension=1, diameter=2, volume=2 * math.pi)
        >>> print(circle.radius(100, 0.1))
        solved: 0.3573
    """

    def __init__(
        self,
        ball_volume: Callable[[float], float],
        *,
        dimension: int,
        diameter: float,
        volume: float = 1.0,
        detour: float | None = None,
    ) -> None:
        if detour is not None and not detour >= 1:
            raise ValueError(f"detour must be at least 1, got {detour}")
        self.ball_volume, self.detour = ball_volume, detour
        self.dimension = arguments.whole("dimension", dimension)
        self.diameter = arguments.positive("diameter", diameter)
        self.volume = arguments.positive("volume", volume)
        before = 0.0
        for step in range(1, 65):
            radius = self.diameter * step / 64
            now = self.ball_probability(radius)
            if not before * (1 - 1e-9) <= now <= 1 + 1e-9:
                raise ValueError(
                    f"ball_volume must grow with the radius from 0 up to at most volume = {volume:g}, "
                    f"got {now * volume:g} at radius {radius:.3g} after {before * volume:g}"
                )
            before = now

    def ball_probability(self, radius: float) -> float:
        """The share of the volume."""
        return float(self.ball_volume(radius)) / self.volume

    def inverse(self, level: float, form: Form) -> tuple[float, str]:
        """Φ⁻¹ by bisection."""
        ball = smallest(lambda t: self.ball_probability(t) >= level, self.diameter)
        if not math.isfinite(ball):
            return ball, f"no ball has the probability {level:.3g}"
        full, half = self.ball_probability(ball), self.ball_probability(ball / 2)
        if form == "corrected" and (half <= 0 or math.log2(full / half) > self.dimension + 1e-9):
            return ball, f"halving the radius {ball:.3g} divides the ball's volume by more than 2^{self.dimension}"
        return ball, ""


class Pushforward(Support):
    """The image of a support under a Lipschitz map: every radius is multiplied by the constant (A Thm 4.2, T48)."""

    def __init__(self, support: Support, lipschitz: float) -> None:
        self.support = support
        self.lipschitz = arguments.positive("lipschitz", lipschitz)
        self.dimension = support.dimension
        self.diameter = lipschitz * support.diameter

    def ball_probability(self, radius: float) -> float:
        """P[B(g(x), r)] ≥ P[B(x, r/‖g‖)]."""
        return self.support.ball_probability(radius / self.lipschitz)

    def inverse(self, level: float, form: Form) -> tuple[float, str]:
        """‖g‖ times that of the support."""
        ball, reason = self.support.inverse(level, form)
        return self.lipschitz * ball, reason


def smallest(holds: Callable[[float], bool], most: float) -> float:
    """The smallest radius up to `most` from which `holds` is true, from above; inf if it never is."""
    if not holds(most):
        return math.inf
    least = 0.0
    while (middle := (least + most) / 2) not in (least, most) and most - least > 1e-14 * most:
        if holds(middle):
            most = middle
        else:
            least = middle
    return most
