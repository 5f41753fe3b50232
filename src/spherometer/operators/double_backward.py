"""Graphs that are quick to differentiate twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from spherometer.operators.batch_norm import batch_norm
from spherometer.operators.convolution import convolution, transposed_convolution
from spherometer.operators.linear import linear
from spherometer.operators.max_pooling import LastRelu, max_pool
from spherometer.operators.minimal_filtering import Lifts
from spherometer.operators.relu import relu


class FastDoubleBackward(TorchFunctionMode):
    """Inside it, graphs are built of convolutions, batch norms and max poolings that are quick to derive twice.

    Values and derivatives are those of PyTorch up to rounding. Only the forward pass has to run inside; backward passes
    may come later. Third derivatives are right too, also through batch norm on batch statistics, where PyTorch's own
    are wrong. What is not covered is left to PyTorch: asymmetric 'same' padding, inputs without a batch, complex
    numbers, tensor subclasses, autocast, forward mode and `torch.func`. A mode that is to see the calls has to be
    entered after this one.
    """

    def __init__(self, *, many_products: bool = False) -> None:
        super().__init__()
        self.lifts = Lifts(images=many_products)
        self._relu = LastRelu()
        pool = partial(max_pool, self._relu)
        plain, transposed = partial(convolution, self.lifts), partial(transposed_convolution, self.lifts)
        self._twins: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
            torch.conv1d: plain,
            torch.conv2d: plain,
            torch.conv3d: plain,
            torch.conv_transpose1d: transposed,
            torch.conv_transpose2d: transposed,
            torch.conv_transpose3d: transposed,
            functional.batch_norm: batch_norm,
            functional.max_pool2d: pool,
            torch.max_pool2d: pool,
            functional.linear: linear,
            functional.relu: relu,
            torch.relu: relu,
        }

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        """The quick twin of the function if there is one and it can do this call, else the function."""
        options = options or {}
        twin, result = self._twins.get(function), None
        if twin is not None and _is_covered([*arguments, *options.values()]):
            result = twin(*arguments, **options)
        if result is None:
            result = function(*arguments, **options)
        self._relu.hear(function, arguments, result)
        return result


def _is_covered(arguments: Sequence[Any]) -> bool:
    """Whether real tensors of one type are to be differentiated in plain reverse mode."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    return (
        torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in tensors)
        and len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1
        and tensors[0].is_floating_point()
        and all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)
        and not torch.is_autocast_enabled(tensors[0].device.type)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )
