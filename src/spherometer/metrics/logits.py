"""Where the softmax stands: eigenvalues of the logit Hessian M = diag(p) − pp', impurity, Gini."""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.logit_bench import QUARTILES, LogitBench, quartiles
from spherometer.metrics.registry import metric
from spherometer.operators.logit_hessian import logit_hessian_eigenpairs, secular_function
from spherometer.values import Estimate

__all__ = ["logit_hessian_eigenpairs", "secular_function"]

ROUNDING = 1e-12  # what a bound may be missed by before it counts as violated


@metric(
    symbol="⟨λ⁽¹⁾⟩",
    formula="mean over samples of the largest eigenvalue of diag(p) − pp'",
    source="C Sec 4.1, Fig 1; Q23, Q26",
    cost="1 forward pass",
    unit="1",
)
def impurity(bench: Bench) -> Estimate:
    """How undecided the softmax is: 0 for one-hot outputs, ½ when two classes share all probability, 1/C if uniform."""
    values = bench.shared(LogitBench).top[0]
    return Estimate(float(values.mean()), note=_degenerate(bench))


@metric(
    symbol="λ⁽¹⁾ 25-75 %",
    formula="quartiles over samples of λ⁽¹⁾",
    source="C Fig 1; Q26",
    cost="1 forward pass",
    unit="1",
)
def impurity_quantiles(bench: Bench) -> Estimate:
    """The 25, 50 and 75 % quantiles of the impurity over samples, the band of C's Fig 1."""
    return Estimate(quartiles(bench.shared(LogitBench).top[0]), labels=QUARTILES, note=_degenerate(bench))


@metric(
    symbol="½Gini ≤ λ⁽¹⁾ ≤ min{p, Gini}",
    formula="p(1−p) ≤ λ⁽¹⁾ ≤ min{p, 2p(1−p)}, p = p_(1); means over samples",
    source="C Thm 4.1(d), Fig 1; T2",
    cost="1 forward pass",
    unit="1",
)
def impurity_bounds(bench: Bench) -> Estimate:
    """The impurity between its two bounds in the largest probability, and how many samples violate them (none may)."""
    logits = bench.shared(LogitBench)
    lower, upper = gini_bounds(logits.probabilities)
    values = logits.top[0]
    violations = ((values < lower - ROUNDING) | (values > upper + ROUNDING)).sum()
    entries = [lower.mean(), values.mean(), upper.mean(), violations.double()]
    return Estimate(torch.stack(entries), labels=("½Gini", "impurity", "min{p, Gini}", "violations"))


@metric(symbol="⟨Gini⟩", formula="⟨1 − Σ p_i²⟩ = ⟨tr M⟩", source="C Sec 5.3; Q25", cost="1 forward pass", unit="1")
def gini(bench: Bench) -> Estimate:
    """The mean Gini impurity over all classes: 0 for one-hot outputs, (C−1)/C for uniform ones."""
    return Estimate(float(gini_impurities(bench.shared(LogitBench).probabilities).mean()))


@metric(
    symbol="⟨Gini(p_(1))⟩",
    formula="⟨2q(1−q)⟩, q the largest probability",
    source="C Thm 4.1(d); Q24",
    cost="1 forward pass",
    unit="1",
)
def binary_gini(bench: Bench) -> Estimate:
    """The mean Gini impurity of the question 'is it the most probable class?'; q is p_(1), not that of the label."""
    return Estimate(2 * float(gini_bounds(bench.shared(LogitBench).probabilities)[0].mean()))


@metric(symbol="1/⟨λ⁽¹⁾⟩", formula="1 / impurity", source="C Fig 28; Q27", cost="1 forward pass", unit="1")
def inverse_impurity(bench: Bench) -> Estimate:
    """What C predicts the growth of the logit-weight Jacobian late in training to follow."""
    value = float(bench.shared(LogitBench).top[0].mean())
    if value == 0:
        return Estimate(torch.inf, note="every output is one-hot: the impurity is zero")
    return Estimate(1 / value, note=_degenerate(bench))


@metric(
    symbol="⟨λ⁽ⁱ⁾⟩",
    formula="mean over samples of the eigenvalues of diag(p) − pp', in descending order",
    source="C Thm 4.1; Q22",
    cost="1 forward pass, 1 C x C eigenproblem per sample",
    unit="1",
)
def logit_hessian_spectrum(bench: Bench) -> Estimate:
    """The mean spectrum of the logit Hessian; the last eigenvalue is zero, its eigenvector a shift of all logits."""
    values = bench.shared(LogitBench).eigenpairs[0].mean(0)
    return Estimate(values, labels=tuple(f"λ{k}" for k in range(1, len(values) + 1)), note=_degenerate(bench))


@metric(
    symbol="⟨QΛ^½⟩",
    formula="mean over samples of the columns √λ⁽ⁱ⁾ q⁽ⁱ⁾ in sorted-class coordinates",
    source="C Fig 8, 30; Q28",
    cost="1 forward pass, 1 C x C eigenproblem per sample",
    unit="1",
)
def impurity_matrix(bench: Bench) -> Estimate:
    """The mean of QΛ^½ with classes sorted by probability: rows are classes, columns eigenvectors, C's heat map.

    Each eigenvector has its sign so that its entry at class (i) is not below that at class (i+1). Samples with tied
    eigenvalues have no unique eigenvectors; they are counted in the note and take part with one choice of them.
    """
    logits = bench.shared(LogitBench)
    return Estimate(sorted_roots(logits.probabilities).mean(0), note=_degenerate(bench))


def sorted_roots(probabilities: Tensor) -> Tensor:
    """QΛ^½ of each sample with its classes sorted by falling probability: (n, C) -> (n, C, C) (Q28)."""
    values, vectors = logit_hessian_eigenpairs(probabilities.sort(dim=1, descending=True).values)
    return vectors * values.sqrt()[:, None, :]


def gini_bounds(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """p(1−p) and min{p, 2p(1−p)} of the largest probability p of each sample: bounds of λ⁽¹⁾ (T2)."""
    ordered = probabilities.sort(dim=-1, descending=True).values
    largest, rest = ordered[..., 0], ordered[..., 1:].sum(-1)
    return largest * rest, largest.minimum(2 * largest * rest)


def gini_impurities(probabilities: Tensor) -> Tensor:
    """1 − Σ p_i² = Σ p_i (1 − p_i) of each sample (Q25); 1 − p_(1) is the sum of the others, which keeps its digits."""
    ordered = probabilities.sort(dim=-1, descending=True).values
    largest, others = ordered[..., 0], ordered[..., 1:]
    return largest * others.sum(-1) + (others * (1 - others)).sum(-1)


def _degenerate(bench: Bench) -> str:
    """How many samples are one-hot, or have no unique top eigenvector because their two largest probabilities tie."""
    two = bench.shared(LogitBench).probabilities.topk(min(2, bench.shared(LogitBench).probabilities.shape[1]), 1).values
    one_hot = int((two[:, -1] == 0).sum()) if two.shape[1] > 1 else len(two)
    tied = int((two[:, 0] == two[:, -1]).sum()) if two.shape[1] > 1 else 0
    parts = [f"{one_hot} one-hot outputs"] * bool(one_hot) + [f"{tied} with tied largest probabilities"] * bool(tied)
    return f"of {len(two)} samples: " + ", ".join(parts) if parts else ""
