"""What a problem is evaluated on and at, and what comes out: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherometer.problems.weights import flatten


class NonFiniteError(FloatingPointError):
    """The loss or a gradient is not a finite number; the message names the batch."""


@dataclass(frozen=True)
class Piece:
    """A batch, or some of its samples, on the problem's device: the unit of work of every measurement."""

    index: int
    content: Any
    start: int = 0  # the first of its samples, counted in its batch


@dataclass(frozen=True)
class Evaluation:
    """One forward pass: mean loss over the piece's terms, their number, and what the loss was computed from."""

    loss: Tensor
    count: float
    outputs: Any
    targets: Any


@dataclass(frozen=True)
class State:
    """The point in weight space a measurement is made at: a copy, so that training may go on beside it."""

    names: tuple[str, ...]
    weights: tuple[Tensor, ...]
    fixed: dict[str, Tensor]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every weight and buffer of the model by name."""
        return dict(zip(self.names, self.weights, strict=True)) | self.fixed

    @property
    def vector(self) -> Tensor:
        """The chosen weights as one flat vector."""
        return flatten([weight.detach() for weight in self.weights])


def refuse_non_finite(tensor: Tensor, what: str, index: int) -> None:
    """Name the batch on which a number is not finite, rather than pass it on."""
    # The sum is a sixteenth of the work, and finite unless an entry is not, or the sum itself overflows.
    if not torch.isfinite(tensor.detach().sum()) and not torch.isfinite(tensor).all():
        raise NonFiniteError(
            f"the {what} is not finite on batch {index}: look for exploding weights, bad inputs, "
            "or a function without a finite derivative there (a square root or norm at zero, say)"
        )
