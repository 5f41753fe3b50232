"""Which layers the curvature sits in: traces and eigenvectors by parameter tensor, and sums that weigh layers."""

from __future__ import annotations

from dataclasses import replace

import torch

from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_choice
from spherometer.metrics.registry import metric
from spherometer.values import Estimate, Status


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
