"""How outputs react to the input, to every layer's input and to the weights: one set of backward passes for all of it.

For each output c one backward pass over a batch brings the gradients of z_c at every place of the network at once; the
samples of a batch do not see each other, so each pass serves them all. What is kept of the rows is their Gram matrix
J J' (C x C for each sample), whose eigenvalues are the squared singular values of J.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from spherometer.operators.recorder import record
from spherometer.operators.squares import Layer, as_layer, layers_of, row_gram
from spherometer.problems import Piece, Problem, State
from spherometer.problems.batches import map_tensors, num_samples
from spherometer.problems.modes import differentiating

PLACES = frozenset({"input", "layers", "weights", "weight_gram"})


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
    layers: tuple[LayerSensitivity, ...]
    weight_norms: Tensor | None  # ‖∇_θ f‖_F² of each sample over all chosen parameters, (n,)
    weight_gram: Tensor | None  # ∇_θ f ∇_θ f', (n, C, C)


def sensitivity(problem: Problem, places: frozenset[str] = PLACES, *, at: Tensor | None = None) -> Sensitivity:
    """Gram matrices of the outputs' derivatives at the wanted places, for every sample of a problem.

    Cost: one forward pass and C backward passes, whatever the number of places; memory is bounded by taking the
    samples in chunks.

    Args:
        places: which of "input", "layers", "weights" (norms only) and "weight_gram" are wanted.
    """
    if not problem.splittable:
        raise ValueError(
            "a Jacobian of each sample needs samples that do not see each other: use batchnorm='eval' and dropout=None"
        )
    state = problem.state(at)
    with differentiating():
        size = _chunk_size(problem, state, places)
        return _joined([_Pass(problem, state, piece, places).run() for piece in problem.pieces(size)])


@dataclass(frozen=True)
class _Call:
    """One call of a linear map."""

    name: str
    module: nn.Module
    weight: Tensor
    inputs: Tensor
    output: Tensor


class _Pass:
    """The forward pass of one piece, and the tensors its backward passes must reach."""

    def __init__(self, problem: Problem, state: State, piece: Piece, places: frozenset[str]) -> None:
        self.places = places
        content, self.inputs = _differentiable(piece.content)
        with _calls(problem.model) as self.calls:
            (self.outputs, self.targets), recorder = record(
                state.weights, lambda: problem.outputs(state, Piece(piece.index, content, piece.start))
            )
        if not isinstance(self.outputs, Tensor) or self.outputs.ndim != 2:
            raise ValueError(
                "a Jacobian of each sample needs outputs of shape (samples, outputs): reshape in `forward`"
            )
        self.by_output = {id(use.output): as_layer(use, recorder) for use in recorder.uses}
        self.every = layers_of(recorder) if places & {"weights", "weight_gram"} else None
        self.reached = self._reached()

    def _reached(self) -> list[Tensor]:
        wanted: list[Tensor] = []
        if "input" in self.places and self.inputs is not None:
            wanted.append(self.inputs)
        if "layers" in self.places:
            wanted += [tensor for call in self.calls for tensor in (call.inputs, call.output)]
        wanted += [layer.output for layer in self.every or []]
        unique = {id(tensor): tensor for tensor in wanted if tensor.requires_grad}
        return list(unique.values())

    @property
    def num_entries(self) -> int:
        """Numbers that all rows of this piece hold."""
        return self.outputs.shape[1] * sum(tensor.numel() for tensor in self.reached)

    def run(self) -> Sensitivity:
        """C backward passes, and what is kept of them."""
        rows = self._rows()
        return Sensitivity(
            outputs=self.outputs.detach(),
            targets=self.targets,
            inputs=None if self.inputs is None else self.inputs.detach(),
            input_gram=self._input_gram(rows),
            layers=tuple(self._layer(call, rows) for call in self.calls) if "layers" in self.places else (),
            weight_norms=self._weight_norms(rows) if "weights" in self.places else None,
            weight_gram=self._weight_gram(rows) if "weight_gram" in self.places else None,
        )

    def _rows(self) -> dict[int, Tensor]:
        """Gradients (C, n, ...) of every output at every tensor that is to be reached, by the tensor's identity."""
        rows = [torch.zeros(self.outputs.shape[1], *t.shape, dtype=t.dtype, device=t.device) for t in self.reached]
        for k in range(self.outputs.shape[1]):
            gradients = torch.autograd.grad(
                self.outputs[:, k].sum(), self.reached, retain_graph=True, allow_unused=True
            )
            for row, gradient in zip(rows, gradients, strict=True):
                if gradient is not None:
                    row[k] = gradient
        return {id(tensor): row for tensor, row in zip(self.reached, rows, strict=True)}

    def _input_gram(self, rows: dict[int, Tensor]) -> Tensor | None:
        if self.inputs is None or "input" not in self.places:
            return None
        return row_gram(rows[id(self.inputs)].transpose(0, 1))

    def _layer(self, call: _Call, rows: dict[int, Tensor]) -> LayerSensitivity:
        entered, layer = rows[id(call.inputs)], self.by_output.get(id(call.output))
        return LayerSensitivity(
            name=call.name,
            module=call.module,
            weight=call.weight.detach(),
            input_shape=call.inputs.shape[1:],
            input_norms=call.inputs.detach().flatten(1).double().norm(dim=1),
            gram=row_gram(entered.transpose(0, 1)),
            weight_norms=_norms([layer], rows, weight_only=True) if layer else None,
        )

    def _weight_norms(self, rows: dict[int, Tensor]) -> Tensor | None:
        return None if self.every is None else _norms(self.every, rows)

    def _weight_gram(self, rows: dict[int, Tensor]) -> Tensor | None:
        if self.every is None:
            return None
        return torch.stack([layer.gram(rows[id(layer.output)]) for layer in self.every]).sum(0)


