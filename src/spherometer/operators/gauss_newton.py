"""Matrices of the form ⟨J'MJ⟩: Gauss-Newton and the Fisher matrices, which differ only in the middle."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from spherometer.operators.curvature import CurvatureOperator, Graph
from spherometer.operators.middle import (
    drawn_scores,
    exact_middle,
    gauged,
    likelihood_roots,
    scores_middle,
)
from spherometer.operators.recorder import Recorder, record
from spherometer.operators.squares import Layer, layers_of
from spherometer.problems import Evaluation, Likelihood, Piece, Problem, State, likelihood_of
from spherometer.problems.losses import count_terms, counted_terms, num_slopes, term_weights, terms_are_positions
from spherometer.problems.modes import differentiating
from spherometer.problems.problem import refuse_no_terms


class OutputCurvature(CurvatureOperator):
    """⟨J'MJ⟩ with J the derivative of the outputs in the weights and M a positive matrix on the outputs.

    A subclass writes `_middle`, the product with M, and `_roots`, vectors with M = Σ r r'. Jv is taken as the
    derivative of u ↦ J'u (exact on every layer, where forward mode is missing or wrong on some).
    """

    positive = True

    @abstractmethod
    def _middle(self, part: Evaluation, piece: Piece) -> Callable[[Tensor], Tensor]:
        """M of a piece, divided by its number of terms."""

    @abstractmethod
    def _roots(self, part: Evaluation, piece: Piece) -> list[Tensor] | None:
        """Vectors r_k (n, C) with M_i = Σ_k r_ki r_ki' for each sample, or None when they are not known."""

    def _build(self, piece: Piece) -> Graph:
        weights = self.state.weights
        part = self.problem.evaluate(self.state, piece)
        outputs = _single_tensor(part.outputs)
        if not part.count or not outputs.requires_grad:
            return Graph.flat(part.count, weights)
        slope = torch.autograd.grad(part.loss, outputs, retain_graph=True)[0]
        direction = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, weights, direction, create_graph=True, materialize_grads=True)
        linked = [k for k, entry in enumerate(pulled) if entry.requires_grad]
        if not linked:
            return Graph.flat(part.count, weights)
        middle = self._middle(part, piece)

        def product(vector: Sequence[Tensor]) -> Sequence[Tensor]:
            (tangent,) = torch.autograd.grad(
                [pulled[k] for k in linked], direction, [vector[k] for k in linked], retain_graph=True
            )
            return torch.autograd.grad(outputs, weights, middle(tangent), retain_graph=True, materialize_grads=True)

        gradient = torch.autograd.grad(outputs, weights, slope, retain_graph=True, materialize_grads=True)
        return Graph(part.count, gradient, product)

    def exact_trace(self) -> float | None:
        """tr⟨J'MJ⟩ = ⟨Σ_k ‖J'r_k‖²⟩ by ghost norms: one backward pass to the layers per root."""
        norms = self.exact_norms()
        return None if norms is None else float(sum(norms.values()))

    def exact_norms(self) -> dict[str, float] | None:
        """The share of each parameter tensor in the exact trace, by name."""
        sums = self._accumulate(
            lambda layer, gradient: ((k, norm.sum(dtype=torch.float64)) for k, norm in layer.norms(gradient))
        )
        return (
            None if sums is None else {name: float(total) for name, total in zip(self.problem.names, sums, strict=True)}
        )

    def exact_diagonal(self) -> Tensor | None:
        """diag⟨J'MJ⟩ by the entrywise squares of per-sample gradients."""
        sums = self._accumulate(lambda layer, gradient: layer.squares(gradient))
        return (
            None
            if sums is None
            else torch.cat(
                [
                    total.to(w).expand(w.numel()) if total.ndim == 0 else total
                    for total, w in zip(sums, self.state.weights, strict=True)
                ]
            )
        )

    def _accumulate(self, squares: Callable[[Layer, Tensor], Iterator[tuple[int, Tensor]]]) -> list[Tensor] | None:
        """Means over the data of a quadratic function of per-sample gradients, one for each chosen parameter."""
        if not self._samples_come_first():
            return None
        sums = [torch.zeros((), dtype=torch.float64, device=self.device) for _ in self.state.weights]
        terms = 0.0
        for piece in self.problem.pieces(self.plan.piece_size):
            with differentiating():
                part, recorder = record_evaluation(self, piece)
                roots, layers = self._roots_of(part, piece), layers_of(recorder)
                if roots is None or layers is None:
                    return None
                for root in roots:
                    gradients = torch.autograd.grad(
                        part.outputs, [layer.output for layer in layers], root, retain_graph=True, allow_unused=True
                    )
                    for layer, gradient in zip(layers, gradients, strict=True):
                        if gradient is not None:
                            for k, value in squares(layer, gradient):
                                sums[k] = sums[k] + value
            terms += part.count
        refuse_no_terms(terms)
        return [total / terms for total in sums]

    def _samples_come_first(self) -> bool:
        """Whether every layer's first axis is one long for one sample: else it may match by chance (time first)."""
        with differentiating():
            (piece,) = self.problem.sample(1).pieces()
            return self.problem.splittable and layers_of(record_evaluation(self, piece)[1]) is not None

    def _roots_of(self, part: Evaluation, piece: Piece) -> list[Tensor] | None:
        outputs = part.outputs
        terms_are_samples = isinstance(outputs, Tensor) and outputs.ndim == 2 and part.count % len(outputs) == 0
        return self._roots(part, piece) if terms_are_samples and self.problem.splittable else None


