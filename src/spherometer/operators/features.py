"""What enters every layer, for all samples: the matrices f_{l−1}(X)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from spherometer.operators.arrangement import by_sample
from spherometer.operators.listening import Heard, listening
from spherometer.operators.trial import Trial
from spherometer.problems import Problem

OUTPUTS = "outputs"


def features(problem: Problem, trial: Trial, *, at: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
    """The inputs (n, d) of every use of a linear map, and the outputs, layer after layer.

    As many layers at once as fit into a quarter of the memory limit: each group costs one forward pass over the data.
    """
    sizes = {name: part.nbytes / len(part) for name, part in _collected(problem.sample(1), trial, at, None).items()}
    num_samples = problem.num_terms
    groups: list[list[str]] = [[]]
    for name in sizes:
        if groups[-1] and num_samples * sum(sizes[k] for k in [*groups[-1], name]) > problem.memory / 4:
            groups.append([])
        groups[-1].append(name)
    for group in groups:
        yield from _collected(problem, trial, at, frozenset(group)).items()


def _collected(problem: Problem, trial: Trial, at: Tensor | None, names: frozenset[str] | None) -> dict[str, Tensor]:
    state, parts = problem.state(at), dict[str, list[Tensor]]()
    wanted = {*trial.orders, OUTPUTS} if names is None else names
    with torch.no_grad():
        for piece in problem.pieces(256):
            heard: list[tuple[str, Tensor]] = []
            with listening(problem.model, _into(heard, wanted)):
                outputs = problem.outputs(state, piece)[0]
            for name, tensor in heard:
                arranged = by_sample(tensor, len(outputs), trial.orders[name])
                parts.setdefault(name, []).append(arranged.reshape(len(outputs), -1))
            if OUTPUTS in wanted:
                parts.setdefault(OUTPUTS, []).append(outputs.flatten(1))
    return {name: torch.cat(chunks) for name, chunks in parts.items()}


def _into(
    heard: list[tuple[str, Tensor]], wanted: set[str] | frozenset[str]
) -> Callable[[Heard], Callable[[Tensor], None]]:
    """A listener that keeps copies: a later `relu_` may change the tensor."""

    def keep(one: Heard) -> Callable[[Tensor], None]:
        if one.name in wanted:
            heard.append((one.name, one.inputs.clone()))
        return lambda output: None  # noqa: ARG005

    return keep
