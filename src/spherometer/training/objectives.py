"""What one batch is asked to be small in: an objective is a callable `(model, inputs, targets) -> scalar`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from spherometer.training.optim.marking import logits
from spherometer.training.penalties import Penalty, Term, differentiable

Loss = Callable[[Any, Any], Tensor]
Batch = tuple[Tensor, Tensor]
Part = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Objective(Protocol):
    """A scalar to call backward on, of one batch or of a batch that is seen in parts."""

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The objective of one batch."""
        ...

    def over(self, model: nn.Module, batches: Sequence[Batch]) -> Sequence[Part]:
        """One callable for each ghost batch; their mean, weighted by batch sizes, is the objective of all as one batch.

        So are their gradients, which is what full-batch descent with ghost batches (L23) accumulates.
        """
        ...


@dataclass(frozen=True)
class Plain:
    """The loss of the outputs, nothing else.

    Example:
        >>> Plain(nn.CrossEntropyLoss())(model, inputs, targets).backward()
    """

    loss: Loss

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """loss(f(x), y)."""
        return self.loss(logits(model(inputs)), targets)

    def over(self, model: nn.Module, batches: Sequence[Batch]) -> Sequence[Part]:  # noqa: ARG002
        """A mean over samples is the weighted mean over ghost batches."""
        return [self] * len(batches)


@dataclass(frozen=True)
class Penalised:
    """The loss of the outputs plus penalties, all from one forward pass.

    Example:
        >>> objective = Penalised(nn.CrossEntropyLoss(), [MeanJacobianPenalty(0.01, generator=generator)])
        >>> objective(model, inputs, targets).backward()
    """

    loss: Loss
    penalties: Sequence[Penalty]

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """loss(f(x), y) + Σ penalties."""
        return self._evaluate(self.penalties, model, inputs, targets)

    def over(self, model: nn.Module, batches: Sequence[Batch]) -> Sequence[Part]:
        """The penalties look at all batches first: the square of a mean is not the mean of squares.

        One batch needs no such look; nor does it keep its draws: each call makes its own.
        """
        if len(batches) == 1:
            return [self]
        columns = [penalty.over(model, batches) for penalty in self.penalties]
        return [partial(self._evaluate, [column[k] for column in columns]) for k in range(len(batches))]

    def _evaluate(self, terms: Sequence[Term], model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        if any(penalty.differentiates_inputs for penalty in self.penalties):
            inputs = inputs.detach().requires_grad_()
        with differentiable(max((penalty.num_derivatives for penalty in self.penalties), default=1)):
            outputs = model(inputs)
        value = self.loss(logits(outputs), targets)
        for term in terms:
            value = value + term(model, inputs, targets, outputs)
        return value
