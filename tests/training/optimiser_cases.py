"""A small network, its data, closures, and the steps of the optimisers written out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

import spherometer as sm
from reference.agreement import assert_close

KINDS = {"SAM": sm.optim.SAM, "ASAM": sm.optim.ASAM, "EJR": sm.optim.EJR, "EJRv2": sm.optim.EJRv2}
RADII = {"SAM": 0.3, "ASAM": 0.7, "EJR": 0.4, "EJRv2": 0.4}


def network(seed: int = 0, dtype: torch.dtype = torch.float64, batchnorm: bool = False) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        norm = [nn.BatchNorm1d(6)] if batchnorm else []
        return nn.Sequential(nn.Linear(4, 6), *norm, nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def batch(num: int = 8, seed: int = 1, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num, 4, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(3, (num,), generator=generator)


def closure_of(
    optimizer: torch.optim.Optimizer, model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]
) -> Callable[[], Tensor]:
    """Mean cross-entropy over all samples, one backward pass per batch."""
    num = sum(len(inputs) for inputs, _ in batches)

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for inputs, targets in batches:
            loss = functional.cross_entropy(sm.optim.logits(model(inputs)), targets) * (len(inputs) / num)
            loss.backward()
            total = total + loss.detach()
        return total

    return closure


def flat(tensors) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def gradient_at(model: nn.Module, weights: Tensor, scalar: Callable[[Tensor, Tensor], Tensor], data) -> Tensor:
    """∇θ scalar(z, y) at the given flat weights, by `functional_call`: the model is not touched."""
    inputs, targets = data
    names, shapes = zip(*[(name, weight.shape) for name, weight in model.named_parameters()], strict=True)
    pieces = weights.detach().clone().requires_grad_()
    split = pieces.split([shape.numel() for shape in shapes])
    parameters = {name: piece.view(shape) for name, shape, piece in zip(names, shapes, split, strict=True)}
    value = scalar(torch.func.functional_call(model, parameters, (inputs,)), targets)
    return torch.autograd.grad(value, pieces)[0]


def direction_of(seed: int, steps: int = 1) -> Tensor:
    """u of the given step, drawn as the optimisers say they do."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        normal = torch.randn(3, generator=generator, dtype=torch.float64)
    return normal / normal.norm()


def gradient_by_hand(kind: str, model: nn.Module, data, *, rho: float, eta: float = 0.01, mu: float = 0.03) -> Tensor:
    """The gradient that the base optimiser is given in the first step."""
    weights = flat(model.parameters())
    u = direction_of(0)
    slope = gradient_at(model, weights, functional.cross_entropy, data)
    if kind == "SAM":
        top = weights + rho * slope / slope.norm()
    elif kind == "ASAM":
        tilt = weights.abs() + eta
        top = weights + rho * tilt**2 * slope / (tilt * slope).norm()
    else:
        delta = gradient_at(model, weights, lambda z, y: (z @ u).mean(), data)
        top = weights + rho * delta / delta.norm()
    if kind == "EJRv2":
        return gradient_at(model, top, lambda z, y: functional.cross_entropy(z, y) + mu * (z @ u).mean(), data)
    return gradient_at(model, top, functional.cross_entropy, data)


def assert_slopes(gradient: Tensor, function: Callable[[], Tensor], model: nn.Module, tolerance: float) -> None:
    """The gradient's products with five random directions are central differences of the function of the weights."""
    start = flat(model.parameters())
    directions = torch.randn(5, len(start), generator=torch.Generator().manual_seed(7), dtype=torch.float64)

    def at(weights: Tensor) -> float:
        nn.utils.vector_to_parameters(weights, model.parameters())
        return float(function())

    steps = 1e-5 * directions
    slopes = torch.tensor([(at(start + step) - at(start - step)) / 2e-5 for step in steps], dtype=torch.float64)
    nn.utils.vector_to_parameters(start, model.parameters())
    assert_close(directions @ gradient, slopes, tolerance)
