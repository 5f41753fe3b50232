"""How much each part of a batch counts: by its samples, or by the terms that the mean of a loss runs over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from spherometer.problems.losses import count_terms
from spherometer.problems.problem import refuse_no_terms

Loss = Callable[[Any, Any], Tensor]
Batch = tuple[Tensor, Tensor]


def sample_shares(batches: Sequence[Batch]) -> list[float]:
    """Each batch's share of the samples."""
    total = sum(len(inputs) for inputs, _ in batches)
    return [len(inputs) / total for inputs, _ in batches]


def term_shares(loss: Loss, batches: Sequence[Batch]) -> list[float]:
    """Each batch's share of the terms of the loss: its samples, or class weights and targets that are not ignored.

    The number of terms is that of `Problem`; where it depends on outputs, targets have their shape.
    """
    if len(batches) == 1:
        return [1.0]
    counts = [count_terms(loss, targets, targets) for _, targets in batches]
    total = sum(counts)
    refuse_no_terms(total)
    return [count / total for count in counts]


def weighted(scalar: Callable[[], Tensor], share: float, outputs: Tensor) -> Tensor:
    """share · scalar(); 0 of these outputs where the share is 0 and the scalar a mean over nothing."""
    if share == 1:
        return scalar()
    return share * scalar() if share else 0 * outputs.sum()
