"""Dense float64 twins of every operator, written for clarity: loops over samples, outputs and parameters.

They share no code with the package: their own copy of the model, their own modes, explicit Jacobians.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


@dataclass(eq=False)
class Twin:
    """The same loss on one batch as an explicit function of one flat vector of all trainable parameters."""

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    inputs: Any
    targets: Any
    batchnorm: str = "eval"

    def __post_init__(self) -> None:
        self.model = copy.deepcopy(self.model).eval()
        for module in self.model.modules():
            if isinstance(module, NORMS):
                module.train(self.batchnorm == "train")
        named = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.shapes = {name: weight.shape for name, weight in named.items()}
        self.weights = torch.cat([weight.detach().reshape(-1) for weight in named.values()])

    def outputs(self, vector: Tensor) -> Tensor:
        pieces = vector.split([shape.numel() for shape in self.shapes.values()])
        weights = {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}
        inputs = self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(self.model, weights, inputs)

    def mean_loss(self, vector: Tensor) -> Tensor:
        return self.loss(self.outputs(vector), self.targets)

    def gradient(self, vector: Tensor | None = None) -> Tensor:
        point = (self.weights if vector is None else vector).clone().requires_grad_()
        return torch.autograd.grad(self.mean_loss(point), point)[0]

    def finite_difference_product(self, direction: Tensor, step: float = 1e-5) -> Tensor:
        """(∇l(θ + hv) − ∇l(θ − hv)) / 2h for unit v: no second derivative is taken."""
        size = direction.norm()
        unit = direction / size
        ahead, behind = self.gradient(self.weights + step * unit), self.gradient(self.weights - step * unit)
        return size * (ahead - behind) / (2 * step)

    @cached_property
    def hessian(self) -> Tensor:
        point = self.weights.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.mean_loss(point), point, create_graph=True)
        rows = [torch.autograd.grad(entry, point, retain_graph=True)[0] for entry in gradient]
        return torch.stack(rows)

    @cached_property
    def jacobian(self) -> Tensor:
        """d outputs / d weights: (number of output entries, P)."""
        point = self.weights.clone().requires_grad_()
        outputs = self.outputs(point).reshape(-1)
        return torch.stack([torch.autograd.grad(entry, point, retain_graph=True)[0] for entry in outputs])

    @cached_property
    def output_hessian(self) -> Tensor:
        """Second derivatives of the mean loss in all output entries of the batch."""
        outputs = self.outputs(self.weights).detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.loss(outputs, self.targets), outputs, create_graph=True)
        rows = [torch.autograd.grad(entry, outputs, retain_graph=True)[0].reshape(-1) for entry in slope.reshape(-1)]
        return torch.stack(rows)

    @cached_property
    def gauss_newton(self) -> Tensor:
        jacobian = self.jacobian
        return jacobian.T @ self.output_hessian @ jacobian

    @cached_property
    def categorical_fisher(self) -> Tensor:
        """n⁻¹ Σ_i Σ_k p_ik (J_i's_ik)(J_i's_ik)' with s_ik = p_i − e_k; outputs (n, C)."""
        outputs = self.outputs(self.weights).detach()
        blocks = self.jacobian.reshape(*outputs.shape, -1)  # (n, C, P)
        chances = outputs.softmax(1)
        total = torch.zeros(len(self.weights), len(self.weights), dtype=self.weights.dtype)
        for block, chance in zip(blocks, chances, strict=True):
            for label in range(len(chance)):
                score = chance - torch.eye(len(chance), dtype=chance.dtype)[label]
                gradient = block.T @ score
                total += chance[label] * torch.outer(gradient, gradient)
        return total / len(outputs)

    def gaussian_fisher(self, precision: float) -> Tensor:
        jacobian = self.jacobian
        return precision * jacobian.T @ jacobian / len(self.outputs(self.weights))

    @cached_property
    def empirical_fisher(self) -> Tensor:
        """n⁻¹ Σ_i g_i g_i' with g_i the gradient of the loss of sample i alone, seen through the whole batch."""
        gradients = self.sample_gradients
        return gradients.T @ gradients / len(gradients)

    @cached_property
    def sample_gradients(self) -> Tensor:  # (n, P)
        point = self.weights.clone().requires_grad_()
        outputs = self.outputs(point)
        losses = [self.loss(outputs[i : i + 1], self.targets[i : i + 1]) for i in range(len(outputs))]
        return torch.stack([torch.autograd.grad(loss, point, retain_graph=True)[0] for loss in losses])
