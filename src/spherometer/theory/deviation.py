"""How far the Jacobian of a chain can be from a centre when every slope stays in its interval.

J = W_L D_{L−1} W_{L−1} … D_1 W_1 with D_i = C_i + Δ_i, |Δ_i| ≤ ρ_i. With S_i, P_i, M_ji the products of layers after
i, up to i, and from i to j at the centre, J − J_c = Σ_i S_i(x) Δ_i P_i, where S_i(x) = S_i + Σ_{j>i} S_j(x) Δ_j M_ji.
For any diagonal T_i > 0 therefore

    ‖J − J_c‖ ≤ Σ_i α_i ‖T_i⁻¹ √ρ_i P_i‖,   α_i = ‖S_i √ρ_i T_i‖ + Σ_{j>i} α_j ‖T_j⁻¹ √ρ_j M_ji √ρ_i T_i‖.

T_i balances the rows of P_i and the columns of S_i, so that a single layer gives at most Σ_k ρ_k ‖S_{·k}‖ ‖P_{k·}‖.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.theory.activations import Range
from spherometer.theory.chain import Chain
from spherometer.theory.layer_constants import spectral_norm


def jacobian_deviation(chain: Chain, slopes: list[Range]) -> tuple[Tensor, Tensor]:
    """‖J_c‖ and an upper bound on ‖J − J_c‖ for every sample; `chain` narrowed, slopes (n, width) for every layer."""
    weights, num = chain.weights, len(slopes)
    centres = [(low + high) / 2 for low, high in slopes]
    after, before = _after(weights, centres), _before(weights, centres)
    parts = [_Moving(*part) for part in zip(slopes, before, after, strict=True)]
    total, alphas = torch.zeros(len(centres[0]), dtype=torch.float64), dict[int, Tensor]()
    for i in range(num - 1, -1, -1):
        alpha = spectral_norm(parts[i].out(after[i]))
        between = parts[i].out(weights[i + 1].expand(len(total), -1, -1))
        for j in range(i + 1, num):
            alpha = alpha + alphas[j] * spectral_norm(parts[j].into(between))
            between = weights[j + 1] @ (centres[j][:, :, None] * between)
        alphas[i] = alpha
        total = total + alpha * spectral_norm(parts[i].into(before[i]))
    return spectral_norm((after[0] * centres[0][:, None, :]) @ weights[0]), total


class _Moving:
    """The neurons of one layer whose slope is not fixed, the same number for every sample, with √ρ T and √ρ / T."""

    def __init__(self, slopes: Range, before: Tensor, after: Tensor) -> None:
        root = ((slopes[1] - slopes[0]) / 2).clamp_min(0).sqrt()
        num = max(1, int((root > 0).sum(1).max()))
        balance = _balance(before, after)
        self.kept = root.topk(num, dim=1).indices
        self.behind, self.ahead = ((root * scale).gather(1, self.kept) for scale in (balance, 1 / balance))

    def out(self, matrices: Tensor) -> Tensor:
        """A √ρ T for what the layer feeds."""
        columns = self.kept[:, None, :].expand(-1, matrices.shape[1], -1)
        return matrices.gather(2, columns) * self.behind[:, None, :]

    def into(self, matrices: Tensor) -> Tensor:
        """T⁻¹ √ρ A for what feeds the layer."""
        rows = self.kept[:, :, None].expand(-1, -1, matrices.shape[2])
        return matrices.gather(1, rows) * self.ahead[:, :, None]


def _after(weights: tuple[Tensor, ...], centres: list[Tensor]) -> list[Tensor]:
    """S_i = W_L C_{L−1} … W_{i+1}, each (n, outputs, width)."""
    found = [weights[-1].expand(len(centres[0]), -1, -1)]
    for weight, centre in zip(weights[-2:0:-1], centres[:0:-1], strict=True):
        found.append((found[-1] * centre[:, None, :]) @ weight)
    return found[::-1]


def _before(weights: tuple[Tensor, ...], centres: list[Tensor]) -> list[Tensor]:
    """P_i = W_i C_{i−1} … W_1, each (n, width, inputs)."""
    found = [weights[0].expand(len(centres[0]), -1, -1)]
    for weight, centre in zip(weights[1:-1], centres[:-1], strict=True):
        found.append(weight @ (centre[:, :, None] * found[-1]))
    return found


def _balance(before: Tensor, after: Tensor) -> Tensor:
    """T with ‖S_{·k}‖ T_k = ‖P_{k·}‖ / T_k, kept away from 0 and infinity."""
    rows, columns = before.norm(dim=2), after.norm(dim=1)
    return (
        (rows + 1e-9 * rows.amax(1, keepdim=True) + 1e-150) / (columns + 1e-9 * columns.amax(1, keepdim=True) + 1e-150)
    ).sqrt()
