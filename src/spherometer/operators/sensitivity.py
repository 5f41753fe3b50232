"""How outputs react to the input, to every layer's input and to the weights: one set of backward passes for all of it.

For each output c one backward pass over a batch brings the gradients of z_c at every place of the network at once; the
samples of a batch do not see each other, so each pass serves them all. What is kept of the rows is their Gram matrix
J J' (C x C for each sample), whose eigenvalues are the squared singular values of J.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from spherometer.operators.forward import Call, Forward, is_linear_map, refuse_mixing
from spherometer.operators.squares import Layer, as_layer, layers_of, row_gram
from spherometer.problems import Problem
from spherometer.problems.modes import differentiating

PLACES = frozenset({"input", "input_columns", "layer_inputs", "layers", "weights", "weight_gram"})
MANY_OUTPUTS = 32  # beyond this, Lanczos runs side by side bring spectral norms sooner than C backward passes
MAX_BYTES = 5e8  # of the rows of one chunk: larger ones are no faster, and go back to the system after each use

__all__ = ["PLACES", "LayerSensitivity", "Sensitivity", "is_linear_map", "sensitivity"]


@dataclass(frozen=True)
class LayerSensitivity:
    """One use of a linear map: its weight, the tensor that enters it, and how the outputs react to both."""

    name: str  # the module's path; "fc#2" is its second use in a forward pass
    module: nn.Module
    weight: Tensor
    input_shape: torch.Size  # of one sample
    input_norms: Tensor  # ‖x_i^l‖, (n,)
    gram: Tensor  # J J' with J the derivative of the outputs in x^l along all paths, (n, C, C)
    weight_norms: Tensor | None  # ‖∇_{W_l} f‖_F² of each sample, (n,); None where it has no closed form


@dataclass(frozen=True)
class Sensitivity:
    """What a set of backward passes tells about every sample; a field that was not asked for is None."""

    outputs: Tensor  # (n, C)
    targets: Any
    inputs: Tensor | None  # (n, ...); None when the model's input has no derivative (tokens)
    input_gram: Tensor | None  # J J' with J the derivative of the outputs in the input, (n, C, C)
    input_columns: Tensor | None  # ‖∂f/∂x_p‖² for each coordinate p of the input, (n, ...)
    layers: tuple[LayerSensitivity, ...]
    weight_norms: Tensor | None  # ‖∇_θ f‖_F² of each sample over all chosen parameters, (n,)
    weight_gram: Tensor | None  # ∇_θ f ∇_θ f', (n, C, C)


def sensitivity(problem: Problem, places: frozenset[str] = PLACES, *, at: Tensor | None = None) -> Sensitivity:
    """Gram matrices of the outputs' derivatives at the wanted places, for every sample of a problem.

    Cost: one forward pass and C backward passes, whatever the number of places (none when no place is wanted);
    memory is bounded by taking the samples in chunks.

    Args:
        places: which of "input", "input_columns" (norms of its columns), "layer_inputs", "layers" (their weight
            gradients too), "weights" (norms only) and "weight_gram" are wanted. "input_norms" and "layer_norms" stand
            for "input" and "layer_inputs" where these are the quickest way to the largest singular values, and for
            nothing where `many_outputs` is.
    """
    refuse_mixing(problem)
    state = problem.state(at)
    with differentiating():
        trial = Forward(problem, state, next(problem.sample(1).pieces()))
        places = _resolved(trial, places)
        size = _chunk_size(_Pass(trial, places), problem)
        return _joined([_Pass(Forward(problem, state, piece), places).run() for piece in problem.pieces(size)])


Key = tuple[Node, int]


class _Pass:
    """The backward passes of one piece, and the edges of the graph they must reach."""

    def __init__(self, forward: Forward, places: frozenset[str]) -> None:
        self.forward, self.places = forward, places
        self.calls = forward.calls if places & {"layers", "layer_inputs"} else []
        recorder = forward.recorder
        self.every = layers_of(recorder) if places & {"weights", "weight_gram"} else None
        self.by_output = (
            {id(use.output): as_layer(use, recorder) for use in recorder.uses} if "layers" in places else {}
        )
        self.reached = self._reached()

    def _reached(self) -> dict[Key, GradientEdge]:
        wanted: list[GradientEdge | None] = []
        if self.places & {"input", "input_columns"}:
            wanted.append(self.forward.entry("input"))
        for call in self.calls:
            layer = self.by_output.get(id(call.output))
            wanted += [call.entry, None if layer is None else layer.output]
        wanted += [layer.output for layer in self.every or []]
        return {_key(edge): edge for edge in wanted if edge is not None}

    def run(self) -> Sensitivity:
        """C backward passes, and what is kept of them."""
        rows, forward, entry = self._rows(), self.forward, self.forward.entry("input")
        at_input = rows.get(_key(entry)) if entry is not None else None
        return Sensitivity(
            outputs=forward.outputs.detach(),
            targets=forward.targets,
            inputs=None if forward.inputs is None else forward.inputs.detach(),
            input_gram=_gram(at_input) if at_input is not None and "input" in self.places else None,
            input_columns=_columns(at_input) if at_input is not None and "input_columns" in self.places else None,
            layers=tuple(self._layer(call, rows) for call in self.calls),
            weight_norms=self._weight_norms(rows) if "weights" in self.places else None,
            weight_gram=self._weight_gram(rows) if "weight_gram" in self.places else None,
        )

    def _rows(self) -> dict[Key, Tensor]:
        """Gradients (C, n, ...) of every output at every edge that is to be reached."""
        outputs, edges, rows = self.forward.outputs, list(self.reached.values()), {}
        for k in range(outputs.shape[1] if edges else 0):
            gradients = torch.autograd.grad(outputs[:, k].sum(), edges, retain_graph=True, materialize_grads=True)
            for key, gradient in zip(self.reached, gradients, strict=True):
                if key not in rows:
                    rows[key] = gradient.new_empty(outputs.shape[1], *gradient.shape)
                rows[key][k] = gradient
        return rows

    def _layer(self, call: Call, rows: dict[Key, Tensor]) -> LayerSensitivity:
        layer = self.by_output.get(id(call.output))
        return LayerSensitivity(
            name=call.name,
            module=call.module,
            weight=call.weight.detach(),
            input_shape=call.inputs.shape[1:],
            input_norms=call.input_norms,
            gram=_gram(rows[_key(call.entry)]),
            weight_norms=_norms([layer], rows, weight_only=True) if layer and layer.weight is not None else None,
        )

    def _weight_norms(self, rows: dict[Key, Tensor]) -> Tensor | None:
        return None if self.every is None else _norms(self.every, rows)

    def _weight_gram(self, rows: dict[Key, Tensor]) -> Tensor | None:
        if self.every is None:
            return None
        return torch.stack([layer.gram(rows[_key(layer.output)]) for layer in self.every]).sum(0)


def _key(edge: GradientEdge) -> Key:
    return edge.node, edge.output_nr


def _gram(rows: Tensor) -> Tensor:  # (C, n, ...) -> (n, C, C)
    return torch.cat([row_gram(part.transpose(0, 1)) for part in rows.split(64, dim=1)])


def _columns(rows: Tensor) -> Tensor:  # (C, n, ...) -> (n, ...)
    return torch.stack([row.double().square() for row in rows]).sum(0)


def _norms(layers: Sequence[Layer], rows: dict[Key, Tensor], *, weight_only: bool = False) -> Tensor:
    """Squared norms (n,) of each sample's gradients, summed over outputs and parameters."""
    parts = [
        norm.double()
        for layer in layers
        for gradient in rows[_key(layer.output)]
        for index, norm in layer.norms(gradient)
        if not weight_only or index == layer.weight
    ]
    return torch.stack(parts).sum(0)


