"""A Lipschitz constant of a whole chain that is certified and below the product of its layers' norms.

Activations with slopes in [α, β] satisfy (Δh − αΔz)'Λ(βΔz − Δh) ≥ 0 for every diagonal Λ > 0. Eliminating layer after
layer (the quadratic forms of LipSDP, Fazlyab et al. 2019, in the recursion of ECLipsE, Xu and Sivaranjani 2024) leaves

    N_1 = W_1 W_1',  N_{i+1} = W_{i+1} √D (I + γ² Ñ (I − κ² Ñ)⁻¹) √D W_{i+1}',  Ñ = D^{−½} N_i D^{−½},

with γ = (α+β)/2, κ = (β−α)/2 and D = Λ⁻¹ any diagonal with κ² N_i < D, and ‖f‖_Lip² ≤ ‖N_L‖. Every such D is a
certificate. D = r κ² ‖S⁻¹N_iS⁻¹‖ S² with r > 1 is always one; descent on S and r makes the constant small.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spherometer.problems.modes import differentiating
from spherometer.theory.activations import Activation
from spherometer.theory.chain import Chain
from spherometer.theory.layer_constants import spectral_norm

MAX_WIDTH = 512  # of a layer up to which D is searched
NUM_STEPS = 60
SMALLEST, LARGEST = 1e-5, 1e3  # r − 1: what is inverted stays well-conditioned


def slope_certificate(chain: Chain, diagonals: Sequence[Tensor] | None = None) -> float:
    """The smallest constant met while descending on the certificates with Adam, from these D where they are given."""
    chain = chain.narrowed
    if not chain.activations:
        return float(spectral_norm(chain.weights[0]))
    free = [parameter.requires_grad_() for parameter in _start(chain, diagonals)]
    optimizer = torch.optim.Adam(free, lr=0.1 if diagonals is None else 0.01)
    best = torch.inf
    for _ in range(NUM_STEPS if max(map(len, free)) <= MAX_WIDTH + 1 else 1):
        with differentiating():
            square = _square(chain, free)
            gradients = torch.autograd.grad(square.clamp_min(1e-300).log(), free)
        best = min(best, float(square.detach()))
        for parameter, gradient in zip(free, gradients, strict=True):
            parameter.grad = gradient.nan_to_num(0.0, 0.0, 0.0)
        optimizer.step()
    return best**0.5


def middle_and_half(activation: Activation) -> tuple[float, float]:
    """γ and κ of the slopes γ ± κ."""
    low, high = activation.global_slopes()
    return (low + high) / 2, (high - low) / 2 + activation.gap


def _start(chain: Chain, diagonals: Sequence[Tensor] | None) -> list[Tensor]:
    """log S and log(r − 1) of every layer: S = 1 and r = 2, or those of D."""
    if diagonals is None:
        return [torch.zeros(len(weight) + 1, dtype=torch.float64) for weight in chain.weights[:-1]]
    form, free = chain.weights[0] @ chain.weights[0].T, list[Tensor]()
    for diagonal, weight, activation in zip(diagonals, chain.weights[1:], chain.activations, strict=True):
        _, half = middle_and_half(activation)
        spare = 1 / (half**2 * _top(form, diagonal.sqrt())).clamp_min(1e-200) - 1
        free.append(torch.cat([diagonal.log() / 2, spare.clamp(SMALLEST, LARGEST).log().reshape(1)]))
        form = _after(form, weight, activation, free[-1])
    return free


def _square(chain: Chain, free: Sequence[Tensor]) -> Tensor:
    form = chain.weights[0] @ chain.weights[0].T
    for weight, activation, parameter in zip(chain.weights[1:], chain.activations, free, strict=True):
        form = _after(form, weight, activation, parameter)
    return torch.linalg.eigvalsh(form)[-1]


def _after(form: Tensor, weight: Tensor, activation: Activation, parameter: Tensor) -> Tensor:
    """N_{i+1} of N_i."""
    middle, half = middle_and_half(activation)
    scale, ratio = parameter[:-1].exp(), 1 + parameter[-1].exp().clamp(SMALLEST, LARGEST)
    root = half * (ratio * _top(form, scale)).sqrt() * scale  # √D
    scaled = form / torch.outer(root, root)
    unit = torch.eye(len(root), dtype=form.dtype)
    inner = unit + middle**2 * torch.linalg.solve(unit - half**2 * scaled, scaled)
    image = weight * root
    return image @ ((inner + inner.T) / 2) @ image.T


def _top(form: Tensor, scale: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(form / torch.outer(scale, scale))[-1].clamp_min(1e-200)
