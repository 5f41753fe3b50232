"""The best certificate by slopes, from a semidefinite program (LipSDP, Fazlyab et al. 2019, one multiplier a neuron).

With Δh_0 = Δx, Δz_i = W_i Δh_{i−1} and slopes γ ± κ, the smallest ρ such that for some diagonal Λ_i ≥ 0

    ρ ‖Δh_0‖² + Σ_i ((Δh_i − γΔz_i)'Λ_i(Δh_i − γΔz_i) − κ² Δz_i'Λ_iΔz_i) − ‖W_L Δh_{L−1}‖²

is never negative gives ‖f‖_Lip² ≤ ρ. The solver is not trusted: its D_i = ρ Λ_i⁻¹ are only where the descent of
`slope_certificate` starts, and that makes a certificate of any D.
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
from spherometer.theory.slope_certificate import Descent, Slopes, descend, slopes_of

MAX_NEURONS = 512  # inputs and hidden neurons together: the matrix of the program
ACCURACY, NUM_STEPS = 1e-7, 20_000  # of SCS
SMALLEST = 1e-9  # multiplier, relative to the largest of its layer: D is finite


def improved(chain: Chain, plain: Descent) -> Descent:
    """The better of a descent from anywhere and one from the multipliers of the program; the weights have norm one."""
    if not plain.constant or not chain.activations:
        return plain
    return min(plain, descend(chain, _diagonals(chain, plain)), key=lambda found: found.constant)


def _diagonals(chain: Chain, near: Descent) -> list[Tensor]:
    """D of every layer; neurons are measured in units of √D of a near certificate, in which D is not far from 1."""
    sizes = [chain.weights[0].shape[1], *map(len, chain.weights[:-1])]
    if sum(sizes) > MAX_NEURONS:
        raise ReadingError(
            f"a semidefinite program holds at most {MAX_NEURONS} inputs and neurons, and this network {sum(sizes)}; "
            "ask for semidefinite=False"
        )
    units = [torch.ones(sizes[0], dtype=torch.float64), *(diagonal.sqrt() for diagonal in near.diagonals)]
    leaving = [*units[1:], torch.ones(len(chain.weights[-1]), dtype=torch.float64)]
    scaled = [w * entry / out[:, None] for w, entry, out in zip(chain.weights, units, leaving, strict=True)]
    norms = torch.stack([spectral_norm(weight) for weight in scaled])
    square, multipliers = _solved(
        _solver(), [w / norm for w, norm in zip(scaled, norms, strict=True)], slopes_of(chain)
    )
    sizes_of_forms = norms.square().cumprod(0)[:-1] * max(square, SMALLEST)
    return [
        unit.square() * size / found.clamp_min(SMALLEST * max(float(found.max()), SMALLEST))
        for unit, size, found in zip(units[1:], sizes_of_forms, multipliers, strict=True)
    ]


def _solver() -> ModuleType:
    try:
        import cvxpy
    except ImportError:
        raise ImportError("semidefinite programs need cvxpy: pip install 'spherometer[sdp]'") from None
    return cvxpy


def _solved(cp: ModuleType, weights: Sequence[Tensor], slopes: Sequence[Slopes]) -> tuple[float, list[Tensor]]:
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
        program.solve(solver=cp.SCS, eps=ACCURACY, max_iters=NUM_STEPS)
    if square.value is None:
        raise RuntimeError(f"the semidefinite program was not solved ({program.status}): ask for semidefinite=False")
    return float(square.value), list(torch.as_tensor(multiplier.value, dtype=torch.float64).split(widths))
