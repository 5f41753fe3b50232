"""The bounds of paper B, evaluated: both sides, their ratio, and the number of violations.

Each compares how outputs react to inputs with how they react to weights. They are theorems for chains of dense layers;
where one weight acts at many places (convolutions, tokens) they are not (B-e8), and the note says so. S is B's Eq 3,
not the Hessian trace (B-e9). Where nothing enters a layer the pair of sample and layer is left out on both sides.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.bound_terms import (
    ROUNDING,
    LayerTerms,
    caveats,
    compared,
    compared_logs,
    gauss_newton_sharpness,
    layer_terms,
)
from spherometer.metrics.inputs import input_invariant_mls
from spherometer.metrics.normalised_sharpness import rescaled_minimum
from spherometer.metrics.registry import metric
from spherometer.metrics.volumes import LogVolumes, log_volumes, volume_of
from spherometer.values import Estimate

COST = "C backward passes"
SAMPLES = ["layers"]
SHARPNESS = ["layers", "weights"]


@metric(
    symbol="‖J‖ ≤ ‖∇_W f‖…",
    formula="‖∂f/∂x_i‖_F ≤ (‖W‖₂/‖x_i‖₂) ‖∇_W f_i‖_F, W the first layer",
    source="B Eq 5; T29, B-e1",
    cost=COST,
    unit="output / input",
    needs=SAMPLES,
)
def sample_bound(bench: Bench, *, kernel: str = "unrolled") -> Estimate:
    """Sample by sample: the input Jacobian against the gradient of the first layer; both sides at the worst sample."""
    layer = layer_terms(bench, kernel)[0]
    left, right = layer.frobenius[layer.alive], layer.sample_bounds[layer.alive]
    return _worst(left, right, caveats([layer]))


@metric(
    symbol="dVol ≤ ‖J‖_F…",
    formula="½ log det(J_i J_i') ≤ C log(‖J_i‖_F / √C)",
    source="B Eq 21; T30, B-e3",
    cost=COST,
    unit="log (output / input)^C",
    needs=SAMPLES,
)
def sample_volume_bound(bench: Bench) -> Estimate:
    """Sample by sample: the local volume against its bound by the Frobenius norm, equal for equal singular values."""
    layer = layer_terms(bench, "reshaped")[0]
    volumes = _volumes(bench, layer)
    size, kept = layer.gram.shape[1], volumes.logs > -math.inf
    left, right = volumes.logs[kept], size * (layer.frobenius[kept] / size**0.5).log()
    if not len(left):
        return compared_logs({"log left": -math.inf, "log right": -math.inf}, volumes.note)
    worst = int((left - right).argmax())
    failures = int((left > right + ROUNDING).sum())
    values = torch.tensor([left[worst], right[worst], left[worst] - right[worst], failures], dtype=torch.float64)
    return Estimate(values, labels=("log left", "log right", "log ratio", "violations"), note=volumes.note)


@metric(
    symbol="A ≤ B ≤ C ≤ D",
    formula="MLS ≤ ‖W‖⟨‖∇_W f‖/‖x‖⟩ ≤ ‖W‖√⟨‖x‖⁻²⟩√⟨‖∇_W f‖²⟩ ≤ ‖W‖√⟨‖x‖⁻²⟩√S",
    source="B Eq 48; Q84, T31",
    cost=COST,
    unit="output / input",
    needs=SHARPNESS,
)
def mls_chain(bench: Bench, *, kernel: str = "unrolled") -> Estimate:
    """From MLS to its sharpness bound in four steps; A, B and C do not change when layers are rescaled."""
    layer, kept = _first(bench, kernel)
    steps = _chain(layer, kept, gauss_newton_sharpness(bench))
    failures = sum(low > high * (1 + ROUNDING) for low, high in pairwise(steps))
    values = torch.tensor([*steps, failures], dtype=torch.float64)
    return Estimate(values, labels=("A", "B", "C", "D", "violations"), note=caveats([layer]))


@metric(
    symbol="MLS ≤ √S…",
    formula="MLS ≤ ‖W‖₂ √(n⁻¹ Σ_i ‖x_i‖⁻²) √S",
    source="B Prop 3.8, Eq 10; T31, B-e2",
    cost=COST,
    unit="output / input",
    needs=SHARPNESS,
)
def mls_bound(bench: Bench, *, kernel: str = "unrolled") -> Estimate:
    """MLS against the sharpness of the loss."""
    layer, kept = _first(bench, kernel)
    steps = _chain(layer, kept, gauss_newton_sharpness(bench))
    return compared(steps[0], steps[-1], note=caveats([layer]))


@metric(
    symbol="NMLS ≤ √S…",
    formula="NMLS ≤ √(n⁻¹ Σ_i Σ_l ‖W_l‖₂²/‖x_i^l‖²) √S",
    source="B Prop 3.10, Eq 12; T34, B-e2, B-e7",
    cost=COST,
    unit="output / activation",
    needs=SHARPNESS,
)
def nmls_bound(bench: Bench, *, kernel: str = "unrolled") -> Estimate:
    """NMLS against the sharpness of the loss."""
    layers = layer_terms(bench, kernel)
    left = sum(float(torch.where(layer.alive, layer.spectral, 0.0).mean()) for layer in layers)
    squares = sum(float(layer.factors.square().mean()) for layer in layers)
    return compared(left, (squares * gauss_newton_sharpness(bench)) ** 0.5, note=caveats(layers))


@metric(
    symbol="dV ≤ S…",
    formula="dV ≤ C^(−C/2)⟨‖J‖_F^C⟩ ≤ n⁻¹ √(Σ_i ‖W‖₂^2C/‖x_i‖^2C) (nS/C)^(C/2), in logarithms",
    source="B Prop 3.4; T32, B-e3",
    cost=COST,
    unit="log (output / input)^C",
    needs=SHARPNESS,
)
def volume_bound(bench: Bench, *, kernel: str = "unrolled") -> Estimate:
    """The mean local volume against the sharpness of the loss; very loose, and looser with more samples and outputs."""
    layer = layer_terms(bench, kernel)[0]
    volumes, size, num = _volumes(bench, layer), layer.gram.shape[1], len(layer.lengths)
    kept = layer.alive
    left = _log_mean(volumes.logs[kept], num)
    middle = _log_mean(size * (layer.frobenius[kept] / size**0.5).log(), num)
    right = _volume_right([layer], size, gauss_newton_sharpness(bench))
    note = "; ".join(part for part in (volumes.note, caveats([layer])) if part)
    return compared_logs({"log left": left, "log middle": middle, "log right": right}, note)


@metric(
    symbol="Σ dV_l ≤ S…",
    formula="Σ_l dV_l ≤ n⁻¹ √(Σ_l Σ_i ‖W_l‖₂^2C/‖x_i^l‖^2C) (nS/C)^(C/2), in logarithms",
    source="B Prop 3.6; T33",
    cost=COST,
    unit="log (output / activation)^C",
    needs=SHARPNESS,
)
def network_volume_bound(bench: Bench, *, kernel: str = "unrolled") -> Estimate:
    """The network volumetric ratio against the sharpness of the loss."""
    layers = layer_terms(bench, kernel)
    size, num = layers[0].gram.shape[1], len(layers[0].lengths)
    logs = [_log_mean(_volumes(bench, layer).logs[layer.alive], num) for layer in layers]
    left = volume_of(torch.tensor(logs, dtype=torch.float64))
    return compared_logs(
        {"log left": left, "log right": _volume_right(layers, size, gauss_newton_sharpness(bench))}, caveats(layers)
    )


@metric(
    symbol="MLS_inv ≤ S_ad…",
    formula="d⁻¹ n⁻¹ Σ_i Σ_p ‖∂f/∂x_p‖² x_ip² ≤ n⁻¹ Σ_i Σ_j θ_j² ‖∂f_i/∂θ_j‖², d units of the first layer",
    source="B Prop E.4; T35, B-e11, B-e12",
    cost="C backward passes, twice",
    unit="output²",
    needs=["layers", "input_columns"],
)
def adaptive_bound(bench: Bench) -> Estimate:
    """Input-invariant MLS against adaptive sharpness; neither side changes when layers are rescaled."""
    layer = layer_terms(bench, "reshaped")[0]
    num_units = bench.sensitivity.layers[0].weight.shape[0]
    adaptive = bench.trace("adaptive_gram", 0.01)
    left = float(input_invariant_mls(bench)) / num_units
    estimated = "" if adaptive.source == "exact" else f"right side ± {float(adaptive.error):.2g} (random vectors)"
    return compared(left, float(adaptive), note="; ".join(filter(None, (estimated, caveats([layer])))))


@metric(
    symbol="Σ MLS^l ≤ Σ √S_l…",
    formula="Σ_l x̄^l MLS^l ≤ Σ_l ‖W_l‖₂ √⟨‖∇_{W_l} f‖_F²⟩, x̄^l = ⟨‖x^l‖⁻²⟩^(−1/2)",
    source="B Eq 34-35; Q87, T36",
    cost=COST,
    unit="output",
    needs=SAMPLES,
)
def layer_bound(bench: Bench, *, kernel: str = "unrolled") -> Estimate:
    """Scaled sensitivities of all layers against matrix-normalised sharpness; layers may be rescaled without change."""
    layers = layer_terms(bench, kernel)
    left = right = 0.0
    for layer in layers:
        if bool(layer.alive.any()):
            scale = float(layer.lengths[layer.alive].pow(-2).mean()) ** -0.5
            left += scale * float(layer.spectral[layer.alive].mean())
            right += layer.weight_norm * float(layer.gradients[layer.alive].square().mean()) ** 0.5
    return compared(left, right, note=caveats(layers))


@metric(
    symbol="Ŝ ≥ … ≥ …",
    formula="min_σ Σ_jk [H_jk (σ_jσ'_k)² + W_jk²/(4(σ_jσ'_k)²)] ≥ "
    "Σ_jk |W_jk|√H_jk = Σ_jk √⟨‖J_j W_jk x_k‖²⟩ ≥ Σ_p √⟨‖∂_p f‖²x_p²⟩",
    source="B Eq 36-37; Q63, T37",
    cost="C backward passes, twice",
    unit="output",
    needs=["layers", "input_columns"],
)
def normalised_sharpness_chain(bench: Bench) -> Estimate:
    """Normalised sharpness of a dense first layer (H_jk = ⟨‖∂f/∂W_jk‖²⟩, λ = 1) against coordinate sensitivities.

    The last line is written out from the proof: the triangle inequality over the units that coordinate p feeds.
    """
    layer, found = layer_terms(bench, "reshaped")[0], bench.sensitivity
    if layer.shared or found.input_columns is None or found.inputs is None:
        raise ValueError("Eq 37 of B is about a dense first layer on plain input vectors; this model has none")
    weight = found.layers[0].weight.double()
    curvature = _first_layer_diagonal(bench, layer.name).reshape(weight.shape)
    lines = [
        rescaled_minimum(weight, curvature, 100)[0],
        float((weight.abs() * curvature.sqrt()).sum()),
        float((found.input_columns * found.inputs.double().square()).mean(0).sqrt().sum()),
    ]
    failures = sum(low > high * (1 + ROUNDING) for high, low in pairwise(lines))
    values = torch.tensor([*lines, failures], dtype=torch.float64)
    return Estimate(values, labels=("line 1", "lines 2 and 3", "line 4", "violations"), note=caveats([layer]))


@metric(
    symbol="MLS ≤ ‖W_L‖ + √S…",
    formula="MLS ≤ ‖W_L‖₂ + √(n⁻¹ Σ_i Σ_{l<L} ‖W_l‖₂²/‖x_i^l‖²) √S",
    source="B App A; T38",
    cost=COST,
    unit="output / input",
    needs=SHARPNESS,
)
def residual_bound(bench: Bench, *, kernel: str = "unrolled") -> Estimate:
    """For residual networks x^{l+1} = x^l + φ(W_l x^l), f = W_L x^L.

    Violations count the samples with ‖∂f/∂x_i‖₂ − ‖W_L‖₂ > Σ_{l<L} (‖W_l‖₂/‖x_i^l‖) ‖∇_{W_l} f_i‖_F.
    """
    *inner, last = layer_terms(bench, kernel)
    every = [*inner, last]
    kept = torch.stack([layer.alive for layer in every]).all(0)
    sensitivities = every[0].spectral[kept]
    reach = sum((layer.sample_bounds[kept] for layer in inner), torch.zeros_like(sensitivities))
    failures = int((sensitivities - last.weight_norm > reach * (1 + ROUNDING) + ROUNDING).sum())
    squares = sum(float(layer.factors.square().mean()) for layer in inner)
    right = last.weight_norm + (squares * gauss_newton_sharpness(bench)) ** 0.5
    left = float(sensitivities.mean()) if len(sensitivities) else 0.0
    return compared(left, right, failures, caveats(every, skips_allowed=True))


def _first(bench: Bench, kernel: str) -> tuple[LayerTerms, Tensor]:
    layer = layer_terms(bench, kernel)[0]
    return layer, layer.alive


def _chain(layer: LayerTerms, kept: Tensor, sharpness: float) -> list[float]:
    """A, B, C, D of Eq 48; samples with a zero input add nothing to any of them."""
    roots = float(layer.factors.square().mean()) ** 0.5
    return [
        float(torch.where(kept, layer.spectral, 0.0).mean()),
        float(layer.sample_bounds.mean()),
        roots * float(torch.where(kept, layer.gradients, 0.0).square().mean()) ** 0.5,
        roots * sharpness**0.5,
    ]


def _worst(left: Tensor, right: Tensor, note: str) -> Estimate:
    """Both sides at the sample with the largest ratio, and the number of samples for which left > right."""
    if not len(left):
        return compared(0.0, 0.0, 0, note)
    ratio = torch.where(left > 0, left / right.clamp_min(1e-300), 0.0)
    worst = int(ratio.argmax())
    failures = int((left > right * (1 + ROUNDING) + 1e-300).sum())
    return compared(float(left[worst]), float(right[worst]), failures, note)


def _volumes(bench: Bench, layer: LayerTerms) -> LogVolumes:
    return log_volumes(layer.gram, bench.problem.precision)


def _log_mean(logs: Tensor, num: int) -> float:
    return float(torch.logsumexp(logs, 0)) - math.log(num) if len(logs) else -math.inf


def _volume_right(layers: list[LayerTerms], size: int, sharpness: float) -> float:
    """log of n⁻¹ √(Σ_l Σ_i ‖W_l‖^2C/‖x_i^l‖^2C) (nS/C)^(C/2)."""
    num = len(layers[0].lengths)
    logs = torch.cat([2 * size * layer.factors[layer.alive].log() for layer in layers])
    growth = size / 2 * math.log(num * sharpness / size) if sharpness > 0 else -math.inf
    return float(torch.logsumexp(logs, 0)) / 2 - math.log(num) + growth if len(logs) else -math.inf


def _first_layer_diagonal(bench: Bench, name: str) -> Tensor:
    """⟨‖∂f/∂W_jk‖²⟩ of the first layer's weight."""
    diagonal = bench.jacobian_gram.exact_diagonal()
    if diagonal is None:
        raise ValueError("the squared gradient of each single weight has no closed form here (a shared parameter?)")
    return bench.problem.split(diagonal)[f"{name}.weight"].double()
