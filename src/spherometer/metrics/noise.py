"""What drawing batches does to gradient and curvature: ratios and bounds of stochastic gradient descent."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_batch_size, check_count, check_positive
from spherometer.metrics.registry import metric
from spherometer.metrics.sample_pool import SamplePool, check_separate
from spherometer.operators import HessianVariance, random_gradient
from spherometer.problems.losses import num_slopes
from spherometer.problems.modes import differentiating
from spherometer.problems.weights import flatten
from spherometer.values import Estimate, Status


@metric(
    symbol="ρ_B",
    formula="‖⟨g⟩‖² / E‖⟨g⟩_B‖² = B / (A + B), A = (N−B)/(N−1) · E‖g − ⟨g⟩‖² / ‖⟨g⟩‖²",
    source="C Prop 5.2; Q49, T26, C-e12",
    cost="1 gradient and 1 pass of ghost norms, else 20-300 products",
    unit="1",
)
def gradient_ratio(bench: Bench, *, batch_size: int = 1, replacement: bool = False, rtol: float = 0.02) -> Estimate:
    """How much of a batch gradient's squared length is the full gradient's, by the closed form; 1 for the full batch.

    With replacement the factor (N−B)/(N−1) is 1. Samples are the unit, tokens for a language model.
    """
    noise = batch_noise(bench, batch_size, replacement=replacement)
    spread = bench.trace("empirical_fisher", rtol)
    signal = float(bench.gradient.double().square().sum())
    mean_square = signal + noise * max(0.0, float(spread.value) - signal)
    if mean_square == 0:
        note = "every gradient is zero: batches do not differ, the ratio is 1 by convention"
        return replace(spread, value=1.0, error=0.0, note=note)
    error = signal * noise * float(spread.error) / mean_square**2
    note = f"B = {batch_size} of N = {bench.num_samples}" + (", with replacement" if replacement else "")
    return replace(spread, value=signal / mean_square, error=error, note=note)


@metric(
    symbol="ρ_B (sampled)",
    formula="‖⟨g⟩‖² / mean over batches of ‖⟨g⟩_B‖²",
    source="C Prop 5.2; Q49",
    cost="num gradients of batches",
    unit="1",
)
def sampled_gradient_ratio(bench: Bench, *, batch_size: int = 1, num: int = 100, replacement: bool = False) -> Estimate:
    """The gradient ratio from `num` batches drawn at random, as a check of the closed form; a sample is drawn whole,
    with all its tokens, and only if one of them is not ignored.
    """
    check_count("num", num, 2, "a standard error needs at least two batches")
    pool, stream = SamplePool(bench.problem), bench.generator("sampled gradient ratio")
    check_batch_size(batch_size, len(pool))
    squares = torch.empty(num, dtype=torch.float64)
    for k in range(num):
        batch = pool.draw(batch_size, stream, replacement=replacement)
        squares[k] = bench.problem.restricted([batch]).gradient_at(bench.weights).double().square().sum()
    signal, mean_square = float(bench.gradient.double().square().sum()), float(squares.mean())
    if mean_square == 0:
        return Estimate(1.0, note="every gradient drawn is zero: the ratio is 1 by convention")
    ratio = signal / mean_square
    error = ratio / mean_square * float(squares.std()) / num**0.5
    return Estimate(ratio, error, "standard error", "random vectors", note=f"{num} batches of {batch_size}")


@metric(
    symbol="E(g_B'Hg_B) / E‖g_B‖²",
    formula="(g'Hg + c (⟨g_i'Hg_i⟩ − g'Hg)) / (‖g‖² + c (⟨‖g_i‖²⟩ − ‖g‖²)), c = (N−B)/((N−1)B)",
    source="C Remark C.2; Q51, T27",
    cost="exact: N gradients and products for N ≤ num; else up to num of each",
    unit="loss / weight²",
)
def descent_ratio(
    bench: Bench, *, batch_size: int = 1, num: int = 200, rtol: float = 0.05, replacement: bool = False
) -> Estimate:
    """The curvature that steps of SGD meet: a step lowers the expected loss iff this is below 2ρ_B / lr (T27).

    ⟨g_i'Hg_i⟩ = tr(H⟨g g'⟩) comes from all single gradients when there are at most `num`, else from random sums.
    """
    check_count("num", num, 2, "a standard error needs at least two random gradients")
    noise = batch_noise(bench, batch_size, replacement=replacement)
    gradient = bench.gradient
    bend, signal = _form(bench, gradient)
    if noise == 0:
        pairs, single = torch.zeros(1, 2, dtype=torch.float64), True
    else:
        pairs, single = _gradient_forms(bench, num, noise, (bend, signal), rtol)
    top, bottom = _with_noise((bend, signal), pairs, noise)
    if bottom <= 0:
        return Estimate(0.0, note="every gradient is zero: no step is taken")
    ratio = top / bottom
    note = f"B = {batch_size} of N = {bench.num_samples}"
    if single:
        return Estimate(ratio, products=1 + len(pairs) * (noise > 0), note=note)
    error = _ratio_error(pairs, noise, ratio, bottom)
    enough = error <= rtol * abs(ratio)
    message = "" if enough else f"error {error:.2g} after {num} random gradients, asked for {rtol:.2g}: raise num"
    status = Status(enough, message)
    return Estimate(ratio, error, "standard error", "random vectors", 1 + len(pairs), status=status, note=note)


@metric(
    symbol="(1+√(1−α²s²))/α",
    formula="(1 + √(1 − α² λ₁(E[H_B²] − H²))) / α, α = lr",
    source="D Sec 4 (Wu, Ma and E 2018); Q65, D-e8",
    cost="5-30 times two Hessian products",
    unit="loss / weight²",
)
def hessian_variance_bound(
    bench: Bench, *, lr: float = 0.1, batch_size: int | None = None, rtol: float = 1e-2
) -> Estimate:
    """The largest sharpness at which SGD with this learning rate stays at a minimum, given how batch Hessians differ.

    The variance E[H_B²] − H² is over the problem's own batches, or over batches of `batch_size` cut in order; each is
    drawn with the weight of its loss terms, one per step. Paper D lost the division by α (D-e8).
    """
    check_positive("lr", lr, "it is the learning rate α")
    batches = list(bench.problem.batches)
    if batch_size is not None:
        pool = SamplePool(bench.problem)
        check_batch_size(batch_size, len(pool))
        batches = pool.cut(batch_size)
    if len(batches) == 1:
        return Estimate(2 / lr, note=f"lr = {lr:g}; one batch, no variance: give batch_size to cut the data")
    matrix = HessianVariance(bench.problem, batches, at=bench.weights)
    spread = bench.spectrum("Hessian variance", matrix, rtol=rtol)
    variance, error = max(0.0, float(spread.value[0])), float(spread.error[0])  # type: ignore[index]
    rest = 1 - lr**2 * variance
    noted = f"lr = {lr:g}, {len(batches)} batches, s = {variance**0.5:.4g}"
    if rest < 0:
        note = f"{noted}; lr·s = {lr * variance**0.5:.3g} > 1: unstable at any sharpness, the bound is 0"
        return replace(spread, value=0.0, error=0.0, note=note)
    error = lr * error / (2 * max(rest, lr**2 * error) ** 0.5) if error else 0.0
    return replace(spread, value=(1 + rest**0.5) / lr, error=error, note=noted)


def batch_noise(bench: Bench, batch_size: int, *, replacement: bool) -> float:
    """c with E‖⟨g⟩_B‖² = ‖⟨g⟩‖² + c·E‖g − ⟨g⟩‖²: (N−B)/((N−1)B), or 1/B with replacement."""
    num = bench.num_samples
    check_separate(bench.problem, num)
    check_batch_size(batch_size, num)
    return 1 / batch_size if replacement else (num - batch_size) / (max(num - 1, 1) * batch_size)


def _form(bench: Bench, vector: Tensor) -> tuple[float, float]:
    """v'Hv and ‖v‖²."""
    product = bench.hessian @ vector
    return float(vector.double() @ product.double()), float(vector.double().square().sum())


