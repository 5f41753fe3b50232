"""How outputs react to the input, to every layer's input and to the weights: one set of backward passes for all of it.

For each output c one backward pass over a batch brings the gradients of z_c at every place of the network at once; the
samples of a batch do not see each other, so each pass serves them all. What is kept of the rows is their Gram matrix
J J' (C x C for each sample), whose eigenvalues are the squared singular values of J.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node
from torch.nn import functional

from spherometer.operators.arrangement import Order, by_sample
from spherometer.operators.forward import Call, Forward, is_linear_map, refuse_mixing
from spherometer.operators.input_gradient import QuickInputGradient
from spherometer.operators.squares import Layer, as_layer, layers_of, row_gram
from spherometer.operators.trial import Trial, try_out
from spherometer.problems import Piece, Problem, State
from spherometer.problems.batches import num_samples
from spherometer.problems.modes import differentiating
from spherometer.problems.pieces import refuse_non_finite

PLACES = frozenset({"input", "input_columns", "layer_inputs", "layers", "weights", "weight_gram"})
MANY_OUTPUTS = 32  # beyond this, Lanczos runs side by side bring spectral norms sooner than C backward passes
MAX_BYTES = 6.8e8  # of the rows of one chunk: smaller ones make products slow, larger ones bring nothing
SMALLEST = 1e-25  # square of a Jacobian's norm that float32 still adds up from its entries
GRAM_BYTES = 1.6e7  # of the rows that are multiplied at once

__all__ = ["PLACES", "LayerSensitivity", "Sensitivity", "is_linear_map", "sensitivity"]


@dataclass(frozen=True)
class LayerSensitivity:
    """One use of a linear map: its weight, the tensor that enters it, and how the outputs react to both."""

    name: str  # the module's path; "fc#2" is its second use in a forward pass
    module: nn.Module
    weight: Tensor
    input_shape: torch.Size  # of one sample
    input_norms: Tensor  # ‖x_i^l‖, (n,)
    whole_gram: Tensor | None  # of J, the derivative of the outputs in x^l along all paths; None if unwanted
    norms: Tensor | None  # ‖J‖₂ of each sample, (n,), where nothing else of J is wanted
    weight_norms: Tensor | None  # ‖∇_{W_l} f‖_F² of each sample, (n,); None where it has no closed form
    branching: bool = False  # x^l also reaches the outputs along ways past this layer; told with "layers"

    @property
    def gram(self) -> Tensor:
        """J J' of each sample, (n, C, C)."""
        assert self.whole_gram is not None, "only the norms were asked for"
        return self.whole_gram


@dataclass(frozen=True)
class Sensitivity:
    """What a set of backward passes tells about every sample; a field that was not asked for is None."""

    outputs: Tensor  # (n, C)
    targets: Any
    num_terms: float  # of the loss
    inputs: Tensor | None  # (n, ...); None when the model's input has no derivative (tokens)
    input_gram: Tensor | None  # J J' with J the derivative of the outputs in the input, (n, C, C)
    input_columns: Tensor | None  # ‖∂f/∂x_p‖² for each coordinate p of the input, (n, ...)
    layers: tuple[LayerSensitivity, ...]
    left_out: tuple[str, ...]  # linear maps that are not among the layers, and why
    weight_norms: Tensor | None  # ‖∇_θ f‖_F² of each sample over all chosen parameters, (n,)
    weight_gram: Tensor | None  # ∇_θ f ∇_θ f', (n, C, C)


def sensitivity(
    problem: Problem, places: frozenset[str] = PLACES, *, at: Tensor | None = None, trial: Trial | None = None
) -> Sensitivity:
    """Gram matrices of the outputs' derivatives at the wanted places, for every sample of a problem.

    Cost: one forward pass and C backward passes, whatever the number of places (none when no place is wanted);
    memory is bounded by taking the samples in chunks.

    Args:
        places: which of "input", "input_columns" (norms of its columns), "layer_inputs", "layers" (their weight
            gradients too), "weights" (norms only) and "weight_gram" are wanted. "input_norms" stands for "input" where
            this is the quickest way to the largest singular values, "layer_norms" for these alone at each layer; both
            for nothing where `many_outputs` is quicker.
        trial: what `try_out` told about these weights, if it is known already.
    """
    refuse_mixing(problem)
    state = problem.state(at)
    with differentiating():
        trial = trial or try_out(problem, state)
        mode = QuickInputGradient(skipping=not places & {"layers", "weights", "weight_gram"})
        plan = _Plan(trial, _resolved(trial, places), trial.branching() if "layers" in places else frozenset(), mode)
        size = _chunk_size(plan, problem)
        return _joined([plan.run(problem, state, piece) for piece in problem.pieces(size)])


Key = tuple[Node, int]
Rows = list[Tensor]  # the gradients (n, ...) of each output at one place


