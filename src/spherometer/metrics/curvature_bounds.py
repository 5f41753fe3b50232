"""What ties curvature to Jacobians: the residual term of B's Lemma B.1 and the chain of C's Theorem 5.1."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import jvp, vmap
from torch.nn import functional

from spherometer.metrics.bench import Bench
from spherometer.metrics.impurity_weights import ImpurityWeights
from spherometer.metrics.logit_bench import LogitBench
from spherometer.metrics.options import check_count
from spherometer.metrics.registry import metric
from spherometer.operators.tangent_kernel import known_likelihood
from spherometer.problems import Piece, State
from spherometer.problems.modes import differentiating
from spherometer.problems.weights import unflatten
from spherometer.values import Estimate

BLOCK = 32  # weights whose second derivatives are taken at once


@metric(
    symbol="|Tr H − Tr G| ≤ R",
    formula="|Tr(H − G)| ≤ n⁻¹ Σ_i Σ_j |s_i'∂²f_i/∂θ_j²| ≤ P max_ij ‖∂²f_i/∂θ_j²‖ max_i ‖s_i‖, s = ∂c/∂f",
    source="B Lemma B.1; T13, B-e9",
    cost="2 forward derivatives for each of up to `num` weights",
    unit="loss / weight²",
)
def residual_term(bench: Bench, *, num: int = 500) -> Estimate:
    """What the bending of the model adds to Tr H beyond Tr G, which for half squared error is S: s_i = f_i − y_i.

    Exact for at most `num` weights, else from `num` weights drawn at random; the maximum in `loosest` is then over
    these alone. Zero for ReLU networks (T12).
    """
    check_count("num", num, 2, "a standard error needs at least two weights")
    size = bench.problem.num_parameters
    chosen = torch.arange(size)
    if size > num:
        chosen = torch.randperm(size, generator=bench.generator("residual term"))[:num]
    signed, absolute, bends, slopes = _second_derivatives(bench, chosen)
    values = torch.stack([size * signed.mean().abs(), size * absolute.mean(), size * bends * slopes])
    labels = ("|Tr(H − G)|", "residual term", "loosest")
    if size <= num:
        return Estimate(values, labels=labels, products=2 * size)
    # without replacement: the part of the weights that was seen is certain
    scale = size * ((1 - num / size) / num) ** 0.5
    error = torch.stack([scale * signed.std(), scale * absolute.std(), torch.zeros_like(bends)])
    note = f"{num} of {size} weights; `loosest` is from below"
    return Estimate(values, error, "standard error", "random vectors", 2 * num, labels=labels, note=note)


@metric(
    symbol="‖G‖ = ⟨λ*‖J‖²⟩ ≤ ⟨λ⁽¹⁾‖J‖²⟩",
    formula="‖G‖ = ⟨λ*‖J‖²⟩ ≤ ⟨λ̃‖J‖²⟩ ≤ ⟨λ⁽¹⁾‖J‖²⟩, J the Jacobian of a sample's logits in the weights",
    source="C Thm 5.1, App C.4; Q47, T9",
    cost="Gauss-Newton norm, C backward passes, 1 product",
    unit="loss / weight²",
    needs=["weight_gram"],
)
def gauss_newton_bound(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The Gauss-Newton norm as a mean of squared Jacobians weighed by λ*, under the bound with the impurity.

    Violations count samples with λ* above λ̃ or λ̃ above λ⁽¹⁾; λ⁽¹⁾ is the precision of a squared error.
    """
    logits, weights = bench.shared(LogitBench), bench.shared(ImpurityWeights).at(rtol)
    likelihood = known_likelihood(logits.jacobian)
    norms = weights.norms
    steepest = logits.top[0] if likelihood.family == "categorical" else torch.full_like(norms, likelihood.precision)
    tilde = weights.tilde.nan_to_num(0.0)  # no change of the logits: both weights vanish
    rounding = 1e-6 * steepest + 1e-12
    failures = (weights.starred > tilde + rounding) | (tilde > steepest + rounding)
    top = float(torch.as_tensor(weights.top.value)[0])
    right = float((steepest * norms).mean())
    values = [
        top,
        float((weights.starred * norms).mean()),
        float((tilde * norms).mean()),
        right,
        top / right if right else 0.0,
        int(failures.sum()),
    ]
    labels = ("‖G‖", "⟨λ*‖J‖²⟩", "⟨λ̃‖J‖²⟩", "⟨λ⁽¹⁾‖J‖²⟩", "ratio", "violations")
    bar = float(torch.as_tensor(weights.top.error)[0])
    mean = float(norms.mean())
    error = [bar, weights.starred_error * mean, weights.tilde_error * mean, 0.0, bar / right if right else 0.0, 0.0]
    value, errors = torch.tensor([values, error], dtype=torch.float64)
    return replace(weights.top, value=value, error=errors, vectors=None, labels=labels)


