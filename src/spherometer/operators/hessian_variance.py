"""How much the Hessians of single batches differ from their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spherometer.operators.hessian import Hessian
from spherometer.operators.operator import Operator
from spherometer.problems import Problem


class HessianVariance(Operator):
    """Σ = E[H_B²] − H² = E[(H_B − H)²] over batches B drawn with the weight of their loss terms.

    The non-uniformity of Wu, Ma and E (2018), with batches in the place of samples: its largest eigenvalue is s².
    A product costs two Hessian products over all the data.
    """

    positive = True

    def __init__(self, problem: Problem, batches: Sequence[Any], *, at: Tensor | None = None) -> None:
        super().__init__((problem.num_parameters,) * 2, problem.precision, problem.device)
        memory = problem.memory / len(batches)
        parts = [problem.alone(number, batch, memory=memory) for number, batch in enumerate(batches)]
        counts = torch.tensor([part.num_terms for part in parts], dtype=torch.float64)
        self.shares = (counts / counts.sum()).tolist()
        self.hessians = [Hessian(part, at=at) for part in parts]

    def _apply(self, columns: Tensor) -> Tensor:
        products = [hessian @ columns for hessian in self.hessians]
        mean = sum(share * product for share, product in zip(self.shares, products, strict=True))
        deviations = (product - mean for product in products)
        parts = zip(self.shares, self.hessians, deviations, strict=True)
        return sum(share * (hessian @ deviation) for share, hessian, deviation in parts)
