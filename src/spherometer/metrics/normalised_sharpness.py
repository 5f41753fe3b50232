"""Normalised sharpness: what is left when rows and columns of each weight matrix are rescaled in the best way."""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from typing import NamedTuple

import torch
from torch import Tensor

from spherometer.estimators import diagonal, trace
from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_count, check_positive
from spherometer.metrics.registry import metric
from spherometer.operators import Rescaled
from spherometer.values import Estimate, Status

FINISHED = 1e-6  # a relative fall of the minimum that no longer matters
READ_OFF = 1000  # weights up to which the diagonal is read off, one product each
NUM_VECTORS = 256  # from which the scales are found beyond that


@metric(
    symbol="min_{σ,σ'} Ŝ",
    formula="Σ_l min_{σ,σ'} Σ_ij [max(H_ij, 0) (σ_iσ'_j)² + W_ij² / (4λ² (σ_iσ'_j)²)], λ = scale",
    source="B Eq 36 (Tsuzuku et al. 2020); Q63",
    cost="exact by C backward passes for ReLU networks (T12) or P ≤ 1000 products; else 256 and as hessian_trace",
    unit="loss^½",
)
def normalised_sharpness(bench: Bench, *, scale: float = 1.0, steps: int = 100, rtol: float = 0.02) -> Estimate:
    """The sharpness left when rows and columns of each weight matrix are rescaled in the best way.

    H_ij is the diagonal of the Hessian; a kernel is summed over its window. For fixed σ' the best σ is known in closed
    form, and the sum is convex in the logarithms, so alternating finds the minimum; it is proportional to 1/λ.
    Negative H_ij make it unbounded: they count as zero, and the note tells how many there are. Parameters with fewer
    than two axes are left out.

    Where the diagonal is only estimated, scales and signs come from random vectors, and the sum is then measured with
    them by others. Signs that are taken wrong only lower that sum, while noise that passes for curvature raises the
    minimum of the estimated diagonal itself: the error bar holds half the difference.
    """
    check_positive("scale", scale, "it is the λ of Eq 36")
    check_count("steps", steps, 1, "each is one update of σ and σ'")
    known = _known_diagonal(bench)
    found, falling = _estimated(bench, steps, rtol) if known is None else _exact(bench, known, steps)
    if falling > FINISHED * abs(float(found.value)):
        message = f"still falling by {falling:.2g} in the last of {steps} steps: raise steps"
        found = replace(found, status=Status(False, message))
    note = f"λ = {scale:g}; {found.note}" if found.note else f"λ = {scale:g}"
    return replace(found.scaled(1 / scale), note=note)


def _known_diagonal(bench: Bench) -> Estimate | None:
    """diag H without chance, where that is affordable."""
    if bench.problem.num_parameters <= READ_OFF:
        return diagonal(bench.hessian, small=READ_OFF)
    known = bench.hessian.exact_diagonal()
    return None if known is None else Estimate(known)


def _fits(bench: Bench, curvature: Tensor, steps: int) -> dict[str, Fit]:
    """The best scales of every weight matrix for this diagonal, negative entries as zero."""
    parts = bench.problem.split(curvature.double().clamp(min=0))
    matrices = {name: weight.double() for name, weight in bench.tensors.items() if weight.ndim > 1}
    return {name: rescaled_minimum(weight, parts[name], steps) for name, weight in matrices.items()}


def _exact(bench: Bench, known: Estimate, steps: int) -> tuple[Estimate, float]:
    """The minimum for a diagonal that is known, and its fall in the last step."""
    curvature = torch.as_tensor(known.value)
    fits, parts = _fits(bench, curvature, steps), bench.problem.split(curvature)
    negative = sum(int((parts[name] < 0).sum()) for name in fits)
    note = f"{negative} H_ij are negative, where the minimum counts zero" if negative else ""
    found = Estimate(sum(fit.minimum for fit in fits.values()), products=known.products, note=note)
    return found, sum(fit.fall for fit in fits.values())


