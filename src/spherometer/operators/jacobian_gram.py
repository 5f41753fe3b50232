"""The Gram matrix of the parameter Jacobian, which knows nothing of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spherometer.operators.gauss_newton import OutputCurvature
from spherometer.problems import Evaluation, Piece, Problem


class JacobianGram(OutputCurvature):
    """K = ⟨J'J⟩, J the derivative of all outputs of a sample in the weights, mean over samples (B Eq 3).

    It is G of the half squared error, whatever the problem's own loss is; its trace is paper B's S (Q35). A sample is
    an entry of the outputs' first axis: a sequence counts once, with all its positions.

    Example:
        >>> trace(JacobianGram(problem))
    """

    def __init__(self, problem: Problem, *, at: Tensor | None = None) -> None:
        super().__init__(replace(problem, count=_count_samples), at=at)

    def _middle(self, part: Evaluation, piece: Piece) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        return lambda tangent: tangent / len(tangent)

    def _roots(self, part: Evaluation, piece: Piece) -> list[Tensor] | None:  # noqa: ARG002
        outputs = part.outputs.detach()
        unit = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        return [row.expand_as(outputs) for row in unit]


def _count_samples(outputs: Any, targets: Any) -> float:  # noqa: ARG001
    return float(len(outputs))
