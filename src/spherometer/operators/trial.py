"""A forward and two backward passes of two samples, to learn how a model handles its data before all of them come."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spherometer.operators.arrangement import Order, order_of
from spherometer.operators.forward import Call, Forward
from spherometer.operators.layout import convolves_on_cpu
from spherometer.operators.listening import unheard
from spherometer.problems import Problem, State
from spherometer.problems.modes import differentiating


@dataclass(frozen=True)
class Trial:
    """What two samples tell about a model."""

    forward: Forward
    layout: torch.memory_format  # in which the input should lie
    orders: dict[str, Order]  # how samples lie in what enters each use of a linear map
    leaving: dict[str, Order | None]  # and in what leaves it
    left_out: tuple[str, ...]  # what has no Jacobian of each sample, and why
    gradients: dict[str, tuple[Tensor, ...]]  # at the input of each use, of each sample's outputs

    @property
    def calls(self) -> list[Call]:
        """The uses of linear maps that have a Jacobian of each sample."""
        return [call for call in self.forward.calls if call.name in self.orders]

    def branching(self) -> frozenset[str]:
        """Uses of layers whose input reaches the outputs along other ways too, such as skip connections.

        For these ∂f/∂x^l is not (∂f/∂y^l) W_l, with y^l what the layer gives: the step that B's bounds start with.
        """
        calls, total = self.calls, _weighted(self.forward.outputs).sum()
        if not calls:
            return frozenset()
        arriving = torch.autograd.grad(total, [call.leaving for call in calls], retain_graph=True, allow_unused=True)
        found = set()
        for call, gradient in zip(calls, arriving, strict=True):
            whole = torch.stack(self.gradients[call.name]).sum(0)
            through = torch.zeros_like(whole) if gradient is None else _back(call, gradient)
            if float((whole - through).norm()) > 1e-4 * float(whole.norm()):
                found.add(call.name)
        return frozenset(found)


def try_out(problem: Problem, state: State) -> Trial:
    """Learn from the first two samples of a problem.

    Images are laid channels-last where their convolutions run on the CPU in single precision, which is the quicker way
    there, unless the model or a function of it cannot take that (a `view`).
    """
    if convolves_on_cpu(problem):
        try:
            return _tried(problem, state, torch.channels_last)
        except RuntimeError:
            pass  # if it was not the layout, the plain one fails too, and says why
    return _tried(problem, state, torch.preserve_format)


def _tried(problem: Problem, state: State, layout: torch.memory_format) -> Trial:
    with differentiating():
        forward = Forward(problem, state, next(problem.sample(2).pieces()), layout)
        calls, at_input = forward.calls, forward.entry("input")
        edges = [call.entry for call in calls] + [call.leaving for call in calls]
        edges += [] if at_input is None else [at_input]  # fails here if it fails
        rows = [_gradients(total, edges) for total in _weighted(forward.outputs)]
    names, columns, mixed = [call.name for call in calls], list(zip(*rows, strict=True)), not problem.splittable
    entering, leaving = (
        dict(zip(names, [order_of(column, mixed=mixed) for column in part], strict=True))
        for part in (columns[: len(names)], columns[len(names) : 2 * len(names)])
    )
    orders = {name: order for name, order in entering.items() if order is not None}
    unsampled = [name for name in names if name not in orders] + forward.unreached
    left_out = [f"{name} (no input of each sample)" for name in unsampled] + unheard(problem.model)
    return Trial(forward, layout, orders, leaving, tuple(left_out), dict(zip(names, columns, strict=False)))


def _weighted(outputs: Tensor) -> Tensor:
    """Sums of each sample's outputs with weights that differ: outputs of a softmax sum to one, and have no slope."""
    return outputs @ torch.linspace(1, 2, outputs.shape[1], dtype=outputs.dtype, device=outputs.device)


def _gradients(total: Tensor, edges: list[GradientEdge]) -> tuple[Tensor, ...]:
    if not edges:
        return ()
    return torch.autograd.grad(total, edges, retain_graph=True, materialize_grads=True)


def _back(call: Call, gradient: Tensor) -> Tensor:
    """What arrives at a layer's input through the layer alone."""
    return torch.autograd.grad([call.leaving], [call.entry], [gradient], retain_graph=True, materialize_grads=True)[0]
