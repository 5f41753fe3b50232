"""The best certificate by slopes, from a semidefinite program (LipSDP, Fazlyab et al. 2019, one multiplier a neuron).

With Δh_0 = Δx, Δz_i = W_i Δh_{i−1} and slopes γ ± κ, the smallest ρ such that for some diagonal Λ_i ≥ 0

    ρ ‖Δh_0‖² + Σ_i ((Δh_i − γΔz_i)'Λ_i(Δh_i − γΔz_i) − κ² Δz_i'Λ_iΔz_i) − ‖W_L Δh_{L−1}‖²

is never negative gives ‖f‖_Lip² ≤ ρ. The solver is not trusted: its D_i = ρ Λ_i⁻¹ are only where `slope_certificate`
starts, and that makes a certificate of any D.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from scipy.sparse import block_diag, diags_array, eye_array
from torch import Tensor

from spherometer.theory.chain import Chain
from spherometer.theory.layer_constants import spectral_norm
from spherometer.theory.reading import ReadingError
from spherometer.theory.slope_certificate import middle_and_half, slope_certificate

MAX_NEURONS = 512  # inputs and hidden neurons together: the matrix of the program
ACCURACY = 1e-7
SMALLEST = 1e-9  # multiplier, relative to the largest of its layer: D is finite


def semidefinite_certificate(chain: Chain) -> float:
    """The constant of the program's multipliers, made better by descent where the solver stopped early."""
    chain = chain.narrowed
    return slope_certificate(chain, _diagonals(chain) if chain.activations else None)


def _diagonals(chain: Chain) -> list[Tensor]:
    """D of every layer; the program is solved for weights of norm one, and D grows with the squares of the norms."""
    sizes = [chain.weights[0].shape[1], *map(len, chain.weights[:-1])]
    if sum(sizes) > MAX_NEURONS:
        raise ReadingError(
            f"a semidefinite program holds at most {MAX_NEURONS} inputs and neurons, and this network {sum(sizes)}; "
            "ask for semidefinite=False"
        )
    norms = [float(spectral_norm(weight)) or 1.0 for weight in chain.weights]
    scaled = [weight / norm for weight, norm in zip(chain.weights, norms, strict=True)]
    square, multipliers = _solved(_solver(), scaled, [middle_and_half(activation) for activation in chain.activations])
    grown = torch.tensor(norms[:-1], dtype=torch.float64).square().cumprod(0)
    return [
        size * square / found.clamp_min(SMALLEST * max(float(found.max()), SMALLEST))
        for size, found in zip(grown, multipliers, strict=True)
    ]


def _solver() -> ModuleType:
    try:
        import cvxpy
    except ImportError:
        raise ImportError("semidefinite programs need cvxpy: pip install 'spherometer[sdp]'") from None
    return cvxpy


def _solved(
    cp: ModuleType, weights: Sequence[Tensor], slopes: Sequence[tuple[float, float]]
) -> tuple[float, list[Tensor]]:
    """ρ and Λ; with Δ = (Δh_0, Δh_1, …) the activations map `entering` Δ to `leaving` Δ."""
    widths = [len(weight) for weight in weights[:-1]]
    entering = block_diag([weight.numpy() for weight in weights[:-1]], format="csc")
    size, num_inputs = sum(widths) + weights[0].shape[1], weights[0].shape[1]
    entering.resize(sum(widths), size)
    everything = eye_array(size, format="csc")
    leaving = everything[num_inputs:]
    middle, half = (np.repeat(found, widths) for found in zip(*slopes, strict=True))
    outputs = weights[-1].numpy() @ everything[size - widths[-1] :]
    square, multiplier = cp.Variable(nonneg=True), cp.Variable(sum(widths), nonneg=True)
    centred, spread = leaving - diags_array(middle) @ entering, diags_array(half) @ entering
    form = square * (everything[:, :num_inputs] @ everything[:num_inputs]) - outputs.T @ outputs
    form += centred.T @ cp.diag(multiplier) @ centred - spread.T @ cp.diag(multiplier) @ spread
    program = cp.Problem(cp.Minimize(square), [form >> 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an inaccurate solution, which is not trusted anyway
        program.solve(solver=cp.SCS, eps=ACCURACY, max_iters=20_000)
    if square.value is None:
        raise RuntimeError(f"the semidefinite program was not solved ({program.status}): ask for semidefinite=False")
    return float(square.value), list(torch.as_tensor(multiplier.value, dtype=torch.float64).split(widths))