class GaussNewton(OutputCurvature):
    """G = ⟨J'MJ⟩ with M the Hessian of the loss in the outputs (A Eq 3, C Def 3.1): H without the bending of the model.

    Any twice-differentiable loss will do; for softmax cross-entropy M = diag(p) − pp', for squared error M ∝ I.

    Example:
        >>> eigenvalues(GaussNewton(problem))
    """

    def _middle(self, part: Evaluation, piece: Piece) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        outputs = part.outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.problem.criterion(outputs, part.targets), outputs, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros_like
        likelihood = likelihood_of(self.problem.loss, outputs)
        if likelihood is not None and likelihood.family == "categorical":
            return lambda tangent: torch.autograd.grad(slope, outputs, gauged(tangent, outputs), retain_graph=True)[0]
        return lambda tangent: torch.autograd.grad(slope, outputs, tangent, retain_graph=True)[0]

    def _roots(self, part: Evaluation, piece: Piece) -> list[Tensor] | None:  # noqa: ARG002
        likelihood = likelihood_of(self.problem.loss, part.outputs)
        return None if likelihood is None else likelihood_roots(likelihood, part)


class Fisher(OutputCurvature):
    """F = ⟨J' E_ŷ[s s'] J⟩, s the slope of −log p(ŷ|x) in the outputs for labels ŷ drawn from the model itself.

    Exact for softmax cross-entropy and squared error, where it equals G (C Sec 5.3); with `samples` labels are drawn
    instead, the same in every product.

    Args:
        samples: number of labels drawn for each sample; None takes the expectation exactly.

    Example:
        >>> torch.allclose(Fisher(problem).dense(), GaussNewton(problem).dense(), atol=1e-6)
        True
    """

    def __init__(
        self, problem: Problem, *, samples: int | None = None, seed: int = 0, at: Tensor | State | None = None
    ) -> None:
        if samples is not None and samples < 1:
            raise ValueError(f"expected samples=None (exact) or at least 1 label per sample, got {samples}")
        super().__init__(problem, at=at, samples=samples, seed=seed)

    def _middle(self, part: Evaluation, piece: Piece) -> Callable[[Tensor], Tensor]:
        likelihood = self._likelihood(part)
        if self.options["samples"] is None:
            return exact_middle(likelihood, part, counted_terms(self.problem.loss, part.outputs, part.targets))
        return scores_middle(self._scores(part, piece), part, positions=likelihood.family == "categorical")

    def _roots(self, part: Evaluation, piece: Piece) -> list[Tensor] | None:
        likelihood = self._likelihood(part)
        return likelihood_roots(likelihood, part) if self.options["samples"] is None else self._scores(part, piece)

    def _likelihood(self, part: Evaluation) -> Likelihood:
        likelihood = likelihood_of(self.problem.loss, part.outputs)
        if likelihood is None:
            raise ValueError(
                "the Fisher matrix needs a loss that is a negative log-likelihood: expected CrossEntropyLoss without "
                "class weights, HalfSquaredError or MSELoss; GaussNewton and EmpiricalFisher take any loss"
            )
        return likelihood

    def _scores(self, part: Evaluation, piece: Piece) -> list[Tensor]:
        number, seed = self.options["samples"], self.options["seed"]
        generator = torch.Generator().manual_seed(hash((seed, piece.index)) % 2**63)
        likelihood = self._likelihood(part)
        counted = counted_terms(self.problem.loss, part.outputs, part.targets)
        terms = max(1.0, num_slopes(self.problem.loss, part.outputs, part.targets))
        scale = (part.count / terms / number) ** 0.5 * (1 if counted is None else counted)
        scores = drawn_scores(likelihood, part.outputs, number, skipped=piece.start, generator=generator)
        return [scale * score for score in scores]


class EmpiricalFisher(OutputCurvature):
    """E = ⟨g g'⟩ over the gradients g of the single loss terms at the true labels; tr E − ‖⟨g⟩‖² is their variance.

    Example:
        >>> variance = sm.trace(EmpiricalFisher(problem)).value - Hessian(problem).gradient().square().sum()
    """

    def _middle(self, part: Evaluation, piece: Piece) -> Callable[[Tensor], Tensor]:
        positions = terms_are_positions(self.problem.loss, part.outputs)
        return scores_middle(self._roots(part, piece), part, positions=positions)

    def _roots(self, part: Evaluation, piece: Piece) -> list[Tensor]:  # noqa: ARG002
        loss, outputs = self.problem.loss, part.outputs.detach().requires_grad_()
        if not part.count:
            return [torch.zeros_like(outputs)]
        (slope,) = torch.autograd.grad(self.problem.criterion(outputs, part.targets), outputs)
        if not terms_are_positions(loss, outputs):
            return [slope * (part.count * len(outputs)) ** 0.5]
        weights = term_weights(loss, outputs, part.targets)  # a term of class weight w stands for w equal ones
        scale = 1.0 if weights is None else torch.where(weights > 0, weights, torch.inf).rsqrt()
        return [slope * (part.count * count_terms(loss, outputs, part.targets)) ** 0.5 * scale]


def record_evaluation(operator: CurvatureOperator, piece: Piece) -> tuple[Evaluation, Recorder]:
    """One forward pass together with what it did with the weights."""
    problem, state = operator.problem, operator.state
    (outputs, targets), recorder = record(state.weights, lambda: problem.outputs(state, piece))
    return problem.judge(outputs, targets, piece), recorder


def _single_tensor(outputs: object) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"expected outputs as one tensor, got {type(outputs).__name__}: "
            "pick the logits with Problem(..., forward=lambda model, batch: (logits, targets))"
        )
    return outputs
