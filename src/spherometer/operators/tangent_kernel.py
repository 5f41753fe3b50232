"""The empirical tangent kernel weighted by the curvature of the loss: Gauss-Newton seen from the outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.operators.gauss_newton import GaussNewton
from spherometer.operators.logit_hessian import root_adjoint, root_product
from spherometer.operators.operator import Operator
from spherometer.operators.output_jacobian import OutputJacobian
from spherometer.problems import Likelihood, Problem, likelihood_of


class TangentKernel(Operator):
    """The N·C x N·C matrix with blocks N⁻¹ L_i' J_i J_j' L_j, L L' = M: its nonzero spectrum is that of G (A Eq 4; T7).

    For softmax cross-entropy L = diag(√p) − p√p', for squared error L ∝ I, where it is the plain kernel J J'/N.
    A product costs one J'u and one Jv.

    Example:
        >>> eigenvalues(TangentKernel(problem), num=3)
    """

    positive = True

    def __init__(self, problem: Problem, *, at: Tensor | None = None, jacobian: OutputJacobian | None = None) -> None:
        self.jacobian = jacobian or OutputJacobian(problem, at=at)
        self.likelihood = known_likelihood(self.jacobian)
        size = self.jacobian.shape[0]
        super().__init__((size, size), problem.precision, problem.device)
        self.probabilities = self.jacobian.outputs.softmax(1)

    def _apply(self, columns: Tensor) -> Tensor:
        shape = self.probabilities.shape
        cotangents = torch.stack([self.root(column.view(shape)) for column in columns.T], -1)
        moved = [self.jacobian @ self.jacobian.pull(cotangents[..., k]) for k in range(columns.shape[1])]
        return torch.stack([self.root_transposed(z.view(shape)).reshape(-1) for z in moved], 1) / len(
            self.probabilities
        )

    def root(self, vectors: Tensor) -> Tensor:
        """L_i u_i for each sample, (N, C)."""
        if self.likelihood.family == "gaussian":
            return self.likelihood.precision**0.5 * vectors
        return root_product(self.probabilities, vectors)

    def root_transposed(self, vectors: Tensor) -> Tensor:
        """L_i' u_i for each sample, (N, C)."""
        if self.likelihood.family == "gaussian":
            return self.likelihood.precision**0.5 * vectors
        return root_adjoint(self.probabilities, vectors)

    def exact_trace(self) -> float | None:
        """The trace of G, where that is cheap."""
        return GaussNewton(self.jacobian.problem, at=self.jacobian.state).exact_trace()


def known_likelihood(jacobian: OutputJacobian) -> Likelihood:
    """The model distribution behind the loss; refuses a loss whose Hessian in the outputs has no closed form."""
    likelihood = likelihood_of(jacobian.problem.loss, jacobian.outputs)
    if likelihood is None:
        raise ValueError(
            "the Hessian of this loss in the outputs has no known closed form: expected CrossEntropyLoss without class "
            "weights, HalfSquaredError or MSELoss"
        )
    if not jacobian.uniform:
        raise ValueError(
            f"expected each sample to count alike in the loss, got {sum(jacobian.counts):g} terms for "
            f"{len(jacobian.outputs)} samples: leave ignored samples out of the data"
        )
    return likelihood