@dataclass(frozen=True)
class _Plan:
    """What is wanted of every piece, and how the model carries its samples."""

    trial: Trial
    places: frozenset[str]
    branching: frozenset[str]
    mode: QuickInputGradient

    def run(self, problem: Problem, state: State, piece: Piece) -> Sensitivity:
        """The backward passes of one piece."""
        with self.mode:
            forward = Forward(problem, state, piece, self.trial.layout)
        passes = _Pass(forward, self)
        incomplete = any(node in self.mode.skipped for node, _ in passes.reached)
        self.mode.skipped.clear()
        if incomplete:
            self.mode.skipping = False
            return self.run(problem, state, piece)
        return passes.run()


class _Pass:
    """The backward passes of one piece, and the edges of the graph they must reach."""

    def __init__(self, forward: Forward, plan: _Plan) -> None:
        self.forward, self.plan, self.places = forward, plan, plan.places
        looked_into = self.places & {"layers", "layer_inputs", "layer_norms"}
        self.calls = [call for call in forward.calls if call.name in plan.trial.orders] if looked_into else []
        recorder = forward.recorder
        self.every = layers_of(recorder) if self.places & {"weights", "weight_gram"} else None
        self.by_output = {id(use.output): use for use in recorder.uses} if "layers" in self.places else {}
        self.reached = self._reached()

    def _reached(self) -> dict[Key, tuple[GradientEdge, Order]]:
        wanted: list[tuple[GradientEdge | None, Order]] = []
        if self.places & {"input", "input_columns"}:
            wanted.append((self.forward.entry("input"), "first"))
        for call in self.calls:
            leaving = self._leaving(call)
            wanted.append((call.entry, self.plan.trial.orders[call.name]))
            wanted += [(call.leaving, leaving)] if leaving and id(call.output) in self.by_output else []
        wanted += [(layer.output, "first") for layer in self.every or []]
        return {_key(edge): (edge, order) for edge, order in wanted if edge is not None}

    def run(self) -> Sensitivity:
        """C backward passes, and what is kept of them."""
        rows, forward, entry = self._rows(), self.forward, self.forward.entry("input")
        at_input = rows.get(_key(entry)) if entry is not None else None
        return Sensitivity(
            outputs=forward.outputs.detach(),
            targets=forward.targets,
            num_terms=forward.num_terms,
            inputs=None if forward.inputs is None else forward.inputs.detach(),
            input_gram=self._finite(_gram(at_input)) if at_input and "input" in self.places else None,
            input_columns=self._finite(_columns(at_input)) if at_input and "input_columns" in self.places else None,
            layers=tuple(self._layer(call, rows) for call in self.calls),
            left_out=self.plan.trial.left_out,
            weight_norms=self._weight_norms(rows) if "weights" in self.places else None,
            weight_gram=self._weight_gram(rows) if "weight_gram" in self.places else None,
        )

    def _rows(self) -> dict[Key, Rows]:
        """What C backward passes bring to every edge that is to be reached."""
        outputs, rows = self.forward.outputs, {key: Rows() for key in self.reached}
        edges = [edge for edge, _ in self.reached.values()]
        for k in range(outputs.shape[1] if edges else 0):
            gradients = torch.autograd.grad(outputs[:, k].sum(), edges, retain_graph=True, materialize_grads=True)
            for (key, (_, order)), gradient in zip(self.reached.items(), gradients, strict=True):
                rows[key].append(by_sample(gradient, len(outputs), order))
        return rows

    def _finite(self, found: Tensor) -> Tensor:
        refuse_non_finite(found, "Jacobian", self.forward.batch)
        return found

    def _layer(self, call: Call, rows: dict[Key, Rows]) -> LayerSensitivity:
        num, order, layer = len(self.forward.outputs), self.plan.trial.orders[call.name], self._closed(call)
        whole = bool(self.places & {"layers", "layer_inputs"})
        gram = self._finite(_gram(rows[_key(call.entry)], row_gram if whole else _rough_gram))
        return LayerSensitivity(
            name=call.name,
            module=call.module,
            weight=call.weight.detach(),
            input_shape=by_sample(call.inputs, num, order).shape[1:],
            input_norms=call.input_norms(num, order),
            whole_gram=gram if whole else None,
            norms=None if whole else largest_singular_values(gram),
            weight_norms=_norms([layer], rows, weight_only=True) if layer and layer.weight is not None else None,
            branching=call.name in self.plan.branching,
        )

    def _closed(self, call: Call) -> Layer | None:
        """A call as a layer whose weight gradients have a closed form."""
        use, num, order = self.by_output.get(id(call.output)), len(self.forward.outputs), self._leaving(call)
        plain = order == "first" and len(call.output) == num
        if use is None or order is None or not (plain or use.function is functional.linear):
            return None
        return as_layer(use, self.forward.recorder, lambda inputs: by_sample(inputs, num, order))

    def _leaving(self, call: Call) -> Order | None:
        return self.plan.trial.leaving[call.name]

    def _weight_norms(self, rows: dict[Key, Rows]) -> Tensor | None:
        return None if self.every is None else self._finite(_norms(self.every, rows))

    def _weight_gram(self, rows: dict[Key, Rows]) -> Tensor | None:
        if self.every is None:
            return None
        grams = [layer.gram(torch.stack(rows[_key(layer.output)])) for layer in self.every]
        return self._finite(torch.stack(grams).sum(0))


