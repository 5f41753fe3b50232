"""Relative flatness of the last linear layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from spherometer.estimators import trace
from spherometer.metrics.bench import Bench
from spherometer.metrics.registry import metric
from spherometer.operators import Hessian, RowMixed
from spherometer.operators.recorder import Use, record
from spherometer.problems import Evaluation, Problem, State
from spherometer.problems.modes import differentiating
from spherometer.values import Estimate


@metric(
    symbol="κ",
    formula="Σ_{s,s'} ⟨w_s, w_s'⟩ Tr(H_{s,s'}) over the rows of the last linear layer",
    source="B Sec 3.4, G.2 (Petzka et al. 2021); Q61, T41",
    cost="1 forward pass where the layer gives the outputs, else 20-300 products of its block",
)
def relative_flatness(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """Curvature of the last linear layer weighed with the products of its rows; unchanged when layers are rescaled.

    Where the layer's output is the model's output it is ⟨‖φ‖² Tr(W' M W)⟩ with φ the layer's input and M the Hessian of
    the loss in the outputs: ‖W‖_F² ⟨‖φ‖²⟩ for half squared error. Elsewhere it is the trace of the layer's own
    Hessian block, mixed by (W W')^½. The bias is no part of it.
    """
    name, gives_outputs = _last_linear(bench)
    weight, note = bench.tensors[name], f"of {name}"
    if gives_outputs:
        return Estimate(_closed_form(bench, name, weight), note=note)
    block = Hessian(bench.problem.select(name), at=weight.reshape(-1))
    return replace(trace(RowMixed(block, weight), rtol=rtol, memory=bench.problem.memory, seed=bench.seed), note=note)


def _last_linear(bench: Bench) -> tuple[str, bool]:
    """The chosen weight of the last linear layer called, and whether the layer gives the outputs, sample by sample."""
    problem, names = bench.problem, bench.problem.names
    state = problem.state(bench.weights)
    for part, uses in _recorded(problem.sample(2), state):
        found = [(k, use) for use in uses if (k := _weight_index(use, state)) is not None]
        if not found:
            raise ValueError(
                "expected a model that uses a chosen weight in a linear layer (torch.nn.Linear), got none: "
                "choose its parameters with Problem(..., parameters=...)"
            )
        index, last = found[-1]
        once = sum(index in use.parameters for use in uses) == 1
        flat = isinstance(part.outputs, Tensor) and part.outputs.ndim == 2
        return names[index], once and flat and last.output is part.outputs and problem.splittable
    raise AssertionError("a problem has at least one batch")


def _closed_form(bench: Bench, name: str, weight: Tensor) -> float:
    """⟨‖φ‖² Σ_{s,s'} (W W')_{ss'} M_{ss'}⟩, one product with M per output."""
    state, total, terms = bench.problem.state(bench.weights), 0.0, 0.0
    index, overlaps = bench.problem.names.index(name), weight @ weight.T
    for part, uses in _recorded(bench.problem, state):
        features = next(use.arguments[0] for use in uses if _weight_index(use, state) == index).detach()
        sizes = features.square().sum(1)
        with differentiating():
            outputs = part.outputs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(bench.problem.criterion(outputs, part.targets), outputs, create_graph=True)
            for s in range(outputs.shape[1] if slope.requires_grad else 0):
                (row,) = torch.autograd.grad(slope[:, s].sum(), outputs, retain_graph=True)  # M_s / count, (n, C)
                total += part.count * float(((row @ overlaps[s]) * sizes).sum())
        terms += part.count
    return total / terms


def _recorded(problem: Problem, state: State) -> Iterator[tuple[Evaluation, list[Use]]]:
    """Each batch's outputs and what was done with the weights on the way."""
    for piece in problem.pieces():
        with torch.no_grad():
            (outputs, targets), recorder = record(state.weights, partial(problem.outputs, state, piece))
            part = problem.judge(outputs, targets, piece)
        yield part, recorder.uses


def _weight_index(use: Use, state: State) -> int | None:
    """Which chosen weight a linear layer multiplied by; None for anything else."""
    if use.function is not functional.linear:
        return None
    weight = use.options.get("weight", use.arguments[1] if len(use.arguments) > 1 else None)
    return next((k for k, known in enumerate(state.weights) if known is weight), None)
