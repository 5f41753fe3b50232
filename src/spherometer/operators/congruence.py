"""S A S for a known symmetric S: the same matrix in other coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.operators.operator import Operator


class Rescaled(Operator):
    """diag(s) A diag(s) for any s; with s = θ its trace Σ_j θ_j² A_jj does not change when layers are rescaled (Q59).

    Example:
        >>> trace(Rescaled(Hessian(problem), problem.state().vector))
    """

    def __init__(self, operator: Operator, scale: Tensor) -> None:
        if tuple(scale.shape) != operator.shape[:1]:
            raise ValueError(f"expected a scale of length {operator.shape[0]}, got shape {tuple(scale.shape)}")
        super().__init__(operator.shape, operator.dtype, operator.device)
        self.operator = operator
        self.scale = scale.detach().to(operator.device, operator.dtype)
        self.symmetric, self.positive = operator.symmetric, operator.positive

    def _apply(self, columns: Tensor) -> Tensor:
        return self.scale[:, None] * (self.operator @ (self.scale[:, None] * columns))

    def exact_diagonal(self) -> Tensor | None:
        """s² diag(A)."""
        diagonal = self.operator.exact_diagonal()
        return None if diagonal is None else self.scale.square() * diagonal

    def exact_trace(self) -> float | None:
        """Sum of the exact diagonal."""
        diagonal = self.exact_diagonal()
        return None if diagonal is None else float(diagonal.sum())


class RowMixed(Operator):
    """(R ⊗ I) A (R ⊗ I) with R = (W W')^(1/2), A acting on matrices of W's shape in row-major order.

    Its trace is Σ_{s,s'} ⟨w_s, w_s'⟩ Tr(A_{s,s'}) over the rows of W (Q61).
    """

    def __init__(self, operator: Operator, weight: Tensor) -> None:
        if weight.ndim != 2 or weight.numel() != operator.shape[0]:
            raise ValueError(f"expected a matrix of {operator.shape[0]} entries, got shape {tuple(weight.shape)}")
        super().__init__(operator.shape, operator.dtype, operator.device)
        self.operator = operator
        with torch.autocast(operator.device.type, enabled=False):
            values, vectors = torch.linalg.eigh((weight @ weight.T).detach().to(operator.device, operator.dtype))
            self.root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        self.symmetric, self.positive = operator.symmetric, operator.positive

    def _apply(self, columns: Tensor) -> Tensor:
        return self._mixed(self.operator @ self._mixed(columns))

    def _mixed(self, columns: Tensor) -> Tensor:
        rows = columns.reshape(len(self.root), -1)  # (C, d·k)
        return (self.root @ rows).reshape(columns.shape)