def _resolved(trial: Forward, places: frozenset[str]) -> frozenset[str]:
    """The places where C backward passes are the quicker way: they serve all layers, Lanczos runs only one each."""
    num_outputs, num_layers = trial.outputs.shape[1], len(trial.calls)
    resolved = set(places)
    if "input_norms" in places and num_outputs <= MANY_OUTPUTS:
        resolved.add("input")
    if "layer_norms" in places and num_outputs <= MANY_OUTPUTS * max(1, num_layers) / 2:
        resolved.add("layer_inputs")
    return frozenset(resolved)


def _chunk_size(trial: _Pass, problem: Problem) -> int | None:
    """How many samples a chunk may hold so that all its rows, and their Gram matrices, stay within the memory limit."""
    if not trial.reached:
        return None
    outputs = trial.forward.outputs
    row = torch.autograd.grad(outputs[:, 0].sum(), list(trial.reached.values()), materialize_grads=True)
    entries = outputs.shape[1] * sum(gradient.numel() for gradient in row) / len(outputs)
    bytes_of_one = entries * torch.finfo(problem.precision).bits / 8
    return max(1, int(min(MAX_BYTES, problem.memory / 4) / bytes_of_one))


def _joined(parts: list[Sensitivity]) -> Sensitivity:
    if len(parts) == 1:
        return parts[0]
    merged = {entry.name: _merged([getattr(part, entry.name) for part in parts]) for entry in fields(Sensitivity)}
    layers = tuple(_joined_layer(uses) for uses in zip(*(part.layers for part in parts), strict=True))
    return Sensitivity(**(merged | {"layers": layers}))


def _joined_layer(uses: Sequence[LayerSensitivity]) -> LayerSensitivity:
    merged = {key: _merged([getattr(use, key) for use in uses]) for key in ("input_norms", "gram", "weight_norms")}
    first = uses[0]
    return LayerSensitivity(first.name, first.module, first.weight, first.input_shape, **merged)


def _merged(values: list[Any]) -> Any:
    return torch.cat(values) if all(isinstance(value, Tensor) for value in values) else values[0]
