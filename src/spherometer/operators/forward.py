"""One forward pass of a piece of data, with every tensor kept at which a derivative may be wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from spherometer.operators.arrangement import Order, by_sample
from spherometer.operators.listening import Heard, is_linear_map, listening
from spherometer.operators.recorder import record
from spherometer.problems import Piece, Problem, State
from spherometer.problems.batches import map_tensors, num_samples
from spherometer.problems.pieces import refuse_non_finite

__all__ = ["Call", "Forward", "is_linear_map", "refuse_mixing"]


@dataclass(frozen=True)
class Call:
    """One call of a linear map, with its input as it was then: a later `relu_` may change the tensor."""

    name: str
    module: nn.Module
    weight: Tensor
    inputs: Tensor
    output: Tensor
    entry: GradientEdge
    leaving: GradientEdge
    squares: Tensor  # of the input, summed over all but its first two axes

    def input_norms(self, num: int, order: Order) -> Tensor:
        """‖x_i^l‖ of each sample, (num,)."""
        return by_sample(self.squares, num, order).reshape(num, -1).sum(1).sqrt()


class Forward:
    """The outputs of one piece as a differentiable function of its inputs, its layers' inputs and the weights.

    Args:
        layout: in which the first input lies in memory; the network mostly keeps to it.
    """

    def __init__(
        self, problem: Problem, state: State, piece: Piece, layout: torch.memory_format = torch.preserve_format
    ) -> None:
        content, self.inputs = _differentiable(piece.content, layout)
        self.calls: list[Call] = []
        self.unreached: list[str] = []  # linear maps of something that depends on neither the input nor a parameter
        state = _all_differentiable(problem, state)
        given = Piece(piece.index, content, piece.start)

        def run() -> tuple[Any, Any]:
            with listening(problem.model, self._note):
                return problem.outputs(state, given)

        (self.outputs, self.targets), self.recorder = record(state.weights, run)
        self.batch = piece.index
        _refuse_other_rows(self.outputs, num_samples(piece.content))
        refuse_non_finite(self.outputs, "output", self.batch)
        self.num_terms = problem.judge(self.outputs.detach(), self.targets, piece).count

    def entry(self, place: str) -> GradientEdge | None:
        """The edge of the graph at "input", or at the input of the layer of that name."""
        if place == "input":
            return None if self.inputs is None else get_gradient_edge(self.inputs)
        return next(call.entry for call in self.calls if call.name == place)

    def _note(self, heard: Heard) -> Callable[[Tensor], None]:
        if not heard.inputs.requires_grad:
            self.unreached.append(heard.name)
            return lambda output: None  # noqa: ARG005
        entry, squares = get_gradient_edge(heard.inputs), _squares(heard.inputs)

        def after(output: Tensor) -> None:
            told = (heard.name, heard.module, heard.weight, heard.inputs)
            self.calls.append(Call(*told, output, entry, get_gradient_edge(output), squares))

        return after


def _refuse_other_rows(outputs: Any, num: int | None) -> None:
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != (num or len(outputs)):
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"a Jacobian of each sample needs one row of outputs for each of the {num or ''} samples, got {got}: "
            "choose one position of a sequence in `forward`, or make all of them outputs with .flatten(1)"
        )


def refuse_mixing(problem: Problem) -> None:
    """Refuse a problem whose samples see each other: their Jacobian is not block diagonal."""
    single = num_samples(next(iter(problem.batches))) == 1 and problem.batchnorm == "eval" and problem.dropout is None
    if not (single or problem.splittable):
        raise ValueError(
            "a Jacobian of each sample needs samples that do not see each other: use batchnorm='eval' and dropout=None"
        )


def _all_differentiable(problem: Problem, state: State) -> State:
    """The same state with frozen parameters differentiable too, so that every layer's input is part of the graph."""
    frozen = {name for name, _ in problem.model.named_parameters()}
    fixed = {
        name: tensor.detach().requires_grad_() if name in frozen and tensor.is_floating_point() else tensor
        for name, tensor in state.fixed.items()
    }
    return replace(state, fixed=fixed)


def _differentiable(content: Any, layout: torch.memory_format) -> tuple[Any, Tensor | None]:
    """The batch with its first floating-point input made differentiable, and that tensor."""
    found: list[Tensor] = []

    def mark(tensor: Tensor) -> Tensor:
        if found or not tensor.is_floating_point():
            return tensor
        kept = tensor.ndim == 4 or layout is not torch.channels_last
        found.append(tensor.detach().clone(memory_format=layout if kept else torch.preserve_format).requires_grad_())
        return found[0]

    if isinstance(content, tuple | list) and len(content) == 2:
        content = (map_tensors(mark, content[0]), content[1])
    else:
        content = map_tensors(mark, content)
    return content, found[0] if found else None


def _squares(tensor: Tensor) -> Tensor:
    squares = tensor.detach().double().square()
    return squares if tensor.ndim < 3 else squares.sum(tuple(range(2, tensor.ndim)))
