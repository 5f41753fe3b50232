"""How the logits react to the weights: norms of the logit-weight Jacobian and its mean, and what they say of G."""

from __future__ import annotations

from dataclasses import replace

import torch

from spherometer.metrics.bench import Bench
from spherometer.metrics.impurity_weights import ImpurityWeights
from spherometer.metrics.logit_bench import LogitBench, distribution
from spherometer.metrics.logits import gini_impurities
from spherometer.metrics.registry import metric
from spherometer.operators.logit_hessian import logit_hessian
from spherometer.operators.mean_jacobian import MeanJacobianGram
from spherometer.operators.middle import drawn_score
from spherometer.operators.tangent_kernel import TangentKernel, known_likelihood
from spherometer.values import Estimate

MANY_OUTPUTS = 64  # beyond this the norm of the mean Jacobian comes from Lanczos, not from all C gradients


@metric(
    symbol="‖J‖",
    formula="‖∂z/∂θ‖₂ of each sample: mean, maximum, mean of squares",
    source="C Def 3.1, Thm 5.1; Q44",
    cost="C backward passes",
    unit="logit / weight (squared in the last)",
    needs=["weight_gram"],
)
def logit_jacobian_norms(bench: Bench) -> Estimate:
    """The spectral norm of each sample's logit-weight Jacobian; ⟨‖J‖²⟩ is the one of C's Theorem 5.1."""
    squares = bench.shared(LogitBench).norms
    norms = squares.sqrt()
    return Estimate(torch.stack([norms.mean(), norms.max(), squares.mean()]), labels=("mean", "max", "mean square"))


