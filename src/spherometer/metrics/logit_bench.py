"""What the metrics of logits, logit-weight Jacobians and alignment share; worked out once for a bench."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.operators import Operator
from spherometer.operators.gram_by_sample import gram_by_sample
from spherometer.operators.logit_hessian import logit_hessian_eigenpairs, top_logit_eigenpair
from spherometer.operators.mean_jacobian import MeanJacobianGram
from spherometer.operators.output_jacobian import OutputJacobian
from spherometer.operators.tangent_kernel import known_likelihood
from spherometer.problems.batches import num_samples
from spherometer.values import Estimate


class LogitBench:
    """Per-sample logits, eigenpairs of M and Gram matrices of the logit-weight Jacobian.

    The Jacobian of a sample is C x P here, so that G = ⟨J'MJ⟩; paper C writes its transpose, G = ⟨JMJᵀ⟩.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @cached_property
    def jacobian(self) -> OutputJacobian:
        """J of all samples, as an operator both ways."""
        return OutputJacobian(self.bench.problem, at=self.bench.weights)

    @cached_property
    def probabilities(self) -> Tensor:
        """Softmax outputs (N, C) in double precision; refuses a loss that is not softmax cross-entropy."""
        if known_likelihood(self.jacobian).family != "categorical":
            raise ValueError(
                "logit geometry needs softmax cross-entropy; for a squared error M is a multiple of the identity: "
                "all its eigenvalues are equal, and there is nothing to measure"
            )
        return self.jacobian.outputs.double().softmax(1)

    @cached_property
    def top(self) -> tuple[Tensor, Tensor]:
        """λ⁽¹⁾ (N,) and q⁽¹⁾ (N, C) of every sample."""
        return top_logit_eigenpair(self.probabilities)

    @cached_property
    def largest_curvature(self) -> float:
        """The largest ‖M‖ over samples: the precision of a Gaussian likelihood, at most ½ for softmax cross-entropy."""
        likelihood = known_likelihood(self.jacobian)
        return likelihood.precision if likelihood.family == "gaussian" else float(self.top[0].max())

    @cached_property
    def eigenpairs(self) -> tuple[Tensor, Tensor]:
        """All eigenvalues (N, C) and eigenvectors (N, C, C) of M."""
        return logit_hessian_eigenpairs(self.probabilities)

    @cached_property
    def grams(self) -> Tensor:
        """K_ii = J_i J_i' (N, C, C) of every row of the outputs: sample, or token of a sample."""
        num = sum(num_samples(batch) or 0 for batch in self.bench.problem.batches)
        closed = self.bench.sensitivity.weight_gram if num in (0, len(self.jacobian.outputs)) else None
        return gram_by_sample(self.jacobian) if closed is None else closed

    @cached_property
    def norms(self) -> Tensor:
        """‖J_i‖² (N,), the largest eigenvalue of K_ii."""
        return torch.linalg.eigvalsh(self.grams)[:, -1].clamp(min=0)

    @cached_property
    def mean_gram(self) -> Tensor:
        """⟨J⟩⟨J⟩' (C, C)."""
        return MeanJacobianGram(self.jacobian).exact()

    @cached_property
    def eigen_grams(self) -> Tensor:
        """Q'K_iiQ (N, C, C): inner products of the J'q⁽ⁱ⁾ of a sample."""
        vectors = self.eigenpairs[1]
        return vectors.mT @ self.grams @ vectors

    @cached_property
    def top_lengths(self) -> Tensor:
        """‖J'q⁽¹⁾‖² (N,)."""
        vector = self.top[1]
        return torch.einsum("nc,nck,nk->n", vector, self.grams, vector).clamp(min=0)


QUARTILES = ("25 %", "50 %", "75 %")


def distribution(values: Tensor, left_out: str = "") -> Estimate:
    """Mean and quartiles over samples of values (N,); those that are not finite are left out and counted."""
    kept = values[torch.isfinite(values)]
    missing = len(values) - len(kept)
    note = f"{missing} of {len(values)} samples left out: {left_out}" if missing else ""
    entries = torch.cat([kept.mean()[None], quartiles(kept)]) if len(kept) else values.new_full((4,), torch.nan)
    return Estimate(entries, labels=("mean", *QUARTILES), note=note)


def quartiles(values: Tensor) -> Tensor:
    """The 25, 50 and 75 % quantiles (3,), linearly interpolated, of any number of samples."""
    ordered = values.sort().values  # torch.quantile refuses more than 16 million entries
    places = torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype, device=values.device) * (len(values) - 1)
    return ordered[places.floor().long()].lerp(ordered[places.ceil().long()], places.frac())


def eigenvector_angles(operator: Operator, top: Estimate, num: int) -> Tensor:
    """Bounds (num,) on the sines of the angles between computed and true eigenvectors: residual over gap, at most 1.

    The gaps are those between the eigenvalues in `top`, so it should hold one more than `num` (Davis and Kahan 1970).
    """
    assert top.vectors is not None
    vectors, values = top.vectors[:, :num].double(), torch.as_tensor(top.value).double().to(top.vectors.device)
    residuals = (operator @ top.vectors[:, :num]).double() - vectors * values[:num]
    gaps = (values[:num, None] - values[None, :]).abs()
    gaps[torch.arange(num), torch.arange(num)] = torch.inf
    sines = residuals.norm(dim=0) / gaps.amin(1)
    return sines.nan_to_num(nan=1.0).clamp(max=1.0)
