"""The mean over samples of the derivative of the outputs in the weights, ⟨J⟩, by way of its C x C Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.operators.operator import Operator
from spherometer.operators.output_jacobian import OutputJacobian
from spherometer.operators.squares import row_gram

NUM_COLUMNS = 1 << 11  # of the C x P gradients in one product of matrices
NUM_PRODUCTS = 1 << 6  # taken to double precision at once: they share the cores, and stay in the cache


class MeanJacobianGram(Operator):
    """⟨J⟩⟨J⟩', C x C: its largest eigenvalue is ‖⟨J⟩‖², its trace ‖⟨J⟩‖_F² (C Alg 2; Q45).

    `exact()` takes C backward passes, row by row ∇θ⟨z_c⟩, and is exact; a product `@` takes one J'u and one Jv, the
    way for many outputs. Algorithm 2 of the paper spends C + 1 passes on each step of a power iteration (L2).

    Args:
        projected: take Π⟨J⟩ with Π = I − 11'/C in the place of ⟨J⟩, which no shift of the logits changes (T19).
    """

    positive = True

    def __init__(self, jacobian: OutputJacobian, *, projected: bool = False) -> None:
        self.jacobian, self.projected = jacobian, projected
        size = jacobian.outputs.shape[1]
        super().__init__((size, size), jacobian.dtype, jacobian.device)

    def _apply(self, columns: Tensor) -> Tensor:
        shape = self.jacobian.outputs.shape
        weighted = self.project(columns).T[:, None, :].expand(-1, shape[0], -1) / shape[0]  # (k, N, C)
        moved = [self.jacobian @ self.jacobian.pull(cotangent) for cotangent in weighted]
        return self.project(torch.stack([change.view(shape).mean(0) for change in moved], 1))

    def project(self, columns: Tensor) -> Tensor:
        """Π u for each column, or the columns as they are."""
        return columns - columns.mean(0, keepdim=True) if self.projected else columns

    def exact(self) -> Tensor:
        """The whole matrix in double precision, by C backward passes."""
        rows = self.rows(0, self.shape[0]).T
        whole = rows.shape[1] - rows.shape[1] % NUM_COLUMNS
        blocks = rows[:, :whole].unflatten(1, (-1, NUM_COLUMNS)).transpose(0, 1).split(NUM_PRODUCTS)
        return torch.cat([row_gram(block) for block in (*blocks, rows[None, :, whole:])]).sum(0)

    def rows(self, start: int, stop: int) -> Tensor:
        """Gradients ∇θ⟨z_c⟩ of the mean outputs c = start … stop − 1 as columns (P, stop − start)."""
        shape = self.jacobian.outputs.shape
        unit = self.project(torch.eye(shape[1], dtype=self.dtype, device=self.device))[:, start:stop]
        return self.jacobian.pull((unit / shape[0]).expand(shape[0], -1, -1))

    @property
    def fits(self) -> bool:
        """Whether all C gradients fit into the memory limit at once."""
        return self.shape[0] * self.jacobian.shape[1] * 8 <= self.jacobian.problem.memory

    def exact_trace(self) -> float:
        """‖⟨J⟩‖_F² = Σ_c ‖∇θ⟨z_c⟩‖², block by block of outputs."""
        step = max(1, int(self.jacobian.problem.memory / (16 * self.jacobian.shape[1])))
        blocks = range(0, self.shape[0], step)
        return sum(float(self.rows(k, min(k + step, self.shape[0])).double().square().sum()) for k in blocks)
