"""Penalties of the form ‖∇θ s‖² with s a mean over the batch: of a random logit, of the loss, of a sampled loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherometer.estimators.randomness import unit_vector
from spherometer.training.arguments import not_negative, num_logits
from spherometer.training.penalties.penalty import Penalty, Term, evaluations
from spherometer.training.shares import sample_shares, term_shares, weighted


class SquaredGradientPenalty(Penalty):
    """coefficient · ‖∇θ s‖²: the square of the mean over the samples, not the mean of their squares.

    For K ghost batches with gradients gₖ of their parts of s and the sum g the terms are coefficient · (2 g'gₖ −
    ‖g‖²/K): g is accumulated first and then held fixed, which gives the value ‖g‖² and the gradient 2 (∂g/∂θ)'g of the
    whole.
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = not_negative("a coefficient", coefficient)

    @abstractmethod
    def _draw(self, outputs: Tensor, earlier: Any) -> Any:
        """What is random in s for these samples; `earlier` is the draw of the ghost batch before, if any."""

    @abstractmethod
    def _scalar(self, outputs: Tensor, targets: Tensor, draw: Any) -> Tensor:
        """s, a mean over the samples."""

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """coefficient · ‖∇θ s‖² of this batch."""
        scalar = self._scalar(outputs, targets, self._draw(outputs, None))
        gradients = _gradients(scalar, _weights(model), create_graph=True)
        return self.coefficient * _dot(gradients, gradients)

    def over(self, model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Sequence[Term]:
        """Terms whose sum is the square of the mean gradient over all batches."""
        weights, shares, draw = _weights(model), self._shares(batches), None
        mean, draws = [torch.zeros_like(weight) for weight in weights], []
        for share, (_, targets, outputs) in zip(shares, evaluations(self, model, batches), strict=True):
            draw = self._draw(outputs, draw)
            part = self._part(outputs, targets, draw, share)
            torch._foreach_add_(mean, _gradients(part, weights, create_graph=False))
            draws.append(draw)
        square = _dot(mean, mean) / len(draws)
        return [self._term(draw, share, mean, square) for draw, share in zip(draws, shares, strict=True)]

    def _shares(self, batches: Sequence[tuple[Tensor, Tensor]]) -> Sequence[float]:
        """Of each ghost batch in s."""
        return sample_shares(batches)

    def _part(self, outputs: Tensor, targets: Tensor, draw: Any, share: float) -> Tensor:
        return weighted(partial(self._scalar, outputs, targets, draw), share, outputs)

    def _term(self, draw: Any, share: float, mean: Sequence[Tensor], square: Tensor) -> Term:
        def term(model: nn.Module, inputs: Tensor, targets: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG001
            part = self._part(outputs, targets, draw, share)
            gradients = _gradients(part, _weights(model), create_graph=True)
            return self.coefficient * (2 * _dot(mean, gradients) - square)

        return term


class MeanJacobianPenalty(SquaredGradientPenalty):
    """λ‖∇θ⟨u'z⟩‖² with u uniform on the sphere of the C logits: λ‖⟨J⟩‖_F²/C in the mean; simple EJR.

    Paper C Eq 51-52 (with errata C-e5 and C-e7), L8; the parameter-output regulariser of A Fig 33, L17. u is fresh in
    each call and shared by all samples of it (and by all ghost batches). Paper C uses λ = 0.01 for batches of 128 and
    0.001 for the full batch. Classes are on the last axis.

    Example:
        >>> MeanJacobianPenalty(0.01, generator=torch.Generator().manual_seed(0))
    """

    def __init__(self, coefficient: float, *, generator: torch.Generator) -> None:
        super().__init__(coefficient)
        self.generator = generator

    def _draw(self, outputs: Tensor, earlier: Any) -> Tensor:
        if earlier is not None:
            return earlier
        return unit_vector(num_logits(outputs), dtype=torch.float64, stream=self.generator).to(outputs)

    def _scalar(self, outputs: Tensor, targets: Tensor, draw: Any) -> Tensor:  # noqa: ARG002
        return (outputs @ draw).mean()


class GradientNormPenalty(SquaredGradientPenalty):
    """λ‖∇θ L‖², L the mean loss of the batch; Smith et al. 2021, paper C section 5.3, Q43, L18.

    Example:
        >>> GradientNormPenalty(0.01, loss=nn.CrossEntropyLoss())
    """

    def __init__(self, coefficient: float, *, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__(coefficient)
        self.loss = loss

    def _draw(self, outputs: Tensor, earlier: Any) -> None:
        pass

    def _scalar(self, outputs: Tensor, targets: Tensor, draw: Any) -> Tensor:  # noqa: ARG002
        return self.loss(outputs, targets)

    def _shares(self, batches: Sequence[tuple[Tensor, Tensor]]) -> Sequence[float]:
        return term_shares(self.loss, batches)


class FisherPenalty(SquaredGradientPenalty):
    """λ‖∇θ⟨−log p(ŷ|x)⟩‖² with one label ŷ drawn from softmax(z) per sample: λ tr(F)/B in the mean.

    Paper C section 5.3, Q42, L18. The labels are drawn, not averaged over: their expectation inside the norm is zero
    (erratum C-e6), which is also why no gradient flows through the draw. Classes are on the last axis.

    Example:
        >>> FisherPenalty(0.01, generator=torch.Generator().manual_seed(0))
    """

    def __init__(self, coefficient: float, *, generator: torch.Generator) -> None:
        super().__init__(coefficient)
        self.generator = generator

    def _draw(self, outputs: Tensor, earlier: Any) -> Tensor:  # noqa: ARG002
        last = num_logits(outputs) - 1
        chances = outputs.detach().flatten(0, -2).double().softmax(-1)
        device = self.generator.device
        uniform = torch.rand(len(chances), 1, generator=self.generator, dtype=torch.float64, device=device)
        passed = chances.cumsum(-1) < uniform.to(chances.device)
        return passed.sum(-1).clamp_max(last)  # the last sum may be rounded to less than one

    def _scalar(self, outputs: Tensor, targets: Tensor, draw: Any) -> Tensor:  # noqa: ARG002
        return functional.cross_entropy(outputs.flatten(0, -2), draw)


def _weights(model: nn.Module) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _gradients(scalar: Tensor, weights: Sequence[Tensor], *, create_graph: bool) -> tuple[Tensor, ...]:
    return torch.autograd.grad(scalar, weights, create_graph=create_graph, materialize_grads=True)


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return torch.stack([(one * other).sum() for one, other in zip(left, right, strict=True)]).sum()
