"""Small networks with every kind of layer that is hard to differentiate twice, and their dense float64 Hessians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spherometer.commands.check import SLACK
from spherometer.metrics import measure
from spherometer.problems import HalfSquaredError, Problem
from spherometer.values import Estimate
from spherometer.zoo.randomness import seeded

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3)),
    "relu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)),
    "norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)),
    "conv": lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.SiLU(), nn.Flatten(), nn.Linear(12, 3)),
}


def compare(seed: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measured and exact numbers for each network and loss."""
    return [
        {"network": f"{name}, {label}", **entry}
        for name in NETWORKS
        for label, loss in {"entropy": nn.CrossEntropyLoss(), "squares": HalfSquaredError()}.items()
        for entry in _compare_one(name, loss, seed, tell)
    ]


def _compare_one(name: str, loss: nn.Module, seed: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    tell(f"{name}, {type(loss).__name__}")
    with seeded(seed):
        model, inputs, targets = NETWORKS[name](), torch.randn(20, 1, 4, 4), torch.randint(3, (20,))
    spectrum, slope = dense_spectrum(model, loss, inputs, targets)
    exact = {
        "gradient_norm": slope,
        "sharpness": float(spectrum[-1]),
        "smallest_eigenvalue": float(spectrum[0]),
        "hessian_trace": float(spectrum.sum()),
        "hessian_frobenius": float(spectrum.norm()),
    }
    found = measure(Problem(model, loss, (inputs, targets), dtype=torch.float64), list(exact), seed=seed)
    return [_verdict(quantity, value, found[quantity].estimate) for quantity, value in exact.items()]


def _verdict(quantity: str, exact: float, estimate: Estimate) -> dict[str, Any]:
    measured, error = float(estimate.value), float(estimate.error)
    reach = SLACK * error if estimate.kind == "standard error" else error
    agrees = abs(measured - exact) <= reach + 1e-8 * abs(exact)
    return {
        "quantity": quantity,
        "exact": exact,
        "measured": measured,
        "error": error,
        "agrees": agrees,
    }


def dense_spectrum(model: nn.Module, loss: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
    """All eigenvalues of the Hessian, ascending, and the length of the gradient; column by column, in float64."""
    names = [name for name, _ in model.named_parameters()]
    weights = [tensor.detach().double().requires_grad_() for tensor in model.parameters()]
    outputs = functional_call(model, dict(zip(names, weights, strict=True)), (inputs.double(),))
    gradient = torch.autograd.grad(loss(outputs, targets), weights, create_graph=True)
    flat = torch.cat([entry.flatten() for entry in gradient])
    columns = [
        torch.cat(
            [part.flatten() for part in torch.autograd.grad(entry, weights, retain_graph=True, materialize_grads=True)]
        )
        for entry in flat
    ]
    matrix = torch.stack(columns)
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2), flat.detach().norm().item()
