"""The matrix M on the outputs that stands in the middle of ⟨J'MJ⟩, as a product and as a sum of squares.

Everything is scaled so that the mean of a piece is the sum over its terms divided by `count`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from spherometer.problems import Evaluation, Likelihood


def num_vectors(likelihood: Likelihood | None, part: Evaluation) -> float:
    """How many terms of the loss have a slope of their own: positions of a categorical loss, else samples."""
    categorical = likelihood is not None and likelihood.family == "categorical"
    return part.count if categorical else float(len(part.outputs))


def exact_middle(likelihood: Likelihood, part: Evaluation, counted: Tensor | None) -> Callable[[Tensor], Tensor]:
    """M = diag(p) − pp' for a categorical likelihood (C Eq 7), precision·I for a Gaussian one."""
    if likelihood.family == "gaussian":
        return lambda tangent: tangent * (likelihood.precision / len(tangent))
    chances = part.outputs.detach().softmax(1)
    weights = chances if counted is None else chances * counted

    def product(tangent: Tensor) -> Tensor:
        return weights * (tangent - (chances * tangent).sum(1, keepdim=True)) / part.count

    return product


def scores_middle(scores: list[Tensor], likelihood: Likelihood | None, part: Evaluation) -> Callable[[Tensor], Tensor]:
    """M = Σ s s' for each term."""
    categorical = likelihood is not None and likelihood.family == "categorical"
    axes = (1,) if categorical else tuple(range(1, part.outputs.ndim))

    def product(tangent: Tensor) -> Tensor:
        return sum(s * (s * tangent).sum(axes, keepdim=True) for s in scores) / part.count  # type: ignore[return-value]

    return product


def likelihood_roots(likelihood: Likelihood, part: Evaluation) -> list[Tensor] | None:
    """r_k with M = Σ_k r_k r_k': √p_k (e_k − p) for a categorical likelihood, √precision e_k for a Gaussian one."""
    outputs = part.outputs.detach()
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
    outputs = outputs.detach()
    if likelihood.family == "gaussian":
        noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)
        return noise.to(outputs.device) * likelihood.precision**0.5
    chances = outputs.softmax(1).movedim(1, -1)
    drawn = torch.multinomial(chances.reshape(-1, chances.shape[-1]).cpu(), 1, generator=generator)
    label = torch.zeros_like(chances).view(-1, chances.shape[-1]).scatter_(1, drawn.to(outputs.device), 1)
    return (chances - label.view_as(chances)).movedim(-1, 1)


def _sums_to_one(targets: Tensor) -> bool:
    """Whether targets are classes, or probabilities that sum to one: else M carries another factor."""
    if not targets.is_floating_point():
        return True
    return bool(torch.allclose(targets.sum(1), targets.new_ones(()), atol=1e-4))