def _estimated(bench: Bench, steps: int, rtol: float) -> tuple[Estimate, float]:
    """Tr(S H S) plus the pull of the weights at scales S from random vectors, and the fall in the last step.

    H_jj = G_jj + (H − G)_jj: where the first is known, chance is left with the second only.
    """
    known = bench.gauss_newton.exact_diagonal()
    matrix = bench.hessian if known is None else bench.residual
    rough = diagonal(matrix, rtol=1e-6, max_products=NUM_VECTORS, seed=bench.seed)
    curvature = torch.as_tensor(rough.value) + (0.0 if known is None else known)
    fits = _fits(bench, curvature, steps)
    squares = torch.cat([_squared_scales(weight, fits.get(name)) for name, weight in bench.tensors.items()])
    scaled = Rescaled(bench.hessian, (squares * (curvature > 0)).sqrt())
    push = trace(scaled, rtol=rtol, memory=bench.problem.memory, seed=bench.seed)
    value = float(push.value) + sum(fit.pull for fit in fits.values())
    minimum, products = sum(fit.minimum for fit in fits.values()), push.products + rough.products
    error = hypot(float(push.error), (minimum - value) / 2)
    message = f"asked for rtol={rtol:g}, {NUM_VECTORS} random vectors leave {error:.2g}: ask for a larger rtol"
    status = Status() if error <= rtol * abs(value) else Status(False, message)
    vectors = f"scales from {NUM_VECTORS} random vectors, whose own minimum is {minimum:.4g}"
    note = f"{vectors}; H_ij that they show as negative count as zero"
    found = Estimate(value, error, "standard error", "random vectors", products, status=status, note=note)
    return found, sum(fit.fall for fit in fits.values())


def _squared_scales(weight: Tensor, fit: Fit | None) -> Tensor:
    """a_i b_j for every entry of a parameter tensor, flat; 0 where it has no fit."""
    if fit is None:
        return torch.zeros(weight.numel(), dtype=torch.float64, device=weight.device)
    return fit.products.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2)).expand_as(weight).reshape(-1)


class Fit(NamedTuple):
    """The best scales of one weight matrix."""

    minimum: float
    products: Tensor  # a_i b_j, the slope of the minimum in H_ij; 0 where the matrix is scaled away
    pull: float  # Σ W_ij² / (4 a_i b_j), half the minimum when it is reached
    fall: float  # of the sum in the last step


def rescaled_minimum(weight: Tensor, curvature: Tensor, steps: int) -> Fit:
    """min over a, b > 0 of Σ_ij [H_ij a_i b_j + W_ij² / (4 a_i b_j)] for H ≥ 0.

    With the best a it is Σ_i √(Σ_j W_ij²/b_j · Σ_j H_ij b_j): rows without weight or without curvature cost nothing.
    """
    squares, curvature, kept = _supported(_window_sum(weight.square()), _window_sum(curvature))
    rows, columns = (torch.ones(size, dtype=torch.float64, device=weight.device) for size in squares.shape)
    cost, fall = float("inf"), 0.0
    for _ in range(steps):
        rows = _balance(squares / columns, curvature * columns)
        columns = _balance((squares / rows[:, None]).T, (curvature * rows[:, None]).T)
        last, cost = cost, float(((squares / columns).sum(1) * (curvature * columns).sum(1)).sqrt().sum())
        fall = last - cost
        if fall <= 1e-3 * FINISHED * cost:
            break
    products = rows[:, None] * columns
    return Fit(cost, products * kept, float((squares / (4 * products)).sum()), fall)


def _supported(squares: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both without the rows and columns in which one of them vanishes: their best a is 0 or ∞ and costs nothing."""
    kept = torch.ones_like(squares, dtype=torch.bool)
    while True:
        rows, columns = ((squares.sum(axis) > 0) & (curvature.sum(axis) > 0) for axis in (1, 0))
        shrunk = kept & rows[:, None] & columns
        if torch.equal(shrunk, kept):
            return squares, curvature, kept
        kept, squares, curvature = shrunk, squares * shrunk, curvature * shrunk


def _balance(pulls: Tensor, pushes: Tensor) -> Tensor:
    """a_i = √(Σ_j pull_ij / 4 Σ_j push_ij), 1 where both vanish."""
    pull, push = pulls.sum(1), pushes.sum(1)
    return torch.where((pull > 0) & (push > 0), (pull / (4 * push)).sqrt(), 1.0)


def _window_sum(tensor: Tensor) -> Tensor:
    return tensor.flatten(2).sum(2) if tensor.ndim > 2 else tensor
