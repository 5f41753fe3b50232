"""Averages of the iterates: `torch.optim.swa_utils` with the recipe of paper D around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, update_bn

from spherometer.training.schedules import flat_then_linear


class IterateAverage:
    """The running mean of the weights from `start` on; L26.

    Call `update(t)` after each step or each epoch t = 0, 1, ...; evaluate `finished(batches).module`, whose batch-norm
    statistics are those of the averaged weights.

    Example:
        >>> average = IterateAverage(model, start=60)
        >>> for epoch in range(100):
        ...     train_one_epoch(model)
        ...     average.update(epoch)
        >>> averaged = average.finished(inputs for inputs, _ in batches)
    """

    def __init__(self, model: nn.Module, *, start: int) -> None:
        if start < 0:
            raise ValueError(f"expected start of at least 0, got {start}")
        self.model, self.start, self.averaged = model, start, AveragedModel(model)

    @property
    def num_averaged(self) -> int:
        """How many weights the mean is of."""
        return int(self.averaged.n_averaged)

    def update(self, t: int) -> None:
        """Take the present weights into the mean, if t has reached the start."""
        if t >= self.start:
            self.averaged.update_parameters(self.model)

    def finished(self, batches: Iterable[Any]) -> nn.Module:
        """The averaged model, its batch-norm statistics recomputed over the batches of inputs (our reading)."""
        if not self.num_averaged:
            raise RuntimeError(f"nothing was averaged: update(t) was never called with t of at least {self.start}")
        update_bn(batches, self.averaged)
        return self.averaged.module

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return self.averaged.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was taken."""
        self.averaged.load_state_dict(state)


@dataclass(frozen=True)
class Gadam:
    """The three parts of the recipe: step the optimiser per batch, the schedule and the average per epoch."""

    optimizer: torch.optim.Optimizer
    schedule: LambdaLR
    average: IterateAverage


def gadam(model: nn.Module, *, learning_rate: float, weight_decay: float, average_from: int) -> Gadam:
    """Adam (0.9, 0.999, 1e-8) with decoupled weight decay, its rate falling to half, and the mean of its iterates.

    D Sec 5 and A.1-A.2, L26: the schedule is L27 with T_avg = `average_from` and α_avg = ½α₀. Weight decay is in
    AdamW's convention, each step takes off lr·weight_decay of the weights (erratum D-e21: 0.35 for CIFAR-10, 0.25 for
    CIFAR-100 at a rate of 5e-4).

    Example:
        >>> recipe = gadam(model, learning_rate=5e-4, weight_decay=0.25, average_from=160)
        >>> for epoch in range(300):
        ...     for inputs, targets in batches:
        ...         ...; recipe.optimizer.step()
        ...     recipe.schedule.step()
        ...     recipe.average.update(epoch)
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
    schedule = LambdaLR(optimizer, flat_then_linear(max(1, average_from), final=0.5))
    return Gadam(optimizer, schedule, IterateAverage(model, start=average_from))
