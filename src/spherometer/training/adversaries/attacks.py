"""Attacks by gradient ascent on the loss: PGD with any number of steps and restarts, FGSM as its single step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from spherometer.training.adversaries.balls import Norm, ball

Bounds = tuple[float, float] | None
Gain = Callable[[Tensor], Tensor]  # adversarial inputs (n, ...) -> what is to be large, for each sample (n,)


class Attack(Protocol):
    """Inputs and their classes in, inputs near them that the model gets wrong out, as far as the attack can.

    The model is used in the mode it is found in (`robust_accuracy` puts it into eval mode); neither its weights nor
    its `.grad` change.
    """

    @property
    def norm(self) -> Norm:
        """Of the ball."""
        ...

    @property
    def radius(self) -> float:
        """Of the ball."""
        ...

    @property
    def bounds(self) -> Bounds:
        """Where inputs live."""
        ...

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor, generator: Generator) -> Tensor:
        """Adversarial inputs, within `radius` of the given ones and within `bounds`."""
        ...


@dataclass(frozen=True)
class PGD:
    """Projected gradient ascent: x' ← Π(x' + step · steepest(∇ loss)) inside a ball around x and the input bounds.

    Madry et al. (2018); L22. The steepest direction is the sign for `linf` and the normalised gradient for `l2`. Of
    several restarts each sample keeps the point of largest margin max_{c≠y} z_c − z_y. The step is
    2.5 radius/num_steps when none is given, enough to reach the border from anywhere. `bounds` is where inputs live:
    [0, 1] for images, None for anything.

    Example:
        >>> attack = PGD(8 / 255, num_steps=20, step_size=2 / 255)
        >>> adversarial = attack(model, inputs, targets, torch.Generator().manual_seed(0))
    """

    radius: float
    norm: Norm = "linf"
    num_steps: int = 20
    step_size: float | None = None
    num_restarts: int = 1
    random_start: bool = True
    bounds: Bounds = (0.0, 1.0)

    def __post_init__(self) -> None:
        ball(self.norm, self.radius)
        if self.num_steps < 1 or self.num_restarts < 1:
            raise ValueError(
                f"expected at least one step and one restart, got {self.num_steps} and {self.num_restarts}"
            )
        if self.step_size is not None and not self.step_size > 0:
            raise ValueError(f"expected a positive step size, got {self.step_size}")
        if self.num_restarts > 1 and not self.random_start:
            raise ValueError(f"expected a random start for {self.num_restarts} restarts: without one they are the same")
        if self.bounds is not None and not self.bounds[0] < self.bounds[1]:
            raise ValueError(f"expected bounds (low, high) with low < high, got {self.bounds}")

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor, generator: Generator) -> Tensor:
        """The adversarial inputs; see `Attack`."""

        def gain(moved: Tensor) -> Tensor:
            return cross_entropy(model(moved), targets, reduction="none")

        best = self.maximise(gain, inputs, generator)
        if self.num_restarts == 1:
            return best
        reached = margins(model, best, targets)
        for _ in range(self.num_restarts - 1):
            found = self.maximise(gain, inputs, generator)
            margin = margins(model, found, targets)
            best[margin > reached] = found[margin > reached]
            reached = torch.maximum(reached, margin)
        return best

    def maximise(self, gain: Gain, inputs: Tensor, generator: Generator) -> Tensor:
        """One ascent on any gain, from one start: the inner maximisation of AT and TRADES."""
        check_range(inputs, self.bounds)
        inputs, region = inputs.detach(), ball(self.norm, self.radius)
        step = 2.5 * self.radius / self.num_steps if self.step_size is None else self.step_size
        moved = inside(inputs + region.draw(inputs, generator), self.bounds) if self.random_start else inputs
        for _ in range(self.num_steps):
            moved = moved.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(gain(moved).sum(), moved)
            moved = moved.detach() + step * region.steepest(gradient)
            moved = inside(inputs + region.project(moved - inputs), self.bounds)
        return moved


def fgsm(radius: float, norm: Norm = "linf", *, bounds: Bounds = (0.0, 1.0)) -> PGD:
    """The fast gradient method: one step of full length from the input itself.  Goodfellow et al. (2015).

    Example:
        >>> adversarial = fgsm(8 / 255)(model, inputs, targets, torch.Generator().manual_seed(0))
    """
    return PGD(radius, norm, num_steps=1, step_size=radius or 1.0, random_start=False, bounds=bounds)


@dataclass(frozen=True)
class Noise:
    """A uniform draw from the ball: what an attack must beat to deserve the name."""

    radius: float
    norm: Norm = "linf"
    bounds: Bounds = (0.0, 1.0)

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor, generator: Generator) -> Tensor:
        """The noisy inputs; the model is not asked."""
        del model, targets
        check_range(inputs, self.bounds)
        return inside(inputs + ball(self.norm, self.radius).draw(inputs, generator), self.bounds)


def inside(inputs: Tensor, bounds: Bounds) -> Tensor:
    """Inputs cut off at the bounds, which brings none of them farther from a point that was inside."""
    return inputs if bounds is None else inputs.clamp(*bounds)


@torch.no_grad()
def margins(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """max_{c≠y} z_c − z_y of each sample: positive where the model is wrong."""
    logits: Tensor = model(inputs)
    rows = torch.arange(len(targets), device=logits.device)
    own = logits[rows, targets]
    others = logits.index_put((rows, targets), torch.full_like(own, -torch.inf))
    return others.amax(dim=1) - own


def check_floats(inputs: Tensor) -> None:
    """Refuse bytes and other whole numbers."""
    if not inputs.is_floating_point():
        raise TypeError(
            f"expected inputs of floats to differentiate with respect to, got {inputs.dtype}: images of bytes become "
            "floats in [0, 1] by inputs / 255"
        )


def check_range(inputs: Tensor, bounds: Bounds) -> None:
    """Refuse inputs outside the bounds: a standardised image is not what the radius is measured on."""
    check_floats(inputs)
    if bounds is None or not inputs.numel():
        return
    low, high = float(inputs.min()), float(inputs.max())
    if low < bounds[0] or high > bounds[1]:
        raise ValueError(
            f"expected inputs in [{bounds[0]:g}, {bounds[1]:g}], got {low:.4g} to {high:.4g}: attack unstandardised "
            "inputs and put the standardisation inside the model (zoo.Standardised), or give other bounds"
        )
