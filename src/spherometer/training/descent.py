"""Full-batch gradient descent on a Problem: the plainest training there is, and the one theory speaks about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherometer.problems import NonFiniteError, Piece, Problem, State


@dataclass(frozen=True)
class Step:
    """A moment of training: the model holds the weights at which `loss` was taken, `number` updates from the start."""

    number: int
    loss: float


def gradient_descent(problem: Problem, *, learning_rate: float, num_steps: int) -> Iterator[Step]:
    """θ ← θ − η ∇L(θ), `num_steps` times, in place on the model; yields before each update and after the last.

    The loss is the problem's own, on all of its data and in its conventions, so a measurement between two steps is one
    of the very function that is descended. Nothing is drawn at random: the weights at the start decide everything.

    Example:
        >>> for step in gradient_descent(problem, learning_rate=0.1, num_steps=100):
        ...     step.number, step.loss
    """
    if not learning_rate > 0:
        raise ValueError(f"expected a positive learning rate, got {learning_rate}")
    if num_steps < 0:
        raise ValueError(f"expected num_steps of at least 0, got {num_steps}")
    state, pieces = problem.state(), list(problem.pieces())
    for number in range(num_steps + 1):
        loss, gradient = _loss_and_gradient(problem, state, pieces, number)
        yield Step(number, loss)
        if number < num_steps:
            _descend(problem, state, gradient, learning_rate)


def _loss_and_gradient(
    problem: Problem, state: State, pieces: Sequence[Piece], number: int
) -> tuple[float, list[Tensor]]:
    try:
        return problem.loss_and_gradient(state, pieces)
    except NonFiniteError as error:
        raise NonFiniteError(f"training diverged at step {number}: {error}; lower the learning rate") from None


@torch.no_grad()
def _descend(problem: Problem, state: State, gradient: Sequence[Tensor], learning_rate: float) -> None:
    for name, weight, slope in zip(problem.names, state.weights, gradient, strict=True):
        weight.sub_(slope, alpha=learning_rate)
        problem.model.get_parameter(name).copy_(weight)
