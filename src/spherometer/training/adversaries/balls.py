"""Balls an adversary may move in: where to start, where to step, how to come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite, prod
from typing import Literal

import torch
from torch import Generator, Tensor

Norm = Literal["linf", "l2"]


@dataclass(frozen=True)
class Ball(ABC):
    """All δ with ‖δ‖ ≤ radius, for each sample of a batch (n, ...) by itself."""

    radius: float

    def __post_init__(self) -> None:
        if not (isfinite(self.radius) and self.radius >= 0):
            raise ValueError(f"expected a finite radius that is not negative, got {self.radius}")

    @abstractmethod
    def draw(self, like: Tensor, generator: Generator) -> Tensor:
        """Points uniform in the ball."""

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """The δ of norm one along which a linear function with this gradient grows most; zero where it is zero."""

    @abstractmethod
    def project(self, perturbation: Tensor) -> Tensor:
        """The nearest points of the ball."""

    @abstractmethod
    def norm(self, perturbation: Tensor) -> Tensor:
        """The norm of each sample's perturbation, (n,)."""


class MaximumBall(Ball):
    """‖δ‖_∞ ≤ radius: no entry moves farther than the radius."""

    def draw(self, like: Tensor, generator: Generator) -> Tensor:
        """Every entry uniform in [-radius, radius]."""
        return self.radius * (2 * _uniform(like.shape, like, generator) - 1)

    def steepest(self, gradient: Tensor) -> Tensor:
        """sign ∇."""
        return gradient.sign()

    def project(self, perturbation: Tensor) -> Tensor:
        """Entries cut off at the radius."""
        return perturbation.clamp(-self.radius, self.radius)

    def norm(self, perturbation: Tensor) -> Tensor:
        """The largest entry."""
        return perturbation.flatten(1).abs().amax(dim=1)


class EuclideanBall(Ball):
    """‖δ‖₂ ≤ radius, over all entries of a sample."""

    def draw(self, like: Tensor, generator: Generator) -> Tensor:
        """A uniform direction times radius · U^{1/d}."""
        normal = torch.randn(like.shape, generator=generator, device=generator.device).to(like)
        length = _uniform((len(like),), like, generator) ** (1 / prod(like.shape[1:]))
        return self.radius * _rows(length, like) * self.steepest(normal)

    def steepest(self, gradient: Tensor) -> Tensor:
        """∇/‖∇‖₂."""
        length = self.norm(gradient)
        return gradient / _rows(torch.where(length > 0, length, 1.0), gradient)

    def project(self, perturbation: Tensor) -> Tensor:
        """Shortened to the radius where longer."""
        length = self.norm(perturbation)
        return perturbation * _rows(torch.where(length > self.radius, self.radius / length, 1.0), perturbation)

    def norm(self, perturbation: Tensor) -> Tensor:
        """The Euclidean length."""
        return perturbation.flatten(1).norm(dim=1)


def ball(norm: Norm, radius: float) -> Ball:
    """The ball of a norm by its name, `linf` or `l2`."""
    kinds: dict[str, type[Ball]] = {"linf": MaximumBall, "l2": EuclideanBall}
    if norm not in kinds:
        raise ValueError(f"expected a norm of {', '.join(kinds)}, got {norm!r}")
    return kinds[norm](radius)


def _uniform(shape: torch.Size | tuple[int, ...], like: Tensor, generator: Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device).to(like)


def _rows(factors: Tensor, like: Tensor) -> Tensor:
    """(n,) as (n, 1, ...), to be multiplied with a batch."""
    return factors.view(-1, *[1] * (like.ndim - 1))