def _norms(layers: Sequence[Layer], rows: dict[int, Tensor], *, weight_only: bool = False) -> Tensor:
    """Squared norms (n,) of each sample's gradients, summed over outputs and parameters."""
    parts = [
        norm.double()
        for layer in layers
        for gradient in rows[id(layer.output)]
        for index, norm in layer.norms(gradient)
        if not weight_only or index == layer.weight
    ]
    return torch.stack(parts).sum(0)


def _differentiable(content: Any) -> tuple[Any, Tensor | None]:
    """The batch with its first floating-point input made differentiable, and that tensor."""
    found: list[Tensor] = []

    def mark(tensor: Tensor) -> Tensor:
        if found or not tensor.is_floating_point():
            return tensor
        found.append(tensor.detach().clone().requires_grad_())
        return found[0]

    if isinstance(content, tuple | list) and len(content) == 2:
        content = (map_tensors(mark, content[0]), content[1])
    else:
        content = map_tensors(mark, content)
    return content, found[0] if found else None


@contextmanager
def _calls(model: nn.Module) -> Iterator[list[_Call]]:
    """A list that fills with the calls of every linear map while the model runs."""
    calls: list[_Call] = []
    times: dict[str, int] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            times[name] = times.get(name, 0) + 1
            label = name if times[name] == 1 else f"{name}#{times[name]}"
            calls.append(_Call(label, module, module.weight, arguments[0], output))  # type: ignore[arg-type]

        return hook

    handles = [m.register_forward_hook(note(name)) for name, m in model.named_modules() if is_linear_map(m)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def is_linear_map(module: nn.Module) -> bool:
    """Whether a module multiplies its input by a weight: Linear, any convolution, or Hugging Face's Conv1D."""
    return isinstance(module, nn.Linear | _ConvNd) or type(module).__name__ == "Conv1D"


def _chunk_size(problem: Problem, state: State, places: frozenset[str]) -> int | None:
    """How many samples a chunk may hold so that all rows fit into half of the memory limit."""
    piece = next(problem.sample(1).pieces())
    entries = _Pass(problem, state, piece, places).num_entries / (num_samples(piece.content) or 1)
    bytes_of_one = 2 * entries * torch.finfo(problem.precision).bits / 8
    return max(1, int(problem.memory / (2 * bytes_of_one))) if bytes_of_one else None


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
