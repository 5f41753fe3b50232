"""The shared work behind a set of measurements: one graph, one Lanczos run, one set of backward passes."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from spherometer.estimators import eigenvalues, frobenius, trace
from spherometer.estimators.randomness import child_stream
from spherometer.operators import EmpiricalFisher, GaussNewton, Hessian, Operator
from spherometer.operators.sensitivity import PLACES, Sensitivity, sensitivity
from spherometer.problems import Problem
from spherometer.values import Estimate


class Bench:
    """A problem on the bench: what one metric has worked out, the next one finds ready.

    Args:
        warm: the bench of a related problem, whose eigenvectors are good starts here.
        places: where the metrics to come will ask for Jacobians, so that one set of passes serves them all.
    """

    def __init__(
        self, problem: Problem, *, seed: int = 0, warm: Bench | None = None, places: frozenset[str] = PLACES
    ) -> None:
        self.problem, self.seed, self.warm, self.places = problem, seed, warm, places
        self._spectra: dict[tuple[str, str], Estimate] = {}
        self._traces: dict[str, Estimate] = {}

    @cached_property
    def hessian(self) -> Hessian:
        """H at the model's weights."""
        return Hessian(self.problem)

    @cached_property
    def gauss_newton(self) -> GaussNewton:
        """G at the same weights."""
        return GaussNewton(self.problem, at=self.weights)

    @cached_property
    def empirical_fisher(self) -> EmpiricalFisher:
        """⟨g g'⟩ at the same weights."""
        return EmpiricalFisher(self.problem, at=self.weights)

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """Jacobians of every sample at the input, the layers and the weights, as far as they will be asked for."""
        return sensitivity(self.problem, self.places, at=self.weights)

    @cached_property
    def residual(self) -> Operator:
        """H − G."""
        return self.hessian - self.gauss_newton

    @cached_property
    def weights(self) -> Tensor:
        """The flat vector of chosen weights."""
        return self.problem.state().vector

    @cached_property
    def loss(self) -> float:
        """The loss at these weights."""
        return self.problem.loss_at(self.weights)

    @cached_property
    def gradient(self) -> Tensor:
        """The flat gradient at these weights."""
        return self.hessian.gradient()

    @cached_property
    def multilinear(self) -> bool:
        """Whether Tr H = Tr G holds exactly (T12)."""
        return self.hessian.multilinear()

    def extreme(self, matrix: str, num: int = 1, which: str = "largest", rtol: float = 1e-3) -> Estimate:
        """The `num` largest or smallest eigenvalues of a matrix of this bench, with vectors; solved once."""
        known = self._spectra.get((matrix, which))
        if known is None or len(known.value) < num or bool((known.error > rtol * known.value.abs()).any()):
            warm = self.warm._spectra.get((matrix, which)) if self.warm else None
            start = known.vectors if known else warm.vectors if warm else None
            known = eigenvalues(
                getattr(self, matrix),
                num=num,
                which=which,
                rtol=rtol,
                start=start,
                vectors=True,
                memory=self.problem.memory,
                seed=self.seed,
            )
            self._spectra[matrix, which] = known
        return known

    def trace(self, matrix: str, rtol: float) -> Estimate:
        """The trace of a matrix of this bench; solved once."""
        return self._solved("trace", matrix, rtol)

    def frobenius(self, matrix: str, rtol: float) -> Estimate:
        """The Frobenius norm of a matrix of this bench; solved once."""
        return self._solved("frobenius", matrix, rtol)

    def _solved(self, kind: str, matrix: str, rtol: float) -> Estimate:
        estimate = {"trace": trace, "frobenius": frobenius}[kind]
        key = f"{kind} {matrix} {rtol}"
        if key not in self._traces:
            self._traces[key] = estimate(getattr(self, matrix), rtol=rtol, seed=self.seed)
        return self._traces[key]

    def generator(self, name: str) -> torch.Generator:
        """A stream of random numbers of its own for each name, so that a new metric moves no other number."""
        return child_stream(self.seed, name)
