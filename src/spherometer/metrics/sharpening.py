"""How steep a model must be to fit its targets: the lower bound behind progressive sharpening (A Thm 5.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.special import xlogy

from spherometer.metrics.bench import Bench
from spherometer.metrics.registry import metric
from spherometer.metrics.secants import distances, pairs_of
from spherometer.problems import likelihood_of
from spherometer.problems.modes import differentiating
from spherometer.values import Estimate


@dataclass(frozen=True)
class Fit:
    """Outputs z_i and targets y_i (n, C) in the space where the cost grows: c(z, y) ≥ growth ‖z − y‖² (Q4).

    That space is the outputs for a squared error, with growth ½ for ½‖·‖², 1/C for the mean over C outputs. For
    softmax cross-entropy it is the probabilities: less the entropy of the target the cost is KL(y‖z) ≥ ‖z − y‖², by
    Pinsker's inequality and because differences of probabilities sum to zero (A-e10).
    """

    outputs: Tensor
    targets: Tensor
    costs: Tensor  # (n,)
    growth: float
    softmaxed: bool

    @property
    def reaches(self) -> Tensor:
        """ℓ_i = √(c_i/α) ≥ ‖z_i − y_i‖ (n,)."""
        return (self.costs / self.growth).sqrt()

    @property
    def residuals(self) -> Tensor:
        """‖z_i − y_i‖ (n,)."""
        return (self.outputs - self.targets).norm(dim=1)

    def joined(self, other: Fit) -> Fit:
        """These samples and those of another fit of the same model."""
        return replace(
            self,
            outputs=torch.cat([self.outputs, other.outputs]),
            targets=torch.cat([self.targets, other.targets]),
            costs=torch.cat([self.costs, other.costs]),
        )


def fit_of(bench: Bench) -> Fit:
    """The fit of every sample; the targets are read off the slope of the loss, so that smoothed labels are theirs."""
    found, loss = bench.sensitivity, bench.problem.loss
    outputs, targets = found.outputs.double(), found.targets
    likelihood = likelihood_of(loss, outputs)
    if likelihood is None or bench.num_samples != len(outputs):
        raise ValueError(
            "the growth constant of the cost is known for softmax cross-entropy without class weights and ignored "
            "targets, and for squared errors: measure with one of these losses"
        )
    if isinstance(targets, Tensor) and targets.is_floating_point():
        targets = targets.double()
    with differentiating():
        leaf = outputs.detach().clone().requires_grad_()
        (slopes,) = torch.autograd.grad(loss(leaf, targets), leaf)
    slopes = len(outputs) * slopes / likelihood.precision
    if likelihood.family == "gaussian":
        growth = likelihood.precision / 2
        return Fit(outputs, outputs - slopes, growth * slopes.square().sum(1), growth, softmaxed=False)
    chances = outputs.softmax(1)
    aims = (chances - slopes).clamp_min(0)
    costs = (xlogy(aims, aims) - aims * outputs.log_softmax(1)).sum(1).clamp_min(0)
    return Fit(chances, aims, costs, 1.0, softmaxed=True)


@metric(
    symbol="max (Δy − 2ℓ)/Δx",
    formula="max_{i≠j} (‖y_i − y_j‖ − 2ℓ) / ‖x_i − x_j‖, ℓ = √(max_i c_i/α); pairwise: ℓ_i + ℓ_j for 2ℓ",
    source="A Thm 5.1; Q4, Q74, T47, A-e10",
    cost="1 forward pass, n² distances",
    unit="output / input",
)
def sharpening_bound(bench: Bench) -> Estimate:
    """How steep the fit reached so far forces the model to be; it climbs to `interpolated` as the loss falls.

    `printed` ≤ `pairwise` ≤ `secant` ≤ max‖J‖ + V: compare with `input_jacobian_norm`, and for cross-entropy, where the
    model is its softmax, with `softmax_input_jacobian_norm`. Below zero it says nothing.
    """
    fit = bench.shared(fit_of)
    if bench.sensitivity.inputs is None:
        raise ValueError("the model's input holds no floating-point tensor (tokens?): samples have no distance")
    inputs = bench.sensitivity.inputs.flatten(1).double()
    values, note = steepest_pairs(inputs, fit)
    space = "probabilities" if fit.softmaxed else "outputs"
    note = f"{note}; {space} and α = {fit.growth:g}, ℓ = {float(fit.reaches.max()):.4g}"
    return Estimate(values, labels=("printed", "pairwise", "secant", "interpolated"), note=note)


def steepest_pairs(inputs: Tensor, fit: Fit) -> tuple[Tensor, str]:
    """The largest over pairs of (Δy − 2ℓ)/Δx, (Δy − ℓ_i − ℓ_j)/Δx, Δz/Δx and Δy/Δx; equal inputs are left out."""
    best, left_out, reaches = inputs.new_full((4,), -torch.inf), 0, fit.reaches
    for rows, columns, upper in pairs_of(len(inputs)):
        apart = distances(inputs[rows], inputs[columns])[upper]
        kept = apart > 0
        wanted = distances(fit.targets[rows], fit.targets[columns])[upper]
        slack = (reaches[rows, None] + reaches[None, columns])[upper]
        reached = distances(fit.outputs[rows], fit.outputs[columns])[upper]
        tops = torch.stack([wanted - 2 * reaches.max(), wanted - slack, reached, wanted])[:, kept] / apart[kept]
        left_out += int((~kept).sum())
        if tops.shape[1]:
            best = torch.maximum(best, tops.amax(1))
    total = len(inputs) * (len(inputs) - 1) // 2
    if left_out == total:
        raise ValueError("a secant needs two samples with different inputs, got none")
    return best.cpu(), f"{total - left_out} pairs" + (
        f", {left_out} pairs of equal inputs left out" if left_out else ""
    )
