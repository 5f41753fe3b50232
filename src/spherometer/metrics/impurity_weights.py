"""With which weight each sample enters the Gauss-Newton norm: λ* and λ̃ of paper C's Theorem 5.1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.logit_bench import LogitBench, eigenvector_angles
from spherometer.values import Estimate


@dataclass(frozen=True)
class Weights:
    """λ* and λ̃ of every sample, with bounds on what an inexact eigenvector does to them."""

    starred: Tensor  # v'Mv/‖J‖², (N,); zero where the Jacobian vanishes
    tilde: Tensor  # v'Mv/‖v‖², (N,); nan where v = Jr vanishes
    norms: Tensor  # ‖J‖², (N,)
    starred_error: float
    tilde_error: float
    top: Estimate  # of G


class ImpurityWeights:
    """Those worked out on a bench, by tolerance of the eigenvector (Q47; gap G14)."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._known: dict[float, Weights] = {}

    def at(self, rtol: float) -> Weights:
        """λ*, λ̃ and ‖J‖² for the top eigenvector of G to this tolerance."""
        if rtol not in self._known:
            self._known[rtol] = impurity_weights(self.bench, rtol)
        return self._known[rtol]


def impurity_weights(bench: Bench, rtol: float = 1e-3) -> Weights:
    """λ̃ = v'Mv/‖v‖² and λ* = λ̃‖v‖²/‖J‖² with v = Jr, r the top eigenvector of G, for each sample (C App C.4; Q47).

    C's q* is r here and its Jᵀq* is Jr: the paper's Jacobian is P x C. An eigenvector off by an angle φ changes λ* by
    at most (2φ + φ²)‖M‖, λ̃ by at most 2φ‖M‖‖J‖/‖v‖.
    """
    logits = bench.shared(LogitBench)
    top = bench.extreme("gauss_newton", num=min(2, bench.problem.num_parameters), rtol=rtol)
    assert top.vectors is not None
    angle = float(eigenvector_angles(bench.gauss_newton, top, 1)[0])
    change = (logits.jacobian @ top.vectors[:, 0]).view_as(logits.jacobian.outputs)
    product = logits.jacobian.curved(change).double()
    change, norms = change.double(), logits.norms
    curved, moved = (change * product).sum(1).clamp(min=0), change.square().sum(1)
    tilde = torch.where(moved > 0, curved / moved, torch.nan)
    starred = torch.where(norms > 0, curved / norms, 0.0)
    steepest = logits.largest_curvature
    doubt = (2 * angle * (norms / moved).sqrt()).clamp(max=1.0).nan_to_num(0.0).mean()
    return Weights(starred, tilde, norms, (2 * angle + angle**2) * steepest, float(doubt) * steepest, top)
