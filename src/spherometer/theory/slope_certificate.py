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


def slope_certificate(chain: Chain) -> float:
    """The smallest constant met while descending on the certificates with Adam."""
    chain = chain.narrowed
    if not chain.activations:
        return float(spectral_norm(chain.weights[0]))
    widths = [len(weight) for weight in chain.weights[:-1]]
    free = [torch.zeros(width + 1, dtype=torch.float64, requires_grad=True) for width in widths]  # log S, log(r − 1)
    optimizer = torch.optim.Adam(free, lr=0.1)
    slopes = [_middle_and_half(activation) for activation in chain.activations]
    best = torch.inf
    for _ in range(NUM_STEPS if max(widths) <= MAX_WIDTH else 1):
        with differentiating():
            square = _square(chain.weights, slopes, free)
            gradients = torch.autograd.grad(square.clamp_min(1e-300).log(), free)
        best = min(best, float(square.detach()))
        for parameter, gradient in zip(free, gradients, strict=True):
            parameter.grad = gradient.nan_to_num(0.0, 0.0, 0.0)
        optimizer.step()
    return best**0.5


def _middle_and_half(activation: Activation) -> tuple[float, float]:
    low, high = activation.global_slopes()
    return (low + high) / 2, (high - low) / 2 + activation.gap


def _square(weights: Sequence[Tensor], slopes: list[tuple[float, float]], free: list[Tensor]) -> Tensor:
    form = weights[0] @ weights[0].T
    for weight, (middle, half), parameter in zip(weights[1:], slopes, free, strict=True):
        scale, ratio = parameter[:-1].exp(), 1 + parameter[-1].exp().clamp(1e-3, 1e3)
        top = torch.linalg.eigvalsh(form / torch.outer(scale, scale))[-1].clamp_min(1e-200)
        root = half * (ratio * top).sqrt() * scale  # √D
        scaled = form / torch.outer(root, root)
        unit = torch.eye(len(root), dtype=form.dtype)
        inner = unit + middle**2 * torch.linalg.solve(unit - half**2 * scaled, scaled)
        image = weight * root
        form = image @ ((inner + inner.T) / 2) @ image.T
    return torch.linalg.eigvalsh(form)[-1]
