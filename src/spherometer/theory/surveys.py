"""Everything paper A's theory says about one fitted model: radii, dimensions, slopes, and its three theorems."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spherometer.problems import Problem
from spherometer.theory.cover import Cover
from spherometer.theory.covering import CoveringRadius, covering_radius
from spherometer.theory.dimension import levina_bickel, two_nearest_neighbours
from spherometer.theory.lipschitz import LipschitzBounds, lipschitz_bounds
from spherometer.theory.radius import Radii
from spherometer.theory.reading import ReadingError
from spherometer.theory.statement import Forms
from spherometer.theory.supports import Support
from spherometer.theory.theorems import Theorems
from spherometer.values import Estimate, as_plain


@dataclass(frozen=True, eq=False)
class Survey:
    """The numbers that go into the theorems, and the theorems."""

    num_samples: int
    num_held_out: int
    epsilon: float
    space: str  # in which the model and its targets are compared
    radii: Radii | None  # of a known support
    covering: CoveringRadius  # by the held-out samples
    dimensions: dict[str, Estimate]
    lipschitz: LipschitzBounds
    variation: tuple[float, float]  # largest over samples at the corrected radius: from below, from above
    theorems: dict[str, Forms]

    @property
    def sound(self) -> bool:
        """Whether every corrected form whose hypotheses all hold is fulfilled."""
        return all(forms.corrected.holds for forms in self.theorems.values() if forms.corrected.proved)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        lower, upper = self.lipschitz.lower, self.lipschitz.upper
        return {
            "num_samples": self.num_samples,
            "num_held_out": self.num_held_out,
            "epsilon": self.epsilon,
            "space": self.space,
            "radii": None if self.radii is None else _radii(self.radii),
            "covering_radius": asdict(self.covering),
            "dimension": {name: found.to_dict() for name, found in self.dimensions.items()},
            "lipschitz": {"lower": asdict(lower), "upper": None if upper is None else asdict(upper)},
            "variation": {"lower": as_plain(self.variation[0]), "upper": as_plain(self.variation[1])},
            "theorems": {name: forms.to_dict() for name, forms in self.theorems.items()},
            "sound": self.sound,
        }


def survey(
    problem: Problem,
    held_out: tuple[Tensor, Tensor],
    *,
    support: Support | None = None,
    epsilon: float = 0.1,
    target_lipschitz: float | None = None,
    semidefinite: bool = False,
) -> Survey:
    """Evaluate Theorems 4.3, 5.1 and 6.1 of paper A on a problem (gaps G2, G6).

    Args:
        held_out: inputs and targets of independent samples of the same distribution.
        support: of the inputs where it is known; else the balls are those that reach every held-out sample, and the
            theorems speak about the share of the distribution that `covering` says.
        target_lipschitz: of the target on the support, where it is known.
        semidefinite: the tightest certificate of the Lipschitz constant, as in `lipschitz_bounds`.

    Example:
        >>> print(survey(problem, held_out, support=Cube(2), target_lipschitz=3.14).theorems["generalisation"])
    """
    inputs = torch.cat([batch[0] for batch in problem.batches])
    covering = covering_radius(inputs, held_out[0])
    radii = None if support is None else support.radii(len(inputs), epsilon)
    cover = Cover.of_probes(covering) if support is None else Cover.of_support(support, len(inputs), epsilon)
    theorems = Theorems(problem, cover, held_out, target_lipschitz=target_lipschitz)
    softmaxed = theorems.train[1].softmaxed
    below, above = theorems.steepness(cover.corrected)
    everything = torch.cat([inputs, held_out[0].to(inputs)])
    judged = nn.Sequential(problem.model, nn.Softmax(1)) if softmaxed else problem.model
    return Survey(
        num_samples=len(inputs),
        num_held_out=len(held_out[0]),
        epsilon=epsilon,
        space="probabilities" if softmaxed else "outputs",
        radii=radii,
        covering=covering,
        dimensions={name: estimator(everything) for name, estimator in ESTIMATORS.items()},
        lipschitz=_lipschitz(judged, inputs, semidefinite=semidefinite),
        variation=(float(below.variation.max()), float(above.variation.max())),
        theorems={name: getattr(theorems, name)() for name in ("lipschitz", "sharpening", "generalisation")},
    )


ESTIMATORS = {"two nearest neighbours": two_nearest_neighbours, "Levina-Bickel": levina_bickel}


def _lipschitz(model: nn.Module, inputs: Tensor, *, semidefinite: bool) -> LipschitzBounds:
    try:
        return lipschitz_bounds(model, inputs, semidefinite=semidefinite)
    except ReadingError:  # a model without a certificate
        if semidefinite:
            raise
        return lipschitz_bounds(model, inputs, certified=False)


def _radii(radii: Radii) -> dict[str, Any]:
    forms = {form: getattr(radii, form) for form in ("printed", "corrected", "solved")}
    told = {
        form: {"value": r.value, "formula": as_plain(r.formula), "in_range": r.in_range, "reason": r.reason}
        for form, r in forms.items()
    }
    return told | {"printed_is_proved": radii.printed_is_proved}
