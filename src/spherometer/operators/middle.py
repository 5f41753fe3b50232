"""The matrix M on the outputs that stands in the middle of ⟨J'MJ⟩, as a product and as a sum of squares.

Everything is scaled so that the mean of a piece is the sum over its terms divided by `count`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from spherometer.problems import Evaluation, Likelihood

MAX_ROOTS = 256  # backward passes beyond which an exact trace is no longer the cheap way


def exact_middle(likelihood: Likelihood, part: Evaluation, counted: Tensor | None) -> Callable[[Tensor], Tensor]:
    """M = diag(p) − pp' for a categorical likelihood (C Eq 7), precision·I for a Gaussian one."""
    if likelihood.family == "gaussian":
        return lambda tangent: tangent * (likelihood.precision / len(tangent))
    chances = part.outputs.detach().softmax(1)
    weights = chances if counted is None else chances * counted
    terms = chances[:, 0].numel() if counted is None else max(1.0, float(counted.sum()))  # `count` may be a user's own

    def product(tangent: Tensor) -> Tensor:
        tangent = gauged(tangent, part.outputs)
        return weights * (tangent - (chances * tangent).sum(1, keepdim=True)) / terms

    return product


def gauged(tangent: Tensor, outputs: Tensor) -> Tensor:
    """The tangent less its entry at the likeliest class: M1 = 0, so Mv is the same and keeps its digits at p ≈ 1."""
    return tangent - tangent.gather(1, outputs.argmax(1, keepdim=True))


def scores_middle(scores: list[Tensor], part: Evaluation, *, positions: bool) -> Callable[[Tensor], Tensor]:
    """M = Σ s s' for each term; a term is a position of the outputs or a whole sample."""
    axes = (1,) if positions else tuple(range(1, part.outputs.ndim))

    def product(tangent: Tensor) -> Tensor:
        return sum(s * (s * tangent).sum(axes, keepdim=True) for s in scores) / part.count  # type: ignore[return-value]

    return product


def likelihood_roots(likelihood: Likelihood, part: Evaluation) -> list[Tensor] | None:
    """r_k with M = Σ_k r_k r_k': √p_k (e_k − p) for a categorical likelihood, √precision e_k for a Gaussian one."""
    outputs = part.outputs.detach()
    if outputs.shape[1] > MAX_ROOTS:
        return None
    unit = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
    if likelihood.family == "gaussian":
        scale = (likelihood.precision * part.count / len(outputs)) ** 0.5
        return [scale * row.expand_as(outputs) for row in unit]
    if part.count != len(outputs) or not _sums_to_one(part.targets):
        return None
    chances = outputs.softmax(1)
    return [chances[:, k : k + 1].sqrt() * (row - chances) for k, row in enumerate(unit)]


def drawn_score(likelihood: Likelihood, outputs: Tensor, generator: Generator) -> Tensor:
    """The slope of −log p(ŷ) in the outputs for one label per term drawn from the model."""
    return next(drawn_scores(likelihood, outputs, 1, skipped=0, generator=generator))


def drawn_scores(
    likelihood: Likelihood, outputs: Tensor, num: int, *, skipped: int, generator: Generator
) -> Iterator[Tensor]:
    """`num` slopes of −log p(ŷ) in the outputs, each for labels ŷ drawn from the model.

    A sample's labels do not depend on how its batch was cut: numbers are drawn, and thrown away, for the `skipped`
    samples before it too.
    """
    outputs = outputs.detach()
    categorical = likelihood.family == "categorical"
    each = outputs[0, 0].numel() if categorical else outputs[0].numel()
    numbers = torch.rand(skipped + len(outputs), num, each, generator=generator, dtype=torch.float64)[skipped:]
    for number in numbers.to(outputs.device).unbind(1):
        if not categorical:
            noise = torch.special.ndtri(number.clamp(1e-16, 1 - 1e-16)).view_as(outputs)
            yield noise.to(outputs.dtype) * likelihood.precision**0.5
            continue
        chances = outputs.softmax(1)
        level = number.view(len(outputs), 1, *outputs.shape[2:])
        label = (chances.double().cumsum(1) < level).sum(1, keepdim=True).clamp_max(outputs.shape[1] - 1)
        yield chances - torch.zeros_like(chances).scatter_(1, label, 1)


def _sums_to_one(targets: Tensor) -> bool:
    """Whether targets are classes, or probabilities that sum to one: else M carries another factor."""
    if not targets.is_floating_point():
        return True
    return bool(torch.allclose(targets.sum(1), targets.new_ones(()), atol=1e-4))