def _second_derivatives(bench: Bench, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each chosen weight j: ⟨s_i'∂²_j f_i⟩ and ⟨|s_i'∂²_j f_i|⟩; then max ‖∂²_j f_i‖ and max ‖s_i‖.

    The means are over loss terms, the maximum over samples: s_i is a sample's part of the loss, times their number.
    """
    problem, state = bench.problem, bench.problem.state(bench.weights)
    sums = torch.zeros(2, len(chosen), dtype=torch.float64, device=problem.device)
    tops, terms, num = sums.new_zeros(2), 0.0, 0
    for piece in problem.pieces():
        slopes, count = _slopes(bench, state, piece)
        terms, num = terms + count, num + len(slopes)
        tops[1] = torch.maximum(tops[1], slopes.norm(dim=1).max())
        for start in range(0, len(chosen), BLOCK):
            part = chosen[start : start + BLOCK]
            bends = _bends(bench, state, piece, part).double().flatten(2)  # (weights, n, C)
            products = (slopes * bends).sum(2)
            sums[:, start : start + BLOCK] += torch.stack([products.sum(1), products.abs().sum(1)])
            tops[0] = torch.maximum(tops[0], bends.norm(dim=2).max())
    signed, absolute = (sums / terms).cpu()
    return signed, absolute, tops[0].cpu(), tops[1].cpu() * (num / terms)


def _slopes(bench: Bench, state: State, piece: Piece) -> tuple[Tensor, float]:
    """∂c/∂f of each sample (n, C), summed over its terms, and how many terms there are."""
    with differentiating():
        outputs, targets = bench.problem.outputs(state, piece)
        leaf = outputs.detach().requires_grad_()
        part = bench.problem.judge(leaf, targets, piece)
        (slopes,) = torch.autograd.grad(part.loss, leaf)
    return part.count * slopes.double().flatten(1), part.count


def _bends(bench: Bench, state: State, piece: Piece, chosen: Tensor) -> Tensor:
    """∂²f/∂θ_j² of every sample for each chosen weight j, by two forward derivatives."""
    vector = state.vector
    start, one = vector.new_zeros(()), vector.new_ones(())

    def bend(direction: Tensor) -> Tensor:
        def outputs(shift: Tensor) -> Tensor:
            moved = tuple(unflatten(vector + shift * direction, state.weights))
            found: Tensor = bench.problem.outputs(replace(state, weights=moved), piece)[0]
            return found

        def slope(shift: Tensor) -> Tensor:
            return jvp(outputs, (shift,), (one,))[1]

        found: Tensor = jvp(slope, (start,), (one,))[1]
        return found

    directions = functional.one_hot(chosen.to(vector.device), len(vector)).to(vector)
    try:
        return vmap(bend)(directions)
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):  # the latter on a CPU
            raise
        if bench.problem.batchnorm == "train" and not bench.problem.splittable:
            raise ValueError(
                "expected samples that do not see each other, got batchnorm='train': second derivatives of single "
                "samples need Problem(..., batchnorm='eval')"
            ) from error
        raise ValueError(f"a layer of this model has no second derivative in forward mode: {error}") from error
