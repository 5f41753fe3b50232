"""The shared work behind a set of measurements: one graph, one Lanczos run, one set of backward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from spherometer.estimators import Nearby, eigenvalues, follow, frobenius, trace
from spherometer.estimators.matrices import MatrixLike
from spherometer.estimators.randomness import child_stream
from spherometer.estimators.search import Which
from spherometer.metrics.blocks import BlockTraces, block_traces
from spherometer.operators import EmpiricalFisher, GaussNewton, Hessian, JacobianGram, Operator, Rescaled
from spherometer.operators.sensitivity import PLACES, Sensitivity, sensitivity
from spherometer.operators.trial import Trial, try_out
from spherometer.problems import Problem
from spherometer.problems.losses import num_slopes
from spherometer.values import Estimate

Shared = TypeVar("Shared")


class Bench:
    """A problem on the bench: what one metric has worked out, the next one finds ready.

    Args:
        starts: `nearby` of the bench of a related problem: what is known of spectra like those here.
        places: where the metrics to come will ask for Jacobians, so that one set of passes serves them all.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        starts: Mapping[str, Nearby] | None = None,
        places: frozenset[str] = PLACES,
    ) -> None:
        self.problem, self.seed, self.starts, self.places = problem, seed, starts or {}, places
        self.nearby: dict[str, Nearby] = {}
        self._spectra: dict[str, list[_Solved]] = {}
        self._traces: dict[str, Estimate] = {}
        self._shared: dict[Callable[[Bench], Any], Any] = {}
        self._blocks: dict[tuple[str, float], BlockTraces] = {}

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
        return sensitivity(self.problem, self.places, at=self.weights, trial=self.trial)

    @cached_property
    def trial(self) -> Trial:
        """How the model uses its linear maps, from two samples."""
        return try_out(self.problem, self.problem.state(self.weights))

    @cached_property
    def num_terms(self) -> float:
        """Number of loss terms of all the data; where Jacobians were taken, they have counted them."""
        taken = "sensitivity" in vars(self)
        return self.sensitivity.num_terms if taken else self.problem.num_terms

    @cached_property
    def jacobian_gram(self) -> JacobianGram:
        """⟨J'J⟩ at the same weights."""
        return JacobianGram(self.problem, at=self.weights)

    @cached_property
    def adaptive_hessian(self) -> Operator:
        """diag(θ) H diag(θ)."""
        return Rescaled(self.hessian, self.weights)

    @cached_property
    def adaptive_gram(self) -> Operator:
        """diag(θ) ⟨J'J⟩ diag(θ)."""
        return Rescaled(self.jacobian_gram, self.weights)

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
        return self.problem.gradient_at(self.weights)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The chosen weights by name."""
        return self.problem.split(self.weights)

    @cached_property
    def num_samples(self) -> int:
        """How many loss terms have a gradient of their own: samples, or the counted tokens of a language model."""
        state, total = self.problem.state(self.weights), 0.0
        with torch.no_grad():
            for piece in self.problem.pieces():
                part = self.problem.evaluate(state, piece)
                total += num_slopes(self.problem.loss, part.outputs, part.targets)
        return round(total)

    @cached_property
    def multilinear(self) -> bool:
        """Whether Tr H = Tr G holds exactly (T12)."""
        return self.hessian.multilinear()

    def extreme(self, matrix: str, num: int = 1, which: Which = "largest", rtol: float = 1e-3) -> Estimate:
        """The `num` largest or smallest eigenvalues of a matrix of this bench, with vectors; solved once."""
        key = f"{which} of {matrix}"
        solved = self._spectra.setdefault(key, [])
        known = next((one for one in solved if one.serves(num, rtol)), None)
        if known is None:
            known = _Solved(rtol, self.spectrum(key, getattr(self, matrix), num=num, which=which, rtol=rtol))
            solved.append(known)
        return known.found

    def spectrum(
        self, key: str, matrix: MatrixLike, *, num: int = 1, which: Which = "largest", rtol: float = 1e-3
    ) -> Estimate:
        """Eigenvalues of any matrix, from what is known under this key; two vectors more than wanted are kept.

        The next search then sees the first eigenvalues cross. One more was not enough: at the edge of stability, with
        the first two 1 % apart, a warm search stayed with the second, five times its stated error away.
        """
        memory = self.problem.memory
        if num == 1 and which == "largest":
            known = self.nearby.get(key, self.starts.get(key))
            found, self.nearby[key] = follow(matrix, known, rtol=rtol, memory=memory, seed=self.seed)
            return found
        several = key if num == 1 else f"{num} {key}"
        known = self.starts.get(several, self.nearby.get(key, self.starts.get(key)))
        start = None if known is None or known.frame else known.vectors[:, : num + 2]
        found = eigenvalues(
            matrix, num=num, which=which, rtol=rtol, start=start, vectors=num + 2, memory=memory, seed=self.seed
        )
        assert found.vectors is not None
        self.nearby[several] = Nearby.unknown(found.vectors)
        return found

    def trace(self, matrix: str, rtol: float) -> Estimate:
        """The trace of a matrix of this bench; solved once."""
        return self._solved("trace", matrix, rtol)

    def frobenius(self, matrix: str, rtol: float) -> Estimate:
        """The Frobenius norm of a matrix of this bench; solved once."""
        return self._solved("frobenius", matrix, rtol)

    def block_traces(self, matrix: str, rtol: float) -> BlockTraces:
        """The trace of the block of each parameter tensor: exact by ghost norms where possible (T12); solved once."""
        if (matrix, rtol) not in self._blocks:
            self._blocks[matrix, rtol] = self._exact_blocks(matrix) or block_traces(
                getattr(self, matrix),
                {name: shape.numel() for name, shape in self.problem.shapes.items()},
                rtol=rtol,
                generator=self.generator(f"block traces of {matrix}"),
            )
        return self._blocks[matrix, rtol]

    def _exact_blocks(self, matrix: str) -> BlockTraces | None:
        squares = self.gauss_newton if matrix == "hessian" and self.multilinear else getattr(self, matrix)
        norms = None if isinstance(squares, Hessian) else squares.exact_norms()
        if norms is None:
            return None
        return BlockTraces(tuple(norms), torch.tensor([list(norms.values())], dtype=torch.float64))

    def _solved(self, kind: str, matrix: str, rtol: float) -> Estimate:
        estimate = {"trace": trace, "frobenius": frobenius}[kind]
        key = f"{kind} {matrix} {rtol}"
        if key not in self._traces:
            self._traces[key] = estimate(getattr(self, matrix), rtol=rtol, memory=self.problem.memory, seed=self.seed)
        return self._traces[key]

    def generator(self, name: str) -> torch.Generator:
        """A stream of random numbers of its own for each name, so that a new metric moves no other number."""
        return child_stream(self.seed, name)

    def shared(self, make: Callable[[Bench], Shared]) -> Shared:
        """`make(bench)`, worked out once: for what several metrics of one family need and no other does."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]


@dataclass(frozen=True)
class _Solved:
    """Eigenvalues that were asked for to a tolerance, which they need not have reached."""

    rtol: float
    found: Estimate

    def serves(self, num: int, rtol: float) -> bool:
        """Whether they answer a question for `num` of them: asking again would bring no more."""
        values, errors = (torch.as_tensor(part)[:num] for part in (self.found.value, self.found.error))
        return len(values) == num and (self.rtol <= rtol or bool((errors <= rtol * values.abs()).all()))
