"""The path of the weights, small enough to keep: a random projection that nearly preserves all distances (L30)."""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.estimators.randomness import child_stream
from spherometer.problems import Problem

COPIES = 4  # entries of each column that are not zero


class Sketch:
    """θ ↦ Sθ with S (size x P) sparse: each weight enters four of `size` sums, with a random sign and weight ½.

    E‖Sθ‖² = ‖θ‖², and distances between T points are kept to within about √(log T / size) (sparse
    Johnson-Lindenstrauss: Kane and Nelson 2014). Paper C draws the path itself (App J), which needs T·P numbers.

    Example:
        >>> Sketch(problem, size=256, seed=0)(problem.state().vector).shape
        torch.Size([256])
    """

    def __init__(self, problem: Problem, *, size: int = 256, seed: int = 0) -> None:
        if size < COPIES:
            raise ValueError(f"expected a size of at least {COPIES}, got {size}")
        self.size, number = size - size % COPIES, problem.num_parameters
        stream, block = child_stream(seed, "trajectory"), self.size // COPIES
        # One entry in each of four blocks: the four sums that a weight enters differ.
        self._places = [
            (k * block + torch.randint(block, (number,), generator=stream)).to(problem.device) for k in range(COPIES)
        ]
        self._signs = [
            (torch.randint(2, (number,), generator=stream, dtype=torch.int8) * 2 - 1).to(problem.device)
            for _ in range(COPIES)
        ]

    def __call__(self, weights: Tensor) -> Tensor:
        """The projection of one flat vector, in float64."""
        total = torch.zeros(self.size, dtype=torch.float64, device=weights.device)
        for places, signs in zip(self._places, self._signs, strict=True):
            total.index_add_(0, places, signs * weights.double())
        return total / COPIES**0.5
