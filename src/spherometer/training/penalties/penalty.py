"""What every penalty does: a value for a batch, and one for each part of a batch that does not fit into memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from spherometer.operators.double_backward import FastDoubleBackward
from spherometer.problems.modes import uncompiled
from spherometer.training.penalties.norms import DecomposedNorms
from spherometer.training.statistics import frozen_statistics

Term = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


class Penalty(ABC):
    """A scalar made of derivatives of the outputs; `outputs` is the model's answer to `inputs`, with its graph.

    The forward pass should run inside `differentiable(num_derivatives)`, and where `differentiates_inputs`, the inputs
    have to require a gradient before it; `Penalised` does both.
    """

    differentiates_inputs: ClassVar[bool] = False
    num_derivatives: ClassVar[int] = 2  # in the gradient of the penalty: one more than in the penalty itself

    @abstractmethod
    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor, outputs: Tensor) -> Tensor:
        """The penalty of this batch."""

    @abstractmethod
    def over(self, model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Sequence[Term]:
        """One term for each ghost batch, so that their sum is the penalty of all samples as one batch.

        That holds for value and gradient at the present weights: ask again where they have changed. Batch norm aside,
        which normalises each ghost batch by itself. Takes one pass over the batches.
        """


@contextmanager
def differentiable(num_derivatives: int) -> Iterator[None]:
    """Forward passes inside can be differentiated so often, rightly and quickly.

    Fused attention has no second derivative, fused norms have a wrong third one, and the second one of convolutions is
    slow; each has its twin here.
    """
    with (
        sdpa_kernel(SDPBackend.MATH),
        FastDoubleBackward(),
        DecomposedNorms() if num_derivatives > 2 else nullcontext(),
    ):
        yield


def evaluations(
    penalty: Penalty, model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, targets and outputs of each batch; the model's running statistics do not notice."""
    for inputs, targets in batches:
        if penalty.differentiates_inputs:
            inputs = inputs.detach().requires_grad_()
        with torch.enable_grad(), frozen_statistics(model), uncompiled(model), differentiable(penalty.num_derivatives):
            outputs = model(inputs)
        yield inputs, targets, outputs
