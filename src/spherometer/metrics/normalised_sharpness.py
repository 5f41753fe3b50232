"""Normalised sharpness: what is left when rows and columns of each weight matrix are rescaled in the best way."""

from __future__ import annotations

from dataclasses import replace
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
NUM_PROBES = (
    64  # from which the scales are found where the diagonal is not known: 1 % above the minimum on a tanh network
)


@metric(
    symbol="min_{σ,σ'} Ŝ",
    formula="Σ_l min_{σ,σ'} Σ_ij [H_ij (σ_iσ'_j)² + W_ij² / (4λ² (σ_iσ'_j)²)], λ = scale",
    source="B Eq 36 (Tsuzuku et al. 2020); Q63",
    cost="exact by C backward passes for ReLU networks (T12), else 64 products and as hessian_trace",
    unit="loss^½",
)
def normalised_sharpness(bench: Bench, *, scale: float = 1.0, steps: int = 100, rtol: float = 0.02) -> Estimate:
    """The sharpness left when rows and columns of each weight matrix are rescaled in the best way.

    H_ij is the diagonal of the Hessian; a kernel is summed over its window. For fixed σ' the best σ is known in closed
    form, and the sum is convex in the logarithms, so alternating finds the minimum; it is proportional to 1/λ.
    Negative H_ij make it unbounded: they count as zero, and the note tells how many there are. Where the diagonal is
    only estimated, the scales come from that and the sum is then measured with them, negative H_ij as they are: its
    error bar is honest, and without negative ones it lies a little above the minimum. Parameters with fewer than two
    axes are left out.
    """
    check_positive("scale", scale, "it is the λ of Eq 36")
    check_count("steps", steps, 1, "each is one update of σ and σ'")
    rough = diagonal(bench.hessian, rtol=rtol, max_products=NUM_PROBES, seed=bench.seed)
    curvature = bench.problem.split(torch.as_tensor(rough.value).double().clamp(min=0))
    fits = {
        name: rescaled_minimum(weight.double(), curvature[name], steps)
        for name, weight in bench.tensors.items()
        if weight.ndim > 1
    }
    found = _measured(bench, rough, fits, rtol).scaled(1 / scale)
    falling = sum(fit.fall for fit in fits.values())
    if falling > FINISHED * abs(float(found.value)):
        message = f"still falling by {falling:.2g} in the last of {steps} steps: raise steps"
        found = replace(found, status=Status(False, message))
    negative = _num_negative(bench, rough, fits)
    below = f"{negative} H_ij are negative, where the minimum counts zero" if negative else ""
    return replace(found, note="; ".join(part for part in (f"λ = {scale:g}", below, found.note) if part))


def _num_negative(bench: Bench, rough: Estimate, fits: dict[str, Fit]) -> int:
    parts = bench.problem.split(torch.as_tensor(rough.value))
    return sum(int((parts[name] < 0).sum()) for name in fits)


def _measured(bench: Bench, rough: Estimate, fits: dict[str, Fit], rtol: float) -> Estimate:
    """The sum at the scales of the fits: as it stands for an exact diagonal, else with Tr(S H S) measured."""
    if rough.source == "exact":
        return Estimate(sum(fit.minimum for fit in fits.values()), products=rough.products)
    parts = [
        fits[name].products.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2)).expand_as(weight).reshape(-1)
        if name in fits
        else torch.zeros(weight.numel(), dtype=torch.float64, device=weight.device)
        for name, weight in bench.tensors.items()
    ]
    push = trace(Rescaled(bench.hessian, torch.cat(parts).sqrt()), rtol=rtol, seed=bench.seed)
    value = float(push.value) + sum(fit.pull for fit in fits.values())
    note = f"scales from a diagonal of {rough.products} random vectors: a little above the minimum"
    return replace(push, value=value, products=push.products + rough.products, note=note)


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