def _gradient_forms(
    bench: Bench, num: int, noise: float, base: tuple[float, float], rtol: float
) -> tuple[Tensor, bool]:
    """(g'Hg, ‖g‖²) of every single gradient when there are few, else of random sums of them with the same mean."""
    single = _single_forms(bench) if bench.num_samples <= num else None
    if single is not None:
        return single, True
    stream, rows = bench.generator("random gradients"), []
    for k in range(num):
        rows.append(_form(bench, random_gradient(bench.empirical_fisher, stream)))
        pairs = torch.tensor(rows, dtype=torch.float64)
        if k >= 15 and (k + 1) % 16 == 0:
            top, bottom = _with_noise(base, pairs, noise)
            if bottom > 0 and _ratio_error(pairs, noise, top / bottom, bottom) <= rtol * abs(top / bottom):
                break
    return pairs, False


def _single_forms(bench: Bench) -> Tensor | None:
    """(g'Hg, ‖g‖²) of all terms, if no sample has more than one; the mean of these g is the gradient of the loss."""
    problem, state, rows = bench.problem, bench.problem.state(bench.weights), list[tuple[float, float]]()
    for piece in problem.pieces(1):
        with differentiating():
            part = problem.evaluate(state, piece)
            size = num_slopes(problem.loss, part.outputs, part.targets)
            if size > 1:
                return None
            if size == 0:
                continue
            gradient = flatten(torch.autograd.grad(part.loss, state.weights, materialize_grads=True))
        rows.append(_form(bench, part.count * gradient))  # the count is 1 but where classes have weights
    return torch.tensor(rows, dtype=torch.float64) * (len(rows) / problem.num_terms) ** 2


def _with_noise(base: tuple[float, float], pairs: Tensor, noise: float) -> tuple[float, float]:
    """E[g_B'Hg_B] and E‖g_B‖² from those of the full gradient and the means of those of single gradients."""
    bend, square = (float(mean) for mean in pairs.mean(0))
    return base[0] + noise * (bend - base[0]), base[1] + noise * (square - base[1])


def _ratio_error(pairs: Tensor, noise: float, ratio: float, bottom: float) -> float:
    """One standard error of a ratio of two means, to first order."""
    residuals = noise * (pairs[:, 0] - ratio * pairs[:, 1])
    return float(residuals.std()) / (len(pairs) ** 0.5 * bottom)
