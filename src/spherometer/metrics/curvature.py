"""How sharp the loss is around the weights: eigenvalues, traces and norms of H and G."""

from __future__ import annotations

from dataclasses import replace

import torch

from spherometer.estimators import spectral_density as estimate_density
from spherometer.metrics.bench import Bench
from spherometer.metrics.registry import metric
from spherometer.values import Estimate


@metric(symbol="L", formula="N⁻¹ Σ c(f(x_i), y_i)", source="A Eq 1, Q1", cost="1 forward pass")
def loss(bench: Bench) -> Estimate:
    """The empirical loss, a mean over loss terms; weight decay is no part of it, label smoothing is."""
    return Estimate(bench.loss)


@metric(symbol="‖∇L‖", formula="‖∇L‖₂", source="C Sec 5.3, Q43", cost="1 gradient", unit="loss / weight")
def gradient_norm(bench: Bench) -> Estimate:
    """The length of the gradient of the loss."""
    return Estimate(float(bench.gradient.norm()))


@metric(
    symbol="λ₁",
    formula="largest eigenvalue of H",
    source="A Sec 2, C, D; Q31",
    cost="5-9 products",
    unit="loss / weight²",
)
def sharpness(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The largest eigenvalue of the Hessian; gradient descent is stable while it is below 2/lr."""
    return bench.extreme("hessian", rtol=rtol).entry()


@metric(symbol="λₙ", formula="smallest eigenvalue of H", source="D, Q31", cost="10-40 products", unit="loss / weight²")
def smallest_eigenvalue(bench: Bench, *, rtol: float = 1e-2) -> Estimate:
    """The most negative eigenvalue of the Hessian; negative away from a minimum."""
    return bench.extreme("hessian", which="smallest", rtol=rtol).entry()


@metric(
    symbol="λ₁…λₖ",
    formula="the k largest eigenvalues of H",
    source="D, Q31",
    cost="about 3k products",
    unit="loss / weight²",
)
def top_eigenvalues(bench: Bench, *, num: int = 5, rtol: float = 1e-3) -> Estimate:
    """The largest eigenvalues of the Hessian in descending order, multiple ones as often as they occur; at most P."""
    num = min(num, bench.problem.num_parameters)
    found = bench.extreme("hessian", num=num, rtol=rtol).first(num)
    return replace(found, labels=tuple(f"λ{k}" for k in range(1, num + 1)))


@metric(
    symbol="‖G‖",
    formula="largest eigenvalue of ⟨J'MJ⟩",
    source="A B.3, C Def 3.1; Q32",
    cost="5-9 products",
    unit="loss / weight²",
)
def gauss_newton_norm(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The norm of the Gauss-Newton matrix; near the sharpness, but not ordered with it (T6)."""
    return bench.extreme("gauss_newton", rtol=rtol).entry()


@metric(
    symbol="‖H−G‖",
    formula="largest |eigenvalue| of H − G",
    source="A Eq 3, C Eq 5; Q30, T6",
    cost="20-60 products",
    unit="loss / weight²",
)
def residual_norm(bench: Bench, *, rtol: float = 1e-2) -> Estimate:
    """The norm of the part of the Hessian that comes from the bending of the model, ⟨Σ_c ∇²z_c (∂c/∂z)_c⟩."""
    found = bench.extreme("residual", which="magnitude", rtol=rtol).entry()
    return replace(found, value=abs(float(found.value)))


@metric(
    symbol="Tr H",
    formula="Σ λ_i",
    source="B Eq 2, D Eq 1; Q34",
    cost="exact by C backward passes for ReLU networks (T12), else 20-300 products",
    unit="loss / weight²",
)
def hessian_trace(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """The trace of the Hessian, paper B's sharpness."""
    return bench.trace("hessian", rtol)


@metric(symbol="Tr H / P", formula="Σ λ_i / P", source="D App C; Q38", cost="as hessian_trace", unit="loss / weight²")
def mean_eigenvalue(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """The mean eigenvalue of the Hessian."""
    return bench.trace("hessian", rtol).scaled(1 / bench.problem.num_parameters)


@metric(
    symbol="Tr G",
    formula="⟨Σ_k λ_k ‖J'q_k‖²⟩",
    source="C Eq 14; Q41",
    cost="exact by C backward passes, else 20-300 products",
    unit="loss / weight²",
)
def gauss_newton_trace(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """The trace of the Gauss-Newton matrix; for softmax cross-entropy that of the Fisher matrix too."""
    return bench.trace("gauss_newton", rtol)


@metric(symbol="‖H‖_F", formula="√Σ λ_i²", source="D; Q36", cost="20-100 products", unit="loss / weight²")
def hessian_frobenius(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """The Frobenius norm of the Hessian."""
    return bench.frobenius("hessian", rtol)


@metric(
    symbol="Tr H² / P",
    formula="Σ λ_i² / P",
    source="D Figs 6-8; Q36, D-e13",
    cost="as hessian_frobenius",
    unit="(loss / weight²)²",
)
def mean_squared_eigenvalue(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """What paper D prints as its Frobenius norm: the second moment of the spectral density (D-e13)."""
    norm, size = bench.frobenius("hessian", rtol), bench.problem.num_parameters
    value = float(norm.value)
    return replace(norm, value=value**2 / size, error=2 * value * float(norm.error) / size)


@metric(
    symbol="log Π λ",
    formula="Σ_{i≤k} log λ_i",
    source="D Sec 1 (Wu et al. 2017); Q40",
    cost="about 3k products",
    unit="log(loss / weight²)",
)
def log_determinant(bench: Bench, *, num: int = 5, rtol: float = 1e-3) -> Estimate:
    """The logarithm of the product of the k largest eigenvalues that are positive; k is at most P."""
    num = min(num, bench.problem.num_parameters)
    found = bench.extreme("hessian", num=num, rtol=rtol).first(num)
    values, errors = torch.as_tensor(found.value), torch.as_tensor(found.error)
    kept = values > errors  # a zero with rounding would add any negative number
    note = "" if bool(kept.all()) else f"{int((~kept).sum())} of {num} eigenvalues are not surely positive and left out"
    value, error = float(values[kept].log().sum()), float((errors[kept] / values[kept]).sum())
    return replace(found, value=value, error=error, note=note)


@metric(
    symbol="φ(λ)",
    formula="Σ_j w_j δ(λ − t_j), stochastic Lanczos quadrature",
    source="D App B, Figs 1-8; Q37",
    cost="num_vectors x num_steps products",
    unit="1 / eigenvalue",
)
def spectral_density(bench: Bench, *, num_vectors: int = 4, num_steps: int = 40, num_points: int = 12) -> Estimate:
    """The density of eigenvalues of the Hessian on a grid over its range, with a band over probes."""
    density = estimate_density(
        bench.hessian, num_vectors=num_vectors, num_steps=num_steps, memory=bench.problem.memory, seed=bench.seed
    )
    grid = torch.linspace(float(density.nodes.min()), float(density.nodes.max()), num_points, dtype=torch.float64)
    found = density.on(grid)
    return replace(found, labels=tuple(f"{point:.4g}" for point in grid.tolist()))
