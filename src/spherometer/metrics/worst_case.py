"""Sharpness as the largest rise of the loss in a neighbourhood of the weights."""

from __future__ import annotations

from spherometer.metrics.ascent import Ball, largest_losses
from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_choice, check_count, check_positive
from spherometer.metrics.registry import metric
from spherometer.values import Estimate


@metric(
    symbol="S_max^ρ",
    formula="max L(θ+δ) − L(θ) over ‖δ/|θ|‖ ≤ ρ",
    source="B App E (Kwon et al. 2021, Andriushchenko et al. 2023); Q59, B-e14",
    cost="(restarts + 1)·steps gradients",
)
def worst_adaptive_sharpness(
    bench: Bench, *, rho: float = 0.1, norm: str = "l2", steps: int = 20, restarts: int = 2
) -> Estimate:
    """The largest rise of the loss under relative changes of the weights, by projected ascent: a lower bound of it.

    Weights that are zero do not move. The error is the spread between the best two starts: a sign of how well the
    search has done, not a bound on what it has missed.
    """
    check_positive("rho", rho, "it is the relative radius of the neighbourhood, such as 0.1")
    check_choice("norm", norm, ("l2", "linf"))
    ball = Ball(bench.weights, bench.weights.abs(), float(rho), norm)  # type: ignore[arg-type]
    frozen = int((bench.weights == 0).sum())
    note = f"; {frozen} weights are zero and stay so" if frozen else ""
    return _searched(bench, ball, steps, restarts, 1.0, note)


@metric(
    symbol="φ_ε",
    formula="(max L(θ+z) − L(θ)) / (1 + L(θ)) over |z_j| ≤ ε (|θ_j| + 1)",
    source="D Eq 2 (Keskar et al. 2017, A = I); Q39, D-e3",
    cost="(restarts + 1)·steps gradients, and as sharpness",
    unit="1",
)
def keskar_sharpness(bench: Bench, *, epsilon: float = 1e-3, steps: int = 20, restarts: int = 2) -> Estimate:
    """The largest relative rise of the loss in a box around the weights, by projected ascent: a lower bound of it.

    Keskar et al. print 100 times this. The error is the spread between the best two starts, as in
    `worst_adaptive_sharpness`. The note gives paper D's prediction λ₁ε²/(2(1+L)), which is for a ball of radius ε: the
    box reaches farther, by the factor √P and more.
    """
    check_positive("epsilon", epsilon, "it is the half-width of the box, such as 1e-3")
    ball = Ball(bench.weights, bench.weights.abs() + 1, float(epsilon), "linf")
    top = float(bench.extreme("hessian").value[0])  # type: ignore[index]
    predicted = top * epsilon**2 / (2 * (1 + bench.loss))
    return _searched(bench, ball, steps, restarts, 1 / (1 + bench.loss), f"; λ₁ε²/(2(1+L)) = {predicted:.4g}")


def _searched(bench: Bench, ball: Ball, steps: int, restarts: int, factor: float, note: str) -> Estimate:
    check_count("steps", steps, 1, "each is one gradient")
    check_count("restarts", restarts, 1, "the spread between starts is the error, so two are needed")
    stream = bench.generator(f"ascent in {ball.norm}")
    found = largest_losses(bench.problem, ball, steps=steps, restarts=restarts, stream=stream)
    best, second = sorted([bench.loss, *found], reverse=True)[:2]
    said = f"a lower bound of the maximum, reached from {len(found)} starts of {steps} steps, ± their best two{note}"
    return Estimate(factor * (best - bench.loss), factor * (best - second), "standard error", "solver", note=said)
