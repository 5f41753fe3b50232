"""How fast Lanczos finds the ends of a spectrum: the bound of Kaniel and Paige and the truth (D Thm 2, D-e14)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.special import eval_chebyt
from torch import Tensor

from spherometer.estimators.krylov import Krylov
from spherometer.estimators.matrices import MatrixLike, SymmetricMatrix
from spherometer.theory import arguments


@dataclass(frozen=True)
class LanczosErrors:
    """λ₁ − θ₁ after 1, 2, ... steps of Lanczos (num_steps,), and the bound on it."""

    observed: Tensor
    bounds: Tensor


def kaniel_paige(spectrum: Tensor, cosine: float, num_steps: int) -> Tensor:
    """(λ₁ − λ_n) tan²φ / T_{m−1}(1 + 2ρ)², ρ = (λ₁ − λ₂)/(λ₂ − λ_n), for m = 1 … num_steps (Kaniel 1966, Paige 1971).

    θ₁ ≥ λ₁ less this; φ is the angle between start and top eigenvector, T the Chebyshev polynomial. Paper D mixes up
    Ritz value and angle, k and m (D-e14). A tie λ₁ = λ₂ gives ρ = 0 and no progress. For the other end of the
    spectrum take −A.

    Args:
        spectrum: eigenvalues in any order; only λ₁, λ₂ and λ_n count.
        cosine: the size of cos φ.

    Example:
        >>> kaniel_paige(torch.tensor([3.0, 2.0, 1.0]), cosine=0.8, num_steps=3)
        tensor([1.1250, 0.1250, 0.0039], dtype=torch.float64)
    """
    arguments.whole("num_steps", num_steps)
    values = arguments.rows("spectrum", torch.as_tensor(spectrum).reshape(-1, 1), least=2).flatten().sort().values
    if not 0 <= cosine <= 1:
        raise ValueError(f"cosine must lie between 0 and 1, got {cosine}")
    first, second, last = (float(value) for value in (values[-1], values[-2], values[0]))
    if cosine == 0:
        return torch.full((num_steps,), first - last, dtype=torch.float64)  # Ritz values never leave the spectrum
    tangent = 1 / cosine**2 - 1
    bounds = torch.full((num_steps,), (first - last) * tangent, dtype=torch.float64)
    if second > last:
        reach = 1 + 2 * (first - second) / (second - last)
        bounds /= torch.as_tensor([eval_chebyt(m, reach) for m in range(num_steps)], dtype=torch.float64).square()
    else:
        bounds[1:] = 0.0  # two different eigenvalues: two steps are enough
    return bounds.clamp_max(first - last)


def lanczos_errors(matrix: MatrixLike, start: Tensor, spectrum: Tensor, top: Tensor, num_steps: int) -> LanczosErrors:
    """What Lanczos from `start` misses of λ₁ after each step, beside the bound.

    Args:
        spectrum: the eigenvalues, or λ₁, λ₂ and λ_n of a large matrix.
        top: a unit eigenvector to λ₁.

    Example:
        >>> matrix = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
        >>> lanczos_errors(matrix, torch.ones(3), matrix.diagonal(), matrix[0] / 3, 3).observed[2] < 1e-12
        tensor(True)
    """
    space = Krylov(SymmetricMatrix(matrix), torch.Generator().manual_seed(0))
    if not space.add(torch.as_tensor(start)):
        raise ValueError("start must not be the zero vector")
    begin = start.double() / start.double().norm()
    bounds = kaniel_paige(spectrum, min(1.0, float((begin @ top.double()).abs())), num_steps)
    largest, found = float(torch.as_tensor(spectrum).max()), []
    for _ in range(num_steps):
        if not space.invariant:
            space.step()
        found.append(largest - float(space.ritz().values[-1]))
    return LanczosErrors(torch.tensor(found, dtype=torch.float64), bounds)
