"""The largest loss in a box or ball around the weights, searched by projected gradient ascent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from spherometer.problems import Problem
from spherometer.problems.weights import flatten

Norm = Literal["l2", "linf"]


@dataclass(frozen=True)
class Ball:
    """The weights θ + s ∘ u with ‖u‖ ≤ radius, in the l2 or the l∞ norm."""

    centre: Tensor
    scale: Tensor  # s ≥ 0; an entry of 0 does not move
    radius: float
    norm: Norm

    def weights(self, shift: Tensor) -> Tensor:
        """θ + s ∘ u."""
        return self.centre + self.scale * shift

    def projected(self, shift: Tensor) -> Tensor:
        """The nearest u inside."""
        if self.norm == "linf":
            return shift.clamp(-self.radius, self.radius)
        return shift * min(1.0, self.radius / max(float(shift.norm()), torch.finfo(shift.dtype).tiny))

    def steepest(self, gradient: Tensor) -> Tensor:
        """The u of length `radius` along which a function of this gradient in the weights rises fastest."""
        slope = self.scale * gradient
        if self.norm == "linf":
            return self.radius * slope.sign()
        return slope * (self.radius / max(float(slope.norm()), torch.finfo(slope.dtype).tiny))

    def random(self, stream: Generator) -> Tensor:
        """A random u on the boundary (l2) or in a corner (l∞)."""
        noise = torch.randn(self.centre.shape, generator=stream, dtype=torch.float64).to(self.centre)
        return self.steepest(noise / self.scale.where(self.scale > 0, 1))


def largest_losses(problem: Problem, ball: Ball, *, steps: int, restarts: int, stream: Generator) -> list[float]:
    """The best loss found from each start: first along the gradient, then from `restarts` random points.

    Each is a loss that is really reached, hence a lower bound of the maximum.
    """
    gradient = problem.gradient_at(ball.centre)
    starts = [ball.steepest(gradient)] + [ball.random(stream) for _ in range(restarts)]
    return [_ascend(problem, ball, start, steps) for start in starts]


def _ascend(problem: Problem, ball: Ball, shift: Tensor, steps: int) -> float:
    """Steps along the steepest direction; a step that does not raise the loss is taken back and halved."""
    best, gradient = loss_and_gradient(problem, ball.weights(shift))
    length = 2.0  # in units of the radius: the first steps may cross the whole ball
    for _ in range(steps - 1):
        trial = ball.projected(shift + length * ball.steepest(gradient))
        loss, slope = loss_and_gradient(problem, ball.weights(trial))
        if loss > best:
            shift, best, gradient = trial, loss, slope
        else:
            length /= 2
    return best


def loss_and_gradient(problem: Problem, vector: Tensor) -> tuple[float, Tensor]:
    """Loss and flat gradient at a vector of weights, from one set of passes."""
    loss, gradient = problem.loss_and_gradient(problem.state(vector))
    return loss, flatten(gradient)
