"""Many small problems at once: one matrix for each sample, all multiplied in the same product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from spherometer.estimators.accuracy import check_rtol
from spherometer.estimators.search import UNRESOLVED
from spherometer.estimators.unseen import least_mass

RISK = 1e-3  # accepted chance, for each sample, that the start vector does not show an eigenvector
SLACK = 0.05  # nothing further out than this, relative to the largest found, was missed


class Matrices(Protocol):
    """Symmetric positive matrices, one for each of `num` samples; `@` multiplies each with its own vector."""

    num: int
    size: int
    dtype: torch.dtype

    def __matmul__(self, vectors: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Largest:
    """The largest eigenvalue of each matrix, a bound on its error, and the number of products it took."""

    values: Tensor  # (num,)
    errors: Tensor  # (num,)
    products: int


def largest_of_each(
    matrices: Matrices, *, rtol: float = 1e-3, max_products: int = 100, generator: Generator
) -> Largest:
    """λ₁ of every matrix by Lanczos runs side by side, fully reorthogonalised, until all errors are below rtol·λ₁.

    The error is min(r, max(r²/gap, r/2)) plus rounding, with r = β_m |s_m| the residual norm of the top Ritz pair and
    gap its distance to the nearest other Ritz value less that one's own residual: the rule of `error_bounds`
    (Parlett 1998, §11.7). It goes on until none that is 5 % larger could have stayed hidden, but with a chance of 1e-3
    for each sample that its random start vector has too small a share of the eigenvector.

    Example:
        >>> found = largest_of_each(grams, rtol=1e-3, generator=generator)
        >>> found.values, found.errors
    """
    check_rtol(rtol)
    limit = min(matrices.size, max_products)
    start = torch.randn(matrices.num, matrices.size, generator=generator, dtype=torch.float64)
    basis = [start / start.norm(dim=1, keepdim=True)]
    mass = least_mass(matrices.size, risk=RISK)
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    while True:
        image = (matrices @ basis[-1]).double().cpu()
        alphas.append((basis[-1] * image).sum(1))
        remainder = _orthogonalised(image, basis)
        betas.append(remainder.norm(dim=1))
        found = _top_ritz(torch.stack(alphas, 1), torch.stack(betas, 1), matrices.dtype)
        solved = found.errors <= rtol * found.values
        if len(alphas) == limit or (bool(solved.all()) and _all_seen(alphas, betas, found.values, mass)):
            return found
        basis.append(_unit(remainder, betas[-1], found.values))


def _all_seen(alphas: list[Tensor], betas: list[Tensor], values: Tensor, mass: float) -> bool:
    """Whether an eigenvalue beyond the largest found would show in every chain: `surely_seen` side by side."""
    at = (1 + SLACK) * values
    before, current = torch.zeros_like(at), torch.ones_like(at)
    total, exhausted = torch.ones_like(at), values == 0
    coupling = torch.zeros_like(at)
    for alpha, beta in zip(alphas, betas, strict=True):
        exhausted = exhausted | (beta <= 1e-14 * values)
        before, current = current, ((at - alpha) * current - coupling * before) / beta.clamp_min(1e-300)
        total, coupling = total + current.square(), beta
    return bool((exhausted | (total * mass >= 1)).all())


def _orthogonalised(image: Tensor, basis: list[Tensor]) -> Tensor:
    """The image less its parts along the basis, taken twice: once leaves rounding behind."""
    block = torch.stack(basis, 1)  # (num, m, size)
    for _ in range(2):
        image = image - torch.einsum("nm,nms->ns", torch.einsum("nms,ns->nm", block, image), block)
    return image


def _unit(remainder: Tensor, lengths: Tensor, scale: Tensor) -> Tensor:
    """Unit vectors; a zero vector where the Krylov space is exhausted and nothing remains but rounding."""
    alive = lengths > 1e-14 * scale
    return torch.where(alive[:, None], remainder / lengths.clamp_min(1e-300)[:, None], 0.0)


def _top_ritz(alphas: Tensor, betas: Tensor, dtype: torch.dtype) -> Largest:
    """Top eigenvalue, and its error, of each tridiagonal matrix; alphas and betas (num, m), the last beta left over."""
    size = alphas.shape[1]
    tridiagonal = torch.diag_embed(alphas)
    for k in range(size - 1):
        tridiagonal[:, k, k + 1] = tridiagonal[:, k + 1, k] = betas[:, k]
    values, vectors = torch.linalg.eigh(tridiagonal)
    top = values[:, -1].clamp_min(0)
    residuals = betas[:, -1:] * vectors[:, -1].abs()
    residual, others = residuals[:, -1], values[:, :-1] + residuals[:, :-1]
    gap = top - others.amax(1) if size > 1 else torch.zeros_like(top)
    sharper = torch.maximum(residual.square() / gap.clamp_min(1e-300), UNRESOLVED * residual)
    rounding = 4 * torch.finfo(dtype).eps * top
    errors = torch.minimum(residual, sharper) + rounding
    return Largest(top, torch.where(top > 0, errors, 0.0), size)
