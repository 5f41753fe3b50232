"""The size of the derivative of the outputs by the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from spherometer.estimators.randomness import unit_vector
from spherometer.training.arguments import not_negative
from spherometer.training.penalties.penalty import Penalty, Term, evaluations


class InputJacobianPenalty(Penalty):
    """λ·N·C‖u'J‖², J the Jacobian of all N·C outputs of the batch by all its inputs, u uniform on the sphere of N·C.

    Its mean is λ‖J‖_F² = λ Σᵢ‖Jᵢ‖_F², a sum over the batch (T25). A Fig 33, Q88, L16; one more backward pass and its
    double. The caption of A Fig 33 says ‖J‖_F ≈ ‖u'J‖, without the factor, and does not say whether the square is
    meant (erratum A-e9):

    Args:
        squared: False penalises the norm rather than its square.
        scaled: False leaves out the factor N·C (√(N·C) for the norm), as printed.

    Example:
        >>> InputJacobianPenalty(0.01, generator=torch.Generator().manual_seed(0))
    """

    differentiates_inputs = True

    def __init__(
        self, coefficient: float, *, generator: torch.Generator, squared: bool = True, scaled: bool = True
    ) -> None:
        self.coefficient, self.generator = not_negative("a coefficient", coefficient), generator
        self.squared, self.scaled = squared, scaled

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """The penalty of this batch."""
        u = unit_vector(outputs.numel(), dtype=torch.float64, stream=self.generator)
        square = _square(inputs, outputs, u, create_graph=True) * (outputs.numel() if self.scaled else 1)
        return self.coefficient * (square if self.squared else _root(square))

    def over(self, model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Sequence[Term]:
        """Each ghost batch has its stretch of one u; the root of a sum is linearised at the present weights."""
        passes = evaluations(self, model, batches)
        inputs, _, outputs = first = next(passes)
        sizes = [outputs.numel() // len(inputs) * len(others) for others, _ in batches]
        stretches = unit_vector(sum(sizes), dtype=torch.float64, stream=self.generator).split(sizes)
        factor = sum(sizes) if self.scaled else 1
        if self.squared:
            return [self._term(u, factor, 0.0) for u in stretches]
        total = 0.0
        for (inputs, _, outputs), u in zip(chain([first], passes), stretches, strict=True):
            total += factor * float(_square(inputs, outputs, u, create_graph=False))
        root = total**0.5
        slope = factor / (2 * root) if root > 0 else 0.0
        return [self._term(u, slope, root / (2 * len(batches))) for u in stretches]

    def _term(self, u: Tensor, slope: float, shift: float) -> Term:
        def term(model: nn.Module, inputs: Tensor, targets: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG001
            return self.coefficient * (slope * _square(inputs, outputs, u, create_graph=True) + shift)

        return term


def _square(inputs: Tensor, outputs: Tensor, u: Tensor, *, create_graph: bool) -> Tensor:
    (pulled,) = torch.autograd.grad(outputs, inputs, u.to(outputs).view_as(outputs), create_graph=create_graph)
    return pulled.square().sum()


def _root(square: Tensor) -> Tensor:
    """The square root, with slope zero at zero."""
    positive = square > 0
    return torch.where(positive, square, 1.0).sqrt() * positive
