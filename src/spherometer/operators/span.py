"""A dense first layer sees its inputs only: fewer coordinates than weights hold all the curvature there is.

With N inputs x (N, d) of a layer z = xW' and N < d, a change of W matters along the rows of x alone. Write x = LQ with
L lower triangular (N, N) and QQ' = I: the loss as a function of D (h, N) in W + DQ has z = xW' + LD', where neither W
nor d takes part in products any more. D ↦ DQ keeps lengths, so the matrix in these coordinates has the spectrum of the
whole one but for zeros: those of the directions that no input sees.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from spherometer.operators.operator import Operator
from spherometer.operators.products import product
from spherometer.problems import Piece, Problem, State
from spherometer.problems.batches import num_samples
from spherometer.problems.modes import differentiating
from spherometer.problems.weights import flatten, unflatten

if TYPE_CHECKING:
    from spherometer.operators.curvature import CurvatureOperator

LEAST_SIZE = 100_000  # weights: below this size products are cheap
LEAST_GAIN = 2  # inputs of the layer for each sample, and weights for each coordinate
MOST_SAMPLES = 5  # for each output of the layer: with more, ten products do not pay for finding the span
NUM_BLOCKS = 4  # of rows of a Gram matrix of which one half is wanted
NUM_WATCHED = 2  # samples of the pass in which the layer's weight is watched


@dataclass(frozen=True, eq=False)
class Span:
    """What a layer's inputs x = LQ span: x (N, d) and L (N, N) in double precision."""

    inputs: Tensor
    factor: Tensor

    @classmethod
    def of(cls, inputs: Tensor) -> Span | None:
        """By Cholesky's way, LL' = xx'; copies of a sample are told apart by a part of rounding size."""
        gram = _lower_gram(inputs)
        diagonal = gram.diagonal()
        size = torch.finfo(inputs.dtype).eps * float(diagonal.mean())
        for more in (0.0, 10.0, 90.0):
            diagonal += more * size
            factor, failed = torch.linalg.cholesky_ex(gram)
            if not failed and torch.isfinite(factor.diagonal()).all():  # what is not finite anywhere gets there
                return cls(inputs, factor)
        return None

    def lift(self, coordinates: Tensor) -> Tensor:
        """DQ of D (h, N)."""
        solved = torch.linalg.solve_triangular(self.factor, coordinates.double(), upper=False, left=False)
        return solved.to(self.inputs) @ self.inputs

    def drop(self, weight: Tensor) -> Tensor:
        """VQ' of V (h, d), the coordinates of its part in the span."""
        seen = (weight @ self.inputs.T).double()
        return torch.linalg.solve_triangular(self.factor.T, seen, upper=True, left=False).to(weight)


def _lower_gram(rows: Tensor) -> Tensor:
    """xx' in double precision, with zeros above its diagonal blocks.

    Single precision will do for the products (its rounding is far below that of the matrix), but not what some
    processors take for it.
    """
    coarse = rows.device.type != "cpu" or torch.get_float32_matmul_precision() != "highest"
    rows = rows.double() if coarse else rows
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for part in torch.arange(len(rows)).chunk(NUM_BLOCKS):
        start, stop = int(part[0]), int(part[-1]) + 1
        gram[start:stop, :stop] = product(rows[start:stop], rows[:stop].T)
    return gram


@dataclass(frozen=True, eq=False)
class SpanProblem(Problem):
    """The loss as a function of a layer's coordinates in the span of its inputs, and of all other chosen weights."""

    layer: str = ""
    base: Tensor = field(default_factory=lambda: torch.empty(0))
    rows: Tensor = field(default_factory=lambda: torch.empty(0))  # L

    @classmethod
    def around(cls, problem: Problem, state: State, layer: str, span: Span) -> SpanProblem:
        """The weights of a state are the origin of the coordinates."""
        return problem.derived(cls, layer=layer, base=state.tensors[layer].detach(), rows=span.factor, plans={})

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shape of each chosen parameter; that of the layer is (h, N)."""
        return super().shapes | {self.layer: torch.Size((len(self.base), len(self.rows)))}

    def origin(self, state: State) -> State:
        """The state with zeros in the layer's place."""
        zeros = self.base.new_zeros(self.shapes[self.layer]).requires_grad_()
        weights = [zeros if name == self.layer else w for name, w in zip(state.names, state.weights, strict=True)]
        return replace(state, weights=tuple(weights))

    def outputs(self, state: State, piece: Piece) -> tuple[Any, Any]:
        """Outputs and targets of one piece."""
        weight = state.tensors[self.layer]
        rows = self.rows[piece.start : piece.start + (num_samples(piece.content) or 0)]
        rows = rows.to(weight.device, weight.dtype, memory_format=torch.contiguous_format)  # Cholesky's lies by columns

        def layer(inputs: Tensor, _: Tensor, bias: Tensor | None = None) -> Tensor:
            start = product(inputs, self.base.to(weight).T)
            return (start if bias is None else start + bias) + functional.linear(rows, weight)

        with _Uses(weight, layer):
            return super().outputs(state, piece)