def _key(edge: GradientEdge) -> Key:
    return edge.node, edge.output_nr


def _gram(rows: Rows, product: Callable[[Tensor], Tensor] = row_gram) -> Tensor:
    """J J' of each sample, (n, C, C): in memory order, so that nothing is turned, in parts that stay in the caches."""
    strides, num = rows[0].stride(), len(rows[0])
    inner = sorted(range(1, rows[0].ndim), key=strides.__getitem__, reverse=True)
    size = max(1, int(GRAM_BYTES * num / (8 * len(rows) * max(1, rows[0].numel()))))
    parts = zip(*(row.permute(0, *inner).split(size) for row in rows), strict=True)
    return torch.cat([product(torch.stack(part, 1)) for part in parts])


def _rough_gram(rows: Tensor) -> Tensor:
    """R R' in the precision of the rows, enough for the largest singular value, unless squares leave its range."""
    flat = rows.flatten(2)
    gram = (flat @ flat.mT).double()
    sizes = gram.diagonal(dim1=1, dim2=2).sum(1)
    return gram if bool(((sizes > SMALLEST) & (sizes < 1 / SMALLEST)).all()) else row_gram(rows)


def _columns(rows: Rows) -> Tensor:
    return torch.stack([row.double().square() for row in rows]).sum(0)


def _norms(layers: Sequence[Layer], rows: dict[Key, Rows], *, weight_only: bool = False) -> Tensor:
    """Squared norms (n,) of each sample's gradients, summed over outputs and parameters."""
    parts = [
        norm.double()
        for layer in layers
        for gradient in rows[_key(layer.output)]
        for index, norm in layer.norms(gradient)
        if not weight_only or index == layer.weight
    ]
    return torch.stack(parts).sum(0)


def _resolved(trial: Trial, places: frozenset[str]) -> frozenset[str]:
    """The places where C backward passes are the quicker way: they serve all layers, Lanczos runs only one each."""
    num_outputs, num_layers = trial.forward.outputs.shape[1], len(trial.calls)
    resolved = set(places)
    if "input_norms" in places and num_outputs <= MANY_OUTPUTS:
        resolved.add("input")
    if num_outputs > MANY_OUTPUTS * max(1, num_layers) / 2:
        resolved.discard("layer_norms")
    return frozenset(resolved)


def _chunk_size(plan: _Plan, problem: Problem) -> int | None:
    """Samples of a chunk: all its rows, and their Gram matrices, stay within the memory limit, and chunks are alike."""
    trial = _Pass(plan.trial.forward, plan)
    if not trial.reached:
        return None
    outputs, edges = trial.forward.outputs, [edge for edge, _ in trial.reached.values()]
    row = torch.autograd.grad(outputs[:, 0].sum(), edges, retain_graph=True, materialize_grads=True)
    entries = outputs.shape[1] * sum(gradient.numel() for gradient in row) / len(outputs)
    bytes_of_one = entries * problem.precision.itemsize + 8 * outputs.shape[1] ** 2 * len(edges)
    most = max(1, int(min(MAX_BYTES, problem.memory / 4) / bytes_of_one))
    num = num_samples(next(iter(problem.batches))) or most
    return ceil(num / ceil(num / most))


def _joined(parts: list[Sensitivity]) -> Sensitivity:
    if len(parts) == 1:
        return parts[0]
    merged = {entry.name: _merged([getattr(part, entry.name) for part in parts]) for entry in fields(Sensitivity)}
    layers = tuple(_joined_layer(uses) for uses in zip(*(part.layers for part in parts), strict=True))
    return Sensitivity(**(merged | {"layers": layers, "num_terms": sum(part.num_terms for part in parts)}))


def largest_singular_values(gram: Tensor) -> Tensor:
    """‖J‖₂ (n,) of Gram matrices J J' (n, C, C)."""
    return torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0).sqrt()


def _joined_layer(uses: Sequence[LayerSensitivity]) -> LayerSensitivity:
    keys = ("input_norms", "whole_gram", "norms", "weight_norms")
    return replace(uses[0], **{key: _merged([getattr(use, key) for use in uses]) for key in keys})


def _merged(values: list[Any]) -> Any:
    return torch.cat(values) if all(isinstance(value, Tensor) for value in values) else values[0]
