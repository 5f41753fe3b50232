"""Random networks for statements about all networks, and the slow way to what is measured on them."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.naive_jacobians import input_jacobian, layer_jacobian, weight_gradients
from spherometer import HalfSquaredError, Problem
from spherometer.metrics import measure

seeds = st.integers(0, 2**31 - 1)


class ResidualChain(nn.Module):
    """x^{l+1} = x^l + φ(W_l x^l), f = W_L x^L (B App A)."""

    def __init__(self, width: int, depth: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, outputs, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.inner:
            inputs = inputs + torch.tanh(layer(inputs))
        return self.head(inputs)


def drawn(seed: int, build) -> tuple[nn.Module, Tensor]:
    """A network and inputs from one seed; `build(integer)` gets a function that draws whole numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(lambda low, high: int(torch.randint(low, high + 1, ()))).double()
        for parameter in model.parameters():
            parameter.data.mul_(float(torch.empty(()).uniform_(0.3, 2.5)))
        first = next(m for m in model.modules() if isinstance(m, nn.Linear))
        inputs = torch.randn(int(torch.randint(2, 9, ())), first.in_features, dtype=torch.float64)
        return model, inputs * float(torch.empty(()).uniform_(0.2, 3))


def dense_network(seed: int, bend: type[nn.Module] | None = None) -> tuple[nn.Module, Tensor]:
    """A chain of dense layers of random depth and widths, with or without biases."""

    def build(integer):
        chosen = bend or (nn.ReLU, nn.Tanh, nn.GELU)[integer(0, 2)]
        outputs, depth = integer(1, 3), integer(1, 4)
        widths = [integer(outputs, 8) for _ in range(depth)] + [outputs]
        bias, parts = bool(integer(0, 1)), []
        for before, after in pairwise(widths):
            parts += [nn.Linear(before, after, bias=bias), chosen()]
        return nn.Sequential(*parts[:-1])

    return drawn(seed, build)


def residual_network(seed: int) -> tuple[nn.Module, Tensor]:
    return drawn(seed, lambda integer: ResidualChain(integer(2, 6), integer(1, 4), integer(1, 3)))


def problem_of(model: nn.Module, inputs: Tensor, **options) -> Problem:
    targets = torch.zeros(len(inputs), dtype=torch.long)
    return Problem(model, HalfSquaredError(), (inputs, targets), **options)


def value_of(problem: Problem, name: str):
    return measure(problem, [name])[name].value


def entries_of(problem: Problem, name: str) -> dict[str, float]:
    estimate = measure(problem, [name])[name].estimate
    return dict(zip(estimate.labels, estimate.value.tolist(), strict=True))


def input_jacobians(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    return [input_jacobian(model, sample) for sample in inputs]


def layer_jacobians(model: nn.Module, inputs: Tensor, name: str) -> list[Tensor]:
    return [layer_jacobian(model, sample, name) for sample in inputs]


def gradients(model: nn.Module, inputs: Tensor, names: list[str] | None = None) -> list[Tensor]:
    return [weight_gradients(model, sample, names) for sample in inputs]
