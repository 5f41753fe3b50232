"""When to stop before the last step: rules on the whole, clean training set.  L34."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from spherometer.training.evaluation import Data, evaluate


class StopRule(Protocol):
    """Asked after every step; `recent` is all it remembers, and is kept in checkpoints."""

    recent: list[float]

    def __call__(self, number: int, model: nn.Module, data: Data) -> bool:
        """Whether training is over after so many steps."""
        ...


@dataclass
class LossBelow:
    """The mean of the last `window` training losses, one taken every so many steps, is below the threshold.

    A B.2: every 100 steps, window 10, below 0.01 (CIFAR-10) or 0.02 (CIFAR-100).

    Example:
        >>> Training(..., stop=LossBelow(0.01, nn.CrossEntropyLoss()))
    """

    threshold: float
    loss: Callable[[Tensor, Tensor], Tensor]
    every: int = 100
    window: int = 10
    recent: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_counts(every=self.every, window=self.window)
        if not self.threshold > 0:
            raise ValueError(f"expected a positive threshold of the loss, got {self.threshold}")

    def __call__(self, number: int, model: nn.Module, data: Data) -> bool:
        """Judge by the losses so far."""
        if number == 0 or number % self.every:
            return False
        self.recent = [*self.recent, evaluate(model, data, self.loss).loss][-self.window :]
        return len(self.recent) == self.window and sum(self.recent) / self.window < self.threshold


@dataclass
class AccuracyReached:
    """The training accuracy, looked at every so many steps, has reached the threshold; A B.1: 0.99.

    Example:
        >>> Training(..., stop=AccuracyReached(0.99))
    """

    threshold: float = 0.99
    every: int = 100
    recent: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_counts(every=self.every)
        if not 0 < self.threshold <= 1:
            raise ValueError(f"expected an accuracy above 0 and up to 1, got {self.threshold}")

    def __call__(self, number: int, model: nn.Module, data: Data) -> bool:
        """Judge by the accuracy now."""
        if number == 0 or number % self.every:
            return False
        accuracy = evaluate(model, data, nn.CrossEntropyLoss()).accuracy
        if accuracy is None:
            raise ValueError("expected classes to stop at an accuracy, got values as targets: use LossBelow")
        self.recent = [accuracy]
        return accuracy >= self.threshold


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"expected {name} of at least 1, got {count}")
