"""A theorem on a problem: both sides of its inequality, and whether what it assumes holds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Form = Literal["printed", "corrected"]


@dataclass(frozen=True)
class Hypothesis:
    """What a theorem assumes; `holds` is None where nobody can tell."""

    name: str
    holds: bool | None
    reason: str

    def __str__(self) -> str:
        verdict = {True: "holds", False: "FAILS", None: "not known"}[self.holds]
        return f"{self.name}: {verdict} ({self.reason})"


@dataclass(frozen=True)
class Bound:
    """left ≤ right: `right` is certified from above, `seen` is the same expression from what was found from below.

    The truth of the right side lies between the two; where they are far apart the search or the certificate is weak.
    """

    theorem: str
    form: Form
    statement: str
    left: float
    right: float
    seen: float
    hypotheses: tuple[Hypothesis, ...] = ()
    left_error: float = 0.0  # one standard error over held-out samples

    @property
    def ratio(self) -> float:
        """left / right, at most 1 where the inequality holds; 0 where nothing is claimed."""
        if not math.isfinite(self.right):
            return 0.0
        return self.left / self.right if self.right > 0 else (math.inf if self.left > 0 else 0.0)

    @property
    def holds(self) -> bool:
        """Whether the left side is at most the right side, up to rounding."""
        return self.left <= self.right * (1 + 1e-6) + 1e-12

    @property
    def proved(self) -> bool | None:
        """Whether every hypothesis holds; None where none fails but one is not known."""
        verdicts = [hypothesis.holds for hypothesis in self.hypotheses]
        if False in verdicts:
            return False
        return None if None in verdicts else True

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"ratio": self.ratio, "holds": self.holds, "proved": self.proved}

    def __str__(self) -> str:
        bar = f" ± {self.left_error:.2g}" if self.left_error else ""
        sides = f"{self.left:.4g}{bar} {'≤' if self.holds else '>'} {self.right:.4g} (seen: {self.seen:.4g})"
        return "\n  ".join([f"{self.theorem}, {self.form}: {sides}", *map(str, self.hypotheses)])


@dataclass(frozen=True)
class Forms:
    """A theorem as it is printed and as it is right, side by side."""

    printed: Bound
    corrected: Bound

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"printed": self.printed.to_dict(), "corrected": self.corrected.to_dict()}

    def __str__(self) -> str:
        return f"{self.printed}\n{self.corrected}"
