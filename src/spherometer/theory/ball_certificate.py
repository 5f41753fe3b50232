"""Certified bounds on a network's Jacobian over an l2 ball around every sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherometer.theory.activations import Activation, Range
from spherometer.theory.chain import Chain
from spherometer.theory.deviation import jacobian_deviation
from spherometer.theory.everywhere import ROUNDING, Everywhere
from spherometer.theory.layer_constants import spectral_norm
from spherometer.theory.relaxation import neuron_ranges

ABSOLUTE = 1e-12  # room for a difference of Jacobians, relative to the product of layer norms
ENTRIES = 2**21  # numbers in the largest stack of matrices held at once
SOFTMAX_BEND = 1.5  # ‖M(z) − M(z')‖ ≤ 1.5 ‖z − z'‖ for the softmax's Jacobian M = diag(p) − pp', and ≤ ½


@dataclass(frozen=True, eq=False)
class BallCertificates:
    """For every sample, over the ball around it: ‖J‖ ≤ lipschitz, ‖J(x) − J(y)‖ ≤ variation, 2δ Lip(J) ≤ smooth."""

    lipschitz: Tensor
    variation: Tensor
    smooth: Tensor | None  # None with a kink


def ball_certificates(chain: Chain, points: Tensor, radius: float, everywhere: Everywhere) -> BallCertificates:
    """Certify all balls, some samples at a time; what holds everywhere holds in a ball."""
    sizes = [max(weight.shape) for weight in chain.narrowed.weights]
    height = max(1, ENTRIES // max(sizes) ** 2)
    parts = [_certify(chain, part, radius) for part in points.split(height)]
    lipschitz, variation, smooth = (torch.cat(column) for column in zip(*parts, strict=True))
    slack = 2 * everywhere.product * (ABSOLUTE + sum(activation.gap for activation in chain.activations))
    variation = torch.minimum(variation, smooth) * (1 + ROUNDING) + slack
    return BallCertificates(
        (lipschitz * (1 + ROUNDING) + slack).clamp_max(everywhere.smallest),
        variation.clamp_max(2 * everywhere.smallest),
        smooth * (1 + ROUNDING) + slack if all(activation.smooth for activation in chain.activations) else None,
    )


def _certify(chain: Chain, points: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    if not chain.activations:
        constant = spectral_norm(chain.weights[0]).expand(len(points))
        found = (constant, torch.zeros_like(constant), torch.zeros_like(constant))
    else:
        ranges = neuron_ranges(chain, points, radius)
        slopes = [activation.slopes(*ends) for activation, ends in zip(chain.activations, ranges, strict=True)]
        centre, deviation = jacobian_deviation(chain.narrowed, slopes)
        found = (centre + deviation, 2 * deviation, _smooth(chain.narrowed, ranges, slopes, radius))
    return _softmaxed(*found, radius) if chain.softmax else found


def _smooth(chain: Chain, ranges: list[Range], slopes: list[Range], radius: float) -> Tensor:
    """2δ Σ_i ‖S_i‖ max_k(|φ''_ik| ‖∇z_ik‖) ‖P_i‖: the derivative of J along a unit vector, layer by layer."""
    if not all(activation.smooth for activation in chain.activations):
        return torch.full_like(ranges[0][0][:, 0], torch.inf)
    norms = [spectral_norm(weight) for weight in chain.weights]
    steep = [torch.maximum(low.abs(), high.abs()).amax(1) for low, high in slopes]
    after = [norms[-1].expand_as(steep[0])]
    for norm, most in zip(norms[-2:0:-1], steep[:0:-1], strict=True):
        after.append(after[-1] * most * norm)
    total, before = torch.zeros_like(steep[0]), torch.ones_like(steep[0])
    for i, (activation, ends) in enumerate(zip(chain.activations, ranges, strict=True)):
        turning = _turning(activation, ends, chain.weights[i].norm(dim=1)) * before
        total = total + after[-1 - i] * turning * norms[i] * before
        before = before * norms[i] * steep[i]
    return 2 * radius * total


def _turning(activation: Activation, ends: Range, rows: Tensor) -> Tensor:
    return (activation.steepness(*ends) * rows).amax(1)


def _softmaxed(lipschitz: Tensor, variation: Tensor, smooth: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """M(z)J: M(x)J(x) − M(y)J(y) = M(x)(J(x) − J(y)) + (M(x) − M(y))J(y), with ‖M‖ ≤ ½."""
    bend = 2 * radius * SOFTMAX_BEND * lipschitz
    return lipschitz / 2, variation / 2 + lipschitz * bend.clamp_max(0.5), smooth / 2 + lipschitz * bend
