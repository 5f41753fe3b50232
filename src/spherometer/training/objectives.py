"""What one batch is asked to be small in: an objective is a callable `(model, inputs, targets) -> scalar`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from spherometer.problems.modes import uncompiled
from spherometer.training.optim.marking import logits
from spherometer.training.penalties import Penalty, Term, differentiable
from spherometer.training.shares import Batch, Loss, term_shares, weighted

Part = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Objective(Protocol):
    """A scalar to call backward on, of one batch or of a batch that is seen in parts."""

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The objective of one batch."""
        ...

    def over(self, model: nn.Module, batches: Sequence[Batch]) -> Iterable[Part]:
        """One callable for each ghost batch; their sum is the objective of all as one batch.

        So are their gradients, which is what full-batch descent with ghost batches (L23) accumulates. Ask once per
        step, and iterate anew in each pass of it: what is random is drawn here, what depends on the weights there.
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

    def over(self, model: nn.Module, batches: Sequence[Batch]) -> Iterable[Part]:  # noqa: ARG002
        """A mean over terms is the mean over ghost batches, weighted by their terms."""
        if len(batches) == 1:
            return [self]
        return [partial(self._weighted, share) for share in term_shares(self.loss, batches)]

    def _weighted(self, share: float, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = logits(model(inputs))
        return weighted(partial(self.loss, outputs, targets), share, outputs)


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
        return self.part(self.penalties, 1.0, model, inputs, targets)

    def over(self, model: nn.Module, batches: Sequence[Batch]) -> Iterable[Part]:
        """The penalties look at all batches in each pass: the square of a mean is not the mean of squares.

        One batch needs no such look. Each pass makes its own draws, as each call does.
        """
        return [self] if len(batches) == 1 else _Looking(self, model, batches)

    def part(self, terms: Sequence[Term], share: float, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """share · loss(f(x), y) + Σ terms."""
        if any(penalty.differentiates_inputs for penalty in self.penalties):
            inputs = inputs.detach().requires_grad_()
        with uncompiled(model), differentiable(max((each.num_derivatives for each in self.penalties), default=1)):
            outputs = model(inputs)
        marked = logits(outputs)
        value = weighted(partial(self.loss, marked, targets), share, marked)
        for term in terms:
            value = value + term(model, inputs, targets, outputs)
        return value


@dataclass(frozen=True, eq=False)
class _Looking:
    """Parts of a penalised batch, at the weights and dropout masks of the moment at which they are iterated over."""

    objective: Penalised
    model: nn.Module
    batches: Sequence[Batch]

    def __iter__(self) -> Iterator[Part]:
        columns = [self._look(penalty) for penalty in self.objective.penalties]
        shares = term_shares(self.objective.loss, self.batches)
        return iter(
            [partial(self.objective.part, [column[k] for column in columns], share) for k, share in enumerate(shares)]
        )

    def _look(self, penalty: Penalty) -> Sequence[Term]:
        """Its terms; the global random state stays, for every look and the pass itself to see the same masks."""
        device = next(self.model.parameters()).device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            return penalty.over(self.model, self.batches)
