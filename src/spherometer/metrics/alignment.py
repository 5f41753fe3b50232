"""Which way gradients point: against the top of the Hessian, the logit eigenvectors and the means of classes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.class_means import ClassMeans
from spherometer.metrics.logit_bench import LogitBench, distribution, eigenvector_angles
from spherometer.metrics.registry import metric
from spherometer.values import Estimate


@metric(
    symbol="|cos(g, r)|",
    formula="|g'r_k| / ‖g‖, r_k the top eigenvectors of H",
    source="C Fig 10, 34; Q52",
    cost="num + 1 top eigenvalues",
    unit="1",
)
def gradient_alignment(bench: Bench, *, num: int = 1, rtol: float = 1e-3) -> Estimate:
    """How far the gradient points along the sharpest directions; a random direction would give about 1/√P."""
    size = bench.problem.num_parameters
    wanted = min(num, size)
    top = bench.extreme("hessian", num=min(wanted + 1, size), rtol=rtol)
    assert top.vectors is not None
    cosines = unit(bench.gradient) @ top.vectors[:, :wanted].double()
    labels = tuple(f"r{k}" for k in range(1, wanted + 1))
    note = f"random level 1/√P = {size**-0.5:.2g}"
    if not bool(bench.gradient.norm() > 0):
        note = "the gradient vanishes: it has no direction"
    angles = eigenvector_angles(bench.hessian, top, wanted)
    if bool((angles >= 1).any()):
        note += "; top eigenvalues too close for their eigenvectors to be told apart"
    return replace(top, value=cosines.abs(), error=angles, vectors=None, labels=labels, note=note)


@metric(
    symbol="cos(−g_i, J'q⁽¹⁾)",
    formula="angle between each sample's descent direction and J'q⁽¹⁾",
    source="C Fig 10; Q53",
    cost="C backward passes",
    unit="1",
    needs=["weight_gram"],
)
def sample_alignment(bench: Bench) -> Estimate:
    """How far each sample's own gradient points along J'q⁽¹⁾; negative where the label is the second guess.

    Inner products in weight space are taken through the logits: ⟨g, J'q⟩ = (∂l/∂z)' K_ii q with K_ii = JJ'.
    """
    logits = bench.shared(LogitBench)
    descent, vector = -logits.jacobian.slopes.double(), logits.top[1]
    return _cosines(descent, vector, logits.grams, logits.top[0])


@metric(
    symbol="cos(e^y − p, q⁽¹⁾)",
    formula="angle between each sample's descent direction in the logits and q⁽¹⁾",
    source="C Fig 10; Q53",
    cost="1 forward pass",
    unit="1",
)
def logit_alignment(bench: Bench) -> Estimate:
    """How far −∂l/∂z, which is e^y − p for hard labels, points along the top eigenvector of M."""
    logits = bench.shared(LogitBench)
    plain = torch.eye(logits.probabilities.shape[1], dtype=torch.float64, device=logits.probabilities.device)
    return _cosines(-logits.jacobian.slopes.double(), logits.top[1], plain, logits.top[0])


@metric(
    symbol="‖m̄ⁱ‖",
    formula="length of the mean of m = √λ⁽¹⁾ J'q⁽¹⁾ over the samples predicted as class i",
    source="C App D, Eq 47; Q54",
    cost="C backward passes",
    unit="√loss / weight",
)
def class_mean_norms(bench: Bench) -> Estimate:
    """How long the class means of m are, classes by prediction (argmax p), not by label."""
    means = bench.shared(ClassMeans)
    values = torch.where(means.sizes > 0, means.means.double().norm(dim=0), torch.nan)
    return Estimate(values, labels=means.labels, note=means.note)


@metric(
    symbol="ρ_i",
    formula="‖mean of m/‖m‖ over the samples predicted as class i‖",
    source="C Fig 9, 33; Q55",
    cost="2C backward passes",
    unit="1",
    needs=["weight_gram"],
)
def mean_resultant_length(bench: Bench) -> Estimate:
    """How concentrated the directions of m are within each predicted class: 1 if all the same, about 1/√n if random."""
    means = bench.shared(ClassMeans)
    values, left_out = means.resultant_lengths
    note = "; ".join(filter(None, [means.note, f"{left_out} samples left out: their m vanishes" if left_out else ""]))
    return Estimate(values, labels=means.labels, note=note)


@metric(
    symbol="cos(m̄ⁱ, m̄ʲ)",
    formula="cosines between the class means of m",
    source="C Fig 9, 32; Q56",
    cost="C backward passes",
    unit="1",
)
def class_mean_cosines(bench: Bench) -> Estimate:
    """The C x C matrix of cosines between class means of m; nan where nothing is predicted as a class or m̄ vanishes."""
    means = bench.shared(ClassMeans)
    directions = unit(means.means.double())
    vanishing = int((directions.isnan().any(0) & (means.sizes > 0)).sum())
    others = f"{vanishing} class means vanish and have no direction" if vanishing else ""
    note = "; ".join(filter(None, [means.note, others]))
    return Estimate((directions.T @ directions).clamp(-1, 1), note=note)


@metric(
    symbol="A_S(g), A_S(r)",
    formula="‖P_S v‖/‖v‖, S spanned by the class means of m",
    source="C Eq 48, Fig 10; Q57",
    cost="C backward passes, top eigenvalue",
    unit="1",
)
def subspace_alignment(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """How much of the gradient, and of the top Hessian eigenvector, lies in the span of the class means of m."""
    means = bench.shared(ClassMeans)
    size = bench.problem.num_parameters
    top = bench.extreme("hessian", num=min(2, size), rtol=rtol)
    assert top.vectors is not None
    basis = means.basis
    directions = unit(torch.stack([bench.gradient, top.vectors[:, 0].to(bench.gradient)], 1).double())
    values = (basis.T @ directions).norm(dim=0)
    error = torch.stack([torch.zeros((), dtype=torch.float64), eigenvector_angles(bench.hessian, top, 1)[0].cpu()])
    level = (basis.shape[1] / size) ** 0.5
    note = "; ".join(filter(None, [means.note, f"dimension {basis.shape[1]}, random level {level:.2g}"]))
    return replace(top, value=values, error=error, vectors=None, labels=("gradient", "top eigenvector"), note=note)


@metric(
    symbol="‖J'q⁽ⁱ⁾‖ / mean_j",
    formula="histogram over samples and i of ‖J'q⁽ⁱ⁾‖ / (Σ_j‖J'q⁽ʲ⁾‖/C)",
    source="C Fig 11; Q58",
    cost="C backward passes",
    unit="share of pairs",
    needs=["weight_gram"],
)
def eigen_length_histogram(bench: Bench, *, num_bins: int = 20) -> Estimate:
    """How alike the lengths of J'q⁽ⁱ⁾ are within a sample: near 1, C's approximation of tr G holds (Eq 14).

    The last of the bins, which reach to 4 (or to C), holds all that is beyond it too.
    """
    grams = bench.shared(LogitBench).eigen_grams
    lengths = grams.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    return histogram((lengths / lengths.mean(1, keepdim=True)).flatten(), 0.0, min(4.0, lengths.shape[1]), num_bins)


@metric(
    symbol="cos²(J'q⁽ⁱ⁾, J'q⁽ʲ⁾)",
    formula="histogram over samples and pairs i < j",
    source="C Fig 11; Q58",
    cost="C backward passes",
    unit="share of pairs",
    needs=["weight_gram"],
)
def eigen_cosine_histogram(bench: Bench, *, num_bins: int = 20) -> Estimate:
    """How orthogonal the J'q⁽ⁱ⁾ of a sample are: near 0, C's approximation of tr G holds (Eq 14)."""
    grams = bench.shared(LogitBench).eigen_grams
    squares = grams.diagonal(dim1=1, dim2=2).clamp(min=0)
    cosines = grams.square() / (squares[:, :, None] * squares[:, None, :])
    first, second = torch.triu_indices(grams.shape[1], grams.shape[1], offset=1)
    return histogram(cosines[:, first, second].flatten(), 0.0, 1.0, num_bins)


def histogram(values: Tensor, low: float, high: float, num_bins: int) -> Estimate:
    """Shares of the finite values in equal bins, labelled by their centres; what is beyond goes to the last bin."""
    kept = values[torch.isfinite(values)]
    missing = len(values) - len(kept)
    counts = torch.histc(kept.clamp(low, high), num_bins, low, high)
    width = (high - low) / num_bins
    labels = tuple(f"{low + (k + 0.5) * width:.4g}" for k in range(num_bins))
    note = f"{missing} of {len(values)} left out: a Jacobian vanishes there" if missing else ""
    return Estimate(counts / max(1, len(kept)), labels=labels, note=note)


def unit(columns: Tensor) -> Tensor:
    """A vector, or each column, scaled to length one in double precision; nan where it vanishes."""
    columns = columns.double()
    return columns / columns.norm(dim=0)


def _cosines(first: Tensor, second: Tensor, grams: Tensor, impurities: Tensor) -> Estimate:
    """Cosines between J'a and J'b of each sample, by way of the Gram matrix JJ': (N, C), (N, C) -> distribution."""

    def inner(left: Tensor, right: Tensor) -> Tensor:
        return (left[:, None, :] @ grams @ right[:, :, None])[:, 0, 0]

    lengths = (inner(first, first) * inner(second, second)).clamp(min=0).sqrt()
    defined = (lengths > 0) & (impurities > 0)
    cosines = torch.where(defined, inner(first, second) / lengths, torch.nan).clamp(-1, 1)
    found = distribution(cosines, "one-hot outputs or vanishing gradients have no direction")
    size = cosines[torch.isfinite(cosines)].abs()
    entries = torch.cat([found.value, (size.mean() if len(size) else cosines.new_tensor(torch.nan))[None]])  # type: ignore[list-item]
    return replace(found, value=entries, labels=(*found.labels, "mean |cos|"))
