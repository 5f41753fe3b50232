"""Normalisation layers in plain arithmetic, which can be differentiated as often as one likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class DecomposedNorms(TorchFunctionMode):
    """Inside, batch, instance and layer norm are means, differences and square roots; values are those of PyTorch.

    Third derivatives through PyTorch's own kernels are silently wrong (pytorch #186256, #175754: by 28 % for batch norm
    and 2 % for layer norm in torch 2.13), which spoils the gradient of any penalty on curvature. Only the forward
    pass has to run inside. Running statistics are updated as ever. Group and RMS norm are right as they are. Norms are
    caught under every name that Python has for them, in `torch.nn.functional`, `torch` and `torch.ops.aten`; not those
    inside scripted modules.

    Example:
        >>> with DecomposedNorms():
        ...     outputs = model(inputs)
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        """The plain twin of a normalisation, else the function."""
        return _TWINS.get(function, function)(*arguments, **(options or {}))


def _batch_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training and running_mean is not None and running_var is not None:
        mean, variance = _column(running_mean, input), _column(running_var, input)
        return _affine((input - mean) * torch.rsqrt(variance + eps), weight, bias)
    if input.numel() <= input.shape[1]:
        raise ValueError(f"expected more than one value per channel when training, got shape {tuple(input.shape)}")
    axes = [0, *range(2, input.dim())]
    if training:
        _update(running_mean, running_var, input, axes, momentum)
    return _affine(_standardised(input, axes, eps), weight, bias)


def _instance_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return _batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    axes = list(range(2, input.dim()))
    _update(running_mean, running_var, input, axes, momentum)
    return _affine(_standardised(input, axes, eps), weight, bias)


def _layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    result = _standardised(input, list(range(-len(normalized_shape), 0)), eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def _native_batch_norm(**given: Any) -> tuple[Tensor, Tensor, Tensor]:
    result, values = _batch_norm(**given), given["input"]
    if not given["training"]:
        return result, values.new_empty(0), values.new_empty(0)
    mean, inverse = _moments(values, [0, *range(2, values.dim())], given["eps"])
    return result, mean.flatten(), inverse.flatten()


def _native_layer_norm(**given: Any) -> tuple[Tensor, Tensor, Tensor]:
    axes = list(range(-len(given["normalized_shape"]), 0))
    return _layer_norm(**given), *_moments(given["input"], axes, given["eps"])


def _moments(values: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse spread, which the native norms give beside their values."""
    variance, mean = torch.var_mean(values, axes, correction=0, keepdim=True)
    return mean, torch.rsqrt(variance + eps)


def _standardised(values: Tensor, axes: list[int], eps: float) -> Tensor:
    centred = values - values.mean(axes, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)


@torch.no_grad()
def _update(
    running_mean: Tensor | None, running_var: Tensor | None, values: Tensor, axes: list[int], momentum: float
) -> None:
    """Running statistics are the mean over samples of the statistics over `axes`, the variance the unbiased one."""
    if running_mean is not None and running_var is not None:
        variance, mean = torch.var_mean(values, axes, correction=1)
        running_mean.lerp_(mean.reshape(-1, len(running_mean)).mean(0), momentum)
        running_var.lerp_(variance.reshape(-1, len(running_var)).mean(0), momentum)


def _affine(values: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    values = values if weight is None else values * _column(weight, values)
    return values if bias is None else values + _column(bias, values)


def _column(vector: Tensor, like: Tensor) -> Tensor:
    """One number per channel, shaped to spread over samples and space."""
    return vector.view(1, -1, *[1] * (like.dim() - 2))


def _under_all_names(name: str, twin: Callable[..., Any]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """A function of `torch` and the operators behind it, whose arguments come in an order of their own."""
    operator = getattr(torch.ops.aten, name)
    names = [argument.name for argument in operator.default._schema.arguments]

    def called(*arguments: Any, **options: Any) -> Any:
        given = dict(zip(names, arguments, strict=False)) | options
        return twin(**{key: value for key, value in given.items() if not key.startswith("cudnn")})

    return dict.fromkeys((getattr(torch, name), operator, operator.default), called)


_TWINS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.batch_norm: _batch_norm,
    functional.instance_norm: _instance_norm,
    functional.layer_norm: _layer_norm,
    **_under_all_names("batch_norm", _batch_norm),
    **_under_all_names("instance_norm", _instance_norm),
    **_under_all_names("layer_norm", _layer_norm),
    **_under_all_names("native_batch_norm", _native_batch_norm),
    **_under_all_names("native_layer_norm", _native_layer_norm),
}
