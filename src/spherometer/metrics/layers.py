"""Which layers the curvature sits in: traces and eigenvectors by parameter tensor, and sums that weigh layers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_choice, check_count, check_positive
from spherometer.metrics.registry import metric
from spherometer.values import Estimate, Status

FINISHED = 1e-6  # a relative fall of a minimum that no longer matters


@metric(
    symbol="S(W_l)",
    formula="n⁻¹ Σ_i ‖∇_{W_l} f(x_i)‖_F², by parameter tensor",
    source="B Eq 48; Q64",
    cost="as jacobian_sharpness",
    unit="output² / weight²",
)
def layer_sharpness(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """How strongly the outputs react to each parameter tensor; the sum is `jacobian_sharpness`."""
    traces = bench.block_traces("jacobian_gram", rtol)
    return traces.estimate(traces.values, traces.errors)


@metric(
    symbol="Tr H_ll / Tr H",
    formula="Σ_{j∈l} H_jj / Σ_j H_jj, by parameter tensor",
    source="D Sec 5; Q34, T12",
    cost="exact by C backward passes for ReLU networks (T12), else 16-256 products",
    unit="1",
)
def trace_shares(bench: Bench, *, rtol: float = 0.02) -> Estimate:
    """The part of each parameter tensor in the trace of the Hessian."""
    traces = bench.block_traces("hessian", rtol)
    total = float(traces.values.sum())
    if total == 0:
        return traces.estimate(torch.zeros_like(traces.values), 0.0, "the trace is zero: nothing to share")
    shares = traces.values / total
    # d(t_b / T) = (dt_b − share_b dT) / T
    slopes = (torch.eye(len(shares), dtype=torch.float64) - shares) / total
    negative = int((shares < 0).sum())
    note = f"{negative} blocks have a trace of the other sign: shares are outside 0..1" if negative else ""
    return traces.estimate(shares, traces.error_of(slopes), note)


@metric(
    symbol="‖v_l‖²",
    formula="Σ_{j∈l} v_j², v the unit eigenvector of λ₁, by parameter tensor",
    source="C Fig 10; Q31, Q52",
    cost="as top_eigenvalues with num=2",
    unit="1",
)
def eigenvector_shares(bench: Bench, *, rtol: float = 1e-4) -> Estimate:
    """The part of each parameter tensor in the top eigenvector of the Hessian.

    The error is sin ∠(v, computed v) ≤ ‖Hv − λv‖ / (λ₁ − λ₂) (Davis and Kahan 1970), which bounds every share.
    """
    num = min(2, bench.problem.num_parameters)
    found = bench.extreme("hessian", num=num, rtol=rtol)
    assert found.vectors is not None
    vector, values = found.vectors[:, 0], found.value.double()  # type: ignore[union-attr]
    residual = float((bench.hessian @ vector - values[0].to(vector) * vector).norm())
    gap = float(values[0] - values[1]) if num == 2 else float("inf")
    angle = min(1.0, residual / gap) if gap > 0 else 1.0
    shares = torch.stack([part.double().square().sum() for part in bench.problem.split(vector).values()]).cpu()
    several = gap <= float(found.error[:num].sum())  # type: ignore[index]
    status = Status(False, "λ₁ and λ₂ agree within their errors: no single top direction") if several else found.status
    error = torch.full_like(shares, angle)
    labels = bench.problem.names
    return replace(found, value=shares, error=error, labels=labels, vectors=None, status=status, source="solver")


@metric(
    symbol="Σ ‖W_l‖ √S(W_l)",
    formula="Σ_l ‖W_l‖₂ √(Tr H_ll) over weight matrices",
    source="B Eq 35 (Tsuzuku et al. 2020); Q62, T36, T41, B-e8",
    cost="as trace_shares",
    unit="loss^½",
)
def matrix_normalised_sharpness(bench: Bench, *, norm: str = "spectral", rtol: float = 0.02) -> Estimate:
    """Layer traces weighed with layer norms; unchanged when ReLU layers are rescaled against each other.

    Parameters with fewer than two axes (biases, scales of norms) are left out. A kernel counts as the matrix
    (output channels, all the rest), not as the unrolled convolution (B-e8). `norm` is "spectral" or "frobenius".
    """
    check_choice("norm", norm, ("spectral", "frobenius"))
    traces = bench.block_traces("hessian", rtol)
    order = 2 if norm == "spectral" else "fro"
    norms = torch.tensor(
        [
            float(torch.linalg.matrix_norm(weight.double().flatten(1), order)) if weight.ndim > 1 else 0.0
            for weight in bench.tensors.values()
        ],
        dtype=torch.float64,
    )
    roots = traces.values.clamp(min=0).sqrt()
    slopes = torch.where(roots > 0, norms / (2 * roots), 0.0)
    weightless = int((norms == 0).sum())
    left_out = [f"{weightless} biases, scales or zero matrices left out"] if weightless else []
    negative = int(((traces.values < 0) & (norms > 0)).sum())
    left_out += [f"{negative} layers with a negative trace count as zero"] if negative else []
    return traces.estimate(float(norms @ roots), float(traces.error_of(slopes)), "; ".join(left_out))


@metric(
    symbol="min_{σ,σ'} Ŝ",
    formula="Σ_l min_{σ,σ'} Σ_ij [H_ij (σ_iσ'_j)² + W_ij² / (4λ² (σ_iσ'_j)²)], λ = scale",
    source="B Eq 36 (Tsuzuku et al. 2020); Q63",
    cost="the diagonal of H: exact by C backward passes for ReLU networks (T12), else 20-300 products",
    unit="loss^½",
)
def normalised_sharpness(bench: Bench, *, scale: float = 1.0, steps: int = 100, rtol: float = 0.05) -> Estimate:
    """The sharpness left when rows and columns of each weight matrix are rescaled in the best way.

    H_ij is the diagonal of the Hessian; a kernel is summed over its window. For fixed σ' the best σ is known in closed
    form, and the sum is convex in the logarithms, so alternating finds the minimum; it is proportional to 1/λ.
    Negative H_ij make it unbounded and count as zero. Parameters with fewer than two axes are left out.
    """
    check_positive("scale", scale, "it is the λ of Eq 36")
    check_count("steps", steps, 1, "each is one update of σ and σ'")
    found = bench.diagonal("hessian", rtol)
    errors = found.error if isinstance(found.error, Tensor) else torch.zeros_like(torch.as_tensor(found.value))
    curvature, bars = bench.problem.split(torch.as_tensor(found.value)), bench.problem.split(errors)
    total, error, falling, negative = 0.0, 0.0, 0.0, 0
    for name, weight in bench.tensors.items():
        if weight.ndim > 1:
            value, slopes, fall = rescaled_minimum(weight.double(), curvature[name].double().clamp(min=0), steps)
            total, falling = total + value, falling + fall
            error += float((slopes * _window_sum(bars[name].double())).sum())
            negative += int((curvature[name] < 0).sum())
    noted = [f"λ = {scale:g}"] + ([f"{negative} negative H_ij count as zero"] if negative else [])
    noted += ["error bars of H_ij added up, an upper estimate"] if error else []
    unfinished = Status(False, f"still falling by {falling:.2g} in the last of {steps} steps: raise steps")
    status = unfinished if falling > FINISHED * total else found.status
    return replace(found, value=total / scale, error=error / scale, status=status, note="; ".join(noted))


def rescaled_minimum(weight: Tensor, curvature: Tensor, steps: int) -> tuple[float, Tensor, float]:
    """min over a, b > 0 of Σ_ij [H_ij a_i b_j + W_ij² / (4 a_i b_j)], its slope a_i b_j in H_ij, and its last fall.

    With the best a it is Σ_i √(Σ_j W_ij²/b_j · Σ_j H_ij b_j): rows without weight or without curvature cost nothing.
    """
    squares, curvature = _supported(_window_sum(weight.square()), _window_sum(curvature))
    rows, columns = (torch.ones(size, dtype=torch.float64, device=weight.device) for size in squares.shape)
    cost, fall = float("inf"), 0.0
    for _ in range(steps):
        rows = _balance(squares / columns, curvature * columns)
        columns = _balance((squares / rows[:, None]).T, (curvature * rows[:, None]).T)
        last, cost = cost, float(((squares / columns).sum(1) * (curvature * columns).sum(1)).sqrt().sum())
        fall = last - cost
        if fall <= 1e-3 * FINISHED * cost:
            break
    return cost, rows[:, None] * columns, fall


def _supported(squares: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the rows and columns in which one of them vanishes: their best a is 0 or ∞ and costs nothing."""
    kept = torch.ones_like(squares, dtype=torch.bool)
    while True:
        rows, columns = ((squares.sum(axis) > 0) & (curvature.sum(axis) > 0) for axis in (1, 0))
        shrunk = kept & rows[:, None] & columns
        if torch.equal(shrunk, kept):
            return squares, curvature
        kept, squares, curvature = shrunk, squares * shrunk, curvature * shrunk


def _balance(pulls: Tensor, pushes: Tensor) -> Tensor:
    """a_i = √(Σ_j pull_ij / 4 Σ_j push_ij), 1 where both vanish."""
    pull, push = pulls.sum(1), pushes.sum(1)
    return torch.where((pull > 0) & (push > 0), (pull / (4 * push)).sqrt(), 1.0)


def _window_sum(tensor: Tensor) -> Tensor:
    return tensor.flatten(2).sum(2) if tensor.ndim > 2 else tensor
