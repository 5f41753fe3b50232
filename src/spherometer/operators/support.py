"""Which part of a model cannot be differentiated as often as a measurement needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spherometer.operators.nodes import cut_by_hand
from spherometer.problems import Piece, Problem, State
from spherometer.problems.batches import map_tensors, tensors_of
from spherometer.problems.modes import differentiating


class DerivativeError(RuntimeError):
    """A part of the model has no second derivative; the message names it."""


def refuse_cut(problem: Problem, state: State, piece: Piece) -> None:
    """Refuse a model with a function whose second derivative torch would leave out in silence."""
    with differentiating():
        cut = cut_by_hand(problem.evaluate(state, piece).loss, state.weights)
    if cut:
        raise derivative_error(problem, state, piece, RuntimeError(f"the gradient of {cut[0]} is no function of torch"))


def derivative_error(problem: Problem, state: State, piece: Piece, error: RuntimeError) -> DerivativeError:
    """The error to raise in the place of torch's own, naming the first module that cannot be differentiated twice."""
    name = _first_culprit(problem, state, piece)
    where = f"module {name}" if name else "a function called in the model's forward or in the loss"
    reason = str(error).split("\n")[0]
    return DerivativeError(
        f"{where} cannot be differentiated twice ({reason}): replace it by plain torch operations, "
        "or leave its parameters out with Problem(..., parameters=...)"
    )


def _first_culprit(problem: Problem, state: State, piece: Piece) -> str | None:
    """The innermost module that fails: a module's hook is called after those of the modules inside it."""
    failing: list[str] = []
    busy: list[nn.Module] = []
    handles = []
    for name, module in problem.model.named_modules():
        handles.append(module.register_forward_hook(_Trial(name, failing, busy), with_kwargs=True))
    try:
        with torch.no_grad():
            problem.evaluate(state, piece)
    finally:
        for handle in handles:
            handle.remove()
    return failing[0] if failing else None


class _Trial:
    """Differentiates one module twice on the inputs it is called with, and notes its name when that fails."""

    def __init__(self, name: str, failing: list[str], busy: list[nn.Module]) -> None:
        self.name, self.failing, self.busy = name, failing, busy

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:  # noqa: ARG002
        if self.busy or self.failing:
            return
        self.busy.append(module)
        try:
            self._differentiate_twice(module, inputs, options)
        except RuntimeError:
            self.failing.append(f"{self.name!r} ({type(module).__name__})" if self.name else type(module).__name__)
        finally:
            self.busy.clear()

    def _differentiate_twice(self, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        with differentiating():
            given, named = map_tensors(_leaf, inputs), map_tensors(_leaf, options)
            leaves, result = tensors_of((given, named)), module(*given, **named)
            outputs = [y for y in (result if isinstance(result, tuple) else (result,)) if isinstance(y, Tensor)]
            wanted = [x for x in (*leaves, *module.parameters()) if x.requires_grad]
            total = sum(y.square().sum() for y in outputs if y.requires_grad)
            if not wanted or not isinstance(total, Tensor):
                return
            if cut_by_hand(total, wanted):
                raise RuntimeError("a function without second derivative")
            first = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
            again = sum(g.square().sum() for g in first if g is not None and g.requires_grad)
            if isinstance(again, Tensor):
                torch.autograd.grad(again, wanted, allow_unused=True)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_() if tensor.is_floating_point() else tensor
