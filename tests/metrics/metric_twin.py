"""The dense truth behind the metrics: explicit matrices of one small loss, by plain autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call


class Twin:
    """The loss of one batch as a function of one flat vector of weights."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor], inputs: Tensor, targets: Tensor) -> None:
        self.model, self.loss, self.inputs, self.targets = copy.deepcopy(model).eval(), loss, inputs, targets
        self.shapes = {name: weight.shape for name, weight in model.named_parameters()}
        self.weights = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()])

    def outputs(self, vector: Tensor) -> Tensor:
        pieces = vector.split([shape.numel() for shape in self.shapes.values()])
        named = {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}
        return functional_call(self.model, named, (self.inputs,))

    def mean_loss(self, vector: Tensor) -> Tensor:
        return self.loss(self.outputs(vector), self.targets)

    def sample_loss(self, vector: Tensor, rows: Any) -> Tensor:
        return self.loss(self.outputs(vector)[rows], self.targets[rows])

    def hessian(self, rows: Any = slice(None)) -> Tensor:
        return hessian(lambda vector: self.sample_loss(vector, rows), self.weights)

    def jacobian(self) -> Tensor:  # (n, C, P)
        return jacobian(self.outputs, self.weights)

    def gradients(self) -> Tensor:  # (n, P), one row for each sample
        rows = range(len(self.inputs))
        return jacobian(lambda v: torch.stack([self.sample_loss(v, slice(i, i + 1)) for i in rows]), self.weights)

    def output_hessian(self) -> Tensor:  # (n, C, C), of each sample's own loss
        outputs = self.outputs(self.weights).detach()
        return torch.stack(
            [
                hessian(lambda z, i=i: self.loss(z[None], self.targets[i : i + 1]), outputs[i])
                for i in range(len(outputs))
            ]
        )