class SpanOperator(Operator):
    """A curvature matrix in fewer coordinates c, with its way back to the whole: `lift` is an isometry.

    Example:
        >>> core = sm.Hessian(problem).core()
        >>> core.lift(sm.eigenvalues(core, vectors=True).vectors)
    """

    def __init__(self, whole: CurvatureOperator, layer: str, span: Span) -> None:
        problem = SpanProblem.around(whole.problem, whole.state, layer, span)
        problem.plans[type(whole)] = whole.plan
        self.whole, self.span, self._place = whole, span, problem.names.index(layer)
        self._matrix = type(whole)(problem, at=problem.origin(whole.state), **whole.options)
        super().__init__(self._matrix.shape, whole.dtype, whole.device)
        self.positive = whole.positive
        self.frame = float(span.factor.diagonal().log().sum())  # tells spans of other inputs apart

    def _apply(self, columns: Tensor) -> Tensor:
        return self._matrix @ columns

    def start(self) -> Tensor | None:
        """The gradient."""
        return self._matrix.start()

    def rounding(self, columns: Tensor) -> Tensor | None:
        """That of the matrix in these coordinates; the rows of L are in double precision what x is."""
        return self._matrix.rounding(columns)

    def lift(self, columns: Tensor) -> Tensor:
        """(p, k) coordinates -> (P, k) weights."""
        return self._turned(columns, self._matrix.state.weights, self.span.lift)

    def drop(self, columns: Tensor) -> Tensor:
        """(P, k) weights -> (p, k) coordinates of their part in the span."""
        return self._turned(columns, self.whole.state.weights, self.span.drop)

    def _turned(self, columns: Tensor, like: tuple[Tensor, ...], turn: Callable[[Tensor], Tensor]) -> Tensor:
        turned = []
        for column in columns.to(self.device, self.dtype).T:
            parts = unflatten(column.contiguous(), like)
            parts[self._place] = turn(parts[self._place])
            turned.append(flatten(parts))
        return torch.stack(turned, 1)


@differentiating()
def span_operator(whole: CurvatureOperator) -> SpanOperator | None:
    """The matrix in the coordinates of its inputs' span, where a first layer is dense and that spares half the work."""
    problem = whole.problem
    layer = _dense_layer(whole)
    if layer is None:
        return None
    inputs = _inputs_of(whole, layer, next(problem.pieces()))
    if inputs is None:
        return None
    kept = problem.plans.get(Span)
    if kept is None or kept.inputs.shape != inputs.shape or not torch.equal(kept.inputs, inputs):
        kept = problem.plans[Span] = Span.of(inputs)
    return None if kept is None else SpanOperator(whole, layer, kept)


def _dense_layer(whole: CurvatureOperator) -> str | None:
    """Name of a weight that meets the samples themselves in a linear map and is used nowhere else."""
    problem = whole.problem
    if not isinstance(problem.batches, list) or len(problem.batches) > 1 or problem.dropout is not None:
        return None
    num = num_samples(problem.batches[0])
    if num is None or 2 * num * whole.plan.sample_bytes > problem.memory or not problem.splittable:
        return None
    for name, weight in zip(whole.state.names, whole.state.weights, strict=True):
        if weight.ndim == 2 and _pays(whole, num, *weight.shape):
            piece = next(problem.sample(NUM_WATCHED).pieces())
            return name if _inputs_of(whole, name, piece, whole_pass=True) is not None else None
    return None


def _pays(whole: CurvatureOperator, num: int, num_outputs: int, num_inputs: int) -> bool:
    """Whether so many samples of a layer spare enough, and their span can be found within the memory."""
    coordinates = whole.shape[0] - num_outputs * (num_inputs - num)
    return (
        whole.shape[0] >= max(LEAST_SIZE, LEAST_GAIN * coordinates)
        and LEAST_GAIN * num <= num_inputs
        and num <= MOST_SAMPLES * num_outputs
        and 8 * num * (num_inputs + 3 * num) <= whole.problem.memory
    )


def _inputs_of(whole: CurvatureOperator, name: str, piece: Piece, *, whole_pass: bool = False) -> Tensor | None:
    """What enters the layer, a row for each sample and no function of the weights; a whole pass sees all uses."""
    met: list[Tensor] = []
    weight = whole.state.tensors[name]

    def layer(inputs: Tensor, _: Tensor, bias: Tensor | None = None) -> Tensor:
        met.append(inputs)
        if not whole_pass:
            raise _Enough
        return functional.linear(inputs, weight, bias)

    uses = _Uses(weight, layer)
    with suppress(_Enough), uses:
        whole.problem.evaluate(whole.state, piece)
    if len(met) != 1 or uses.others or met[0].ndim != 2 or met[0].requires_grad:
        return None
    return met[0] if len(met[0]) == num_samples(piece.content) and met[0].dtype == weight.dtype else None


class _Enough(Exception):  # noqa: N818  a pass that need not go on is no error
    pass


class _Uses(TorchFunctionMode):
    """Lets a layer be computed in another way, and counts what else its weight is used for."""

    def __init__(self, weight: Tensor, layer: Callable[..., Tensor]) -> None:
        super().__init__()
        self.weight, self.layer, self.others = weight, layer, 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        options = options or {}
        if function is functional.linear and len(arguments) > 1 and arguments[1] is self.weight:
            return self.layer(*arguments, **options)
        self.others += any(argument is self.weight for argument in (*arguments, *options.values()))
        return function(*arguments, **options)
