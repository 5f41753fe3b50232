"""A delta-good radius: what the formula says, whether it may be used, and what may be used instead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Form = Literal["printed", "corrected", "solved"]


@dataclass(frozen=True)
class Radius:
    """Balls of this radius around the samples cover the support with probability ≥ 1 − epsilon (A Def 4.1).

    `formula` is what the formula gives, `value` what may be used: the formula inside its range and below the diameter,
    else the diameter, which is always right.
    """

    form: Form
    formula: float
    diameter: float
    reason: str = ""  # why the formula is out of its range

    @property
    def in_range(self) -> bool:
        """Whether the conditions of the formula hold."""
        return not self.reason

    @property
    def value(self) -> float:
        """The radius that may be used."""
        return min(self.formula, self.diameter) if self.in_range else self.diameter

    def scaled(self, lipschitz: float) -> Radius:
        """The radius of the image under a map with this Lipschitz constant (A Thm 4.2)."""
        return replace(self, formula=lipschitz * self.formula, diameter=lipschitz * self.diameter)

    def __str__(self) -> str:
        if not self.in_range:
            return f"{self.form}: {self.value:.4g} (trivial: {self.reason})"
        if self.formula >= self.diameter:
            return (
                f"{self.form}: {self.value:.4g} (trivial: the formula's {self.formula:.4g} is not below the diameter)"
            )
        return f"{self.form}: {self.value:.4g}"


@dataclass(frozen=True)
class Radii:
    """The printed, the corrected and the solved radius of one support, side by side."""

    printed: Radius
    corrected: Radius
    solved: Radius

    @property
    def printed_is_proved(self) -> bool:
        """Whether the printed radius is at least a radius that a complete proof gives (errata A-e1, A-e3)."""
        return self.printed.value >= min(self.corrected.value, self.solved.value)

    def __str__(self) -> str:
        proved = "" if self.printed_is_proved else " (smaller than the proof supports)"
        return f"{self.printed}{proved}\n{self.corrected}\n{self.solved}"
