"""A Lipschitz constant of a whole chain that is certified and below the product of its layers' norms.

Activations with slopes in [α, β] satisfy (Δh − αΔz)'Λ(βΔz − Δh) ≥ 0 for every diagonal Λ > 0. Eliminating layer after
layer (the quadratic forms of LipSDP, Fazlyab et al. 2019, in the recursion of ECLipsE, Xu and Sivaranjani 2024) leaves

    N_1 = W_1 W_1',  N_{i+1} = W_{i+1} √D (I + γ² Ñ (I − κ² Ñ)⁻¹) √D W_{i+1}',  Ñ = D^{−½} N_i D^{−½},

with γ = (α+β)/2, κ = (β−α)/2 and D = Λ⁻¹ any diagonal with κ² N_i < D, and ‖f‖_Lip² ≤ ‖N_L‖. Every such D is a
certificate. D = r κ² ‖S⁻¹N_iS⁻¹‖ S² with r > 1 is always one; descent on S and r makes the constant small. Weights are
taken with norm one and the norms multiplied at the end, which changes nothing but the range of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from spherometer.problems.modes import differentiating
from spherometer.theory.activations import Activation
from spherometer.theory.chain import Chain
from spherometer.theory.layer_constants import spectral_norm

Slopes = tuple[float, float]  # γ and κ
MAX_WIDTH = 512  # of a layer up to which D is searched
NUM_STEPS = 60
SMALLEST, LARGEST = 1e-5, 1e3  # r − 1: what is inverted stays well-conditioned


@dataclass(frozen=True)
class Descent:
    """The smallest constant that was met, and D of every layer that gave it."""

    constant: float
    diagonals: Sequence[Tensor]


def normalised(chain: Chain) -> tuple[Chain, float]:
    """The chain without activations that are straight lines and with weights of norm one, and the product of norms."""
    chain = _without_lines(chain).narrowed
    norms = [float(spectral_norm(weight)) for weight in chain.weights]
    scaled = tuple(weight / (norm or 1.0) for weight, norm in zip(chain.weights, norms, strict=True))
    return replace(chain, weights=scaled), math.prod(norms)


def descend(chain: Chain, diagonals: Sequence[Tensor] | None = None) -> Descent:
    """The best certificate met by Adam from these D, or from balanced S and r = 2."""
    if not chain.activations:
        return Descent(float(spectral_norm(chain.weights[0])), [])
    slopes = slopes_of(chain)
    start = _balanced(chain) if diagonals is None else _matching(chain, slopes, diagonals)
    free = [parameter.requires_grad_() for parameter in start]
    optimizer = torch.optim.Adam(free, lr=0.1 if diagonals is None else 0.01)
    best = Descent(math.inf, [])
    for _ in range(NUM_STEPS if max(map(len, free)) <= MAX_WIDTH + 1 else 1):
        with differentiating():
            square, found = _square(chain, slopes, free)
            gradients = torch.autograd.grad(square.clamp_min(1e-300).log(), free)
        if float(square.detach()) ** 0.5 < best.constant:
            best = Descent(float(square.detach()) ** 0.5, [diagonal.detach() for diagonal in found])
        for parameter, gradient in zip(free, gradients, strict=True):
            parameter.grad = gradient.nan_to_num(0.0, 0.0, 0.0)
        optimizer.step()
    return best


def slopes_of(chain: Chain) -> list[Slopes]:
    """γ and κ of every activation, whose slopes are γ ± κ."""
    return [_middle_and_half(activation) for activation in chain.activations]


def _middle_and_half(activation: Activation) -> Slopes:
    low, high = activation.global_slopes()
    return (low + high) / 2, (high - low) / 2 + activation.gap


def _without_lines(chain: Chain) -> Chain:
    """An activation with one slope (κ = 0) is a factor of the weights behind it."""
    weights, activations = [chain.weights[0]], list[Activation]()
    for weight, activation, (middle, half) in zip(chain.weights[1:], chain.activations, slopes_of(chain), strict=True):
        if half == 0:
            weights[-1] = middle * (weight @ weights[-1])
        else:
            weights.append(weight)
            activations.append(activation)
    return replace(chain, weights=tuple(weights), activations=tuple(activations))


def _balanced(chain: Chain) -> list[Tensor]:
    """log S and log(r − 1) of every layer, the same for a network whose neurons are scaled up and down.

    S² = ‖what enters a neuron‖ / ‖what leaves it‖, and 1 for a neuron that is not connected.
    """
    ratios = [weight.norm(dim=1) / following.norm(dim=0) for weight, following in pairwise(chain.weights)]
    scales = [ratio.where((ratio > 0) & ratio.isfinite(), 1.0).sqrt() for ratio in ratios]
    return [torch.cat([scale.log(), scale.new_zeros(1)]) for scale in scales]


def _matching(chain: Chain, slopes: Sequence[Slopes], diagonals: Sequence[Tensor]) -> list[Tensor]:
    """log S and log(r − 1) of every layer that give these D, or the nearest that are certificates."""
    form, free = chain.weights[0] @ chain.weights[0].T, list[Tensor]()
    for diagonal, weight, slope in zip(diagonals, chain.weights[1:], slopes, strict=True):
        spare = 1 / (slope[1] ** 2 * _top(form, diagonal.sqrt())) - 1
        free.append(torch.cat([diagonal.log() / 2, spare.clamp(SMALLEST, LARGEST).log().reshape(1)]))
        form = _after(form, weight, slope, _diagonal(form, slope, free[-1]))
    return free


def _square(chain: Chain, slopes: Sequence[Slopes], free: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """‖N_L‖ and every D."""
    form, diagonals = chain.weights[0] @ chain.weights[0].T, list[Tensor]()
    for weight, slope, parameter in zip(chain.weights[1:], slopes, free, strict=True):
        diagonals.append(_diagonal(form, slope, parameter))
        form = _after(form, weight, slope, diagonals[-1])
    return torch.linalg.eigvalsh(form)[-1], diagonals


def _diagonal(form: Tensor, slope: Slopes, parameter: Tensor) -> Tensor:
    """D = r κ² ‖S⁻¹N_iS⁻¹‖ S²."""
    scale, ratio = parameter[:-1].exp(), 1 + parameter[-1].exp().clamp(SMALLEST, LARGEST)
    return slope[1] ** 2 * ratio * _top(form, scale) * scale.square()


def _after(form: Tensor, weight: Tensor, slope: Slopes, diagonal: Tensor) -> Tensor:
    """N_{i+1} of N_i and D."""
    middle, half = slope
    root = diagonal.sqrt()
    scaled = form / torch.outer(root, root)
    unit = torch.eye(len(root), dtype=form.dtype)
    inner = unit + middle**2 * torch.linalg.solve(unit - half**2 * scaled, scaled)
    image = weight * root
    return image @ ((inner + inner.T) / 2) @ image.T


def _top(form: Tensor, scale: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(form / torch.outer(scale, scale))[-1].clamp_min(1e-200)
