"""The linear map inside a layer as a matrix: what a convolution does to a whole image, not only its kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from spherometer.operators.operator import Operator
from spherometer.problems.modes import differentiating

TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


class UnrolledGram(Operator):
    """A'A with A the matrix of a layer, without its bias, on inputs of a given shape; its norm is ‖A‖₂².

    Exact for any stride, padding (and its mode), dilation, grouping, and for transposed convolutions: the layer itself
    is the product with A, its backward pass that with A'. In double precision.

    Example:
        >>> eigenvalues(UnrolledGram(layer, layer.weight, (3, 32, 32)))
    """

    positive = True

    def __init__(self, module: nn.Module, weight: Tensor, input_shape: tuple[int, ...]) -> None:
        size = int(torch.Size(input_shape).numel())
        super().__init__((size, size), torch.float64, weight.device)
        self._map, self._shape = linear_part(module, weight.detach().double()), tuple(input_shape)

    def _apply(self, columns: Tensor) -> Tensor:
        with differentiating():
            inputs = columns.T.reshape(-1, *self._shape).detach().requires_grad_()
            image = self._map(inputs)
            (result,) = torch.autograd.grad(image, inputs, image.detach())
        return result.reshape(columns.shape[1], -1).T


def linear_part(module: nn.Module, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """A layer without its bias, as a function of a batch of inputs."""
    if isinstance(module, nn.Linear):
        return lambda inputs: functional.linear(inputs, weight)
    if isinstance(module, _ConvTransposeNd):
        convolve = TRANSPOSED[len(module.kernel_size)]
        options = (module.stride, module.padding, module.output_padding, module.groups, module.dilation)
        return lambda inputs: convolve(inputs, weight, None, *options)  # type: ignore[arg-type]
    if isinstance(module, _ConvNd):
        return lambda inputs: module._conv_forward(inputs, weight, None)
    return lambda inputs: inputs @ weight  # Hugging Face's Conv1D


def is_convolution(module: nn.Module) -> bool:
    """Whether a layer's matrix is not its weight, but its weight at many places."""
    return isinstance(module, _ConvNd)


def matrix_of(weight: Tensor) -> Tensor:
    """A weight as the matrix (first axis, all the rest), in double precision."""
    return weight.detach().double().flatten(1)
