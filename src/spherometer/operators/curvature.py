"""Curvature of a loss as a mean over pieces of data, each kept as a graph while memory allows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from spherometer.operators.double_backward import FastDoubleBackward
from spherometer.operators.layout import laid, quicker_layout
from spherometer.operators.memory import piece_size, saved_bytes
from spherometer.operators.operator import Operator
from spherometer.operators.span import SpanOperator, span_operator
from spherometer.operators.support import derivative_error, refuse_cut
from spherometer.problems import Piece, Problem, State
from spherometer.problems.batches import num_samples, tensors_of
from spherometer.problems.modes import differentiating
from spherometer.problems.pieces import refuse_non_finite
from spherometer.problems.problem import refuse_no_terms
from spherometer.problems.weights import double_dot, flatten, unflatten

NUM_WEIGHED = 4  # samples whose graph is weighed to plan the memory
NUM_ROUNDED = 4  # samples on which float32 is held against float64: on two, a single kink can cost all of rtol
NUM_ROUNDED_TOGETHER = 8  # the same where samples see one another: the batch statistics of a few are degenerate


@dataclass(frozen=True)
class Graph:
    """A piece of data made ready: its number of terms, its gradient, and products with its share of the matrix."""

    count: float
    gradient: Sequence[Tensor]  # of each weight
    product: Callable[[Sequence[Tensor]], Sequence[Tensor]]

    @classmethod
    def flat(cls, count: float, weights: Sequence[Tensor]) -> Graph:
        """A piece that no chosen weight has a say in, or without a single counted term."""
        zeros = [torch.zeros_like(weight) for weight in weights]
        return cls(count, zeros, lambda vector: zeros)  # noqa: ARG005


@dataclass(frozen=True)
class Plan:
    """What a trial tells about the work: bytes of graph per sample, samples in a piece, and how images should lie."""

    sample_bytes: float = 0.0
    piece_size: int | None = None
    layout: torch.memory_format = torch.preserve_format


class CurvatureOperator(Operator):
    """A symmetric P x P matrix that is a mean over the loss terms of a problem; a subclass writes `_build`.

    The weights are copied when the operator is made: training may go on beside it. Graphs are kept between products
    while `problem.memory` allows; what does not fit is built again for each product, in pieces that do fit.
    A product costs about two gradients, linear in samples and parameters.

    Args:
        at: a flat vector of weights to measure at, or a state; by default the model's own weights.
    """

    def __init__(self, problem: Problem, *, at: Tensor | State | None = None, **options: Any) -> None:
        size = problem.num_parameters
        super().__init__((size, size), problem.precision, problem.device)
        self.problem, self.state, self.options = problem, problem.state(at), options
        self._mode = FastDoubleBackward(many_products=True)
        self.plan = self._planned()
        self._kept: dict[int, Graph] = {}
        self._kept_bytes = 0.0
        self._num_pieces: int | None = None  # known after the first pass
        self._gradient: Tensor | None = None

    @abstractmethod
    def _build(self, piece: Piece) -> Graph:
        """One forward and one backward pass, kept for any number of products."""

    def _apply(self, columns: Tensor) -> Tensor:
        with differentiating():
            total, rows = 0.0, columns.new_empty(columns.shape[1], len(columns))  # a column is one run of memory
            vectors = [unflatten(column.contiguous(), self.state.weights) for column in columns.T]
            for number, graph in self._graphs():
                for row, vector in zip(rows, vectors, strict=True):
                    product = flatten(graph.product(vector), out=None if total else row)
                    refuse_non_finite(product, "product", number)
                    if total and graph.count:
                        row.lerp_(product, graph.count / (total + graph.count))
                total += graph.count
                del graph  # else it would live while the next is built
        refuse_no_terms(total)
        return rows.T

    def _forms(self, columns: Tensor) -> Tensor:
        """v'Av in double precision for each column v of (P, k), a layer at a time: no product is held as a vector."""
        forms, total = torch.zeros(columns.shape[1], dtype=torch.float64, device=self.device), 0.0
        with differentiating():
            for _, graph in self._graphs():
                for number, column in enumerate(columns.T):
                    vector = unflatten(column.to(self.dtype).contiguous(), self.state.weights)
                    parts = zip(vector, graph.product(vector), strict=True)
                    forms[number] += graph.count * sum(double_dot(part, image) for part, image in parts)
                total += graph.count
                del graph
        refuse_no_terms(total)
        return forms / total

    def on(self, problem: Problem) -> Self:
        """The same kind of matrix, at the same weights, of a related problem."""
        return type(self)(problem, at=self.state, **self.options)

    def block(self, parameters: str | Sequence[str]) -> Self:
        """The diagonal block of a layer or parameter pattern, at the same weights."""
        return self.on(self.problem.select(parameters))

    def gradient(self) -> Tensor:
        """The flat gradient of the loss, a by-product of the graphs."""
        if self._gradient is None:
            total, terms = torch.zeros(self.shape[0], dtype=self.dtype, device=self.device), 0.0
            for _, graph in self._graphs():
                for part, gradient in zip(unflatten(total, self.state.weights), graph.gradient, strict=True):
                    part.add_(gradient, alpha=graph.count)
                terms += graph.count
                del graph
            refuse_no_terms(terms)
            self._gradient = total.div_(terms)
        return self._gradient

    def start(self) -> Tensor | None:
        """The gradient, which leans towards the top eigenvectors (C Fig 10); None where it vanishes."""
        return self.gradient() if bool(self.gradient().norm() > 0) else None

    def rounding(self, columns: Tensor) -> Tensor | None:
        """|v'A₃₂v − v'A₆₄v| on a few samples: what float32 does to the matrix itself."""
        if self.dtype == torch.float64:
            return None
        sample = self.problem.sample(NUM_ROUNDED if self.problem.splittable else NUM_ROUNDED_TOGETHER)
        double = sample.in_dtype(torch.float64)
        double.plans[type(self)] = Plan()  # a few samples fit: nothing to plan
        matrices = self.on(sample), self.on(double)
        matrices[0]._mode = self._mode  # which knows these very weights lifted
        single, exact = (matrix._forms(columns) for matrix in matrices)
        return (single - exact).abs()

    def core(self) -> SpanOperator | None:
        """The same matrix without directions that no sample sees, where leaving them out spares half the work."""
        return span_operator(self)

    def _graphs(self) -> Iterator[tuple[int, Graph]]:
        """The index of each piece's batch and its graph."""
        number = -1
        for number, piece in enumerate(self.problem.pieces(self.plan.piece_size)):
            graph = self._kept.get(number) or self._built(piece)
            if number not in self._kept:
                self._keep(number, piece, graph)
            yield piece.index, graph
            del graph
        self._num_pieces = number + 1

    def _keep(self, number: int, piece: Piece, graph: Graph) -> None:
        """Keep a graph if the limit then still has room for building the next one, should there be a next one."""
        gradients = 2 * sum(part.nbytes for part in graph.gradient)  # with the pulled ones of a Gauss-Newton matrix
        size = self.plan.sample_bytes * (num_samples(piece.content) or 1) + gradients
        is_last_missing = len(self._kept) + 1 == self._num_pieces
        others = self._kept_bytes + self._mode.lifts.num_bytes
        if others + (1 if is_last_missing else 2) * size <= self.problem.memory:
            self._kept[number] = graph
            self._kept_bytes += size

    def _built(self, piece: Piece, layout: torch.memory_format | None = None) -> Graph:
        with differentiating(), self._mode:
            graph = self._build(laid(piece, layout or self.plan.layout))
        for part in graph.gradient:
            refuse_non_finite(part, "gradient", piece.index)
        return graph

    def _tried(self, piece: Piece, layout: torch.memory_format) -> Graph:
        """A graph that has made a product; a model that cannot be differentiated often enough is refused."""
        try:
            graph = self._built(piece, layout)
            graph.product([torch.zeros_like(weight) for weight in self.state.weights])
        except RuntimeError as error:
            if "derivative" in str(error) or "differentiable" in str(error):
                raise derivative_error(self.problem, self.state, piece, error) from error
            raise
        return graph

    def _planned(self) -> Plan:
        """Weighed on a few samples, once for a problem."""
        plans = self.problem.plans
        if type(self) not in plans:
            piece = next(self.problem.sample(NUM_WEIGHED).pieces())
            refuse_cut(self.problem, self.state, piece)
            weight, layout = self._weighed(piece)
            plans[type(self)] = Plan(weight, piece_size(self.problem, weight), layout)
        return plans[type(self)]

    def _weighed(self, piece: Piece) -> tuple[float, torch.memory_format]:
        """Bytes of graph per sample in the quicker layout, or in the plain one if the model cannot take that."""
        known = [*self.state.weights, *self.state.fixed.values(), *tensors_of(piece.content)]

        def weigh(layout: torch.memory_format) -> tuple[float, torch.memory_format]:
            return saved_bytes(lambda: self._tried(piece, layout), known) / (num_samples(piece.content) or 1), layout

        if (layout := quicker_layout(self.problem)) is not torch.preserve_format:
            with suppress(RuntimeError):  # a `view`, say; if it was not the layout, the plain one fails too
                return weigh(layout)
        return weigh(torch.preserve_format)
