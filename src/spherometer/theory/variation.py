"""How much the Jacobian of a network varies over balls around samples (A Eq 5, Q72, L37, G3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from spherometer.theory import arguments
from spherometer.theory.ball_certificate import ball_certificates
from spherometer.theory.chain import whole_chain
from spherometer.theory.everywhere import everywhere
from spherometer.theory.lipschitz import refuse_crossing, twin_and_samples
from spherometer.theory.reading import read
from spherometer.theory.search import Effort, climb, jacobian_norms


@dataclass(frozen=True, eq=False)
class Variation:
    """V_i = sup ‖J(x) − J(y)‖₂ over x, y in the ball of radius δ around sample i: lower ≤ V_i ≤ upper.

    `lower` was met at two points of the ball; `upper` is certified in float64 with rounding added on top. `smooth` is
    the certified 2δ Lip(J) of networks without kinks; `upper` is never above it.
    """

    lower: Tensor  # (n,)
    upper: Tensor | None  # (n,), None where it was not asked for
    smooth: Tensor | None  # (n,), None for networks with kinks
    jacobians: Tensor  # ‖J(x_i)‖₂
    radius: float

    def __str__(self) -> str:
        upper = "" if self.upper is None else f" and ≤ {float(self.upper.max()):.4g} (certified)"
        return f"largest variation of J within {self.radius:g} of a sample ≥ {float(self.lower.max()):.4g}{upper}"


def jacobian_variation(
    model: nn.Module,
    inputs: Tensor,
    radius: float,
    *,
    certified: bool = True,
    num_draws: int = 4,
    num_steps: int = 10,
    seed: int = 0,
) -> Variation:
    """Both sides of V over the l2 ball of `radius` around every sample, all samples at once.

    The upper bound wants a chain of affine layers and known activations (a softmax may end it); the model is measured
    in eval mode, as a copy in float64.

    Args:
        certified: False gives the lower bound only, for any model.
        num_draws: random antipodal pairs for each sample.
        num_steps: of the ascent from the best of them.
        seed: of the draws.

    Example:
        >>> V = jacobian_variation(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(20, 2), 0.1)
        >>> bool((V.lower <= V.upper).all())
        True
    """
    arguments.positive("radius", radius)
    effort = Effort(arguments.whole("num_draws", num_draws, least=0), arguments.whole("num_steps", num_steps, least=0))
    twin, points = twin_and_samples(model, inputs)
    found = None
    if certified:
        steps = read(twin, points[:1])
        chain = whole_chain(steps, points[0].numel())
        found = ball_certificates(chain, points.flatten(1), radius, everywhere(steps, points[0].numel()))
    lower = climb(twin, points, radius, effort, Generator().manual_seed(seed), pair=True)
    if not bool(torch.isfinite(lower).all()):
        raise ValueError("the model's Jacobians are not finite near these inputs")
    if found is not None:
        refuse_crossing(lower, found.variation)
    return Variation(
        lower=lower,
        upper=None if found is None else found.variation,
        smooth=None if found is None else found.smooth,
        jacobians=jacobian_norms(twin, points),
        radius=radius,
    )
