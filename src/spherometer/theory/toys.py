"""The papers' toy models and the counterexamples to their theorems, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spherometer.theory import arguments
from spherometer.theory.supports import Manifold


@dataclass(frozen=True)
class DeepLinear:
    """L = exp(w₁w₂w₃X), the deep linear model of D Sec 3 (T17).

    H = L (X² vv' + X E) with v = (w₂w₃, w₁w₃, w₁w₂) and E zero on the diagonal, w_k where the other two meet. Paper D
    prints L X vv': X for X², and no E, so that λ₁ = Tr H (D-e1). The trace is X²L‖v‖² indeed, but λ₁ falls short of it
    until the size of w₁w₂w₃X is large.

    Example:
        >>> toy = DeepLinear((2.0, -2.0, 2.0), 0.7)
        >>> round(float(toy.eigenvalues[0]) / toy.trace, 3)
        0.881
    """

    weights: tuple[float, float, float]
    scale: float = 1.0

    @property
    def loss(self) -> float:
        """exp(w₁w₂w₃X)."""
        return math.exp(math.prod(self.weights) * self.scale)

    @property
    def products(self) -> Tensor:
        """v = (w₂w₃, w₁w₃, w₁w₂)."""
        first, second, third = self.weights
        return torch.tensor([second * third, first * third, first * second], dtype=torch.float64)

    @property
    def hessian(self) -> Tensor:
        """L (X² vv' + X E)."""
        first, second, third = self.weights
        edges = torch.tensor([[0, third, second], [third, 0, first], [second, first, 0]], dtype=torch.float64)
        return self.loss * (self.scale**2 * torch.outer(self.products, self.products) + self.scale * edges)

    @property
    def printed_hessian(self) -> Tensor:
        """L X vv', D Eq 3-4 as printed."""
        return self.loss * self.scale * torch.outer(self.products, self.products)

    @property
    def eigenvalues(self) -> Tensor:
        """Of the Hessian, in descending order."""
        return torch.linalg.eigvalsh(self.hessian).flip(0)

    @property
    def trace(self) -> float:
        """X²L‖v‖²."""
        return self.loss * self.scale**2 * float(self.products.square().sum())


@dataclass(frozen=True)
class TwoWeights:
    """L = log(1 + exp(−w₁w₂)): the counterexample to D's Theorem 1, that a small loss makes a flat minimum (D-e4).

    With margin m = w₁w₂ the Hessian is L''(m) vv' + L'(m) E, v = (w₂, w₁). The margin alone decides the loss, ‖v‖² the
    sharpness: at margin 20 the loss is 2e-9, and w₁ = e^20 makes λ₁ = 4.9e8 where equal weights make it 8e-8.

    Example:
        >>> [f"{TwoWeights.of_margin(20, ratio).sharpness:.2g}" for ratio in (1, math.exp(40) / 20)]
        ['8e-08', '4.9e+08']
    """

    first: float
    second: float

    @classmethod
    def of_margin(cls, margin: float, ratio: float = 1.0) -> TwoWeights:
        """w₁w₂ = margin and w₁/w₂ = ratio."""
        arguments.positive("margin", margin)
        arguments.positive("ratio", ratio)
        return cls(math.sqrt(margin * ratio), math.sqrt(margin / ratio))

    @property
    def loss(self) -> float:
        """log(1 + exp(−w₁w₂))."""
        margin = self.first * self.second
        return math.log1p(math.exp(-margin)) if margin > 0 else math.log1p(math.exp(margin)) - margin

    @property
    def hessian(self) -> Tensor:
        """L''(m) vv' + L'(m) E."""
        margin = torch.tensor(self.first * self.second, dtype=torch.float64)
        slope, bend = -torch.sigmoid(-margin), torch.sigmoid(margin) * torch.sigmoid(-margin)
        arms = torch.tensor([self.second, self.first], dtype=torch.float64)
        return bend * torch.outer(arms, arms) + slope * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)

    @property
    def sharpness(self) -> float:
        """The largest eigenvalue of the Hessian."""
        return float(torch.linalg.eigvalsh(self.hessian)[-1])


@dataclass(frozen=True)
class TwoClusters:
    """f(x) = 1/(1 + e^{−sx}) on [−1, −gap] ∪ [gap, 1]: the counterexample to A's Theorem 4.3 (A-e6, T46).

    f is flat on both pieces of the support and climbs between them, where no sample is: its Jacobian at the samples
    and on the balls is of order s e^{−s·gap}, its Lipschitz constant on the support 1/(2 gap) tanh(s·gap/2).

    Example:
        >>> toy = TwoClusters()
        >>> f"{toy.steepest:.1g} {toy.lipschitz:.3g}"
        '6e-07 1.11'
    """

    steepness: float = 40.0
    gap: float = 0.45

    @property
    def steepest(self) -> float:
        """max ‖Jf‖ over the support: at its inner ends."""
        height = math.exp(-self.steepness * self.gap)  # 1 − f keeps its digits as height / (1 + height)
        return self.steepness * height / (1 + height) ** 2

    @property
    def lipschitz(self) -> float:
        """(f(gap) − f(−gap)) / (2 gap), the slope of the secant across the gap."""
        return math.tanh(self.steepness * self.gap / 2) / (2 * self.gap)

    @property
    def support(self) -> Manifold:
        """Uniform; the smallest ball lies at an end, and the whole falls into two pieces."""
        width = 1 - self.gap
        return Manifold(lambda radius: min(radius, width), dimension=1, diameter=2.0, volume=2 * width, detour=math.inf)

    def model(self) -> nn.Sequential:
        """f as a network in double precision."""
        line = nn.Linear(1, 1)
        nn.init.constant_(line.weight, self.steepness)
        nn.init.zeros_(line.bias)
        return nn.Sequential(line, nn.Sigmoid()).double()

    def samples(self, num: int, *, seed: int = 0) -> Tensor:
        """Independent points of the support, (num, 1)."""
        arguments.whole("num", num)
        place = 2 * torch.rand(num, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
        return place.sign() * (self.gap + (1 - self.gap) * place.abs())
