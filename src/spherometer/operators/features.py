"""What enters every layer, for all samples: the matrices f_{l−1}(X)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spherometer.operators.forward import is_linear_map
from spherometer.problems import Problem

OUTPUTS = "outputs"


def features(problem: Problem, *, at: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
    """The inputs (n, d) of every use of a linear map, and the outputs, layer after layer.

    As many layers at once as fit into a quarter of the memory limit: each group costs one forward pass over the data.
    """
    sizes = {name: part.nbytes / len(part) for name, part in _collected(problem.sample(1), at, None).items()}
    num_samples = problem.num_terms
    groups: list[list[str]] = [[]]
    for name in sizes:
        if groups[-1] and num_samples * sum(sizes[k] for k in [*groups[-1], name]) > problem.memory / 4:
            groups.append([])
        groups[-1].append(name)
    for group in groups:
        yield from _collected(problem, at, frozenset(group)).items()


def _collected(problem: Problem, at: Tensor | None, names: frozenset[str] | None) -> dict[str, Tensor]:
    state, parts = problem.state(at), {}  # type: tuple[Any, dict[str, list[Tensor]]]
    with torch.no_grad():
        for piece in problem.pieces(256):
            with _listening(problem.model) as heard:
                outputs = problem.outputs(state, piece)[0]
            for name, tensor in [*heard, (OUTPUTS, outputs)]:
                if names is None or name in names:
                    parts.setdefault(name, []).append(tensor.flatten(1))
    return {name: torch.cat(chunks) for name, chunks in parts.items()}


@contextmanager
def _listening(model: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    """A list that fills with what enters the linear maps while the model runs."""
    heard: list[tuple[str, Tensor]] = []
    times: dict[str, int] = {}

    def listener(name: str) -> Any:
        def before(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:  # noqa: ARG001
            times[name] = times.get(name, 0) + 1
            label = name if times[name] == 1 else f"{name}#{times[name]}"
            heard.append((label, (arguments[0] if arguments else options["input"]).clone()))

        return before

    handles = [
        module.register_forward_pre_hook(listener(name), with_kwargs=True)
        for name, module in model.named_modules()
        if is_linear_map(module)
    ]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()
