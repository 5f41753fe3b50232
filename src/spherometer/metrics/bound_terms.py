"""What the bounds of paper B are made of: weight norms, input norms, sensitivities and weight gradients, by layer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from spherometer.estimators import eigenvalues
from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_choice
from spherometer.operators.layer_norms import UnrolledGram, is_convolution, matrix_of
from spherometer.operators.sensitivity import LayerSensitivity
from spherometer.values import Estimate

KERNELS = ("unrolled", "reshaped")
ROUNDING = 1e-6  # by how much a left side may exceed a right side and still count as equal to it


@dataclass(frozen=True)
class LayerTerms:
    """One use of a layer, sample by sample."""

    name: str
    weight_norm: float  # ‖W_l‖₂
    lengths: Tensor  # ‖x_i^l‖
    spectral: Tensor  # ‖∂f/∂x_i^l‖₂
    frobenius: Tensor  # ‖∂f/∂x_i^l‖_F
    gradients: Tensor  # ‖∇_{W_l} f_i‖_F
    gram: Tensor  # (n, C, C)
    shared: bool  # one weight at many places: Eq 4 of B, and with it every bound, is no theorem (B-e8)
    branching: bool  # what enters also reaches the outputs past this layer: neither is it then

    @property
    def alive(self) -> Tensor:
        """Samples for which anything enters this layer; the bounds divide by ‖x_i^l‖ (B-e19)."""
        return self.lengths > 0

    @property
    def factors(self) -> Tensor:
        """‖W_l‖ / ‖x_i^l‖, and 0 for the samples that are left out."""
        return torch.where(self.alive, self.weight_norm / self.lengths.clamp_min(1e-300), 0.0)

    @property
    def sample_bounds(self) -> Tensor:
        """‖W_l‖ ‖∇_{W_l} f_i‖_F / ‖x_i^l‖ (T29)."""
        return self.factors * self.gradients


def layer_terms(bench: Bench, kernel: str) -> list[LayerTerms]:
    """Every use of a layer, in the order of the forward pass."""
    check_choice("kernel", kernel, KERNELS)
    return bench.shared(_unrolled if kernel == "unrolled" else _reshaped)


def gauss_newton_sharpness(bench: Bench) -> float:
    """S = n⁻¹ Σ_i ‖∇_θ f_i‖_F² over all chosen parameters (B Eq 3; with it the bounds hold off interpolation, B-e9)."""
    norms = bench.sensitivity.weight_norms
    return float(norms.mean()) if norms is not None else float(bench.trace("jacobian_gram", 0.01))


def layer_weight_norm(module: nn.Module, weight: Tensor, input_shape: torch.Size, kernel: str) -> Estimate:
    """‖W_l‖₂: of the weight as a matrix, or of what a convolution does to a whole input of this size."""
    if kernel == "unrolled" and is_convolution(module):
        found = eigenvalues(UnrolledGram(module, weight, input_shape), rtol=1e-4)
        value, error = float(torch.as_tensor(found.value)[0]) ** 0.5, float(torch.as_tensor(found.error)[0])
        error = error / (2 * value) if value else 0.0
        return Estimate(value, error, "bound", "solver", products=found.products, status=found.status)
    return Estimate(float(torch.linalg.matrix_norm(matrix_of(weight), 2)))


def compared(left: float, right: float, num_violations: int | None = None, note: str = "") -> Estimate:
    """Both sides of an inequality left ≤ right, their ratio, and how often it fails."""
    if num_violations is None:
        num_violations = int(left > right * (1 + ROUNDING))
    ratio = left / right if right else (0.0 if left == 0 else float("inf"))
    values = torch.tensor([left, right, ratio, num_violations], dtype=torch.float64)
    return Estimate(values, labels=("left", "right", "ratio", "violations"), note=note)


def compared_logs(logs: dict[str, float], note: str = "") -> Estimate:
    """An ascending chain of logarithms, the logarithm of first over last, and how often the order fails."""
    sides = list(logs.values())
    failures = sum(low > high + ROUNDING for low, high in pairwise(sides))
    ratio = sides[0] - sides[-1] if sides[0] > -float("inf") else -float("inf")
    values = torch.tensor([*sides, ratio, failures], dtype=torch.float64)
    return Estimate(values, labels=(*logs, "log ratio", "violations"), note=note)


def caveats(layers: list[LayerTerms], *, skips_allowed: bool = False) -> str:
    """What a reader of a bound must know: where it is no theorem, and what was left out."""
    shared = [layer.name for layer in layers if layer.shared]
    passed = [] if skips_allowed else [layer.name for layer in layers if layer.branching]
    dead = sum(int((~layer.alive).sum()) for layer in layers)
    again = sorted({layer.name.split("#")[0] for layer in layers if "#" in layer.name})
    total = sum(len(layer.lengths) for layer in layers)
    notes = [
        f"no theorem: {len(shared)} layers use one weight at many places (B-e8): {_few(shared)}" if shared else "",
        f"no theorem: skip connections pass {len(passed)} layers, see residual_bound: {_few(passed)}" if passed else "",
        f"{dead} of {total} pairs of sample and layer left out: nothing enters (B-e19)" if dead else "",
        f"used more than once, each use counts: {_few(again)}" if again else "",
    ]
    return "; ".join(note for note in notes if note)


def _unrolled(bench: Bench) -> list[LayerTerms]:
    return [_terms(layer, "unrolled") for layer in _layers(bench)]


def _reshaped(bench: Bench) -> list[LayerTerms]:
    return [_terms(layer, "reshaped") for layer in _layers(bench)]


def _layers(bench: Bench) -> tuple[LayerSensitivity, ...]:
    layers = bench.sensitivity.layers
    if not layers:
        raise ValueError("the model has no linear or convolutional layer: there is nothing to bound")
    unknown = [layer.name for layer in layers if layer.weight_norms is None]
    if unknown:
        raise ValueError(
            f"the bounds need the gradient of every layer's weight, and it is not known for {_few(unknown)}: "
            "choose all parameters with Problem(..., parameters='*'), and unfreeze these layers"
        )
    return layers


def _terms(layer: LayerSensitivity, kernel: str) -> LayerTerms:
    assert layer.weight_norms is not None
    values = torch.linalg.eigvalsh(layer.gram).clamp_min(0).cpu()
    return LayerTerms(
        name=layer.name,
        weight_norm=float(layer_weight_norm(layer.module, layer.weight, layer.input_shape, kernel)),
        lengths=layer.input_norms.cpu(),
        spectral=values[:, -1].sqrt(),
        frobenius=values.sum(1).sqrt(),
        gradients=layer.weight_norms.clamp_min(0).sqrt().cpu(),
        gram=layer.gram.cpu(),
        shared=is_convolution(layer.module) or len(layer.input_shape) > 1,
        branching=layer.branching,
    )


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
