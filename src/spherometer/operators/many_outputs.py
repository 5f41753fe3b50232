"""J_i J_i' of every sample as a product, for models with too many outputs to write the Jacobians down."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from spherometer.operators.forward import Forward, refuse_mixing
from spherometer.operators.memory import saved_bytes
from spherometer.problems import Piece, Problem, State
from spherometer.problems.batches import tensors_of
from spherometer.problems.modes import differentiating


class LocalGrams:
    """J_i J_i' of the samples of one piece, J_i the derivative of their C outputs at one place of the network.

    `grams @ vectors` with vectors (n, C) multiplies each sample's matrix with its own vector: one backward pass brings
    J'u, and J w is the derivative of the linear map u ↦ J'u, whose graph is built once.

    Example:
        >>> for grams in local_grams(problem, "input"):
        ...     products = grams @ torch.randn(grams.num, grams.size)
    """

    def __init__(self, problem: Problem, state: State, piece: Piece, place: str) -> None:
        with differentiating():
            forward = Forward(problem, state, piece)
            entry = forward.entry(place)
            if entry is None:
                raise ValueError("the model's input is not a floating-point tensor: it has no derivative (tokens?)")
            self._outputs, self._entry = forward.outputs, entry
            self._direction = torch.zeros_like(forward.outputs, requires_grad=True)
            (self._pulled,) = torch.autograd.grad(
                forward.outputs, [entry], self._direction, create_graph=True, materialize_grads=True
            )
        self.outputs = forward.outputs.detach()
        self.num, self.size = forward.outputs.shape
        self.dtype, self.device = forward.outputs.dtype, forward.outputs.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        if not self._pulled.requires_grad:
            return torch.zeros_like(vectors)  # no path leads from this place to the outputs
        cotangents = vectors.to(self.device, self.dtype)
        (tangent,) = torch.autograd.grad(
            self._outputs, [self._entry], cotangents, retain_graph=True, materialize_grads=True
        )
        return torch.autograd.grad(self._pulled, self._direction, tangent, retain_graph=True)[0].to(vectors)

    def rows(self, vectors: Tensor) -> Tensor:
        """J_i' v_i of each sample, (n, ...): one backward pass."""
        cotangents = vectors.to(self.device, self.dtype)
        return torch.autograd.grad(self._outputs, [self._entry], cotangents, retain_graph=True, materialize_grads=True)[
            0
        ]


class BatchGram:
    """J J' with J the derivative of all outputs of a batch in all its inputs, samples that see each other included.

    In eval mode J is block diagonal, and its norm the largest of the samples' (T43); in train mode batch norm fills
    the blocks in between (T44).
    """

    def __init__(self, grams: LocalGrams) -> None:
        self._grams = grams
        self.shape = (grams.num * grams.size,) * 2
        self.dtype, self.device = grams.dtype, grams.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        columns = vectors.reshape(len(vectors), -1).T
        images = [(self._grams @ column.reshape(self._grams.num, -1)).flatten() for column in columns]
        return torch.stack(images, 1).reshape(vectors.shape)


def batch_grams(problem: Problem, *, at: Tensor | None = None) -> Iterator[BatchGram]:
    """J J' of each whole batch of a problem, in its own batch-norm mode."""
    state = problem.state(at)
    for piece in problem.pieces():
        yield BatchGram(LocalGrams(problem, state, piece, "input"))


def local_grams(problem: Problem, place: str, *, at: Tensor | None = None) -> Iterator[LocalGrams]:
    """The samples of a problem, piece after piece within its memory limit, at "input" or at a layer's input."""
    refuse_mixing(problem)
    state = problem.state(at)
    (trial,) = problem.sample(1).pieces()
    known = [*state.tensors.values(), *tensors_of(trial.content)]
    bytes_of_one = max(1, saved_bytes(lambda: LocalGrams(problem, state, trial, place), known))
    size = max(1, int(problem.memory / (4 * bytes_of_one)))
    for piece in problem.pieces(size):
        yield LocalGrams(problem, state, piece, place)
