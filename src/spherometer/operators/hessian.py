"""The Hessian of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from spherometer.operators.curvature import NUM_WEIGHED, CurvatureOperator, Graph
from spherometer.operators.double_backward import FastDoubleBackward
from spherometer.operators.gauss_newton import GaussNewton, record_evaluation
from spherometer.operators.squares import Layer, Signs, layers_of
from spherometer.problems import Piece
from spherometer.problems.modes import differentiating
from spherometer.problems.problem import refuse_no_terms


class Hessian(CurvatureOperator):
    """H = D²l, the matrix of second derivatives of the loss in the chosen parameters (A Eq 3, C Eq 5).

    Products are taken in reverse mode over reverse mode, the differentiation that was measured exact through every
    normalisation layer on this torch (docs/operators.md): Hv = ∇(∇l·v), on one kept graph of ∇l.

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

        return Graph(part.count, [entry.detach() for entry in gradient], product)

    def exact_trace(self) -> float | None:
        """Tr H = Tr G where the outputs are multilinear in the weights between kinks (T12), as in ReLU networks."""
        return self._gauss_newton().exact_trace() if self.multilinear() else None

    def exact_diagonal(self) -> Tensor | None:
        """H_jj = G_jj under the same condition."""
        return self._gauss_newton().exact_diagonal() if self.multilinear() else None

    @cached_property
    def knows_samples(self) -> bool:
        """Whether each sample can be given signs of its own: its layers are known, and no sample sees another."""
        with differentiating():
            (piece,) = self.problem.sample(1).pieces()
            layers = layers_of(record_evaluation(self, piece)[1]) if self.problem.splittable else None
            ones = partial(torch.ones, dtype=self.dtype, device=self.device)
            return layers is not None and all(layer.nudge(ones) is not None for layer in layers)

    def trace_samples(self, number: int, signs: Signs) -> Tensor:
        """Numbers ⟨v_i'H_i v_i⟩ with independent signs v_i for each sample i: E is tr H.

        One v for all samples has the variance 2‖⟨H_i⟩‖² (off the diagonal), independent ones have 2⟨‖H_i‖²⟩/n. Nobody
        multiplies n matrices: a layer y = Wa turns v_i into a change u_i of its output, and u_i'(∂²l/∂y²)u_i comes
        from one product for all samples and layers at once.
        """
        total, terms = torch.zeros(number, dtype=torch.float64), 0.0
        for piece in self.problem.pieces(self.plan.piece_size):
            with differentiating(), FastDoubleBackward():
                part, recorder = record_evaluation(self, piece)
                layers = layers_of(recorder)
                assert layers is not None, "a piece has other layers than the first sample"
                total += part.count * torch.stack([form.cpu() for form in _forms(part.loss, layers, number, signs)])
            terms += part.count
        refuse_no_terms(terms)
        return total / terms

    def multilinear(self) -> bool:
        """Whether every weight is used once, and only functions that bend at kinks are called (T12)."""
        piece = next(self.problem.sample(NUM_WEIGHED).pieces())
        with differentiating():
            return record_evaluation(self, piece)[1].piecewise_linear

    def _gauss_newton(self) -> GaussNewton:
        return GaussNewton(self.problem, at=self.state)


def _forms(loss: Tensor, layers: Sequence[Layer], number: int, signs: Signs) -> Iterator[Tensor]:
    """Σ_l,m u_l'(∂²l/∂y_l ∂y_m)u_m for the outputs y of all layers, so many times with fresh signs."""
    outputs = [layer.output for layer in layers]
    slopes = torch.autograd.grad(loss, outputs, create_graph=True, materialize_grads=True)
    curved = [k for k, slope in enumerate(slopes) if slope.requires_grad]
    for _ in range(number):
        nudges = [nudge for layer in layers if (nudge := layer.nudge(signs)) is not None]
        if not curved:
            yield loss.new_zeros((), dtype=torch.float64)
            continue
        changes = torch.autograd.grad(
            [slopes[k] for k in curved],
            outputs,
            [nudges[k] for k in curved],
            retain_graph=True,
            materialize_grads=True,
        )
        forms = [(nudge * change).sum(dtype=torch.float64) for nudge, change in zip(nudges, changes, strict=True)]
        yield torch.stack(forms).sum()
