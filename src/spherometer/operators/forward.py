"""One forward pass of a piece of data, with every tensor kept at which a derivative may be wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.conv import _ConvNd

from spherometer.operators.recorder import Recorder, record
from spherometer.problems import Piece, Problem, State
from spherometer.problems.batches import map_tensors, num_samples


@dataclass(frozen=True)
class Call:
    """One call of a linear map, with its input as it was then: a later `relu_` may change the tensor."""

    name: str
    module: nn.Module
    weight: Tensor
    inputs: Tensor
    output: Tensor
    entry: GradientEdge
    input_norms: Tensor  # of each sample, (n,)


class Forward:
    """The outputs of one piece as a differentiable function of its inputs, its layers' inputs and the weights."""

    def __init__(self, problem: Problem, state: State, piece: Piece) -> None:
        content, self.inputs = _differentiable(piece.content)
        state = _all_differentiable(problem, state)
        with _calls(problem.model) as self.calls:
            (self.outputs, self.targets), self.recorder = _recorded(
                problem, state, Piece(piece.index, content, piece.start)
            )
        if not isinstance(self.outputs, Tensor) or self.outputs.ndim != 2:
            raise ValueError(
                "a Jacobian of each sample needs outputs of shape (samples, outputs): reshape in `forward`"
            )

    def entry(self, place: str) -> GradientEdge | None:
        """The edge of the graph at "input", or at the input of the layer of that name."""
        if place == "input":
            return None if self.inputs is None else get_gradient_edge(self.inputs)
        return next(call.entry for call in self.calls if call.name == place)


def refuse_mixing(problem: Problem) -> None:
    """Refuse a problem whose samples see each other: their Jacobian is not block diagonal."""
    single = num_samples(next(iter(problem.batches))) == 1 and problem.batchnorm == "eval" and problem.dropout is None
    if not (single or problem.splittable):
        raise ValueError(
            "a Jacobian of each sample needs samples that do not see each other: use batchnorm='eval' and dropout=None"
        )


def is_linear_map(module: nn.Module) -> bool:
    """Whether a module multiplies its input by a weight: Linear, any convolution, or Hugging Face's Conv1D."""
    return isinstance(module, nn.Linear | _ConvNd) or type(module).__name__ == "Conv1D"


def _recorded(problem: Problem, state: State, piece: Piece) -> tuple[tuple[Any, Any], Recorder]:
    return record(state.weights, lambda: problem.outputs(state, piece))


def _all_differentiable(problem: Problem, state: State) -> State:
    """The same state with frozen parameters differentiable too, so that every layer's input is part of the graph."""
    frozen = {name for name, _ in problem.model.named_parameters()}
    fixed = {
        name: tensor.detach().requires_grad_() if name in frozen and tensor.is_floating_point() else tensor
        for name, tensor in state.fixed.items()
    }
    return replace(state, fixed=fixed)


def _differentiable(content: Any) -> tuple[Any, Tensor | None]:
    """The batch with its first floating-point input made differentiable, and that tensor."""
    found: list[Tensor] = []

    def mark(tensor: Tensor) -> Tensor:
        if found or not tensor.is_floating_point():
            return tensor
        found.append(tensor.detach().clone().requires_grad_())
        return found[0]

    if isinstance(content, tuple | list) and len(content) == 2:
        content = (map_tensors(mark, content[0]), content[1])
    else:
        content = map_tensors(mark, content)
    return content, found[0] if found else None


@contextmanager
def _calls(model: nn.Module) -> Iterator[list[Call]]:
    """A list that fills with the calls of every linear map while the model runs."""
    calls: list[Call] = []
    times: dict[str, int] = {}

    def note(name: str) -> Any:
        def before(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:  # noqa: ARG001
            inputs = arguments[0] if arguments else options["input"]
            pending.append((inputs, get_gradient_edge(inputs), _norms(inputs)))

        def after(module: nn.Module, arguments: Any, output: Any) -> None:  # noqa: ARG001
            times[name] = times.get(name, 0) + 1
            label = name if times[name] == 1 else f"{name}#{times[name]}"
            inputs, entry, norms = pending.pop()
            calls.append(Call(label, module, module.weight, inputs, output, entry, norms))  # type: ignore[arg-type]

        pending: list[tuple[Tensor, GradientEdge, Tensor]] = []
        return before, after

    handles = []
    for name, module in model.named_modules():
        if is_linear_map(module):
            before, after = note(name)
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _norms(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach().flatten(1).double(), dim=1)
