"""The derivative of all outputs of all samples in the weights, as a matrix known by its action both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spherometer.operators.double_backward import FastDoubleBackward
from spherometer.operators.layout import laid, quicker_layout
from spherometer.operators.memory import piece_size, saved_bytes
from spherometer.operators.operator import Operator
from spherometer.problems import Evaluation, Piece, Problem, likelihood_of
from spherometer.problems.batches import num_samples, tensors_of
from spherometer.problems.modes import differentiating
from spherometer.problems.weights import flatten, unflatten

NUM_WEIGHED = 2  # samples whose graph is weighed to plan the memory
# Weights are turned to the layout of the images in every pass: it pays where a piece weighs so many times more.
TURNED_BYTES = 6

_Plan = tuple[float, int | None, torch.memory_format]  # bytes of graph per sample, samples in a piece, their layout


@dataclass
class _Graph:
    """The outputs of a piece with its targets, and J'u as a function of u, whose derivative is J."""

    outputs: Tensor
    targets: Any
    direction: Tensor | None = None
    pulled: tuple[Tensor, ...] = ()


class OutputJacobian(Operator):
    """J = ∂z/∂θ over all data: N·C rows, sample after sample, each with its C outputs (C Def 3.1, A Eq 2).

    `J @ v` is the change of every output along v, `J.pull(u)` is J'u. Here the Jacobian of a sample is C x P; paper C
    writes its transpose. Batch norm in train mode is allowed: samples of one batch then react to each other.
    Cost: J'u one backward pass, Jv one backward pass through a backward pass.

    Args:
        at: a flat vector of weights to measure at, by default the model's own.

    Example:
        >>> J = OutputJacobian(problem)
        >>> J.pull(J @ gradient)
    """

    symmetric = False

    def __init__(self, problem: Problem, *, at: Tensor | None = None) -> None:
        self.problem, self.state = problem, problem.state(at)
        self._kept: dict[int, _Graph] = {}
        self._kept_bytes = 0.0
        self._sample_bytes, self.piece_size, self._layout = self._planned()
        parts = [self._values(number, piece) for number, piece in enumerate(problem.pieces(self.piece_size))]
        self.outputs = torch.cat([part.outputs for part in parts])  # (N, C)
        self.targets = [part.targets for part in parts]
        self.counts = [part.count for part in parts]
        self._sizes = [len(part.outputs) for part in parts]
        super().__init__((self.outputs.numel(), problem.num_parameters), problem.precision, problem.device)

    def _apply(self, columns: Tensor) -> Tensor:
        vectors = [unflatten(column.contiguous(), self.state.weights) for column in columns.T]
        return torch.cat([self._pushed(graph, vectors) for graph, _ in self.graphs(both_ways=True)])

    def pull(self, cotangents: Tensor) -> Tensor:
        """J'u for cotangents (N, C) or, several at once, (N, C, k): a flat vector (P,) or columns (P, k)."""
        blocks = cotangents.to(self.device, self.dtype).reshape(*self.outputs.shape, -1)
        self._refuse_large(blocks.shape[-1])
        total = torch.empty(blocks.shape[-1], self.shape[1], dtype=self.dtype, device=self.device)
        for graph, rows in self.graphs():
            for k, row in enumerate(total):
                pulled = self._pulled(graph.outputs, blocks[rows, :, k])
                if rows.start == 0:
                    flatten(pulled, out=row)
                else:
                    row += flatten(pulled)
        return total[0] if cotangents.ndim == 2 else total.T

    @cached_property
    def slopes(self) -> Tensor:
        """∂c_i/∂z_i of each sample's own loss (N, C), so that the gradient of the loss is N⁻¹ J' slopes."""
        return self._of_loss(lambda outputs, slope, rows: slope)  # noqa: ARG005

    def curved(self, tangents: Tensor) -> Tensor:
        """M_i t_i for tangents (N, C), M_i the Hessian of each sample's own loss in its outputs (any loss)."""

        def product(outputs: Tensor, slope: Tensor, rows: slice) -> Tensor:
            if not slope.requires_grad:
                return torch.zeros_like(slope)
            return torch.autograd.grad(slope, outputs, self._centred(tangents[rows].to(slope), outputs))[0]

        return self._of_loss(product)

    @property
    def uniform(self) -> bool:
        """Whether every sample counts alike in the loss: none ignored, no class weights."""
        return len({count / size for count, size in zip(self.counts, self._sizes, strict=True)}) == 1 and (
            self.counts[0] % self._sizes[0] == 0
        )

    def graphs(self, *, both_ways: bool = False) -> Iterator[tuple[_Graph, slice]]:
        """Each piece as a graph with the samples it holds; kept between calls while memory allows."""
        start = 0
        for number, piece in enumerate(self.problem.pieces(self.piece_size)):
            graph = self._graph(number, piece)
            if both_ways and graph.direction is None:
                self._extend(graph)
            yield graph, slice(start, start + len(graph.outputs))
            start += len(graph.outputs)

    def _of_loss(self, function: Callable[[Tensor, Tensor, slice], Tensor]) -> Tensor:
        """A function of outputs and loss slope, scaled so that its mean over samples is that of the whole loss."""
        parts, start, terms = [], 0, sum(self.counts)
        for values, targets, count in zip(self.outputs.split(self._sizes), self.targets, self.counts, strict=True):
            rows = slice(start, start + len(values))
            with differentiating():
                outputs = values.detach().clone().requires_grad_()
                loss = self.problem.criterion(outputs, targets) if count else 0 * outputs.sum()
                slope = torch.autograd.grad(loss, outputs, create_graph=True)[0]
                parts.append(function(outputs, slope, rows).detach() * (count * len(self.outputs) / terms))
            start = rows.stop
        return torch.cat(parts)

    def _centred(self, tangents: Tensor, outputs: Tensor) -> Tensor:
        """Tangents shifted to zero at the likeliest class: M 1 = 0 for a softmax, and nothing cancels if saturated."""
        likelihood = likelihood_of(self.problem.loss, outputs)
        if likelihood is None or likelihood.family != "categorical":
            return tangents
        return tangents - tangents.gather(1, outputs.detach().argmax(1, keepdim=True))

    def _values(self, number: int, piece: Piece) -> Evaluation:
        graph = self._graph(number, piece)
        with torch.no_grad():
            return self.problem.judge(graph.outputs.detach(), graph.targets, piece)

    def _graph(self, number: int, piece: Piece) -> _Graph:
        if number in self._kept:
            return self._kept[number]
        graph = self._built(piece, self._layout)
        size = self._sample_bytes * len(graph.outputs)
        if self._kept_bytes + size <= self.problem.memory:
            self._kept[number] = graph
            self._kept_bytes += size
        return graph

    def _built(self, piece: Piece, layout: torch.memory_format) -> _Graph:
        with differentiating(), FastDoubleBackward():
            outputs, targets = self.problem.outputs(self.state, laid(piece, layout))
        return _Graph(_refuse_other_shapes(outputs), targets)

    def _extend(self, graph: _Graph) -> None:
        with differentiating():
            graph.direction = torch.zeros_like(graph.outputs, requires_grad=True)
            graph.pulled = torch.autograd.grad(
                graph.outputs, self.state.weights, graph.direction, create_graph=True, materialize_grads=True
            )

    def _pulled(self, outputs: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
        with differentiating():
            return torch.autograd.grad(
                outputs, self.state.weights, cotangent, retain_graph=True, materialize_grads=True
            )

    def _pushed(self, graph: _Graph, vectors: list[list[Tensor]]) -> Tensor:
        linked = [k for k, entry in enumerate(graph.pulled) if entry.requires_grad]
        assert graph.direction is not None
        columns = [
            torch.autograd.grad(
                [graph.pulled[k] for k in linked], graph.direction, [vector[k] for k in linked], retain_graph=True
            )[0].reshape(-1)
            for vector in vectors
        ]
        return torch.stack(columns, 1)

    def _planned(self) -> _Plan:
        """Weighed on a few samples, once for a problem."""
        plans = self.problem.plans
        if OutputJacobian not in plans:
            plans[OutputJacobian] = self._tried(next(self.problem.sample(NUM_WEIGHED).pieces()))
        return plans[OutputJacobian]

    def _tried(self, piece: Piece) -> _Plan:
        with suppress(RuntimeError):  # a `view`, say; if it was not the layout, the plain one fails too
            return self._weighed(piece, quicker_layout(self.problem))
        return self._weighed(piece, torch.preserve_format)

    def _weighed(self, piece: Piece, layout: torch.memory_format) -> _Plan:
        known = [*self.state.weights, *self.state.fixed.values(), *tensors_of(piece.content)]
        weight = saved_bytes(lambda: self._both_ways(piece, layout), known) / (num_samples(piece.content) or 1)
        size, num = piece_size(self.problem, weight), num_samples(next(iter(self.problem.batches))) or 1
        parameters = self.problem.num_parameters * self.problem.precision.itemsize
        pays = weight * min(num, size or num) > TURNED_BYTES * parameters
        return weight, size, layout if pays else torch.preserve_format

    def _both_ways(self, piece: Piece, layout: torch.memory_format) -> _Graph:
        graph = self._built(piece, layout)
        self._extend(graph)
        return graph

    def _refuse_large(self, num_columns: int) -> None:
        wanted = num_columns * self.shape[1] * self.dtype.itemsize
        if num_columns > 1 and wanted > self.problem.memory:
            raise MemoryError(
                f"{num_columns} vectors of {self.shape[1]:,} weights take {wanted / 1e9:.1f} GB, more than "
                f"the limit of {self.problem.memory / 1e9:.1f} GB: raise Problem(memory=...) or choose fewer parameters"
            )


def _refuse_other_shapes(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"expected outputs of shape (samples, outputs), got {got}: reshape in Problem(..., forward=...)"
        )
    return outputs
