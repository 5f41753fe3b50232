"""Logarithms of local volumes from Gram matrices, with rank-deficient ones told apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LogVolumes:
    """½ log det of each sample's Gram matrix; −inf where the volume is zero."""

    logs: Tensor  # (n,)
    num_deficient: int
    num_dead: int
    positive: bool

    @property
    def note(self) -> str:
        """How many samples are rank-deficient, and what was made of them."""
        if not self.num_deficient:
            return ""
        fate = "product of positive singular values taken" if self.positive else "volume zero, no logarithm"
        dead = f" ({self.num_dead} have a zero Jacobian)" if self.num_dead else ""
        return f"{self.num_deficient} of {len(self.logs)} samples rank-deficient{dead}: {fate}"

    def average(self, way: str) -> float:
        """Mean of the logarithms that exist, or logarithm of the mean volume; −inf when no sample has a volume."""
        finite = self.logs[self.logs > -math.inf]
        if not len(finite):
            return -math.inf
        if way == "log":
            return float(finite.mean())
        return float(torch.logsumexp(finite, 0)) - math.log(len(self.logs))


def log_volumes(gram: Tensor, precision: torch.dtype, *, positive: bool = False) -> LogVolumes:
    """½ log det(J J') of every sample (n, C, C).

    Singular values below 8 √C ε of the largest are zero within the arithmetic that made J (ε of its dtype), or within
    that of the Gram matrix (√ε of double precision).
    """
    values = torch.linalg.eigvalsh(gram).cpu()  # ascending
    size = values.shape[1]
    relative = max(8 * size**0.5 * torch.finfo(precision).eps, (size * torch.finfo(torch.float64).eps) ** 0.5)
    alive = values > relative**2 * values[:, -1:].clamp_min(1e-300)
    halves = torch.where(alive, values.clamp_min(1e-300).log() / 2, 0.0).sum(1)
    has_volume = alive.any(1) if positive else alive.all(1)
    logs = torch.where(has_volume, halves, -math.inf)
    return LogVolumes(logs, int((~alive.all(1)).sum()), int((~alive.any(1)).sum()), positive)


def volume_of(logs: Tensor) -> float:
    """log Σ exp(logs); layers without volume add nothing."""
    return float(torch.logsumexp(logs.double(), 0))
