"""Naive dense twins of the metrics of logits, weight Jacobians and alignment: loops over samples, explicit matrices."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from reference.cases import BY_NAME
from spherometer import Problem
from spherometer.metrics import measure
from spherometer.values import Estimate

NETWORKS = ["linear", "relu", "conv2d", "conv residual", "batch norm eval", "attention", "multihead attention"]
NUM_SAMPLES = 11


@dataclass
class LogitTwin:
    """The Jacobian of every sample (C x P), its logit Hessian and its gradient, all dense, one sample at a time."""

    model: nn.Module
    loss: Any
    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        self.model = copy.deepcopy(self.model).eval()
        self.shapes = {name: weight.shape for name, weight in self.model.named_parameters()}
        self.weights = torch.cat([weight.detach().reshape(-1) for weight in self.model.parameters()])
        singles = [self.inputs[k : k + 1] for k in range(len(self.inputs))]
        self.jacobians = torch.stack(
            [torch.autograd.functional.jacobian(lambda w, x=x: self.outputs_at(w, x)[0], self.weights) for x in singles]
        )
        self.outputs = self.outputs_at(self.weights, self.inputs).detach()
        self.probabilities = self.outputs.softmax(1)
        self.hessians = [explicit_logit_hessian(p) for p in self.probabilities]
        self.gradients = torch.stack([self.sample_gradient(k) for k in range(len(self.inputs))])  # (n, P)

    def outputs_at(self, weights: Tensor, inputs: Tensor) -> Tensor:
        pieces = weights.split([shape.numel() for shape in self.shapes.values()])
        named = {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(self.model, named, (inputs,))

    def sample_gradient(self, k: int) -> Tensor:
        point = self.weights.clone().requires_grad_()
        loss = self.loss(self.outputs_at(point, self.inputs[k : k + 1]), self.targets[k : k + 1])
        return torch.autograd.grad(loss, point)[0]

    def hessian(self) -> Tensor:
        return torch.autograd.functional.hessian(
            lambda w: self.loss(self.outputs_at(w, self.inputs), self.targets), self.weights
        )

    def gauss_newton(self, middles: list[Tensor] | None = None) -> Tensor:
        """⟨J'MJ⟩ with the given M of each sample, by default those of softmax cross-entropy."""
        terms = [J.T @ M @ J for J, M in zip(self.jacobians, middles or self.hessians, strict=True)]
        return torch.stack(terms).mean(0)

    @property
    def mean_jacobian(self) -> Tensor:
        return self.jacobians.mean(0)

    def eigenpairs(self) -> list[tuple[Tensor, Tensor]]:
        return [explicit_eigenpairs(p) for p in self.probabilities]

    def top_directions(self) -> Tensor:
        """m = √λ J'q of each sample (n, P)."""
        pairs = self.eigenpairs()
        rows = [
            values[0].sqrt() * J.T @ vectors[:, 0] for J, (values, vectors) in zip(self.jacobians, pairs, strict=True)
        ]
        return torch.stack(rows)


def explicit_logit_hessian(p: Tensor) -> Tensor:
    return torch.diag(p) - torch.outer(p, p)


def explicit_eigenpairs(p: Tensor) -> tuple[Tensor, Tensor]:
    """eigh, descending, with C's sign: the entry of the i-th likeliest class above that of the next."""
    values, vectors = torch.linalg.eigh(explicit_logit_hessian(p))
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    order = p.argsort(descending=True)
    for i in range(len(p) - 1):
        if vectors[order[i], i] < vectors[order[i + 1], i]:
            vectors[:, i] = -vectors[:, i]
    return values, vectors


def setting(name: str, loss: Any = None, num: int = NUM_SAMPLES) -> tuple[Problem, LogitTwin]:
    """A problem with a ragged last batch, and its twin on one batch."""
    case, loss = BY_NAME[name], nn.CrossEntropyLoss() if loss is None else loss
    inputs, targets = case.data(num=num)
    batches = [(inputs[k : k + 4], targets[k : k + 4]) for k in range(0, num, 4)]
    problem = Problem(case.model(), loss, batches)
    return problem, LogitTwin(case.model(), loss, inputs, targets)


def networks() -> Any:
    """Random dense networks with data, for properties that hold for all of them."""
    return strategies.builds(
        random_network,
        seed=strategies.integers(0, 10_000),
        widths=strategies.lists(strategies.integers(1, 5), min_size=1, max_size=3),
        classes=strategies.integers(2, 5),
        num=strategies.integers(2, 6),
        bend=strategies.sampled_from([nn.ReLU, nn.Tanh, nn.Identity]),
        scale=strategies.sampled_from([0.3, 1.0, 2.0]),
    ).filter(_undecided)


def _undecided(network: tuple[nn.Module, Tensor, Tensor]) -> bool:
    """Not so saturated that rounding is all that is left of the Gauss-Newton matrix."""
    with torch.no_grad():
        return float(network[0](network[1]).softmax(1).amax(1).min()) < 1 - 1e-4


def random_network(
    seed: int, widths: list[int], classes: int, num: int, bend: Callable[[], nn.Module], scale: float
) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [3, *widths, classes]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after, dtype=torch.float64), bend()]
    model = nn.Sequential(*layers[:-1])
    for weight in model.parameters():
        weight.data = scale * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    inputs = torch.randn(num, 3, generator=generator, dtype=torch.float64)
    return model, inputs, torch.randint(classes, (num,), generator=generator)


def measured(problem: Problem, name: str, seed: int = 0) -> Estimate:
    return measure(problem, [name], seed=seed)[name].estimate


def assert_value(estimate: Estimate, truth: Any, tolerance: float = 1e-9) -> None:
    """Equal within tolerance of the largest entry, nan where the truth is nan."""
    value, truth = (torch.as_tensor(entry, dtype=torch.float64) for entry in (estimate.value, truth))
    assert value.shape == truth.shape, f"expected shape {tuple(truth.shape)}, got {tuple(value.shape)}"
    scale = max(1e-12, float(truth.nan_to_num(0.0).abs().max()))
    assert torch.equal(value.isnan(), truth.isnan()), f"expected {truth}, got {value}"
    error = float((value - truth).nan_to_num(0.0).abs().max())
    assert error <= tolerance * scale, f"error {error:.3g} of {scale:.3g}: expected {truth}, got {value}"
