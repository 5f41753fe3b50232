"""How far the network compresses what it is shown: local volumes, sensitivities and dimensions, layer by layer."""

from __future__ import annotations

from dataclasses import replace

import torch

from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_choice
from spherometer.metrics.registry import metric
from spherometer.metrics.representations import corrected_ratio, naive_ratio
from spherometer.metrics.sample_norms import input_norms, layer_note, layer_trial, norms_at_layers
from spherometer.metrics.volumes import log_volumes, volume_of
from spherometer.operators.features import features
from spherometer.values import Estimate

AVERAGES, DEFICIENT = ("log", "volume"), ("skip", "positive")


@metric(
    symbol="log dV",
    formula="n⁻¹ Σ_i ½ log det(J_i J_i')",
    source="B Eq 7, Def 3.1, Def 3.3; Q77, Q78, B-e16",
    cost="C backward passes",
    unit="log (output / input)^C",
    needs=["input"],
)
def log_volume(bench: Bench, *, average: str = "log", deficient: str = "skip") -> Estimate:
    """The logarithm of the local volumetric ratio: how a small ball of inputs shrinks on its way to the outputs.

    `average` "log" is the mean of ½ log det, "volume" the logarithm of the mean volume (B leaves it open). A sample
    with a rank-deficient Jacobian has volume 0: "skip" leaves it out of the mean of logarithms and counts it as 0 in
    the mean volume; `deficient` "positive" takes the product of its positive singular values (B's text).
    """
    _check(average, deficient)
    gram = bench.sensitivity.input_gram
    if gram is None:
        bench.shared(input_norms)  # says why
    assert gram is not None
    volumes = log_volumes(gram, bench.problem.precision, positive=deficient == "positive")
    return Estimate(volumes.average(average), note=volumes.note)


@metric(
    symbol="log dV_l",
    formula="n⁻¹ Σ_i ½ log det(J_i^l J_i^l'), J^l = ∂f/∂x^l, by layer",
    source="B Def 3.5; Q79",
    cost="C backward passes",
    unit="log (output / activation)^C",
    needs=["layer_inputs"],
)
def layer_log_volume(bench: Bench, *, average: str = "log", deficient: str = "skip") -> Estimate:
    """The logarithm of the local volumetric ratio from each layer's input to the outputs."""
    _check(average, deficient)
    bench.shared(layer_trial)  # refuses a model without layers
    parts = {
        layer.name: log_volumes(layer.gram, bench.problem.precision, positive=deficient == "positive")
        for layer in bench.sensitivity.layers
    }
    counts = [f"{name} {part.num_deficient}" for name, part in parts.items() if part.num_deficient]
    notes = [f"rank-deficient samples, by layer: {', '.join(counts)}"] if counts else []
    values = torch.tensor([part.average(average) for part in parts.values()], dtype=torch.float64)
    return Estimate(values, labels=tuple(parts), note="; ".join(filter(None, [*notes, layer_note(bench, parts)])))


@metric(
    symbol="log Σ dV_l",
    formula="log Σ_l dV_{f_l}, dV the geometric mean over samples (average=volume: the arithmetic one of Def 3.3)",
    source="B Def 3.5; Q79, B-e16",
    cost="C backward passes",
    unit="log (output / activation)^C",
    needs=["layer_inputs"],
)
def network_log_volume(bench: Bench, *, average: str = "log", deficient: str = "skip") -> Estimate:
    """The logarithm of the network volumetric ratio, the sum over layers of the volumetric ratio from its input on.

    With average "log" the ratio of a layer is the geometric mean over samples, with "volume" the arithmetic one. A
    layer narrower than the outputs has no volume (its Jacobian cannot have full rank) and adds nothing.
    """
    found = layer_log_volume(bench, average=average, deficient=deficient)
    return replace(found, value=volume_of(torch.as_tensor(found.value)), labels=())


