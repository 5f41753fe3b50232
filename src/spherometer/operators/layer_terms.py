"""What a backward pass carries to each layer: the gradient at its output and the gradient of its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spherometer.operators.output_jacobian import OutputJacobian
from spherometer.problems.modes import differentiating


def layer_terms(jacobian: OutputJacobian, cotangents: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """For J'u: ‖(J'u)_l‖² by parameter tensor, and Σ_i ‖∂(u·z)/∂(output of the layer)‖² by module.

    One forward and one backward pass. Modules that torch calls without their `forward` (the projection inside
    MultiheadAttention) have no entry in the second part; a module used twice has the sum over its uses.
    """
    problem, state, start = jacobian.problem, jacobian.state, 0
    owners = {name.rpartition(".")[0] for name in problem.names}
    totals = [torch.zeros_like(weight) for weight in state.weights]
    arriving: dict[str, float] = {}
    for piece in problem.pieces(jacobian.piece_size):
        with differentiating(), _outputs_of(problem.model, owners) as caught:
            outputs = problem.outputs(state, piece)[0]
            rows = slice(start, start + len(outputs))
            tensors = [tensor for _, tensor in caught]
            gradients = torch.autograd.grad(
                outputs, [*state.weights, *tensors], cotangents[rows].to(outputs), materialize_grads=True
            )
        start = rows.stop
        for total, gradient in zip(totals, gradients, strict=False):
            total += gradient
        for (name, _), gradient in zip(caught, gradients[len(totals) :], strict=True):
            arriving[name] = arriving.get(name, 0.0) + float(gradient.double().square().sum())
    norms = [float(total.double().square().sum()) for total in totals]
    return dict(zip(problem.names, norms, strict=True)), arriving


@contextmanager
def _outputs_of(model: nn.Module, names: set[str]) -> Iterator[list[tuple[str, Tensor]]]:
    """A list that fills with the output tensors of the named modules while the model runs."""
    caught: list[tuple[str, Tensor]] = []

    def note(name: str) -> Any:
        def hook(module: nn.Module, arguments: Any, output: Any) -> Any:  # noqa: ARG001
            first = output[0] if isinstance(output, tuple) else output
            if not isinstance(first, Tensor) or not first.requires_grad:
                return None
            caught.append((name, first))
            # In-place functions such as ReLU(inplace=True) may follow: hand on a view that carries its own gradient.
            return (first.clone(), *output[1:]) if isinstance(output, tuple) else first.clone()

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name in names]
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()
