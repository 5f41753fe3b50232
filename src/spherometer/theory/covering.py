"""How far the support lies from real samples, by independent probes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spherometer.theory import arguments
from spherometer.theory.neighbours import nearest_neighbours
from spherometer.theory.supports import Support, smallest


@dataclass(frozen=True)
class CoveringRadius:
    """ρ(X_N) = sup_x min_i ‖x − x_i‖ (Q14) seen by M independent probes of the same distribution.

    - `value`, the largest distance of a probe, is never above ρ.
    - With probability ≥ `confidence` at most the share `uncovered` = 1 − (1 − confidence)^{1/M} of the distribution
      lies further than `value` from the samples.
    """

    value: float
    uncovered: float
    confidence: float
    num_samples: int
    num_probes: int

    def upper(self, support: Support) -> float:
        """ρ ≤ value + Φ⁻¹(uncovered) with probability ≥ confidence: a hole of radius value + t leaves Φ(t) bare."""
        slack = smallest(lambda t: support.ball_probability(t) >= self.uncovered, support.diameter)
        return min(self.value + slack, support.diameter)

    def __str__(self) -> str:
        return (
            f"covering radius ≥ {self.value:.4g}; {self.confidence:.0%} sure that at most {self.uncovered:.2g} of the "
            f"distribution lies further from the {self.num_samples} samples ({self.num_probes} probes)"
        )


def covering_radius(samples: Tensor, probes: Tensor, *, confidence: float = 0.95) -> CoveringRadius:
    """The largest distance of a probe to its nearest sample (Q14, L36).

    Args:
        samples: one point a row.
        probes: points of the support; the statement about `uncovered` wants them independent of the samples and of each
            other, such as held-out data. For a grid only `value` means something.
        confidence: of that statement.

    Example:
        >>> covering_radius(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.25], [0.5]])).value
        0.5
    """
    arguments.probability("confidence", confidence)
    points, asked = arguments.rows("samples", samples), arguments.rows("probes", probes)
    if points.shape[1] != asked.shape[1]:
        raise ValueError(f"samples have {points.shape[1]} coordinates and probes {asked.shape[1]}: they must agree")
    largest = float(nearest_neighbours(asked, points.to(asked.device))[0].max())
    uncovered = 1 - (1 - confidence) ** (1 / len(asked))
    return CoveringRadius(largest, uncovered, confidence, len(points), len(asked))
