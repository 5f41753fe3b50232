"""Sharpness against the size of the weights: what stays when layers are rescaled, and what a shift costs."""

from __future__ import annotations

from dataclasses import replace

import torch

from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_count, check_positive
from spherometer.metrics.registry import metric
from spherometer.values import Estimate


@metric(
    symbol="S",
    formula="n⁻¹ Σ_i ‖∇_θ f(x_i)‖_F²",
    source="B Eq 3, Lemma B.1; Q35, T12, B-e9",
    cost="exact by C backward passes, else 20-300 products",
    unit="output² / weight²",
)
def jacobian_sharpness(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """How strongly the outputs react to the weights, whatever the loss; Tr H for half squared error at zero residual.

    Not its square root, which paper B plots (B-e15). For ReLU networks and half squared error it is Tr H anywhere.
    """
    return bench.trace("jacobian_gram", rtol)


@metric(
    symbol="S_adaptive",
    formula="Σ_j θ_j² H_jj",
    source="B Eq 40; Q59, T41, T42",
    cost="exact by C backward passes for ReLU networks (T12), else 20-300 products",
)
def adaptive_sharpness(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """The trace of diag(θ) H diag(θ), which does not change when ReLU layers are rescaled against each other."""
    return bench.trace("adaptive_hessian", rtol)


@metric(
    symbol="S_adaptive (J)",
    formula="n⁻¹ Σ_i Σ_j θ_j² ‖∂f(x_i)/∂θ_j‖²",
    source="B Lemma E.2; Q60, T35, B-e11",
    cost="exact by C backward passes, else 20-300 products",
    unit="output²",
)
def adaptive_jacobian_sharpness(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """How strongly the outputs react to relative changes of the weights, whatever the loss."""
    return bench.trace("adaptive_gram", rtol)


@metric(
    symbol="S_avg^ρ",
    formula="(2/ρ²) E[L(θ+δ) − L(θ)], δ ~ N(0, ρ² diag θ²)",
    source="B Def E.1, Eq 38-39, Eq 46; Q59, T42, B-e13, B-e18",
    cost="2·num forward passes",
)
def sampled_adaptive_sharpness(bench: Bench, *, rho: float = 0.1, num: int = 100) -> Estimate:
    """The mean rise of the loss under relative noise, from `num` pairs ±δ; tends to `adaptive_sharpness` as ρ → 0.

    A pair cancels the gradient's part, so the error is of order ρ² (B-e18). The printed Eq 46 omits 2/ρ² (B-e13): it
    is ρ²/2 times this number.
    """
    check_positive("rho", rho, "it is the relative size of the noise, such as 0.1")
    check_count("num", num, 2, "a standard error needs at least two pairs")
    weights, stream = bench.weights, bench.generator("sampled adaptive sharpness")
    rises = torch.empty(num, dtype=torch.float64)
    for k in range(num):
        noise = torch.randn(weights.shape, generator=stream, dtype=torch.float64).to(weights)
        pair = [bench.problem.loss_at(weights + sign * rho * weights.abs() * noise) for sign in (1, -1)]
        rises[k] = sum(pair) / 2 - bench.loss
    factor = 2 / rho**2
    rounding = torch.finfo(bench.problem.precision).eps * abs(bench.loss)
    error = factor * (float(rises.var()) / num + rounding**2) ** 0.5
    note = f"ρ = {rho:g}, {num} pairs ±δ; Eq 46 as printed, without 2/ρ²: {float(rises.mean()):.6g}"
    return Estimate(factor * float(rises.mean()), error, "standard error", "random vectors", note=note)


@metric(
    symbol="Tr H · ‖θ‖²",
    formula="‖θ‖² Σ λ_i",
    source="D Sec 5; Q34, Q11",
    cost="as hessian_trace",
)
def scaled_trace(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """The trace of the Hessian in units of the weights' own length.

    It stays the same when a network that does not feel the length of its weights (batch norm) is scaled; under a
    rescaling of layers against each other it changes (T41), and `adaptive_sharpness` does not.
    """
    return bench.trace("hessian", rtol).scaled(float(bench.weights.double().square().sum()))


@metric(
    symbol="ΔL(d)",
    formula="expected ½ d² Tr H / P, worst ½ d² λ₁",
    source="D Eq 1; Q66, D-e2",
    cost="as hessian_trace and sharpness",
)
def shift_loss(bench: Bench, *, distance: float = 1.0, rtol: float = 0.02) -> Estimate:
    """What a shift of the weights by a distance costs to second order: in a random direction, and in the worst.

    Paper D's Eq 1 omits the ½ (D-e2). The gradient's part has mean zero in a random direction and is left out; the
    note tells how large it can be.
    """
    check_positive("distance", distance, "it is the length of the shift of the weights")
    trace, top = bench.trace("hessian", rtol), bench.extreme("hessian", rtol=min(rtol, 1e-3))
    factors = torch.tensor([distance**2 / (2 * bench.problem.num_parameters), distance**2 / 2], dtype=torch.float64)
    slope = float(bench.gradient.norm()) * distance
    pairs = ((trace.value, top.value[0]), (trace.error, top.error[0]))  # type: ignore[index]
    value, error = torch.tensor([[float(entry) for entry in pair] for pair in pairs], dtype=torch.float64) * factors
    return replace(
        trace,
        value=value,
        error=error,
        kind=trace.kind if trace.source != "exact" else top.kind,
        source=trace.source if trace.source != "exact" else top.source,
        products=trace.products + top.products,
        status=trace.status if not trace.status else top.status,
        labels=("expected", "worst"),
        note=f"‖Δ‖ = {distance:g}; the gradient's part, at most {slope:.3g} to first order, is left out",
    )