@metric(
    symbol="NMLS",
    formula="Σ_l n⁻¹ Σ_i ‖∂f/∂x^l (x_i)‖₂",
    source="B Def 3.9; Q81, B-e7",
    cost="C backward passes for all layers together",
    unit="output / activation",
    needs=["layer_norms"],
)
def nmls(bench: Bench) -> Estimate:
    """Network MLS: the sum over linear and convolutional layers of the mean sensitivity to that layer's input.

    The Jacobian is taken along all paths from the tensor that enters the layer to the outputs, skip connections
    included. B's prose says average; its definition and bound are a sum (B-e7).
    """
    profile = layer_mls(bench)
    value, error = torch.as_tensor(profile.value).sum(), torch.as_tensor(profile.error).sum()
    return replace(profile, value=float(value), error=float(error), labels=())


@metric(
    symbol="MLS_l",
    formula="n⁻¹ Σ_i ‖∂f/∂x^l (x_i)‖₂, by layer",
    source="B Def 3.9; Q81",
    cost="C backward passes for all layers together",
    unit="output / activation",
    needs=["layer_norms"],
)
def layer_mls(bench: Bench) -> Estimate:
    """The mean sensitivity of the outputs to what enters each layer; `nmls` is the sum."""
    norms = bench.shared(norms_at_layers)
    means = [part.mean() for part in norms.values()]
    value = torch.tensor([float(one) for one in means], dtype=torch.float64)
    error = torch.tensor([float(one.error) for one in means], dtype=torch.float64)
    products = sum(one.products for one in means)
    failed = [one.status for one in means if not one.status]
    return Estimate(
        value,
        error if products else 0.0,
        source="solver" if products else "exact",
        products=products,
        status=failed[0] if failed else means[0].status,
        labels=tuple(norms),
        note=layer_note(bench, norms),
    )


@metric(
    symbol="D_PR",
    formula="n⁻¹ Σ_i (Tr C_i)² / Tr(C_i²), C_i = J_i J_i'",
    source="B Eq 14-15; Q82, Q83, T39, B-e4",
    cost="C backward passes",
    unit="dimensions",
    needs=["input"],
)
def participation_ratio(bench: Bench) -> Estimate:
    """Local dimension: how many directions of the output a small ball of inputs fills, between 1 and rank J.

    C_i is the exact Gram matrix of a Jacobian, not a covariance estimated from samples, so there is no sampling bias
    to correct; for covariances over samples see `representation_participation_ratio`.
    """
    gram = bench.sensitivity.input_gram
    if gram is None:
        bench.shared(input_norms)  # says why
    assert gram is not None
    traces, squares = gram.diagonal(dim1=1, dim2=2).sum(1), gram.square().sum((1, 2))
    kept = traces > 0
    left_out = int((~kept).sum())
    note = f"{left_out} of {len(kept)} samples have a zero Jacobian and are left out" if left_out else ""
    if not bool(kept.any()):
        return Estimate(float("nan"), note=note + ": nothing to average")
    return Estimate(float((traces[kept].square() / squares[kept]).mean()), note=note)


@metric(
    symbol="PR_l",
    formula="(Tr Σ)² / Tr(Σ²), Σ the covariance over samples of what enters layer l, and of the outputs",
    source="B Eq 15; Chun et al. (2025), arXiv 2509.26560",
    cost="1 forward pass",
    unit="dimensions",
)
def representation_participation_ratio(bench: Bench, *, corrected: bool = True) -> Estimate:
    """The dimension of each layer's representation of the data.

    The plain ratio of a covariance from n samples is biased low, 1/PR_n ≈ 1/PR + 1/n. `corrected` divides unbiased
    estimates of (Tr Σ)² and Tr(Σ²) instead, U-statistics over four different samples; what is left is the smaller bias
    of a ratio. It may exceed the number of samples.
    """
    ratio = corrected_ratio if corrected else naive_ratio
    found = {
        name: ratio(matrix) for name, matrix in features(bench.problem, bench.shared(layer_trial), at=bench.weights)
    }
    values = torch.tensor(list(found.values()), dtype=torch.float64)
    missing = int(values.isnan().sum())
    notes = [f"{missing} layers do not vary over the samples, or too few samples: no ratio"] if missing else []
    return Estimate(values, labels=tuple(found), note="; ".join(filter(None, [*notes, layer_note(bench, found)])))


def _check(average: str, deficient: str) -> None:
    check_choice("average", average, AVERAGES)
    check_choice("deficient", deficient, DEFICIENT)
