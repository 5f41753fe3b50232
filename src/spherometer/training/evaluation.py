"""How a model does on data: mean loss and accuracy, in eval mode, without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spherometer.problems.losses import ignored_class
from spherometer.problems.modes import keeping_modes
from spherometer.training.shares import term_shares

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Score:
    """Mean loss over its terms, and the share of right answers among classes that are not ignored (None without)."""

    loss: float
    accuracy: float | None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode inside, every module in its own mode again outside."""
    with keeping_modes(model):
        model.eval()
        yield


@torch.no_grad()
def evaluate(
    model: nn.Module, data: Data, loss: Callable[[Tensor, Tensor], Tensor], *, batch_size: int = 1000
) -> Score:
    """Clean data in file order; a batch counts by its terms, as in a `Problem`.

    Example:
        >>> evaluate(model, test.tensors, nn.CrossEntropyLoss()).accuracy
        0.9611
    """
    total, right, counted, has_classes = 0.0, 0, 0, not data[1].is_floating_point()
    device = next(model.parameters()).device
    parts = list(batches(data, batch_size))
    with evaluating(model):
        for share, (inputs, targets) in zip(term_shares(loss, parts), parts, strict=True):
            outputs, targets = model(inputs.to(device)), targets.to(device)
            total += share * float(loss(outputs, targets)) if share else 0.0
            if has_classes:
                counts = targets != ignored_class(loss)
                right += int((counts & (outputs.argmax(dim=1) == targets)).sum())
                counted += int(counts.sum())
    return Score(total, right / counted if counted else None)


def batches(data: Data, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of the data, in order."""
    if size < 1:
        raise ValueError(f"expected a batch size of at least 1, got {size}")
    yield from zip(data[0].split(size), data[1].split(size), strict=True)
