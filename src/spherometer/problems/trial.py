"""A trial on a few samples, before anything is measured: does the problem keep what it promises?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spherometer.problems.batches import num_samples, placed, take
from spherometer.problems.losses import check_is_mean
from spherometer.problems.modes import KeptRandomState, differentiating
from spherometer.problems.pieces import NonFiniteError, Piece, State

if TYPE_CHECKING:
    from spherometer.problems.problem import Problem

NUM_TRIED = 8  # samples


def refuse_unusable(problem: Problem) -> None:
    """Refuse weights that are not finite, data that changes, a loss that is no mean, random, or without a gradient."""
    for name, tensor in problem.model.named_parameters():
        if not torch.isfinite(tensor).all():
            raise NonFiniteError(f"parameter {name!r} holds values that are not finite: nothing can be measured")
    state, piece = problem.state(), _first_piece(problem)
    with differentiating():
        once = problem.evaluate(state, piece)
        _refuse_random(problem, state, piece, float(once.loss.detach()))
    with torch.no_grad():
        check_is_mean(problem.criterion, once.outputs, once.targets)
    if not once.loss.requires_grad:
        raise ValueError(
            f"the loss does not depend on the chosen parameters ({', '.join(problem.names[:3])}, ...): "
            "look for detach() or no_grad() in the model, or choose parameters that it uses"
        )


def halves_agree(problem: Problem) -> bool:
    """Whether the loss of a few samples is the mean over their halves; a contrastive loss, say, is not."""
    whole = next(iter(problem.batches))
    size = min(NUM_TRIED, num_samples(whole) or 0)
    if size < 2:
        return size == 1  # a single sample sees nobody
    state, ends = problem.state(), [(0, size), (0, size // 2), (size // 2, size)]
    with torch.no_grad():
        contents = [placed(take(whole, *end), problem.device, problem.precision) for end in ends]
        together, *halves = [problem.evaluate(state, Piece(0, content)) for content in contents]
    mean, epsilon = sum(float(half.loss) * half.count for half in halves), torch.finfo(problem.precision).eps
    rounding = epsilon**0.75 * abs(mean)  # 6e-6 of the loss in float32, 2e-12 in float64
    rounding += 16 * epsilon * together.count  # a small loss may be the difference of logarithms of size one
    return abs(mean - float(together.loss) * together.count) <= rounding and (
        sum(half.count for half in halves) == together.count
    )


def _first_piece(problem: Problem) -> Piece:
    first = next(iter(problem.batches), None)
    if first is None:
        raise ValueError("expected data with at least one batch, got none")
    problem.refuse_changed(0, first)
    problem.refuse_changed(0, first if isinstance(problem.batches, list) else next(iter(problem.batches)))
    few = first if num_samples(first) is None else take(first, 0, NUM_TRIED)
    return Piece(0, placed(few, problem.device, problem.precision))


def _refuse_random(problem: Problem, state: State, piece: Piece, once: float) -> None:
    with KeptRandomState(problem.device):
        for device in {torch.device("cpu"), problem.device}:
            torch.rand(1, device=device)  # another place in the random stream: only a random model can tell
        twice = float(problem.evaluate(state, piece).loss.detach())
    if twice != once:
        raise ValueError(
            f"expected the same loss twice at the same weights, got {once:.9g} and {twice:.9g}: "
            "the model draws random numbers even in eval mode; switch that off, or replay it with "
            "Problem(..., dropout=seed)"
        )
