"""The Lipschitz constant of a network or of a generator of data, from below and from above (Q73, G4, G7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from spherometer.metrics.secants import distances, pairs_of
from spherometer.theory import arguments
from spherometer.theory.ball_certificate import ball_certificates
from spherometer.theory.chain import whole_chain
from spherometer.theory.everywhere import Everywhere, everywhere
from spherometer.theory.reading import ReadingError, Step, double_twin, read
from spherometer.theory.search import ROUNDING, Effort, climb, flat_outputs, jacobian_norms, jacobians

CROSSING = 1e-6  # relative, by which rounding may carry a lower bound above a certificate


@dataclass(frozen=True)
class LipschitzBound:
    """One bound, its kind, and what it comes from."""

    value: float
    kind: Literal["lower", "certified upper"]
    source: str

    def __str__(self) -> str:
        return f"{'≥' if self.kind == 'lower' else '≤'} {self.value:.4g} ({self.source})"


@dataclass(frozen=True, eq=False)
class LipschitzBounds:
    """Lower bounds are slopes that were met; upper bounds are certified in float64 with rounding added on top.

    Upper bounds of the whole space hold for every secant. Those of balls, one for each sample, hold for ‖J‖ inside the
    ball and for secants inside one ball, not across balls (A-e6). None: not asked for, or not to be had.
    """

    jacobians: Tensor  # ‖J(x_i)‖₂ at every sample
    secant: float | None  # the steepest between two samples (A Eq 23)
    climbed: Tensor | None  # the largest ‖J(x)‖₂ met in each ball
    product: float | None  # over the whole space: product of layer norms
    slopes: float | None  # over the whole space: quadratic forms of the slopes of activations
    semidefinite: float | None  # over the whole space: the best such form
    balls: Tensor | None  # over each ball: linear relaxation
    radius: float | None

    @property
    def lower(self) -> LipschitzBound:
        """The largest lower bound on the Lipschitz constant over the hull of the samples and their balls."""
        found = {"Jacobian at a sample": float(self.jacobians.max())}
        if self.secant is not None:
            found["secant between samples"] = self.secant
        if self.climbed is not None:
            found[f"ascent within {self.radius:g} of samples"] = float(self.climbed.max())
        source = max(found, key=found.__getitem__)
        return LipschitzBound(found[source], "lower", source)

    @property
    def upper(self) -> LipschitzBound | None:
        """The smallest upper bound over the whole space."""
        found = {
            "product of layer norms": self.product,
            "slopes of activations": self.slopes,
            "semidefinite program": self.semidefinite,
        }
        known = {source: value for source, value in found.items() if value is not None}
        if not known:
            return None
        source = min(known, key=known.__getitem__)
        return LipschitzBound(known[source], "certified upper", source)

    @property
    def upper_in_balls(self) -> LipschitzBound | None:
        """The smallest upper bound on ‖J‖ over the balls around all samples."""
        if self.balls is None:
            return None
        return LipschitzBound(
            float(self.balls.max()), "certified upper", f"relaxation within {self.radius:g} of samples"
        )

    def __str__(self) -> str:
        lines = [f"Lipschitz constant {self.lower}"]
        lines += [f"Lipschitz constant {self.upper}"] if self.upper else []
        lines += [f"‖J‖ near samples {self.upper_in_balls}"] if self.upper_in_balls else []
        return "\n".join(lines)


def lipschitz_bounds(
    model: nn.Module,
    inputs: Tensor,
    radius: float | None = None,
    *,
    certified: bool = True,
    semidefinite: bool = False,
    num_draws: int = 2,
    num_steps: int = 10,
    seed: int = 0,
) -> LipschitzBounds:
    """Two-sided bounds on ‖f‖_Lip in the l2 norms, for any module that maps a batch of tensors to a batch of tensors.

    The model is measured in eval mode, as a copy in float64 on the CPU. What it returns counts: add `nn.Softmax(1)` to
    logits for the constant of the softmaxed model.

    Args:
        inputs: one sample a row; for a generator its latent vectors.
        radius: of the l2 balls around the samples to look and certify in; None leaves the balls out.
        certified: False gives lower bounds only, for models whose layers have no certificate.
        semidefinite: the best certificate by slopes too, for small networks; needs the extra `sdp`, and time, from
            seconds for some dozen neurons to minutes for hundreds.
        num_draws: random starts in each ball.
        num_steps: of the ascent in each ball.
        seed: of the starts.

    Example:
        >>> bounds = lipschitz_bounds(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), torch.randn(20, 2))
        >>> bounds.lower.value <= bounds.upper.value
        True
    """
    if radius is not None:
        arguments.positive("radius", radius)
    if semidefinite and not certified:
        raise ValueError("semidefinite=True asks for a certificate, certified=False for none: leave one of them out")
    effort = Effort(arguments.whole("num_draws", num_draws, least=0), arguments.whole("num_steps", num_steps, least=0))
    (twin, points), generator = twin_and_samples(model, inputs), Generator().manual_seed(seed)
    steps = read(twin, points[:1]) if certified else None
    whole = None if steps is None else everywhere(steps, points[0].numel(), semidefinite=semidefinite)
    bounds = LipschitzBounds(
        jacobians=jacobian_norms(twin, points),
        secant=_secant(twin, points),
        climbed=None if radius is None else climb(twin, points, radius, effort, generator, pair=False),
        product=None if whole is None else whole.product,
        slopes=None if whole is None else whole.slopes,
        semidefinite=None if whole is None else whole.semidefinite,
        balls=None if steps is None or whole is None or radius is None else _balls(steps, points, radius, whole),
        radius=radius,
    )
    if not math.isfinite(bounds.lower.value):
        raise ValueError("the model's outputs or Jacobians are not finite at these inputs")
    if bounds.upper is not None:
        refuse_crossing(bounds.lower.value, bounds.upper.value)
    if bounds.climbed is not None and bounds.balls is not None:
        refuse_crossing(bounds.climbed, bounds.balls)
    return bounds


def twin_and_samples(model: nn.Module, inputs: Tensor) -> tuple[nn.Module, Tensor]:
    """The model and the samples in float64 on the CPU, the samples finite and such that the model takes them."""
    arguments.rows("inputs", inputs)
    twin, points = double_twin(model), torch.as_tensor(inputs).detach().to("cpu", torch.float64)
    try:
        jacobians(twin, points[:2].clone())  # one alone has no batch statistics
    except (RuntimeError, IndexError, TypeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{type(model).__name__} cannot be differentiated at inputs of shape {tuple(points.shape[1:])}: {reason}"
        ) from error
    return twin, points


def refuse_crossing(lower: Tensor | float, upper: Tensor | float) -> None:
    """A lower bound above its certificate, by more than rounding, is a mistake of ours and never an answer."""
    low, high = torch.as_tensor(lower), torch.as_tensor(upper)
    if not bool((low <= high * (1 + CROSSING)).all()):
        worst = (low - high).argmax()
        raise RuntimeError(
            f"a certified upper bound, {float(high.flatten()[worst]):.6g}, lies below what was met, "
            f"{float(low.flatten()[worst]):.6g}: this is a mistake in Spherometer, please report it with the model"
        )


def _secant(twin: nn.Module, points: Tensor) -> float | None:
    """The steepest, with the rounding of outputs taken off: samples that nearly agree would show nothing else."""
    with torch.no_grad():
        outputs = torch.cat([flat_outputs(twin, part) for part in points.split(1024)])
    flat, room = points.flatten(1), ROUNDING * float(outputs.norm(dim=1).max())
    slopes = [flat.new_zeros(0)]
    for rows, columns, upper in pairs_of(len(flat)):
        apart = distances(flat[rows], flat[columns])[upper]
        moved = (distances(outputs[rows], outputs[columns])[upper] - room).clamp_min(0)
        slopes.append((moved / apart)[apart > 0].sort().values[-1:])
    return max(torch.cat(slopes).tolist(), default=None)


def _balls(steps: list[Step], points: Tensor, radius: float, everywhere: Everywhere) -> Tensor | None:
    try:
        chain = whole_chain(steps, points[0].numel())
    except ReadingError:  # the bounds of the whole space stand
        return None
    return ball_certificates(chain, points.flatten(1), radius, everywhere).lipschitz
