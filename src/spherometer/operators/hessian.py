"""The Hessian of the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spherometer.operators.curvature import NUM_WEIGHED, CurvatureOperator, Graph
from spherometer.operators.gauss_newton import GaussNewton, record_evaluation
from spherometer.problems import Piece
from spherometer.problems.modes import differentiating
from spherometer.problems.weights import flatten


class Hessian(CurvatureOperator):
    """H = D²l, the matrix of second derivatives of the loss in the chosen parameters (A Eq 3, C Eq 5).

    Products are taken in reverse mode over reverse mode, the differentiation that was measured exact through every
    normalisation layer on this torch (ECOSYSTEM.md section 0): Hv = ∇(∇l·v), on one kept graph of ∇l.

    Example:
        >>> H = Hessian(problem)
        >>> H @ torch.randn(problem.num_parameters)
    """

    def _build(self, piece: Piece) -> Graph:
        weights = self.state.weights
        part = self.problem.evaluate(self.state, piece)
        if not part.count or not part.loss.requires_grad:
            return Graph.flat(part.count, weights)
        gradient = torch.autograd.grad(part.loss, weights, create_graph=True, materialize_grads=True)
        curved = [k for k, entry in enumerate(gradient) if entry.requires_grad]

        def product(vector: Sequence[Tensor]) -> Sequence[Tensor]:
            if not curved:
                return [torch.zeros_like(weight) for weight in weights]
            return torch.autograd.grad(
                [gradient[k] for k in curved],
                weights,
                [vector[k] for k in curved],
                retain_graph=True,
                materialize_grads=True,
            )

        return Graph(part.count, flatten(gradient).detach(), product)

    def exact_trace(self) -> float | None:
        """Tr H = Tr G where the outputs are multilinear in the weights between kinks (T12), as in ReLU networks."""
        return self._gauss_newton().exact_trace() if self.multilinear() else None

    def exact_diagonal(self) -> Tensor | None:
        """H_jj = G_jj under the same condition."""
        return self._gauss_newton().exact_diagonal() if self.multilinear() else None

    def multilinear(self) -> bool:
        """Whether every weight is used once, and only functions that bend at kinks are called (T12)."""
        piece = next(self.problem.sample(NUM_WEIGHED).pieces())
        with differentiating():
            return record_evaluation(self, piece)[1].piecewise_linear

    def _gauss_newton(self) -> GaussNewton:
        return GaussNewton(self.problem, at=self.state)