@metric(
    symbol="‖⟨J⟩‖",
    formula="‖N⁻¹ Σ ∂z_i/∂θ‖₂",
    source="C Alg 2, Fig 2; Q45",
    cost="C backward passes; beyond 64 outputs 10-25 products",
    unit="logit / weight",
)
def mean_logit_jacobian_norm(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The spectral norm, not squared, of the mean over samples of the logit-weight Jacobian; C plots its square.

    It depends on how the logits are shifted, which the loss does not: see `projected_mean_logit_jacobian_norm` (T19).
    """
    return _mean_norm(bench, rtol)


@metric(
    symbol="‖⟨J⟩‖_F",
    formula="‖N⁻¹ Σ ∂z_i/∂θ‖_F",
    source="C Alg 2, Eq 51; Q45",
    cost="C backward passes",
    unit="logit / weight",
)
def mean_logit_jacobian_frobenius(bench: Bench) -> Estimate:
    """The Frobenius norm, not squared, of the mean logit-weight Jacobian: what C's regulariser EJR penalises."""
    return _mean_frobenius(bench)


@metric(
    symbol="‖⟨J⟩'1̂‖",
    formula="‖∇θ⟨Σ_c z_c⟩‖ / √C",
    source="C App G, H; Q46",
    cost="1 backward pass",
    unit="logit / weight",
)
def ones_logit_jacobian(bench: Bench) -> Estimate:
    """The length, not squared, of the mean logit-weight Jacobian along 1̂ = 1/√C, to which the loss is blind (C-e8)."""
    jacobian = bench.shared(LogitBench).jacobian
    size, classes = jacobian.outputs.shape
    cotangent = torch.full((size, classes), 1 / (size * classes**0.5), dtype=jacobian.dtype)
    return Estimate(float(jacobian.pull(cotangent).double().norm()))


@metric(
    symbol="‖Π⟨J⟩‖",
    formula="‖(I − 11'/C) ⟨J⟩‖₂",
    source="T19; C-e8, gap G13",
    cost="C backward passes; beyond 64 outputs 10-25 products",
    unit="logit / weight",
)
def projected_mean_logit_jacobian_norm(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The spectral norm of the mean logit-weight Jacobian without its part along 1: blind to shifts of the logits."""
    return _mean_norm(bench, rtol, projected=True)


@metric(
    symbol="‖Π⟨J⟩‖_F",
    formula="‖(I − 11'/C) ⟨J⟩‖_F",
    source="T19; C-e8, gap G13",
    cost="C backward passes",
    unit="logit / weight",
)
def projected_mean_logit_jacobian_frobenius(bench: Bench) -> Estimate:
    """The Frobenius norm of the mean logit-weight Jacobian without its part along 1."""
    return _mean_frobenius(bench, projected=True)


@metric(
    symbol="λ*",
    formula="λ̃ ‖Jr‖²/‖J‖² of each sample, r the top eigenvector of G",
    source="C App C.4, Thm 5.1; Q47, gap G14",
    cost="Gauss-Newton norm, C backward passes, 1 product",
    unit="1",
    needs=["weight_gram"],
)
def lambda_star(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The weight with which each sample's ‖J‖² enters the Gauss-Newton norm: ‖G‖ = ⟨λ*‖J‖²⟩ (T9).

    `weighted` is ⟨λ*‖J‖²⟩/⟨‖J‖²⟩. C's q* is r here, its Jᵀq* is Jr: the paper's Jacobian is P x C.
    """
    weights = bench.shared(ImpurityWeights).at(rtol)
    starred, norms = weights.starred, weights.norms
    weighted = (starred * norms).mean() / norms.mean() if bool(norms.sum() > 0) else starred.new_zeros(())
    found = distribution(starred)
    value = torch.cat([torch.as_tensor(found.value), weighted[None]])
    error = torch.full_like(value, weights.starred_error)
    return replace(weights.top, value=value, error=error, vectors=None, labels=(*found.labels, "weighted"))


@metric(
    symbol="λ̃",
    formula="v'Mv/‖v‖² of each sample, v = Jr, r the top eigenvector of G",
    source="C App C.4; Q47, gap G14",
    cost="Gauss-Newton norm, C backward passes, 1 product",
    unit="1",
    needs=["weight_gram"],
)
def lambda_tilde(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The curvature of the loss along the logit change that the top eigenvector of G makes: λ* ≤ λ̃ ≤ λ⁽¹⁾ (T9)."""
    weights = bench.shared(ImpurityWeights).at(rtol)
    found = distribution(weights.tilde, "the top eigenvector of G does not move their logits")
    error = torch.full_like(torch.as_tensor(found.value), weights.tilde_error)
    return replace(weights.top, value=found.value, error=error, vectors=None, labels=found.labels, note=found.note)


@metric(
    symbol="λ̂*",
    formula="λ₁(H) / ‖⟨J⟩‖²",
    source="C Fig 2, 26; Q48",
    cost="sharpness and mean_logit_jacobian_norm",
    unit="loss / logit²",
)
def curvature_ratio(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """Sharpness over the squared norm of the mean logit-weight Jacobian; C finds it to change slowly in training."""
    top, norm = bench.extreme("hessian", rtol=rtol), _mean_norm(bench, rtol)
    sharpness, error, length = (
        float(torch.as_tensor(top.value)[0]),
        float(torch.as_tensor(top.error)[0]),
        float(norm.value),
    )
    if length == 0:
        return Estimate(torch.nan, note="the mean logit-weight Jacobian vanishes: there is no ratio")
    bar = error / length**2 + 2 * abs(sharpness) * float(norm.error) / length**3
    return replace(top, value=sharpness / length**2, error=bar, vectors=None)


@metric(
    symbol="Tr G ≈",
    formula="⟨tr(M K)⟩ against ⟨tr(M) ‖J‖_F²⟩/C, K = JJ'",
    source="C Eq 14, Sec 5.3; Q41",
    cost="C backward passes",
    unit="loss / weight² (ratio: 1)",
    needs=["weight_gram"],
)
def gauss_newton_trace_approximation(bench: Bench) -> Estimate:
    """The trace of G, C's approximation in which M and the Jacobian do not know of each other, and their ratio."""
    logits = bench.shared(LogitBench)
    p, grams = logits.probabilities, logits.grams
    exact = (logit_hessian(p) * grams).sum((1, 2))
    product = gini_impurities(p) * grams.diagonal(dim1=1, dim2=2).sum(1) / p.shape[1]
    entries = torch.stack([exact.mean(), product.mean(), product.mean() / exact.mean()])
    note = "" if bool(exact.mean() > 0) else "the trace is zero: there is no ratio"
    return Estimate(entries, labels=("exact", "approximation", "ratio"), note=note)


@metric(
    symbol="‖⟨J'(p − e^ŷ)⟩‖²",
    formula="‖N⁻¹ Σ J'(p − e^ŷ)‖², ŷ drawn from p; expectation tr(F)/N",
    source="C Sec 5.3; Q42, T28, C-e6",
    cost="num_draws backward passes",
    unit="loss² / weight²",
)
def fisher_proxy(bench: Bench, *, num_draws: int = 16) -> Estimate:
    """The squared gradient for labels drawn from the model, a mean over draws; N times it estimates tr F.

    All data count as one batch of size N. The expectation stands outside the norm: inside, it is zero (C-e6).
    """
    if num_draws < 2:
        raise ValueError(f"expected num_draws of at least 2, for an error bar, got {num_draws}")
    jacobian = bench.shared(LogitBench).jacobian
    likelihood, stream = known_likelihood(jacobian), bench.generator("fisher_proxy")
    squares = torch.tensor(
        [
            float(
                jacobian.pull(drawn_score(likelihood, jacobian.outputs, stream) / len(jacobian.outputs)).double().norm()
            )
            ** 2
            for _ in range(num_draws)
        ],
        dtype=torch.float64,
    )
    mean, error = float(squares.mean()), float(squares.std()) / num_draws**0.5
    note = f"tr F ≈ {mean * len(jacobian.outputs):.4g} ± {error * len(jacobian.outputs):.2g}"
    return Estimate(mean, error, "standard error", "random vectors", products=num_draws, note=note)


@metric(symbol="‖∇L‖²", formula="‖⟨∇θ l⟩‖²", source="C Sec 5.3; Q43", cost="1 gradient", unit="loss² / weight²")
def squared_gradient_norm(bench: Bench) -> Estimate:
    """The squared length of the gradient over all data: the penalty C compares its regulariser with."""
    return Estimate(float(bench.gradient.double().norm()) ** 2)


@metric(
    symbol="λ(N⁻¹L'JJ'L)",
    formula="largest eigenvalues of the NC x NC tangent kernel with L L' = M",
    source="A Eq 4; Q33, T7",
    cost="about 3 products for each eigenvalue",
    unit="loss / weight²",
)
def tangent_kernel_spectrum(bench: Bench, *, num: int = 5, rtol: float = 1e-3) -> Estimate:
    """The largest eigenvalues of the tangent kernel, weighted by the loss: those of G, seen from the outputs."""
    kernel = TangentKernel(bench.problem, jacobian=bench.shared(LogitBench).jacobian)
    wanted = min(num, *kernel.shape)
    found = bench.spectrum("tangent kernel", kernel, num=wanted, rtol=rtol).first(wanted)
    return replace(found, labels=tuple(f"λ{k}" for k in range(1, wanted + 1)))


def _mean_norm(bench: Bench, rtol: float, *, projected: bool = False) -> Estimate:
    """√ of the largest eigenvalue of ⟨J⟩⟨J⟩', exactly from the Gram matrix or by Lanczos."""
    logits = bench.shared(LogitBench)
    operator = MeanJacobianGram(logits.jacobian, projected=projected)
    if operator.shape[0] <= MANY_OUTPUTS and operator.fits:
        gram = operator.project(operator.project(logits.mean_gram).T)
        return Estimate(float(torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt()))
    # Two, and finer than asked: with one, a near tie at the top was taken for its lower half in 16-25 % of trials.
    number = min(2, operator.shape[0])
    key = "projected mean Jacobian" if projected else "mean Jacobian"
    found = bench.spectrum(key, operator, num=number, rtol=rtol / 10)
    square, error = max(float(torch.as_tensor(found.value)[0]), 0.0), float(torch.as_tensor(found.error)[0])
    value = square**0.5
    return replace(found, value=value, error=error / (2 * value) if value else error**0.5)


def _mean_frobenius(bench: Bench, *, projected: bool = False) -> Estimate:
    """√ of the trace of ⟨J⟩⟨J⟩', from the Gram matrix or gradient by gradient where that is too large."""
    logits = bench.shared(LogitBench)
    operator = MeanJacobianGram(logits.jacobian, projected=projected)
    square = float(operator.project(logits.mean_gram).trace()) if operator.fits else operator.exact_trace()
    return Estimate(max(square, 0.0) ** 0.5)
