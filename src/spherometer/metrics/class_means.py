"""Means over predicted classes of m = √λ⁽¹⁾ J'q⁽¹⁾, the direction in weight space each sample adds to G (C App D)."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.logit_bench import LogitBench


class ClassMeans:
    """m̄ⁱ over D_i = {x: argmax p = i}; one backward pass for each class, never one for each sample (Q54, L39)."""

    def __init__(self, bench: Bench) -> None:
        self.logits = bench.shared(LogitBench)
        self.predicted = self.logits.probabilities.argmax(1)
        self.sizes = self.predicted.bincount(minlength=self.logits.probabilities.shape[1])

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each class, with the number of samples predicted as it."""
        return tuple(f"class {k} (n={size})" for k, size in enumerate(self.sizes.tolist()))

    @property
    def note(self) -> str:
        """How many classes are empty."""
        empty = int((self.sizes == 0).sum())
        return f"{empty} of {len(self.sizes)} classes are never predicted: undefined there" if empty else ""

    @cached_property
    def means(self) -> Tensor:
        """m̄ⁱ as columns (P, C); zero for a class that is never predicted."""
        value, vector = self.logits.top
        return self._pulled(value.sqrt()[:, None] * vector, self.sizes)

    @cached_property
    def resultant_lengths(self) -> tuple[Tensor, int]:
        """‖mean of m/‖m‖‖ for each class (C,), and how many samples have no direction because m vanishes (Q55)."""
        value, vector = self.logits.top
        lengths = self.logits.top_lengths.sqrt()
        defined = (lengths > 0) & (value > 0)
        directions = torch.where(defined[:, None], vector / lengths[:, None], 0.0)
        sizes = self.predicted[defined].bincount(minlength=len(self.sizes))
        norms = self._pulled(directions, sizes).double().norm(dim=0)
        return torch.where(sizes > 0, norms, torch.nan), int((~defined).sum())

    @cached_property
    def basis(self) -> Tensor:
        """Orthonormal columns (P, k) that span the class means; vanishing and dependent directions are dropped."""
        columns = self.means.double()
        left, values, _ = torch.linalg.svd(columns, full_matrices=False)
        return left[:, values > 1e-10 * values[:1].clamp(min=1e-300)]

    def _pulled(self, cotangents: Tensor, sizes: Tensor) -> Tensor:
        """N_i⁻¹ Σ_{x∈D_i} J'u for each class i: (P, C)."""
        member = torch.nn.functional.one_hot(self.predicted, len(sizes)).to(cotangents)
        shares = member / sizes.clamp(min=1)  # (N, C)
        return self.logits.jacobian.pull(cotangents[:, :, None] * shares[:, None, :])
