"""Functions that somebody wrote by hand (`torch.autograd.Function`), found in the graph of a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node


def functions_by_hand(results: Iterable[Tensor]) -> Iterator[Node]:
    """The nodes of the graph that are no operations of torch itself."""
    waiting = [result.grad_fn for result in results]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            yield node
        waiting.extend(following for following, _ in node.next_functions)


def cut_by_hand(result: Tensor, weights: Sequence[Tensor]) -> list[str]:
    """Names of the functions whose own gradient is no differentiable function of what it is given.

    torch drops their second derivative without a word: the error node of `once_differentiable` does not lie on a way
    to the weights, and a gradient computed outside torch has no way at all.
    """
    cut: list[str] = []
    handles = [node.register_hook(_Watch(node.name(), cut)) for node in functions_by_hand([result])]
    if handles:
        torch.autograd.grad(result, weights, create_graph=True, allow_unused=True)
    for handle in handles:
        handle.remove()
    return cut


class _Watch:
    def __init__(self, name: str, cut: list[str]) -> None:
        self.name, self.cut = name, cut

    def __call__(self, gradients: Sequence[Tensor | None], slopes: Sequence[Tensor | None]) -> None:
        depends = any(slope is not None and slope.requires_grad for slope in slopes)
        if depends and any(gradient is not None and _is_cut(gradient) for gradient in gradients):
            self.cut.append(self.name)


def _is_cut(gradient: Tensor) -> bool:
    if gradient.grad_fn is None:
        return not gradient.requires_grad and bool((gradient != 0).any())
    return gradient.grad_fn.name() == "torch::autograd::Error"
