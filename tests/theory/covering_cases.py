"""Uniform samples of supports with a dense grid to see their covering radius; `test_delta_good` breaks the promise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.stats import binom
from torch import Tensor

from spherometer.theory import Cube, Sphere, Support


@dataclass(frozen=True)
class Case:
    """A support, a number of samples and the 90 % quantile of their covering radius, from other draws."""

    support: Support
    num_samples: int
    observed_quantile: float

    def __str__(self) -> str:
        return f"{type(self.support).__name__}{self.support.dimension}"


CASES = [
    Case(Cube(1), 50, 0.0666),
    Case(Cube(2), 200, 0.162),
    Case(Cube(3), 400, 0.288),
    Case(Sphere(1), 60, 0.307),
    Case(Sphere(2), 300, 0.353),
]


def uniform(support: Support, num: int, generator: torch.Generator) -> Tensor:
    """Independent uniform points of a cube or a unit sphere."""
    if isinstance(support, Cube):
        return torch.rand(num, support.dimension, generator=generator, dtype=torch.float64)
    points = torch.randn(num, support.dimension + 1, generator=generator, dtype=torch.float64)
    return points / points.norm(dim=1, keepdim=True)


def grid(support: Support) -> Tensor:
    """About 2000 points spread evenly, corners of a cube included."""
    if isinstance(support, Cube):
        side = torch.linspace(0, 1, {1: 2001, 2: 45, 3: 13}[support.dimension], dtype=torch.float64)
        return torch.cartesian_prod(*[side] * support.dimension).reshape(-1, support.dimension)
    steps = torch.arange(2000, dtype=torch.float64) + 0.5
    if support.dimension == 1:
        return torch.stack([(steps * math.pi / 1000).cos(), (steps * math.pi / 1000).sin()], 1)
    height, angle = 1 - steps / 1000, steps * math.pi * (1 + math.sqrt(5))  # Fibonacci's spiral
    ring = (1 - height**2).sqrt()
    return torch.stack([ring * angle.cos(), ring * angle.sin(), height], 1)


def covering_radii(case: Case, num_runs: int = 200) -> Tensor:
    """The covering radius of independent draws on the grid."""
    generator, targets = torch.Generator().manual_seed(0), grid(case.support)
    draws = (uniform(case.support, case.num_samples, generator) for _ in range(num_runs))
    return torch.tensor([float(torch.cdist(targets, draw).amin(1).max()) for draw in draws])


def assert_promise_kept(observed: Tensor, radius: float, epsilon: float) -> None:
    """No more draws uncovered than a probability of `epsilon` explains (one test in a thousand fails by chance)."""
    missed = int((observed > radius).sum())
    allowed = int(binom.ppf(0.999, len(observed), epsilon))
    assert missed <= allowed, f"{missed} of {len(observed)} uncovered, promised at most {epsilon:.0%}"
